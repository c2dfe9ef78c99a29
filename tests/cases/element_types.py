"""Operators in element types that torch has no kernel for."""

from __future__ import annotations

import numpy as np

from tests.cases import case, f32, i64, of

_UNSIGNED = (np.uint16, np.uint32, np.uint64)
_BLOCKS = np.random.default_rng(0).integers(-(2**62), 2**62, (1, 12, 12))
_FOLD = dict(constant=(1, 2), since=18)
_GRID = of(np.float32, 1, 3, 3, 2, low=-1.2, high=1.2)
_IMAGE = np.random.default_rng(0).integers(-100, 100, (1, 2, 4, 5))
_HALF = dict(tolerance=2e-3)

CASES = [
    *(
        case(operator, np.array([[7, 65535, 0], [65535, 2, 3]]).astype(dtype), axis=axis, since=13, note=f"{np.dtype(dtype)} {axis}")
        for operator in ("ArgMax", "ArgMin") for dtype in _UNSIGNED for axis in (0, 1)
    ),
    case("ArgMax", np.array([1, 2**64 - 1, 2**63], np.uint64), axis=0, since=13, note="uint64, all bits"),
    *(case("PRelu", of(dtype, 2, 3, low=0, high=9), of(dtype, 3, low=0, high=9), since=16, note=str(np.dtype(dtype))) for dtype in _UNSIGNED[1:]),
    *(
        case("Einsum", of(dtype, 2, 3, low=0, high=99), of(dtype, 3, 4, low=0, high=99), equation="ij,jk->ik", since=12, note=str(np.dtype(dtype)))
        for dtype in _UNSIGNED
    ),
    *(
        case("Col2Im", _BLOCKS.astype(dtype), i64(5, 5), i64(2, 3), note=str(np.dtype(dtype)), **_FOLD)
        for dtype in (np.int8, np.uint16, np.int32, np.int64, np.uint64)
    ),
    *(
        case("GridSample", _IMAGE.astype(dtype), _GRID, mode="nearest", padding_mode="border", since=20, note=f"nearest, {np.dtype(dtype)}")
        for dtype in (np.int8, np.uint16, np.int32, np.bool_)
    ),
    case("GridSample", of(np.float16, 1, 2, 40, 50), _GRID, mode="nearest", since=20, note="nearest, float16 at places of float32"),
    *(case("CumSum", of(dtype, 3, 4, low=0, high=99), np.array(1), reverse=1, exclusive=1, constant=(1,), since=14, note=f"reverse, {np.dtype(dtype)}")
      for dtype in (np.uint32, np.uint64)),
    *(
        case("ScatterElements", np.array([1, 2**63 + 5, 3], dtype), i64(0, 1, 1), np.array([7, 2, 3], dtype), reduction=reduction,
             since=18, note=f"{reduction}, {np.dtype(dtype)}")
        for dtype in (np.uint64,) for reduction in ("add", "mul", "max", "min")
    ),
    case("ScatterND", np.array([1, 2**63 + 5, 3], np.uint64), np.array([[0], [1], [2]]), np.array([7, 2, 3], np.uint64),
         reduction="add", since=18, note="add, uint64"),
    *(case("Compress", np.array([4, 5, 6], dtype), np.array([True, False, True]), since=28, note=str(np.dtype(dtype))) for dtype in _UNSIGNED),
    *(case("Unique", np.array([4, 2, 4, 1], dtype), sorted=0, outputs=4, note=f"unsorted, {np.dtype(dtype)}") for dtype in _UNSIGNED),
    *(case("Pad", np.array([4, 5, 6], np.uint64), i64(1, 2), constant=(1,), mode=mode, since=13, note=f"{mode}, uint64")
      for mode in ("edge", "reflect")),
    case("Det", of(np.float16, 2, 3, 3), note="float16", since=22, **_HALF),
    case("LRN", of(np.float16, 2, 5, 4, 3), size=3, since=13, note="float16", **_HALF),
    case("RoiAlign", of(np.float16, 1, 2, 6, 6), np.float16([[1, 1, 4, 4], [0, 2, 5, 5]]), i64(0, 0), output_height=2,
         output_width=2, sampling_ratio=2, since=16, note="float16", **_HALF),
    case("BatchNormalization", of(np.float64, 2, 3, 4), f32(3), f32(3), f32(3), of(np.float32, 3, low=1, high=2), since=15,
         note="float64 with parameters of float32"),
    case("Attention", f32(1, 2, 3, 4), f32(1, 2, 5, 4), of(np.float16, 1, 2, 5, 4), since=23, note="values of float16"),
]  # fmt: skip
