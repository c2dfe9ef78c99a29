"""Cases of ONNX Runtime's int8 operators for cublasLt, in the plain layouts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.cases import by_formula, f32
from tests.cases.contrib.fused import ms
from tests.cases.contrib.quantized import positive, q, s8

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"


def _bytes(y: np.ndarray) -> np.ndarray:
    return np.rint(y).clip(-128, 127).astype(np.int8)


def _gelu(X: Any, x_scale: Any, y_scale: Any, **orders: int) -> np.ndarray:
    x = X.astype(np.float32) * x_scale
    return _bytes(0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / y_scale)


def _layer_norm(
    X: Any, x_scale: Any, scale: Any, bias: Any, y_scale: Any, *, epsilon: float = 1e-5, **orders: int
) -> np.ndarray:
    x = X.astype(np.float32) * x_scale
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * scale
    return _bytes((y + (0 if bias is None else bias)) / y_scale)


def _matmul(
    A: Any, a: Any, B: Any, b: Any, y: Any, bias: Any = None, C: Any = None, c: Any = None, **orders: int
) -> np.ndarray:
    right = B.reshape(B.shape[1], B.shape[0]).T.astype(np.int32)
    total = (A.astype(np.int32) @ right).astype(np.float32) * (a * b)
    total = total + (0 if bias is None else bias) + (0 if C is None else C.astype(np.float32) * c)
    return _bytes(total / y)


_PLAIN = {"order_A": 1, "order_B": 0, "order_Y": 1}

CASES = [
    by_formula(ms("QuantizeWithOrder", f32(2, 3, 4), q(0.013), order_input=1, order_output=1),
               lambda x, s, **orders: _bytes(x / s), _WHY),
    by_formula(ms("DequantizeWithOrder", s8(2, 3, 4), q(0.013), order_input=1, order_output=1, to=10, types={0: np.float16}),
               lambda x, s, **orders: (x.astype(np.float32) * s).astype(np.float16), _WHY),
    by_formula(ms("QOrderedGelu", s8(2, 3, 4), q(0.023), q(0.019), order_X=1, order_Y=1), _gelu, _WHY),
    by_formula(ms("QOrderedLayerNormalization", s8(2, 3, 8), q(0.023), f32(8), f32(8), q(0.019), epsilon=0.1), _layer_norm, _WHY),
    by_formula(ms("QOrderedLayerNormalization", s8(2, 3, 8), q(0.023), f32(8), None, q(0.019)), _layer_norm, _WHY),
    by_formula(ms("QOrderedMatMul", s8(2, 3, 8), q(0.023), s8(8, 5), q(0.011), q(0.31), **_PLAIN), _matmul, _WHY),
    by_formula(ms("QOrderedMatMul", s8(3, 8), q(0.023), s8(8, 5), positive(5), q(0.31), f32(5), s8(3, 5), q(0.2), **_PLAIN),
               _matmul, _WHY),
]  # fmt: skip
