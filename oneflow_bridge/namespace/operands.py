"""Operands of a kernel: broadcast to one shape, in a type that the kernel computes exactly.

None of these functions is a name of torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.dtypes import DType
from oneflow_bridge.namespace.tensor import (
    Tensor,
    as_tensor,
    broadcast_shapes,
    constant,
    convert,
    expanded,
    known,
    native_constant,
    operand,
    widened,
)
from onnx2nn.errors import OperatorError


def as_float(x: Tensor) -> Tensor:
    """Integers and bools as float32, as torch's float functions take them."""
    return x if x.dtype.is_floating_point else convert(x, dtypes.float32)


def refuse_uint64(dtype: DType, what: str, *operands: Any) -> None:
    """Refuses uint64 in operations whose result depends on its top bit, unless no value has it."""
    if dtype is not dtypes.uint64:
        return
    for x in operands:
        if not isinstance(x, Tensor) or x.dtype is not dtype:
            continue
        array = known(x.value)
        if array is None or (array < 0).any():
            raise OperatorError(
                f"OneFlow 0.9 has no uint64: {what} of values from 2**63 on cannot be computed in int64."
            )


def accepts_empty(function: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Decorates a function of two operands to give empty ones an empty result; OneFlow broadcasts them wrongly."""

    @functools.wraps(function)
    def guarded(x: Any, y: Any) -> Tensor:
        shapes = [v.shape for v in (x, y) if isinstance(v, Tensor)]
        if not any(0 in shape for shape in shapes):
            return function(x, y)
        like = x if isinstance(x, Tensor) else y
        ones = (constant((1,), 1, v.dtype, like.device) if isinstance(v, Tensor) else v for v in (x, y))
        return constant(broadcast_shapes(*shapes), 0, function(*ones).dtype, like.device)

    return guarded


def tensor_operand(x: Any, dtype: DType, like: Tensor) -> Any:
    """`x` as a OneFlow tensor in the type that kernels of `dtype` compute in; a number as a 0-d one beside `like`."""
    value = operand(x, dtype)
    return value if isinstance(x, Tensor) else native_constant((), value, dtype.compute, like.device)


def broadcast_operands(x: Any, y: Any, dtype: DType) -> tuple[Any, Any]:
    """Both operands as OneFlow tensors of one shape, for kernels that do not broadcast."""
    like = x if isinstance(x, Tensor) else y
    a, b = tensor_operand(x, dtype, like), tensor_operand(y, dtype, like)
    shape = broadcast_shapes(a.shape, b.shape)
    return expanded(a, shape), expanded(b, shape)


def truth(x: Any, like: Any) -> Any:
    """A bool OneFlow tensor: where `x` is not 0."""
    return widened(convert(as_tensor(x, like), dtypes.bool_))
