"""Cases of `onnx2nn/ops/indexing.py`."""

import numpy as np

from tests.cases import case, f32, i64, of

_TEXT = np.array([["a", "bc", ""], ["d", "e", "é"]], dtype=object)
_MAX = np.iinfo(np.int64).max
_MIN = np.iinfo(np.int64).min


def _ints(*rows: object) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


CASES = [
    case("Gather", f32(4, 3), _ints([0, 2], [1, 3]), note="indices at run time"),
    case("Gather", f32(4, 3), _ints([0, -2], [1, -1]), note="negative", since=11),
    case("Gather", f32(4, 3), _ints([0, 2], [1, 3]), constant=(0,), note="embedding"),
    case("Gather", f32(4, 3), np.int32([0, 2]), constant=(0,), note="embedding, int32"),
    case("Gather", f32(2, 3, 4), _ints(0, 2), axis=1, constant=(1,)),
    case("Gather", f32(2, 3, 4), np.int64(2), axis=1, constant=(1,), note="one index"),
    case("Gather", f32(2, 3, 4), np.int64(-1), axis=-2, constant=(1,), note="last", since=11),
    case("Gather", f32(2, 3, 4), np.int64(1), axis=2, note="one index at run time"),
    case("Gather", f32(4), np.int64(1), note="from a vector"),
    case("Gather", _TEXT, _ints(1, 0), axis=1, note="strings"),
    case("Gather", of(np.uint16, 4, 3, low=0), _ints(1, 0), note="uint16"),
    case("GatherElements", f32(3, 3), _ints([0, 1, 2], [2, -1, 0]), axis=1),
    case("GatherElements", f32(3, 3), _ints([-1, 1, 2]), constant=(1,)),
    case("GatherElements", of(np.uint16, 3, 3, low=0), _ints([0, 1, 2]), note="uint16"),
    case("GatherElements", _TEXT, _ints([0, 1, 1]), note="strings"),
    case("GatherND", f32(2, 3, 4), _ints([0, 1], [1, -1])),
    case("GatherND", f32(2, 3, 4), _ints([0, 1], [1, 2]), constant=(1,)),
    case("GatherND", f32(2, 3, 4), _ints([[0, 1, 1]], [[1, 2, 3]]), note="single elements"),
    case("GatherND", f32(2, 3, 4), _ints(1, -1), note="one index"),
    case("GatherND", f32(2, 3), _ints(1, 2), constant=(1,), note="one element"),
    case("GatherND", _TEXT, _ints(0), note="one index of strings"),
    case("GatherND", f32(2, 3), np.zeros((4, 0), np.int64), note="no coordinates"),
    case("GatherND", f32(2, 3), np.zeros(0, np.int64), note="an index without coordinates"),
    case("GatherND", _TEXT, np.zeros((4, 0), np.int64), note="no coordinates for strings"),
    case("GatherND", f32(2, 3, 4), _ints([1], [2]), batch_dims=1),
    case("GatherND", f32(2, 3, 4), _ints([[1], [0], [2]], [[0], [3], [-1]]), batch_dims=2),
    case("GatherND", _TEXT, _ints([1, 2], [0, 0]), note="strings"),
    case("Scatter", f32(3, 3), _ints([1, 0, 2], [0, 2, 1]), f32(2, 3), until=10),
    case("ScatterElements", f32(3, 3), _ints([1, 0, 2], [0, 2, -2]), f32(2, 3)),
    case("ScatterElements", f32(2, 5), _ints([1, 3]), f32(1, 2), axis=1, constant=(1,)),
    case("ScatterElements", _TEXT, _ints([1, 0, 1]), np.array([["x", "y", "z"]], dtype=object), note="strings"),
    *(
        case(
            "ScatterElements",
            of(kind, 1, 5),
            _ints([1, 1, -2]),
            of(kind, 1, 3),
            axis=1,
            reduction=how,
            note=f"{how} {kind.__name__}",
            since=18 if how in ("max", "min") else 16,
        )
        for how in ("add", "mul", "max", "min")
        for kind in (np.float32, np.int64, np.float16)
    ),
    case(
        "ScatterElements",
        of(np.uint64, 1, 5, low=0),
        _ints([1, 1]),
        of(np.uint64, 1, 2, low=0),
        axis=1,
        reduction="max",
        since=18,
        note="uint64",
    ),
    case("ScatterND", f32(4, 3), _ints([1], [-1]), f32(2, 3)),
    case("ScatterND", f32(4, 3), _ints([1, 2], [3, 0]), f32(2), constant=(1,)),
    case("ScatterND", of(np.uint16, 4, 3, low=0), _ints([1], [3]), of(np.uint16, 2, 3, low=0), note="uint16"),
    case("ScatterND", _TEXT, _ints([1, 0]), np.array(["x"], dtype=object), note="strings"),
    *(
        case(
            "ScatterND",
            of(np.float32, 4, 3),
            _ints([1], [1], [-1]),
            of(np.float32, 3, 3),
            reduction=how,
            note=how,
            since=18 if how in ("max", "min") else 16,
        )
        for how in ("add", "mul", "max", "min")
    ),
    case(
        "ScatterND",
        of(np.int64, 2, 2, 3),
        _ints([[1, 0], [1, 0]], [[0, 1], [0, -2]]),
        of(np.int64, 2, 2, 3),
        reduction="add",
        since=16,
        note="nested",
    ),
    case("TensorScatter", f32(2, 3, 5, 4), f32(2, 3, 2, 4), i64(1, 3), constant=(2,)),
    case("TensorScatter", f32(2, 5, 4), f32(2, 2, 4), i64(1, 4), mode="circular"),
    case("TensorScatter", f32(2, 5, 4), f32(2, 2, 4), axis=1, note="no indices"),
    case("Slice", f32(4, 5, 6), i64(1, 0), i64(3, 4), constant=(1, 2)),
    case("Slice", f32(4, 5, 6), i64(1), i64(_MAX), i64(2), constant=(1, 2, 3), note="to the end"),
    case("Slice", f32(4, 5, 6), i64(-3, 1), i64(-1, 100), i64(-1, 0), constant=(1, 2, 3), since=10, note="negative"),
    case("Slice", f32(4, 5, 6), i64(-100), i64(2), i64(1), constant=(1, 2, 3), note="start before the front"),
    case("Slice", f32(4, 5, 6), i64(4), i64(2), i64(1), constant=(1, 2, 3), note="empty"),
    case("Slice", f32(4, 5, 6), i64(0), i64(6), i64(2), i64(2), constant=(1, 2, 3, 4), note="step 2"),
    *(
        case(
            "Slice",
            f32(4, 5, 6),
            i64(start),
            i64(end),
            i64(1),
            i64(step),
            constant=constant,
            note=f"{start}:{end}:{step}",
        )
        for start, end, step in (
            (-1, _MIN, -1),
            (4, 0, -1),
            (-2, -5, -2),
            (100, 1, -3),
            (3, -100, -2),
            (0, -100, -1),
            (1, 3, -1),
            (-9, -99, -1),
            (-1, -1 << 31, -1),
            (2, 9, -1),
        )
        for constant in ((1, 2, 3, 4), ())
    ),
    case("Slice", f32(4, 5, 6), i64(1), i64(3), i64(1), note="at run time", since=10),
    case(
        "Slice", f32(4, 5, 6), np.int32([1]), np.int32([3]), np.int32([1]), constant=(1, 2, 3), note="int32", since=10
    ),
    case("Slice", _TEXT, i64(2), i64(-9), i64(1), i64(-1), constant=(1, 2, 3, 4), note="strings"),
    case("Where", of(np.bool_, 2, 1, low=0, high=2), f32(2, 3), f32(3)),
    case("Where", of(np.bool_, 2, 3, low=0, high=2), f32(2, 3), np.float32(-1e4), constant=(2,)),
    case("Where", of(np.bool_, 2, 3, low=0, high=2), _TEXT, np.array("x", dtype=object), note="strings"),
    case(
        "Where", of(np.bool_, 2, 3, low=0, high=2), of(np.uint32, 2, 3, low=0), of(np.uint32, 3, low=0), note="uint32"
    ),
    case("OneHot", _ints(0, 3, -1, 7, -9), np.int64(4), np.float32([0, 1]), constant=(1, 2)),
    case("OneHot", _ints([0, 3], [1, 2]), np.int64(4), np.float32([2, 5]), axis=1),
    case("OneHot", np.float32([0, 3]), np.float32([4]), np.float32([2, 5]), axis=0, note="floats"),
    case("OneHot", _ints(0, 1), np.int64(3), np.array(["off", "on"], dtype=object), note="strings"),
    case("NonZero", of(np.int64, 3, 4, low=-1, high=2)),
    case("NonZero", np.float32(2), note="scalar"),
    case("NonZero", of(np.bool_, 3, 4, low=0, high=2), note="bool"),
    case("Compress", f32(3, 4), np.array([True, False, True]), axis=0),
    case("Compress", f32(3, 4), np.array([False, True]), axis=-1, since=11),
    case("Compress", f32(3, 4), np.array([False, True, True, False, True])),
    case("Compress", f32(2, 3), np.array([[False, True, True], [False, True, False]])),
    case("Compress", f32(2, 3), np.array([[False, True, True]]), axis=1),
    case("Compress", f32(2, 3), np.array(True)),
    case("TopK", f32(3, 7), i64(3), outputs=2, constant=(1,)),
    case("TopK", f32(3, 7), i64(3), outputs=2, since=10, note="K at run time"),
    case("TopK", np.float32([1, 2, 2, 1, 2]), i64(4), outputs=2, note="ties"),
    case("TopK", np.float32([1, 2, 2, 1, 2]), i64(4), outputs=2, largest=0, note="ties, smallest", since=11),
    case("TopK", of(np.int64, 3, 7), i64(2), outputs=2, axis=0, note="int64", since=11),
    *(
        case(
            "TopK",
            of(dtype, *shape, low=-9, high=9),
            i64(count),
            outputs=2,
            axis=axis,
            largest=largest,
            since=11,
            constant=(1,),
            note=f"long, {np.dtype(dtype)}, {count} largest={largest}",
        )
        for dtype, shape, count, axis, largest in ((np.int64, (2, 5000), 7, -1, 1), (np.int32, (5000, 2), 500, 0, 0))
    ),
    case(
        "TopK",
        np.round(f32(2, 5000)(np.random.default_rng(0)), 1),
        i64(300),
        outputs=2,
        constant=(1,),
        note="long, ties",
    ),
    case("TopK", f32(5000), i64(1), outputs=2, largest=0, since=11, constant=(1,), note="long, the smallest"),
    case("TopK", of(np.uint64, 3, 7, low=0), i64(2), outputs=2, axis=0, note="uint64", since=11),
    case("Unique", np.float32([2, 1, 1, 3, 4, 3]), outputs=4),
    case("Unique", np.float32([2, 1, 1, 3, 4, 3]), outputs=4, sorted=0),
    case("Unique", np.float32([2, 1, 1, 3, 4, 3]), outputs=4, axis=0, sorted=0),
    case("Unique", np.float32([[1, 0, 0], [1, 0, 0], [2, 3, 4]]), outputs=4, axis=0),
    case("Unique", np.float32([[1, 0, 0], [1, 0, 0], [2, 3, 4]]), outputs=4, axis=-1, sorted=0),
    *(
        case("Unique", np.zeros((0, 3), np.float32), outputs=4, axis=axis, note=f"empty, axis {axis}")
        for axis in (0, 1)
    ),
    case("Unique", np.array(["b", "a", "b"], dtype=object), outputs=4, note="strings"),
    case("ReverseSequence", f32(4, 3, 2), i64(4, 1, 2)),
    case("ReverseSequence", f32(3, 4), i64(4, 1, 2), batch_axis=0, time_axis=1),
]
