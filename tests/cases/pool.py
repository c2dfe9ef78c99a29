"""Cases of `onnx2nn/ops/pool.py`."""

import itertools

import numpy as np

from tests.cases import case, f32, of

CASES = [
    case("MaxPool", f32(1, 2, 8, 8), kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 2], strides=[2, 2], pads=[0, 1, 1, 0]),
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[2, 2, 2, 2]),
    case("MaxPool", of(np.int8, 1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[2, 0, 1, 2]),
    case("MaxPool", of(np.uint8, 1, 2, 9, 8, low=0, high=200), kernel_shape=[3, 3], strides=[2, 2], pads=[2, 0, 1, 2]),
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
    case("GlobalAveragePool", f32(1, 3, 5, 4)),
    case("GlobalAveragePool", f32(1, 3, 5)),
    case("GlobalAveragePool", f32(1, 3, 5, 4, 2)),
    case("GlobalMaxPool", f32(1, 3, 5, 4)),
    case("GlobalMaxPool", f32(1, 3, 5)),
]  # fmt: skip

CASES += [
    case("MaxPool", f32(1, 1, size, 7), kernel_shape=[kernel, 2], strides=[stride, 2], pads=pads, ceil_mode=1, outputs=2)
    for size, kernel, stride, pads in itertools.product((6, 7), (2, 3), (2, 3, 4), ([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]))
]
CASES += [
    case("AveragePool", f32(1, 1, size, 7), kernel_shape=[kernel, 2], strides=[stride, 2], pads=pads, ceil_mode=1, count_include_pad=count)
    for size, kernel, stride, pads, count in itertools.product(
        (6, 7), (2, 3), (2, 3, 4), ([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]), (0, 1)
    )
]
