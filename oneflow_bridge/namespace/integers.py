"""Exact integer division and powers.

OneFlow divides tensors through float64, ends the process on a zero divisor, and has no integer power.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.operands import refuse_uint64, tensor_operand
from oneflow_bridge.namespace.tensor import Tensor, broadcast_shapes, expanded, known, operand
from onnx2nn.errors import OperatorError


def int_division(x: Any, y: Any, dtype: DType) -> tuple[Any, Any, Any]:
    """Dividend, divisor and truncated quotient as int64; the divisor is a Python int where y is a number.

    Dividing by zero, or the smallest integer by -1, ends the process in OneFlow; its division of two tensors does not
    broadcast and goes through float64.

    Raises:
        OperatorError: a divisor is zero (while a graph is traced it counts as 1, for there are no values to look at).
    """
    refuse_uint64(dtype, "division", x, y)
    inside = dtypes.int64 if dtype is dtypes.bool_ else dtype
    a = tensor_operand(x, inside, y)
    if not isinstance(y, Tensor):
        b = operand(y, inside)
        if b == 0:
            raise OperatorError("Integer division by zero.")
        return a, b, a * -1 if b == -1 else a // b
    b = operand(y, inside)
    shape = broadcast_shapes(a.shape, b.shape)
    a, b = expanded(a, shape), expanded(b, shape)
    divisors = known(b)
    if divisors is None:
        b = b + (b == 0).to(flow.int64)
    elif (divisors == 0).any():
        raise OperatorError("Integer division by zero.")
    return a, b, int_quotient(a, b, dtype.bits > 32)


def int_quotient(a: Any, b: Any, wide: bool) -> Any:
    """a / b truncated, for tensors of one shape; `wide` where they may not fit into float64."""
    minus = (b == -1).to(flow.int64)  # the quotient is -a; the processor traps on the smallest integer / -1
    b = b + minus * 2
    if wide:
        whole = a - flow.fmod(a, b)
        quotient = _rounded_quotient(whole, b)
        quotient = quotient + _rounded_quotient(whole - quotient * b, b)
    else:
        quotient = a // b
    return quotient * (1 - minus * 2)


def _rounded_quotient(a: Any, b: Any) -> Any:
    return flow.round(a.to(flow.float64) / b.to(flow.float64)).to(flow.int64)


def sign_differs(rest: Any, divisor: Any) -> Any:
    """Where a remainder is not zero and has not the sign of the divisor."""
    if isinstance(divisor, flow.Tensor):
        return flow.logical_and(rest != 0, (rest < 0) != (divisor < 0))
    return rest > 0 if divisor < 0 else rest < 0


def int_power(base: Any, exponent: Any) -> Any:
    """Square and multiply, with as many steps as the largest exponent has bits; 1 / base, truncated, below 0."""
    shape = broadcast_shapes(base.shape, exponent.shape)
    base, exponent = expanded(base, shape), expanded(exponent, shape)
    exponents = known(exponent)
    steps = 63 if exponents is None else int(np.abs(exponents).max(initial=0)).bit_length()
    odd = flow.abs(exponent) - flow.abs(exponent) // 2 * 2
    unit = (base == 1).to(flow.int64) + (base == -1).to(flow.int64) * (1 - 2 * odd)
    result, rest, square_ = base * 0 + 1, exponent, base
    for _ in range(steps):
        half = rest // 2
        result = flow.where(rest - half * 2 == 1, result * square_, result)
        rest, square_ = half, square_ * square_
    return flow.where(exponent < 0, unit, result)
