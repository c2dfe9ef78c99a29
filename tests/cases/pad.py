"""Cases of `onnx2nn/ops/pad.py`."""

import numpy as np

from tests.cases import case, f32, i64, of

_TEXT = np.array([["a", "bc"], ["d", "é"]], dtype=object)
_MODES = ("constant", "edge", "reflect", "wrap")


def _since(mode: str) -> int:
    return 19 if mode == "wrap" else 1


CASES = [
    *(
        case(
            "Pad", f32(2, 3, 4, 5), i64(*pads), mode=mode, constant=constant, note=f"{mode} {pads}", since=_since(mode)
        )
        for mode in _MODES
        for pads in ((0, 0, 1, 2, 0, 0, 2, 1), (1, 0, 0, 2, 0, 2, 1, 0), (0, 0, 0, 0, 0, 0, 0, 0))
        for constant in ((1,), ())
    ),
    case("Pad", f32(2, 3, 4, 5), i64(0, 0, -1, 2, 0, 0, 2, -2), constant=(1,), note="negative"),
    case("Pad", f32(2, 3, 4, 5), i64(0, 0, 1, 2, 0, 0, 2, 1), np.float32(1.5), constant=(1, 2), note="value"),
    case("Pad", f32(2, 3), i64(0, 2, 0, 1), np.float32(1.5), since=11, note="all at run time"),
    case(
        "Pad",
        np.float32([[1, 2]]),
        paddings=[0, 1, 1, 0],
        value=3.0,
        until=1,
        expected=[np.float32([[3, 1, 2], [3, 3, 3]])],
        why="by hand",
    ),
    case("Pad", of(np.int64, 2, 3), i64(0, 2, 0, 1), np.int64(7), since=11, constant=(1, 2), note="int64"),
    case(
        "Pad",
        of(np.bool_, 2, 3, low=0, high=2),
        i64(0, 2, 0, 1),
        np.bool_(True),
        since=13,
        constant=(1, 2),
        note="bool",
    ),
    case("Pad", of(np.uint64, 2, 3, low=0), i64(0, 2, 0, 1), since=13, constant=(1,), note="uint64"),
    case("Pad", of(np.int32, 2, 3), i64(1, 1, 1, 1), mode="edge", since=13, constant=(1,), note="int32 edge"),
    case("Pad", f32(2, 3, 4), i64(1, 2), None, i64(-1), constant=(1, 3), since=18, note="axes"),
    case(
        "Pad",
        f32(2, 3, 4),
        i64(1, 0, 2, 1),
        None,
        i64(2, 0),
        mode="reflect",
        constant=(1, 3),
        since=18,
        note="axes, reflect",
    ),
    case("Pad", f32(2, 3, 4), i64(1, 2), None, np.int32([1]), since=18, note="axes at run time"),
    case("Pad", f32(2, 3), i64(5, 7, 4, 8), mode="wrap", constant=(1,), since=19, note="more than once around"),
    case("CenterCropPad", f32(5, 8, 3), i64(3, 8, 6), constant=(1,)),
    case("CenterCropPad", f32(5, 8, 3), i64(4, 6), axes=[-1, 0], constant=(1,)),
    case("CenterCropPad", f32(5, 8, 3), i64(10, 9), axes=[1, 0], note="shape at run time"),
]
