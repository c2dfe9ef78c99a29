"""Bits of integers. OneFlow has no bitwise kernels: its `& | ^` are logical."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import add
from oneflow_bridge.namespace.comparison import logical_not
from oneflow_bridge.namespace.dtypes import flow
from oneflow_bridge.namespace.integers import int_power, int_quotient
from oneflow_bridge.namespace.operands import accepts_empty, broadcast_operands, truth
from oneflow_bridge.namespace.tensor import Tensor, result_type, store, widened
from onnx2nn.errors import OperatorError


def _bitwise(of_bools: Callable[[Any, Any], Any], of_bits: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Tensor]:
    """Bit operations: OneFlow's `& | ^` are logical and it has no bitwise kernels, so integers are split into bits."""

    @accepts_empty
    def function(x: Any, y: Any) -> Tensor:
        dtype = result_type(x, y)
        if dtype is dtypes.bool_:
            return Tensor(of_bools(truth(x, y), truth(y, x)))
        if not dtype.is_integer:
            raise OperatorError(f"Bitwise operation on {dtype}.")
        a, b = broadcast_operands(x, y, dtype)
        top = dtype.bits - 1
        signs = [(v < 0).to(flow.int64) for v in (a, b)]
        a, b = (v + sign * _power_of_two(top) for v, sign in zip((a, b), signs, strict=True))
        total = of_bits(*signs) * _power_of_two(top)
        for k in range(dtype.bits if dtype.kind == "u" and dtype.bits < 64 else top):
            half_a, half_b = a // 2, b // 2
            total = total + of_bits(a - half_a * 2, b - half_b * 2) * _power_of_two(k)
            a, b = half_a, half_b
        return store(total, dtype)

    return function


def _power_of_two(k: int) -> int:
    """2 ** k as int64 holds it."""
    return -(2**63) if k == 63 else 2**k


bitwise_and = _bitwise(flow.logical_and, lambda a, b: a * b)


bitwise_or = _bitwise(flow.logical_or, lambda a, b: a + b - a * b)


_xor = _bitwise(flow.logical_xor, lambda a, b: a + b - 2 * (a * b))


def bitwise_xor(x: Any, y: Any) -> Tensor:
    """Bits that differ; inverting the top bit of an int64 is an addition."""
    if (
        isinstance(x, Tensor)
        and x.dtype is dtypes.int64
        and y is not True
        and y is not False
        and isinstance(y, int)
        and y == -(2**63)
    ):
        return add(x, y)
    return _xor(x, y)


def bitwise_not(x: Tensor) -> Tensor:
    """All bits inverted."""
    if x.dtype is dtypes.bool_:
        return logical_not(x)
    if not x.dtype.is_integer:
        raise OperatorError(f"Bitwise operation on {x.dtype}.")
    return store(-1 - widened(x), x.dtype)


def bitwise_left_shift(x: Any, y: Any) -> Tensor:
    """x * 2 ** y, without the bits shifted out; 0 for shifts of at least the type's width."""
    dtype = result_type(x, y)
    value, count = broadcast_operands(x, y, dtype)
    inside = flow.clamp(count, 0, 62)
    shifted = value * int_power(inside * 0 + 2, inside)
    shifted = flow.where(count == 63, value * _power_of_two(63), shifted)
    return store(flow.where(flow.logical_or(count < 0, count >= dtype.bits), value * 0, shifted), dtype)


def bitwise_right_shift(x: Any, y: Any) -> Tensor:
    """x / 2 ** y rounded down; the sign bit fills signed types, 0 unsigned ones."""
    dtype = result_type(x, y)
    value, count = broadcast_operands(x, y, dtype)
    if dtype is dtypes.uint64:
        return _uint64_right_shift(value, count)
    shifted = _shifted_right(value, flow.clamp(count, 0, 62))
    outside = flow.logical_or(count < 0, count > 62)
    return store(flow.where(outside, (value < 0).to(flow.int64) * -1, shifted), dtype)


def _shifted_right(value: Any, count: Any) -> Any:
    """An int64 tensor divided by 2 ** count (0 to 62) and rounded down."""
    power = int_power(count * 0 + 2, count)
    quotient = int_quotient(value, power, True)
    return quotient - (value < quotient * power).to(flow.int64)


def _uint64_right_shift(value: Any, count: Any) -> Tensor:
    """The lower 63 bits shifted as a positive int64, and the top bit put where it goes."""
    top = (value < 0).to(flow.int64)
    lower = value + top * _power_of_two(63)
    back = flow.clamp(count * -1 + 63, 0, 62)
    shifted = _shifted_right(lower, flow.clamp(count, 0, 62)) + top * int_power(back * 0 + 2, back)
    shifted = flow.where(count == 0, value, flow.where(count == 63, top, shifted))
    return Tensor(flow.where(flow.logical_or(count < 0, count > 63), value * 0, shifted), dtypes.uint64)
