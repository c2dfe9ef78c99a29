"""Cases of quantisation."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.cases import case, f32, of

_X = np.array([0.5, 1.5, 2.5, -0.5, 300, 1e10, -1e10, np.inf, -np.inf, 127.5, 128.5, 3e9, 7.3], np.float32)
_NEAR_HALVES = np.float32([751.5, -751.5, 13.5, 60000, -65000])
"""Over a scale of 5.42578125, the type of the quotient decides about the steps of three of them."""
_IMAGE = of(np.uint8, 2, 4, 7, 6, low=0, high=255)
_KERNEL = of(np.int8, 6, 4, 3, 2, low=-64, high=63)
"""Seven bits: without VNNI instructions ONNX Runtime saturates sums of two products of uint8 and int8 at 16 bits."""


_LEFT = np.arange(-7, 8, dtype=np.int8).reshape(3, 5)
_RIGHT = (np.arange(20, dtype=np.int8) * 3 - 31).reshape(5, 4)
_ROWS = (_LEFT - np.array([[1], [2], [3]], np.int32)) @ _RIGHT.astype(np.int32)


def _q(value: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def _axis(*values: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def _qconv(*inputs: object, **options: object) -> object:
    return case("QLinearConv", *inputs, **options)


_CONV_SCALES = (_q(0.02), _q(128, np.uint8), _KERNEL, _axis(0.01, 0.02, 0.03, 0.04, 0.05, 0.06))

CASES = [
    *(
        case("QuantizeLinear", _X, _q(1.0), _q(zero, dtype), until=27, note=f"{np.dtype(dtype)} zero {zero}")
        for dtype in (np.uint8, np.int8, np.uint16, np.int16)
        for zero in (0, 3)
    ),
    *(
        case("QuantizeLinear", np.float32([np.nan, np.inf, -np.inf, 0, 1] * 8), _q(scale), _q(3, dtype), until=20,
             note=f"not finite, scale {scale}, {np.dtype(dtype)}")
        for scale in (0.1, np.inf)  # what calibration makes of a mask of -inf
        for dtype in (np.uint8, np.int8)
    ),
    case("QuantizeLinear", f32(3, 5), _q(0.1), note="no zero point"),
    case("QuantizeLinear", f32(3, 5), _axis(0.1), _axis(4, dtype=np.int8), note="one element"),
    case("QuantizeLinear", f32(2, 3, 4), _axis(0.1, 0.2, 0.05), _axis(1, 2, 3, dtype=np.uint8), axis=1),
    case("QuantizeLinear", f32(2, 3, 4), _axis(0.1, 0.2, 0.05), _axis(1, 2, 3, dtype=np.uint8), axis=-2,
         constant=(1, 2)),
    case("QuantizeLinear", f32(2, 3, 4), _axis(0.1, 0.2, 0.3, 0.4), _axis(1, 2, 3, 4, dtype=np.int8), axis=2),
    case("QuantizeLinear", of(np.int32, 4, 5, low=-1000, high=1000), _q(3.0), _q(3, np.int8), until=20),
    case("QuantizeLinear", f32(4, 6), of(np.float32, 4, 3, low=0.01, high=0.1), of(np.int8, 4, 3), axis=1,
         block_size=2),
    case("QuantizeLinear", f32(4, 7), of(np.float32, 2, 7, low=0.01, high=0.1), of(np.uint8, 2, 7, low=0, high=9),
         axis=0, block_size=2),
    case("QuantizeLinear", f32(4, 7), of(np.float32, 4, 3, low=0.01, high=0.1), axis=1, block_size=3, note="ragged"),
    case("QuantizeLinear", f32(4, 7), _q(0.01), output_dtype=TensorProto.INT16),
    case("QuantizeLinear", of(np.float16, 4, 7), _q(0.01, np.float16), _q(3, np.uint8), note="float16"),
    case("QuantizeLinear", _NEAR_HALVES.astype(np.float16), _q(5.42578125, np.float16), _q(3, np.uint8),
         note="float16 near halves"),
    case("QuantizeLinear", _NEAR_HALVES.astype(np.float16), _q(5.42578125, np.float16), _q(40001, np.uint16), since=21,
         note="float16 near halves, 16 bits"),
    case("QuantizeLinear", _NEAR_HALVES, _q(5.42578125, np.float16), _q(40001, np.uint16), since=23, until=25,
         note="near halves, float16 scale"),  # without a kernel, onnx's reference divides by it in float32
    *(
        case("QuantizeLinear", _NEAR_HALVES, _q(5.42578125, scale), _q(40001, np.uint16), since=23, precision=precision,
             note=f"near halves, {np.dtype(scale)}")
        for scale in (np.float16, np.float32)
        for precision in (TensorProto.FLOAT, TensorProto.FLOAT16)
    ),
    *(
        case("DequantizeLinear", of(dtype, 3, 4, low=low, high=120), _q(0.1), _q(3, dtype), note=str(np.dtype(dtype)))
        for dtype, low in ((np.uint8, 0), (np.int8, -120), (np.uint16, 0), (np.int16, -120), (np.int32, -120))
    ),
    case("DequantizeLinear", np.array([2**31 - 1, 16777217, -(2**31)], np.int32), _q(0.7), note="large int32"),
    case("DequantizeLinear", of(np.uint8, 3, 4, low=0, high=255), _axis(0.1), _axis(7, dtype=np.uint8), note="[1]"),
    case("DequantizeLinear", of(np.uint8, 3, 4, low=0, high=255), _q(0.7, np.float16), _q(7, np.uint8), note="float16"),
    case("DequantizeLinear", of(np.int16, 9, low=-30000, high=30000), _q(0.7, np.float16), _q(7, np.int16),
         note="int16"),
    case("DequantizeLinear", of(np.int8, 2, 3, 4), _axis(0.1, 0.2, 0.05), _axis(1, 2, 3, dtype=np.int8), axis=1),
    case("DequantizeLinear", of(np.int8, 2, 3, 4), _axis(0.1, 0.2, 0.05), axis=-2, constant=(1,)),
    case("DequantizeLinear", of(np.int8, 4, 6), f32(4, 3), of(np.int8, 4, 3), axis=1, block_size=2),
    case("DequantizeLinear", of(np.int8, 4, 7), f32(2, 7), axis=0, block_size=2),
    case("DynamicQuantizeLinear", f32(3, 5), outputs=3),
    case("DynamicQuantizeLinear", of(np.float32, 3, 5, low=1, high=2), outputs=3, note="positive"),
    case("DynamicQuantizeLinear", of(np.float32, 3, 5, low=-2, high=-1), outputs=3, note="negative"),
    case("DynamicQuantizeLinear", np.zeros((2, 3), np.float32), outputs=3, note="zeros"),
    case("MatMulInteger", of(np.uint8, 3, 5, low=0, high=255), of(np.int8, 5, 4, low=-64, high=63)),
    case("MatMulInteger", np.full((1, 300), 255, np.uint8), np.full((300, 1), -128, np.int8), note="no saturation",
         expected=[np.array([[-255 * 128 * 300]], np.int32)], why="ONNX Runtime saturates, see _KERNEL"),
    case("MatMulInteger", of(np.uint8, 3, 5, low=0, high=255), of(np.uint8, 5, 4, low=0, high=255), _q(12, np.uint8),
         _q(5, np.uint8), constant=(1, 3)),
    case("MatMulInteger", of(np.uint8, 2, 3, 5, low=0, high=255), of(np.int8, 5, 4, low=-64, high=63),
         _q(12, np.uint8), _axis(5, 2, 3, 4, dtype=np.int8), constant=(1, 2, 3), note="zero point a column"),
    case("MatMulInteger", _LEFT, _RIGHT, _axis(1, 2, 3, dtype=np.int8),
         note="zero point a row", expected=[_ROWS], why="ONNX Runtime has no zero point a row"),
    case("MatMulInteger", np.full((2, 70000), 255, np.uint8), np.full((70000, 2), 255, np.uint8), note="wraps around"),
    case("QLinearMatMul", of(np.uint8, 3, 5, low=0, high=255), _q(0.01), _q(120, np.uint8),
         of(np.uint8, 5, 4, low=0, high=255), _q(0.02), _q(110, np.uint8), _q(0.03), _q(100, np.uint8)),
    case("QLinearMatMul", of(np.uint8, 2, 3, 5, low=0, high=255), _q(0.01), _q(120, np.uint8),
         of(np.int8, 5, 4, low=-64, high=63), _axis(0.02, 0.03, 0.04, 0.05), _axis(0, 0, 0, 0, dtype=np.int8),
         _q(0.03), _q(100, np.uint8), constant=(1, 2, 3, 4, 5, 6, 7), note="scale a column"),
    case("ConvInteger", _IMAGE, of(np.uint8, 6, 4, 3, 2, low=0, high=255),
         _q(128, np.uint8), _q(120, np.uint8), pads=[1, 0, 1, 1]),
    case("ConvInteger", _IMAGE, of(np.uint8, 6, 4, 3, 2, low=0, high=255), strides=[2, 2], dilations=[1, 2]),
    case("ConvInteger", _IMAGE, of(np.uint8, 6, 2, 3, 3, low=0, high=255), _q(7, np.uint8), group=2,
         auto_pad="SAME_UPPER", constant=(1,)),
    _qconv(_IMAGE, *_CONV_SCALES, _axis(0, 0, 0, 0, 0, 0, dtype=np.int8), _q(0.7), _q(120, np.uint8), pads=[1, 1, 1, 1],
           constant=(1, 2, 3, 4, 5, 6, 7)),
    _qconv(_IMAGE, *_CONV_SCALES, _axis(0, 0, 0, 0, 0, 0, dtype=np.int8), _q(0.7), _q(120, np.uint8),
           of(np.int32, 6, low=-9999, high=9999), strides=[2, 1], constant=(1, 2, 3, 4, 5, 6, 7, 8)),
    _qconv(_IMAGE, _q(0.02), _q(128, np.uint8), of(np.uint8, 4, 1, 3, 3, low=0, high=255), _q(0.03), _q(99, np.uint8),
           _q(0.7), _q(120, np.uint8), group=4, note="run time weights"),
]  # fmt: skip
