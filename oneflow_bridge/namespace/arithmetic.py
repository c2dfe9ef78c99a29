"""Arithmetic of two operands, rounding and sign, as torch defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.comparison import lt, where
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.integers import int_division, int_power, sign_differs
from oneflow_bridge.namespace.operands import accepts_empty, tensor_operand
from oneflow_bridge.namespace.tensor import (
    Tensor,
    as_tensor,
    convert,
    native_constant,
    operand,
    result_type,
    store,
    widened,
)
from onnx2nn.errors import OperatorError


def _rounding(kernel: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    """Rounding functions: integers, for which OneFlow has no kernel, are already round."""

    def function(x: Tensor) -> Tensor:
        return store(kernel(widened(x)), x.dtype) if x.dtype.is_floating_point else x

    return function


ceil = _rounding(flow.ceil)


floor = _rounding(flow.floor)


trunc = fix = _rounding(flow.trunc)


_round = _rounding(flow.round)


def round(x: Tensor, *, decimals: int = 0) -> Tensor:
    """Nearest integer, ties to even; `decimals` as in torch."""
    if decimals == 0:
        return _round(x)
    if not x.dtype.is_floating_point:
        raise OperatorError("round with decimals takes a float tensor, not an integer one.")
    return div(_round(mul(x, 10.0**decimals)), 10.0**decimals)


def frac(x: Tensor) -> Tensor:
    """The part after the point, with the sign of x."""
    return sub(x, trunc(x))


def clone(x: Tensor) -> Tensor:
    """A copy."""
    return Tensor(x.value.clone(), x.dtype)


def positive(x: Tensor) -> Tensor:
    """x."""
    return x


def neg(x: Tensor) -> Tensor:
    """-x; OneFlow's own gives float32 for integers."""
    if x.dtype is dtypes.bool_:
        raise OperatorError("neg does not take a bool tensor; use logical_not.")
    return store(widened(x) * -1 if x.dtype.is_integer else flow.neg(widened(x)), x.dtype)


negative = neg


def abs(x: Tensor) -> Tensor:
    """Absolute value; unsigned integers and bools are their own."""
    return x if not x.dtype.is_signed else store(flow.abs(widened(x)), x.dtype)


absolute = abs


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1 in the type of x; 0 for NaN, as in torch."""
    if x.dtype is dtypes.bool_:
        return x
    value = widened(x)
    if x.dtype.is_floating_point:
        return store(flow.sign(value), x.dtype)
    above = value != 0 if x.dtype is dtypes.uint64 else value > 0
    return store(above.to(flow.int64) - (value < 0).to(flow.int64) * int(x.dtype.is_signed), x.dtype)


sgn = sign


def square(x: Tensor) -> Tensor:
    """x * x."""
    return mul(x, x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0); NaN stays."""
    if not x.dtype.is_signed:
        return x
    return store(flow.relu(widened(x)), x.dtype)


def _binary(kernel: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Tensor]:
    """A function of two operands whose result has their common type; bools become integers for the kernel."""

    @accepts_empty
    def function(x: Any, y: Any) -> Tensor:
        dtype = result_type(x, y)
        inside = dtypes.int64 if dtype is dtypes.bool_ else dtype
        return store(kernel(operand(x, inside), operand(y, inside)), dtype)

    return function


_add = _binary(lambda a, b: a + b)


_sub = _binary(lambda a, b: a - b)


mul = multiply = _binary(lambda a, b: a * b)


def add(x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
    """x + alpha * y; integers wrap around (OneFlow's int8 and uint8 saturate, its int32 goes through float32)."""
    return _add(x, y if alpha == 1 else mul(y, alpha))


def sub(x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
    """x - alpha * y."""
    if result_type(x, y) is dtypes.bool_:
        raise OperatorError("sub does not take bool tensors; use logical_xor.")
    return _sub(x, y if alpha == 1 else mul(y, alpha))


subtract = sub


def rsub(x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
    """y - alpha * x."""
    return sub(y, x, alpha=alpha)


@accepts_empty
def true_divide(x: Any, y: Any) -> Tensor:
    """x / y in floating point."""
    dtype = result_type(x, y)
    dtype = dtype if dtype.is_floating_point else dtypes.float32
    return store(operand(x, dtype) / operand(y, dtype), dtype)


def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    """x / y; `rounding_mode` None (float result), "trunc" or "floor" (the operands' common type)."""
    if rounding_mode is None:
        return true_divide(x, y)
    if rounding_mode == "floor":
        return floor_divide(x, y)
    if rounding_mode != "trunc":
        raise OperatorError(f"div does not know rounding_mode {rounding_mode!r}; 'trunc' and 'floor' exist.")
    dtype = result_type(x, y)
    if dtype.is_floating_point:
        return trunc(true_divide(x, y))
    return store(int_division(x, y, dtype)[2], dtype)


divide = div


@accepts_empty
def floor_divide(x: Any, y: Any) -> Tensor:
    """x / y rounded down; OneFlow's own truncates integers."""
    dtype = result_type(x, y)
    if dtype.is_floating_point:
        return _float_floor_divide(operand(x, dtype), operand(y, dtype), dtype, x if isinstance(x, Tensor) else y)
    a, b, quotient = int_division(x, y, dtype)
    return store(quotient - sign_differs(a - quotient * b, b).to(flow.int64), dtype)


def _float_floor_divide(a: Any, b: Any, dtype: DType, like: Tensor) -> Tensor:
    """Exact as torch's and Python's: through the remainder, because a / b rounds."""
    a = a if isinstance(a, flow.Tensor) else native_constant((), a, dtype.compute, like.device)
    b = b if isinstance(b, flow.Tensor) else native_constant((), b, dtype.compute, like.device)
    quotient = a / b
    rest = flow.fmod(a, b)
    exact = (a - rest) / b
    exact = exact - sign_differs(rest, b).to(exact.dtype)
    floored = flow.floor(exact)
    floored = floored + ((exact - floored) > 0.5).to(exact.dtype)
    return store(flow.where(b == 0, quotient, flow.where(exact == 0, quotient * 0, floored)), dtype)


@accepts_empty
def fmod(x: Any, y: Any) -> Tensor:
    """The remainder with the sign of x."""
    dtype = result_type(x, y)
    if dtype.is_floating_point:
        like = x if isinstance(x, Tensor) else y
        return store(flow.fmod(tensor_operand(x, dtype, like), tensor_operand(y, dtype, like)), dtype)
    a, b, quotient = int_division(x, y, dtype)
    return store(a - quotient * b, dtype)


@accepts_empty
def remainder(x: Any, y: Any) -> Tensor:
    """The remainder with the sign of y; OneFlow's `%` has that of x."""
    dtype = result_type(x, y)
    if not dtype.is_floating_point:
        a, b, quotient = int_division(x, y, dtype)
        rest = a - quotient * b
        return store(rest + sign_differs(rest, b).to(flow.int64) * b, dtype)
    like = x if isinstance(x, Tensor) else y
    divisor = tensor_operand(y, dtype, like)
    rest = flow.fmod(tensor_operand(x, dtype, like), divisor)
    return store(flow.where(sign_differs(rest, divisor), rest + divisor, rest), dtype)


@accepts_empty
def pow(x: Any, y: Any) -> Tensor:
    """x ** y; integers by repeated multiplication, exact where OneFlow's goes through floating point."""
    dtype = result_type(x, y)
    if dtype.is_floating_point:
        return store(flow.pow(operand(x, dtype), operand(y, dtype)), dtype)
    inside = dtypes.int64 if dtype is dtypes.bool_ else dtype
    like = x if isinstance(x, Tensor) else y
    base = tensor_operand(x, inside, like)
    if isinstance(y, Tensor):
        return store(int_power(base, tensor_operand(y, inside, like)), dtype)
    if y < 0:
        raise OperatorError("pow cannot raise an integer tensor to a negative integer.")
    result = None
    for bit in bin(int(y))[:1:-1]:
        if bit == "1":
            result = base if result is None else result * base
        base = base * base
    return store(base * 0 + 1 if result is None else result, dtype)


def float_power(x: Any, y: Any) -> Tensor:
    """x ** y in float64."""
    return pow(*(convert(v, dtypes.float64) if isinstance(v, Tensor) else float(v) for v in (x, y)))


def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    """x + weight * (end - x), counted from the nearer end as torch does."""
    weight = as_tensor(weight, x)
    near, far = add(x, mul(weight, sub(end, x))), sub(end, mul(sub(end, x), rsub(weight, 1.0)))
    return convert(where(lt(abs(weight), 0.5), near, far), result_type(x, end))


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    """x + value * a * b."""
    return add(x, mul(a, b), alpha=value)


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    """x + value * a / b."""
    return add(x, div(a, b), alpha=value)
