"""Cases of ONNX Runtime's quantised operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import int4, uint4

from tests.cases import Case, Make, f32, of
from tests.cases.contrib.fused import ms


def u8(*shape: int) -> Make:
    return of(np.uint8, *shape, low=0, high=256)


def s8(*shape: int) -> Make:
    return of(np.int8, *shape, low=-128, high=128)


def q(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def positive(*shape: int) -> Make:
    return of(np.float32, *shape, low=0.01, high=0.1)


_ALL = np.arange(256, dtype=np.uint8)
_PAIRS = (_ALL[:, None], _ALL[None, :])
_HALVES = (q(0.5), q(3, np.uint8)), (q(0.25), q(120, np.uint8)), (q(1.0), q(1, np.uint8))
"""Scale and zero point of two inputs and a result: powers of two, so that there are ties."""
_ODD = (q(0.023), q(113, np.uint8)), (q(0.041), q(7, np.uint8)), (q(0.057), q(60, np.uint8))
_SIGNED = (q(0.023), q(-13, np.int8)), (q(0.041), q(7, np.int8)), (q(0.057), q(-60, np.int8))
_POOL = (q(0.02), q(128, np.uint8), q(0.015), q(111, np.uint8))


def binary(operator: str, a: Any, b: Any, parameters: Any, **options: Any) -> Case:
    first, second, result = parameters
    return ms(operator, a, *first, b, *second, *result, **options)


def lstm(
    weights: Make, zero_point: Any, *extra: Any, ways: int = 1, bias: Any = None, per_gate: bool = False, **options: Any
) -> Case:
    """A call with 5 steps, 3 sequences, 4 features and 6 hidden; `extra` are the inputs from sequence_lens on."""
    dtype = np.asarray(zero_point).dtype
    scale = (ways, 24) if per_gate else (ways,)
    point = np.full(scale, zero_point, dtype)
    parameters = [positive(*scale), point, positive(*scale), point]
    inputs = [
        of(np.float32, 5, 3, 4),
        weights(ways, 4, 24),
        weights(ways, 6, 24),
        bias,
        *extra,
        *[None] * (4 - len(extra)),
    ]
    options = {"constant": (1, 2, 8, 9, 10, 11), "outputs": 3, "hidden_size": 6, **options}
    return ms("DynamicQuantizeLSTM", *inputs, *parameters, **options)


def s7(*shape: int) -> Make:
    """int8 whose products' sums ONNX Runtime does not saturate, see DynamicQuantizeLSTM."""
    return of(np.int8, *shape, low=-64, high=63)


CASES = [
    lstm(u8, np.uint8(121), note="uint8"),
    lstm(s7, np.int8(-5), note="int8"),
    lstm(s7, np.int8(0), per_gate=True, bias=f32(1, 48), note="scales of each gate"),
    lstm(s7, np.int8(0), np.int32([1, 4, 2]), f32(1, 3, 6), f32(1, 3, 6), f32(1, 18), note="lengths, states, peepholes"),
    lstm(u8, np.uint8(121), np.int32([5, 2, 3]), ways=2, bias=f32(2, 48), direction="bidirectional"),
    lstm(u8, np.uint8(121), direction="reverse", clip=0.7, input_forget=1),
    *(
        binary(operator, *_PAIRS, parameters, note=note)
        for operator in ("QLinearAdd", "QLinearMul")
        for parameters, note in ((_HALVES, "ties"), (_ODD, "odd scales"))
    ),
    *(binary(operator, s8(3, 1, 5), s8(4, 5), _SIGNED, constant=(1, 2, 3, 4, 5, 6, 7), note="int8, broadcast")
      for operator in ("QLinearAdd", "QLinearMul")),
    ms("QLinearAdd", np.uint8([2, 4, 255]), q(0.5), None, np.uint8([4, 9, 255]), q(0.25), None, q(0.5), None,
       expected=[np.uint8([4, 8, 255])], note="no zero points", why="ONNX Runtime asks for them, its schema does not"),
    ms("QLinearWhere", np.array([[True], [False]]), u8(2, 5), *_ODD[0], u8(5), *_ODD[1], *_ODD[2]),
    ms("QLinearConcat", *_ODD[2], u8(2, 3), *_ODD[0], u8(2, 5), *_ODD[1], axis=1, constant=(0, 1, 3, 4, 6, 7)),
    ms("QLinearConcat", *_SIGNED[2], s8(2, 3), *_SIGNED[0], s8(4, 3), *_SIGNED[1], axis=0),
    ms("QLinearSigmoid", _ALL, *_ODD[0], q(1 / 256), q(0, np.uint8)),
    ms("QLinearSigmoid", s8(3, 4), *_SIGNED[0], q(1 / 256), q(-128, np.int8), constant=(1, 2, 3, 4)),
    ms("QLinearLeakyRelu", _ALL, *_ODD[0], *_ODD[1], alpha=0.3),
    ms("QLinearLeakyRelu", _ALL, *_HALVES[0], *_HALVES[2], alpha=0.5, constant=(1, 2, 3, 4)),
    ms("QLinearSoftmax", u8(3, 4, 5), *_ODD[0], q(1 / 256), q(0, np.uint8), opset=13, axis=-1),
    ms("QLinearSoftmax", u8(3, 4, 5), *_ODD[0], q(1 / 256), q(0, np.uint8), opset=13, axis=1),
    ms("QLinearSoftmax", u8(3, 4, 5), *_ODD[0], q(1 / 256), q(0, np.uint8), opset=11, axis=1),
    ms("QLinearSoftmax", u8(8, 10), *_ODD[0], q(1 / 255), q(33, np.uint8), opset=13, note="1 / scale is below 255"),
    ms("QLinearSoftmax", u8(8, 10), *_ODD[0], q(0.0061), q(0, np.uint8), opset=13, note="1 / scale is not whole"),
    ms("QLinearSoftmax", s8(3, 4), *_SIGNED[0], q(1 / 256), q(-128, np.int8), opset=13),
    ms("QLinearSoftmax", np.full((3, 8), -128, np.int8), q(np.inf), q(0, np.int8), q(1 / 256), q(-128, np.int8),
       opset=13, note="a calibrated mask of -inf"),
    *(ms("QLinearSoftmax", x(4, 8), q(scale), zero, q(1 / 127), zero, opset=13, note=note)
      for scale, note in ((np.inf, "a mask of -inf"), (3e38, "differences that overflow"))
      for x, zero in ((u8, q(0, np.uint8)), (s8, q(-128, np.int8)))),
    ms("QLinearAveragePool", u8(2, 3, 7, 6), *_POOL, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    ms("QLinearAveragePool", u8(2, 3, 7, 6), *_POOL, kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1),
    ms("QLinearAveragePool", u8(2, 7, 6, 3), *_POOL, kernel_shape=[3, 3], strides=[2, 2], channels_last=1,
       constant=(1, 2, 3, 4)),
    ms("QLinearAveragePool", u8(2, 3, 7, 6), *_HALVES[0], *_HALVES[0], kernel_shape=[2, 2], note="ties"),
    ms("QLinearGlobalAveragePool", u8(9, 30, 2, 2), *_HALVES[0], *_HALVES[0], note="ties"),
    ms("QLinearAveragePool", s8(2, 3, 7, 6), q(0.02), q(-3, np.int8), q(0.015), q(4, np.int8), kernel_shape=[2, 2],
       strides=[2, 2], ceil_mode=1),
    ms("QLinearGlobalAveragePool", u8(2, 3, 7, 6), *_POOL),
    ms("QLinearGlobalAveragePool", u8(2, 7, 6, 3), *_POOL, channels_last=1, constant=(1, 2, 3, 4)),
    ms("QLinearGlobalAveragePool", s8(2, 3, 5), q(0.02), q(-3, np.int8), q(0.015), q(4, np.int8)),
    ms("NhwcMaxPool", u8(2, 7, 6, 3), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    ms("QLinearConv", u8(2, 7, 6, 4), q(0.02), q(128, np.uint8), of(np.int8, 6, 4, 3, 2, low=-64, high=63),
       np.float32([0.01, 0.02, 0.03, 0.04, 0.05, 0.06]), np.zeros(6, np.int8), q(0.7), q(120, np.uint8),
       of(np.int32, 6, low=-999, high=999), channels_last=1, pads=[1, 1, 1, 1], constant=(1, 2, 3, 4, 5, 6, 7, 8)),
    ms("QLinearConv", u8(2, 4, 7, 6), q(0.02), q(128, np.uint8), of(np.int8, 6, 2, 3, 2, low=-64, high=63),
       q(0.01), q(0, np.int8), q(0.7), q(120, np.uint8), strides=[2, 2], group=2, constant=(1, 2, 3, 4, 5, 6, 7)),
    ms("QGemm", u8(3, 4), q(0.02), q(128, np.uint8), u8(4, 5), q(0.03), q(100, np.uint8),
       of(np.int32, 5, low=-9999, high=9999), q(0.5), q(7, np.uint8), constant=(1, 2, 3, 4, 5, 6, 7, 8)),
    ms("QGemm", u8(4, 3), q(0.02), q(128, np.uint8), of(np.int8, 5, 4, low=-64, high=63), positive(5),
       np.zeros(5, np.int8), transA=1, transB=1, alpha=0.5, constant=(3, 4, 5), note="float32"),
    ms("QGemm", np.arange(256, dtype=np.uint8).reshape(-1, 1), q(0.7), q(0, np.uint8), np.uint8([[9]]), q(0.13),
       q(0, np.uint8), np.int32([0]), q(np.float32(0.73) * np.float32(0.7) * np.float32(0.13) * 18), q(0, np.uint8),
       constant=(1, 2, 3, 4, 5, 6, 7, 8), alpha=0.73, note="halves"),
    ms("QGemm", u8(3, 4), q(0.02), q(128, np.uint8), u8(4, 5), q(0.03), q(100, np.uint8), None, q(0.5),
       q(7, np.uint8), note="run time"),
    ms("MatMulIntegerToFloat", u8(2, 3, 4), u8(4, 5), q(0.02), positive(5), q(120, np.uint8), q(110, np.uint8),
       f32(5), constant=(1, 2, 3, 4, 5, 6)),
    ms("MatMulIntegerToFloat", u8(3, 4), of(np.int8, 4, 5, low=-64, high=63), q(0.02), q(0.03), note="plain"),
    ms("DynamicQuantizeMatMul", f32(2, 3, 4), of(np.int8, 4, 5, low=-64, high=63), q(0.03), q(5, np.int8), f32(5),
       constant=(1, 2, 3, 4)),
    ms("DynamicQuantizeMatMul", f32(3, 4), u8(4, 5), positive(5), of(np.uint8, 5, low=0, high=255), constant=(1, 2, 3)),
    *(
        ms("QuantizeLinear", f32(3, 4), q(0.01), q(3, dtype), note=f"{np.dtype(dtype)}")
        for dtype in (np.int8, np.uint8, np.int16, np.uint16)
    ),
    ms("QuantizeLinear", np.float32([-9, -2.5, 1.5, 0.2, 6]), q(0.5), q(-1, int4), note="int4",
       expected=[np.array([-8, -6, 2, -1, 7], np.int8)], why="ONNX Runtime's Python interface has no int4; by hand"),
    ms("QuantizeLinear", f32(3, 4), positive(4), of(np.uint16, 4, low=0, high=9), axis=1),
    ms("QuantizeLinear", of(np.float16, 3, 4), q(0.1, np.float16), q(3, np.uint8), note="float16"),
    *(
        ms("DequantizeLinear", of(dtype, 3, 4, low=0, high=7), q(0.1), q(3, dtype), note=f"{np.dtype(dtype)}")
        for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32)
    ),
    *(ms("DequantizeLinear", of(dtype, 3, 4, low=0, high=7), q(0.1), q(3, dtype), note=f"{np.dtype(dtype)}",
         constant=(0, 2)) for dtype in (int4, uint4)),
    ms("DequantizeLinear", of(np.int16, 3, 4, low=-9999, high=9999), positive(3), of(np.int16, 3), axis=0),
]  # fmt: skip
