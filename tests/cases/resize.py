"""Cases of `onnx2nn/ops/resize.py`."""

import itertools

import numpy as np

from tests.cases import case, f32, i64, of


def scales(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


MODES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]

CASES = [
    case("Resize", f32(1, 2, 4, 5), None, scales(1, 1, 2, 2), constant=(2,), mode="nearest"),
    case("Resize", f32(1, 2, 4, 5), None, scales(1, 1, 2, 3), constant=(2,), coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    case("Resize", f32(1, 2, 4, 5), None, scales(1, 1, 2, 3), coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    case("Resize", f32(1, 2, 4, 5), None, None, i64(1, 2, 7, 3), constant=(3,)),
    case("Resize", f32(1, 2, 4, 5), None, None, i64(1, 2, 7, 3)),
    case("Resize", f32(1, 2, 4, 5), scales(), scales(), i64(1, 2, 8, 10), constant=(1, 2, 3), coordinate_transformation_mode="tf_half_pixel_for_nn", until=12),
    case("Resize", f32(1, 4, 5, 2), None, scales(1, 2, 2.5, 1), constant=(2,), mode="linear"),
    case("Resize", f32(2, 3, 7), None, scales(1, 1, 2.5), constant=(2,), mode="linear"),
    case("Resize", f32(1, 2, 3, 4, 3), None, scales(1, 1, 2, 1.5, 2), constant=(2,), mode="linear"),
    case("Resize", f32(4, 5), None, scales(2, 1.3), constant=(2,), mode="linear"),
    case("Resize", f32(4, 5), None, scales(2, 1.3), constant=(2,), mode="cubic"),
    case("Resize", f32(1, 2, 6, 5), None, None, i64(1, 2, 1, 1), constant=(3,), mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
    case("Resize", f32(1, 2, 6, 5), None, None, i64(1, 2, 1, 4), constant=(3,), mode="linear", coordinate_transformation_mode="align_corners"),
    case("Resize", f32(1, 2, 6, 7), scales(0, 0, 0.2, 0.3, 1, 1, 0.7, 0.9), None, i64(1, 2, 4, 5), constant=(1, 3), mode="linear", coordinate_transformation_mode="tf_crop_and_resize"),
    case("Resize", f32(1, 2, 6, 7), scales(0, 0, -0.2, 0.3, 1, 1, 0.7, 1.9), None, i64(1, 2, 4, 5), constant=(1, 3), mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=10.0),
    case("Resize", f32(1, 2, 6, 7), scales(0, 0, 0.2, 0.3, 1, 1, 0.7, 0.9), None, i64(1, 2, 4, 5), constant=(1, 3), coordinate_transformation_mode="tf_crop_and_resize"),
    case("Resize", f32(1, 2, 6, 7), scales(0, 0, 0.2, 0.3, 1, 1, 0.7, 0.9), scales(1, 1, 0.8, 0.8), constant=(1, 2), mode="cubic", coordinate_transformation_mode="tf_crop_and_resize"),
    case("Resize", f32(1, 2, 6, 7), scales(0.2, 0.3, 0.7, 0.9), None, i64(4, 5), constant=(1, 3), axes=[2, 3], mode="linear", coordinate_transformation_mode="tf_crop_and_resize"),
    case("Resize", f32(1, 2, 6, 7), None, None, i64(10, 9), constant=(3,), axes=[3, 2], mode="linear"),
    case("Resize", f32(1, 2, 6, 7), None, scales(0.5, 2), constant=(2,), axes=[-1, -2], mode="nearest"),
    *[case("Resize", f32(1, 2, 6, 7), None, None, i64(9, 9), constant=(3,), axes=[2, 3], mode=mode, keep_aspect_ratio_policy=policy) for mode in ("nearest", "linear", "cubic") for policy in ("not_larger", "not_smaller")],
    case("Resize", f32(1, 2, 6, 7), None, scales(1, 1, 1.6, 0.7), constant=(2,), mode="cubic", cubic_coeff_a=-0.5),
    case("Resize", f32(1, 2, 6, 7), None, scales(1, 1, 1.6, 0.7), constant=(2,), mode="cubic", exclude_outside=1),
    case("Resize", f32(1, 2, 6, 7), None, scales(1, 1, 1.6, 0.7), constant=(2,), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
    *[case("Resize", f32(1, 2, 9, 8), None, scales(1, 1, h, w), constant=(2,), mode=mode, antialias=1, exclude_outside=outside) for mode in ("linear", "cubic") for h, w in ((0.6, 0.4), (1.7, 0.5)) for outside in (0, 1)],
    case("Resize", of(np.uint8, 1, 2, 4, 5, low=0, high=255), None, scales(1, 1, 2, 1.5), constant=(2,), mode="linear"),
    *[case("Resize", of(dtype, 1, 2, 9, 8, low=0, high=high), None, scales(1, 1, h, w), constant=(2,), mode=mode, antialias=1, exclude_outside=outside, note=f"{np.dtype(dtype)} {h} {w}") for dtype, high in ((np.uint8, 255), (np.int8, 127), (np.int32, 9999)) for mode in ("linear", "cubic") for h, w in ((0.6, 0.4), (1.7, 0.5)) for outside in (0, 1) if dtype != np.int8 or mode == "linear"],
    *[case("Resize", np.tile(dtype([low, low, low, high, high, high, 50, 50]).reshape(1, 1, 8, 1), (1, 6, 1, 2)), None, scales(1, 1, 2, 1), constant=(2,), mode="cubic", until=24, note=f"{np.dtype(dtype)} overshoots") for dtype, low, high in ((np.uint8, 0, 255), (np.int8, 0, 127))],
    case("Resize", np.full((1, 1, 9, 8), 78, np.uint8), None, scales(1, 1, 0.6, 1.7), constant=(2,), mode="cubic", antialias=1, note="one number"),
    case("Resize", of(np.int32, 1, 2, 4, 5), None, scales(1, 1, 2, 1.5), constant=(2,), mode="linear"),
    case("Resize", of(np.uint8, 1, 2, 4, 5, low=0, high=255), None, scales(1, 1, 2, 1.5), constant=(2,)),
    case("Resize", of(np.float16, 1, 2, 4, 5), None, scales(1, 1, 2, 1.5), constant=(2,), mode="linear", tolerance=2e-3),
    case("Upsample", f32(1, 2, 4, 5), scales(1, 1, 2, 3), constant=(1,)),
    case("Upsample", f32(1, 2, 4, 5), scales(1, 1, 2, 3), constant=(1,), mode="linear"),
    case("Upsample", f32(1, 2, 4, 5), scales(1, 1, 1.5, 2.6), constant=(1,), mode="linear"),
    case("Upsample", f32(1, 2, 4, 5), scales(1, 1, 1.5, 2.6), constant=(1,)),
    case("Upsample", f32(1, 2, 4, 5), scales(1, 1, 2, 2)),
    case("Upsample", f32(1, 2, 4, 5), height_scale=2.0, width_scale=3.0, until=6),
    case("Upsample", np.float32([[[[1, 2]]]]), height_scale=2.0, width_scale=3.0, until=6, expected=[np.float32([[[[1, 1, 1, 2, 2, 2]] * 2]])], why="nearest, by hand"),
    case("Upsample", f32(1, 2, 4, 5), height_scale=2.0, width_scale=1.5, mode="bilinear", until=6),
    case("Resize", f32(1, 2, 6, 9), scales(1, 1, 0.5, 0.6), constant=(1,), until=10),
    case("Resize", f32(1, 2, 6, 9), scales(1, 1, 0.5, 2), constant=(1,), mode="linear", until=10),
]  # fmt: skip

CASES += [
    case(
        "Resize",
        f32(1, 2, 6, 7),
        scales(),
        scales(1, 1, h, w),
        constant=(1, 2),
        mode=mode,
        coordinate_transformation_mode=t,
    )
    for mode, t, (h, w) in itertools.product(("linear", "cubic"), MODES, ((2, 3), (1.6, 2.3), (0.6, 0.5)))
    if t != "align_corners" or h == 2
]
CASES += [
    case(
        "Resize",
        f32(1, 2, 6, 7),
        scales(),
        scales(),
        i64(1, 2, h, w),
        constant=(1, 2, 3),
        mode=mode,
        coordinate_transformation_mode=t,
    )
    for mode, t, (h, w) in itertools.product(("linear", "cubic"), MODES, ((12, 21), (4, 9)))
]
CASES += [
    case(
        "Resize",
        f32(1, 2, 6, 7),
        scales(),
        scales(1, 1, h, w),
        constant=(1, 2),
        nearest_mode=n,
        coordinate_transformation_mode=t,
    )
    for n, t, (h, w) in itertools.product(NEAREST, MODES, ((2, 3), (1.5, 2.3), (0.5, 0.6)))
    if t != "align_corners" or h == 2
]
