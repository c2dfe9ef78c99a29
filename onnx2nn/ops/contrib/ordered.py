"""ONNX Runtime's int8 operators for cublasLt, in the plain layouts: rows, and columns for the right operand.

The other layouts, tiles of one kind of GPU, are refused. Numbers are rounded to even and saturated.
"""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ground.element_types import BY_NAME
from onnx2nn.ops import activation
from onnx2nn.ops.cast import element_of
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.quantize import integer_matmul
from onnx2nn.ops.quantized_numbers import round_to
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED

_COLUMNS, _ROWS = 0, 1


def _check(**orders: int | None) -> None:
    for name, order in orders.items():
        if order not in (None, _ROWS):
            raise OperatorError(f"{name}={order} is a layout of one kind of GPU. Export it with 1, rows.")


def _bytes(F: Any, y: Any) -> Any:
    return round_to(F, y, None, BY_NAME["INT8"])


@op("QuantizeWithOrder", 1, domain=MICROSOFT)
def quantize_with_order(F: Any, input: Any, scale_input: Any, *, order_input: int, order_output: int) -> Any:
    _check(order_input=order_input, order_output=order_output)
    return _bytes(F, input.to(F.float32) / scale_input)


@op("DequantizeWithOrder", 1, domain=MICROSOFT)
def dequantize_with_order(F: Any, input: Any, scale_input: Any, *, order_input: int, order_output: int, to: int) -> Any:
    _check(order_input=order_input, order_output=order_output)
    return (input.to(F.float32) * scale_input).to(getattr(F, element_of(to).dtype))


@op("QOrderedGelu", 1, domain=MICROSOFT)
def qordered_gelu(
    F: Any, X: Any, scale_X: Any, scale_Y: Any, *, order_X: int | None = None, order_Y: int | None = None
) -> Any:
    _check(order_X=order_X, order_Y=order_Y)
    return _bytes(F, activation.gelu(F, X.to(F.float32) * scale_X) / scale_Y)


@op("QOrderedLayerNormalization", 1, domain=MICROSOFT)
def qordered_layer_normalization(
    F: Any,
    X: Any,
    scale_X: Any,
    scale: Any,
    B: Any = None,
    scale_Y: Any = REQUIRED,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    order_X: int = 1,
    order_Y: int = 1,
) -> Any:
    _check(order_X=order_X, order_Y=order_Y)
    x = X.to(F.float32) * scale_X
    bias = None if B is None else B.to(F.float32)
    if axis not in (-1, X.ndim - 1):
        raise OperatorError(f"axis={axis} is not supported: its kernel normalises the last dimension.")
    return _bytes(F, F.nn.functional.layer_norm(x, x.shape[-1:], scale.to(F.float32), bias, epsilon) / scale_Y)


@op("QOrderedMatMul", 1, domain=MICROSOFT)
def qordered_matmul(
    F: Any,
    A: Any,
    scale_A: Any,
    B: Any,
    scale_B: Any,
    scale_Y: Any,
    bias: Any = None,
    C: Any = None,
    scale_C: Any = None,
    *,
    order_A: int,
    order_B: int,
    order_Y: int,
) -> Any:
    """B, `(K, N)`, lies column by column in memory; scale_B is one number, or one a column."""
    _check(order_A=order_A, order_Y=order_Y)
    if order_B != _COLUMNS or B.ndim != 2:
        raise OperatorError(f"order_B={order_B} is a layout of one kind of GPU. Export it with 0, columns.")
    right = B.reshape([B.shape[1], B.shape[0]]).t()
    Y = integer_matmul(F, A, right, None, None).to(F.float32) * (scale_A * scale_B)
    Y = Y if bias is None else Y + bias
    Y = Y if C is None else Y + C.to(F.float32) * scale_C
    return _bytes(F, Y / scale_Y)
