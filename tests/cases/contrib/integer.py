"""Cases of ONNX Runtime's operators on integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import Case, by_formula, f32, of
from tests.cases.contrib.fused import ms
from tests.cases.contrib.quantized import positive, q, s7, s8, u8

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"
_IDS = np.array([[1, 4, 2], [0, 3, 5]], np.int32)
_SEGMENTS = np.array([[0, 0, 1], [1, 0, 1]], np.int32)
_MASK = np.array([[1, 1, 0], [1, 0, 1]], np.int32)


def _products(A: Any, a: Any, B: Any, b: Any = None) -> np.ndarray:
    return (A.astype(np.int32) - (0 if a is None else a.astype(np.int32))) * (
        B.astype(np.int32) - (0 if b is None else b.astype(np.int32))
    )


def _sum(data: np.ndarray, *, axes: list[int], keepdims: int) -> np.ndarray:
    kind = np.int32 if data.dtype == np.int8 else np.uint32
    return data.sum(tuple({axis % data.ndim for axis in axes}), keepdims=bool(keepdims), dtype=np.int64).astype(kind)


def _mean(
    data: Any, scale: Any, zero: Any, new_scale: Any, new_zero: Any = None, *, axes: Any, keepdims: int
) -> np.ndarray:
    x = (data.astype(np.float32) - (0 if zero is None else zero)) * scale
    y = np.rint(x.mean(tuple(axes), keepdims=bool(keepdims)) / new_scale) + (0 if new_zero is None else new_zero)
    limits = np.iinfo(data.dtype)
    return y.clip(limits.min, limits.max).astype(data.dtype)


def _unsigned(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return (A.astype(np.int64) @ B.astype(np.int64)).astype(np.uint32)


def _attention(*others: Any, weight: Any = None, **options: Any) -> Case:
    inputs = [u8(2, 3, 8), weight or s7(8, 24), f32(24), q(0.02), q(0.01)]
    return ms("QAttention", *inputs, *others, constant=(1, 2, 4), num_heads=2, tolerance=1e-4, **options)


def _embedding(table: Any, zero_point: np.ndarray, segments: bool = True, mask: Any = None, **options: Any) -> Case:
    inputs: list[Any] = [
        _IDS,
        _SEGMENTS if segments else None,
        table(6, 8),
        table(5, 8),
        table(2, 8) if segments else None,
    ]
    inputs += [table(8), table(8), mask, q(0.02), q(0.03), q(0.01) if segments else None, q(0.05), q(0.04)]
    inputs += [zero_point, zero_point, zero_point if segments else None, zero_point, zero_point]
    return ms("QEmbedLayerNormalization", *inputs, outputs=2, constant=tuple(range(2, 7)), tolerance=1e-4, **options)


CASES = [
    by_formula(ms("MulInteger", u8(2, 3), q(3, np.uint8), u8(3), q(200, np.uint8)), _products, _WHY),
    by_formula(ms("MulInteger", s8(2, 3), None, s8(2, 1)), _products, _WHY),
    by_formula(ms("ReduceSumInteger", s8(2, 3, 4), axes=[1], keepdims=1), _sum, _WHY),
    by_formula(ms("ReduceSumInteger", u8(2, 3, 4), axes=[0, -1], keepdims=0), _sum, _WHY),
    by_formula(ms("QLinearReduceMean", u8(2, 3, 4), q(0.02), q(113, np.uint8), q(0.013), q(7, np.uint8), axes=[2],
                  keepdims=1), _mean, _WHY),
    by_formula(ms("ReduceSumInteger", u8(2, 3, 4), axes=[0, -3], keepdims=0, note="an axis twice"), _sum, _WHY),
    by_formula(ms("QLinearReduceMean", s8(2, 3, 4), q(0.02), None, q(0.013), axes=[0, 1], keepdims=0), _mean, _WHY),
    ms("MatMulInteger16", of(np.int16, 2, 3, low=-32768, high=32767), of(np.int16, 3, 4, low=-32768, high=32767)),
    ms("MatMulInteger16", of(np.int16, 2, 3, 5), of(np.int16, 5, 4), constant=(1,), note="batch"),
    by_formula(ms("MatMulInteger16", of(np.uint16, 2, 3, low=0, high=65535), of(np.uint16, 3, 4, low=0, high=65535),
                  note="unsigned"), _unsigned, "ONNX Runtime has a kernel for int16 alone; the formula of its documentation"),
    _attention(note="plain"),
    _attention(None, q(7, np.uint8), q(-3, np.int8), note="zero points"),
    _attention(_MASK, q(120, np.uint8), note="mask"),
    _attention(np.array([3, 2], np.int32), q(120, np.uint8), unidirectional=1, scale=0.3, note="lengths"),
    _attention(None, q(120, np.uint8), None, f32(2, 2, 2, 4, 4), unidirectional=1, outputs=2, note="past"),
    _attention(None, q(12, np.uint8), q(130, np.uint8), weight=u8(8, 24), mask_filter_value=-5.0, note="unsigned"),
    ms("QAttention", u8(2, 3, 8), s7(8, 24), f32(24), q(0.02), positive(24), None, q(9, np.uint8),
       of(np.int8, 24), constant=(1, 2, 4), num_heads=2, tolerance=1e-4, note="columns"),
    _embedding(u8, q(128, np.uint8), note="uint8"),
    _embedding(s8, q(-3, np.int8), note="int8", mask=_MASK, epsilon=0.1),
    _embedding(u8, q(100, np.uint8), segments=False, note="no segments"),
]  # fmt: skip
