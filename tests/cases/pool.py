"""Cases of `onnx2nn/ops/pool.py`."""

import itertools

import numpy as np

from tests.cases import case, f32, i64, of

boxes = np.array([[1, 2, 17.5, 20], [0, 0, 3, 3.3], [-4, 5, 30, 40]], np.float32)

CASES = [
    case("MaxPool", f32(1, 2, 8, 8), kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 2], strides=[2, 2], pads=[0, 1, 1, 0]),
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[2, 2, 2, 2]),
    case("MaxPool", of(np.int8, 1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[2, 0, 1, 2]),
    case("MaxPool", of(np.uint8, 1, 2, 9, 8, low=0, high=200), kernel_shape=[3, 3], strides=[2, 2], pads=[2, 0, 1, 2]),
    case("MaxPool", of(np.int8, 1, 2, 300), kernel_shape=[3], strides=[2]),
    case("MaxPool", of(np.uint8, 1, 2, 9, 8, low=0, high=200), kernel_shape=[3, 3], outputs=2),
    case("MaxPool", np.zeros((1, 1, 3), np.uint8), kernel_shape=[2], pads=[1, 0], outputs=2, note="bytes as low as a pad"),
    case("MaxPool", of(np.float16, 1, 2, 9, 8), kernel_shape=[3, 3]),
    case("MaxPool", of(np.float64, 1, 2, 9, 8), kernel_shape=[3, 3], pads=[0, 0, 1, 1], since=8),
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 2], strides=[2, 3], auto_pad="SAME_LOWER", ceil_mode=1),
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], auto_pad="VALID"),
    case("MaxPool", f32(1, 2, 10, 8), kernel_shape=[3, 3], strides=[2, 3], dilations=[2, 3], pads=[1, 0, 1, 1]),
    case("MaxPool", f32(1, 2, 12), kernel_shape=[3], strides=[2], pads=[1, 1]),
    case("MaxPool", f32(1, 2, 5, 6, 7), kernel_shape=[2, 3, 2], strides=[2, 1, 2], pads=[0, 1, 1, 0, 1, 0]),
    case("MaxPool", f32(2, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], outputs=2, since=8),
    case("MaxPool", f32(2, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[2, 1, 0, 2], outputs=2, since=8),
    case("MaxPool", f32(2, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], storage_order=1, outputs=2, since=8),
    case("MaxPool", f32(2, 2, 9), kernel_shape=[3], strides=[2], pads=[2, 1], outputs=2, since=8),
    case("MaxPool", f32(2, 2, 5, 6, 7), kernel_shape=[2, 2, 2], strides=[2, 2, 2], outputs=2, since=8),
    case("MaxPool", f32(2, 2, 5, 6, 7), kernel_shape=[2, 2, 2], storage_order=1, pads=[1, 0, 0, 1, 1, 0], outputs=2, since=8),
    case("AveragePool", f32(1, 2, 8, 8), kernel_shape=[2, 2], strides=[2, 2]),
    case("AveragePool", f32(1, 2, 8, 8), kernel_shape=[3, 3], pads=[1, 1, 1, 1], since=7),
    case("AveragePool", f32(1, 2, 8, 8), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1, since=7),
    case("AveragePool", f32(1, 2, 8, 8), kernel_shape=[3, 3], pads=[1, 0, 2, 1], since=7),
    case("AveragePool", f32(1, 2, 8, 8), kernel_shape=[3, 3], pads=[1, 0, 2, 1], count_include_pad=1, since=7),
    case("AveragePool", f32(1, 2, 8, 8), kernel_shape=[3, 3], pads=[2, 2, 2, 2], since=7),
    case("AveragePool", f32(1, 2, 9), kernel_shape=[3], pads=[1, 1], strides=[2], since=7),
    case("AveragePool", f32(1, 2, 5, 6, 7), kernel_shape=[3, 2, 3], pads=[1, 0, 1, 1, 1, 1], strides=[2, 1, 2], since=7),
    case("AveragePool", f32(1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER", since=7),
    case("AveragePool", f32(1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER", since=7),
    case("AveragePool", f32(1, 2, 9, 8), kernel_shape=[3, 2], auto_pad="SAME_LOWER", count_include_pad=1, since=7),
    case("AveragePool", f32(1, 2, 9, 8), kernel_shape=[2, 2], dilations=[2, 3]),
    case("AveragePool", f32(1, 2, 9, 8), kernel_shape=[2, 2], dilations=[2, 3], pads=[1, 1, 1, 1], strides=[2, 1], since=7),
    case("AveragePool", f32(1, 2, 9, 8), kernel_shape=[3, 2], dilations=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1, since=7),
    case("AveragePool", f32(1, 2, 9, 8), kernel_shape=[3, 2], dilations=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1, strides=[2, 2], since=7),
    case("GlobalLpPool", f32(1, 3, 5, 4)),
    case("GlobalLpPool", f32(1, 3, 5), p=3),
    case("LpPool", f32(1, 2, 8, 7), kernel_shape=[2, 3]),
    case("LpPool", f32(1, 2, 8, 7), kernel_shape=[3, 3], p=1, pads=[1, 0, 1, 2], strides=[2, 2]),
    case("LpPool", f32(1, 2, 8, 7), kernel_shape=[3, 2], p=3, auto_pad="SAME_UPPER", strides=[2, 2]),
    case("LpPool", f32(1, 2, 9, 8), kernel_shape=[2, 2], dilations=[2, 3], ceil_mode=1, strides=[2, 2]),
    case("LpPool", f32(1, 2, 9), kernel_shape=[3]),
    case("MaxUnpool", f32(1, 1, 2, 2), i64(5, 7, 13, 15).reshape(1, 1, 2, 2), kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxUnpool", f32(1, 1, 2, 2), i64(5, 7, 13, 15).reshape(1, 1, 2, 2), i64(1, 1, 4, 4), kernel_shape=[2, 2], strides=[2, 2], constant=(2,)),
    *(
        case("RoiAlign", f32(1, 2, *size), np.float32([roi]), i64(0), mode=mode, output_height=down, output_width=across,
             sampling_ratio=2, spatial_scale=scale, coordinate_transformation_mode=transformation, since=16,
             note=f"samples a last bit beside the border, {transformation}")
        for size, roi, (down, across), scale, transformation in (
            ((4, 7), [12, 8.000000953674316, 12, 40], (3, 4), 0.125, "output_half_pixel"),
            ((5, 4), [3.000000238418579, 0, 11, 6.000000476837158], (4, 3), 0.5, "half_pixel"),
        )
        for mode in ("avg", "max")
    ),
    case("MaxRoiPool", f32(2, 3, 12, 10), np.array([[0, 1, 2, 7, 8], [1, 0, 0, 3, 3], [1, 4, 5, 30, 40]], np.float32), pooled_shape=[3, 2]),
    case("MaxRoiPool", f32(2, 3, 12, 10), np.array([[0, 1, 2, 7, 8], [1, 0, 0, 3, 3]], np.float32), pooled_shape=[5, 5], spatial_scale=0.5),
    case("MaxRoiPool", f32(1, 2, 6, 6), np.array([[0, -1, -3, 9, 9], [0, -5, -1, 7, 3]], np.float32), pooled_shape=[3, 3], spatial_scale=0.5),
    case("MaxRoiPool", f32(1, 2, 6, 6), np.array([[0, 0, 1, 2, 3]], np.float32), pooled_shape=[21, 11]),
    *[
        case("RoiAlign", f32(2, 3, 12, 10), boxes, i64(0, 1, 1), mode=mode, sampling_ratio=ratio, output_height=3, output_width=2, spatial_scale=0.5, **half)
        for mode in ("avg", "max")
        for ratio in (0, 2)
        for half in ({}, {"coordinate_transformation_mode": "output_half_pixel"})
    ],
    case("GlobalAveragePool", f32(1, 3, 5, 4)),
    case("GlobalAveragePool", f32(1, 3, 5)),
    case("GlobalAveragePool", f32(1, 3, 5, 4, 2)),
    case("GlobalAveragePool", f32(1, 2, 2, 3, 2, 2)),
    *[
        case("GlobalAveragePool", of(dtype, *shape))
        for shape in ((2, 3, 5), (2, 3, 5, 4), (2, 3, 4, 3, 2), (0, 3, 5), (0, 3, 4, 3, 2))
        for dtype in (np.float64, np.float16)
    ],
    case("GlobalMaxPool", f32(1, 3, 5, 4)),
    case("GlobalMaxPool", f32(1, 3, 5)),
]  # fmt: skip

CASES += [
    case(
        "MaxPool", f32(1, 1, size, 7), kernel_shape=[kernel, 2], strides=[stride, 2], pads=pads, ceil_mode=1, outputs=2
    )
    for size, kernel, stride, pads in itertools.product(
        (6, 7), (2, 3), (2, 3, 4), ([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0])
    )
]
CASES += [
    case(
        "AveragePool",
        f32(1, 1, size, 7),
        kernel_shape=[kernel, 2],
        strides=[stride, 2],
        pads=pads,
        ceil_mode=1,
        count_include_pad=count,
    )
    for size, kernel, stride, pads, count in itertools.product(
        (6, 7), (2, 3), (2, 3, 4), ([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]), (0, 1)
    )
]
