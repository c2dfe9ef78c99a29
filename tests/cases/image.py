"""Cases of `onnx2nn/ops/image.py`."""

import itertools

import numpy as np

from tests.cases import case, f32, i64, of

grid = np.random.default_rng(0).uniform(-1.3, 1.3, (2, 3, 5, 2)).astype(np.float32)
CASES = [
    case("GridSample", f32(2, 3, 4, 6), grid, mode=mode, padding_mode=padding, align_corners=align, since=20)
    for mode, padding, align in itertools.product(
        ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    )
    if mode != "cubic" or align == (padding == "reflection")  # a slow import
]
halves = np.stack(
    [
        np.broadcast_to((2 * np.arange(-9, 15, 0.5, np.float32)[np.newaxis] + 1) / size - 1, (2, 3, 48))
        for size in (8, 4)  # powers of two, so that the places between elements are exact
    ],
    -1,
).astype(np.float32)
CASES += [
    case("GridSample", f32(2, 3, 4, 8), halves, mode="nearest", padding_mode=padding, align_corners=align, since=20)
    for padding, align in itertools.product(("zeros", "border", "reflection"), (0, 1))
]
CASES += [
    case("GridSample", f32(2, 3, 4, 6), grid, mode=mode, align_corners=1, until=19) for mode in ("bilinear", "bicubic")
]
CASES += [
    case("GridSample", f32(1, 2, 4, 5, 6), of(np.float32, 1, 2, 3, 4, 3, low=-1.2, high=1.2), mode=mode)
    for mode in ("linear", "nearest")
]
CASES += [
    case("AffineGrid", f32(2, 2, 3), i64(2, 3, 5, 6), constant=(1,)),
    case("AffineGrid", f32(2, 2, 3), i64(2, 3, 5, 6), align_corners=1),
    case("AffineGrid", f32(2, 3, 4), i64(2, 3, 4, 5, 6), constant=(1,)),
]


def boxes(rng: np.random.Generator) -> np.ndarray:
    """Boxes of random corners, some flipped."""
    first = rng.uniform(0, 1, (2, 40, 2))
    return np.concatenate([first, first + rng.uniform(-0.3, 0.3, (2, 40, 2))], 2).astype(np.float32)


def number(value: float, dtype: type = np.float32) -> np.ndarray:
    return np.array([value], dtype=dtype)


marks = of(np.float32, 2, 3, 40, low=0, high=1)
ties = (np.arange(240).reshape(2, 3, 40) % 5 / 5).astype(np.float32)
CASES += [
    case("NonMaxSuppression", boxes, marks, number(10, np.int64), number(0.3), number(0.4)),
    case("NonMaxSuppression", boxes, marks, number(10, np.int64), number(0.3), number(0.4), constant=(2, 3, 4)),
    case("NonMaxSuppression", boxes, ties, number(100, np.int64), number(0.1), number(0.4)),
    case("NonMaxSuppression", boxes, marks, number(100, np.int64)),
    case("NonMaxSuppression", boxes, marks, number(0, np.int64), number(0.3)),
    case("NonMaxSuppression", boxes, marks),
    case(
        "NonMaxSuppression",
        of(np.float32, 2, 40, 4, low=0.1, high=1),
        marks,
        number(7, np.int64),
        number(0.2),
        center_point_box=1,
    ),
]
