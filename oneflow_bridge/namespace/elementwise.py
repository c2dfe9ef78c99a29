"""Elementwise arithmetic, comparison, logic and bits, as torch defines them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.tensor import (
    Tensor,
    _constant,
    as_tensor,
    broadcast_shapes,
    constant,
    convert,
    expanded,
    known,
    operand,
    result_type,
    store,
    widened,
)
from onnx2nn.errors import OperatorError


def _float(x: Tensor) -> Tensor:
    """Integers and bools as float32, as torch's float functions take them."""
    return x if x.dtype.is_floating_point else convert(x, dtypes.float32)


def _float_unary(kernel: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        x = _float(x)
        return store(kernel(widened(x)), x.dtype)

    return function


acos = arccos = _float_unary(flow.acos)
acosh = arccosh = _float_unary(flow.acosh)
asin = arcsin = _float_unary(flow.asin)
asinh = arcsinh = _float_unary(flow.asinh)
atan = arctan = _float_unary(flow.atan)
atanh = arctanh = _float_unary(flow.atanh)
cos = _float_unary(flow.cos)
cosh = _float_unary(flow.cosh)
sin = _float_unary(flow.sin)
sinh = _float_unary(flow.sinh)
tan = _float_unary(flow.tan)
tanh = _float_unary(flow.tanh)
exp = _float_unary(flow.exp)
exp2 = _float_unary(lambda v: flow.pow(2.0, v))
expm1 = _float_unary(flow.expm1)
log = _float_unary(flow.log)
log2 = _float_unary(flow.log2)
log10 = _float_unary(flow.log10)
log1p = _float_unary(flow.log1p)
sqrt = _float_unary(flow.sqrt)
rsqrt = _float_unary(flow.rsqrt)
reciprocal = _float_unary(flow.reciprocal)
sigmoid = _float_unary(flow.sigmoid)
erf = _float_unary(flow.erf)
erfc = _float_unary(flow.erfc)
erfinv = _float_unary(flow.erfinv)
lgamma = _float_unary(flow.lgamma)
deg2rad = _float_unary(lambda v: v * (math.pi / 180.0))
rad2deg = _float_unary(lambda v: v * (180.0 / math.pi))


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
        raise OperatorError("round(decimals) of an integer tensor.")
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
        raise OperatorError("Negation of a bool tensor.")
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


def signbit(x: Tensor) -> Tensor:
    """Whether the sign is negative, that of -0.0 included."""
    if not x.dtype.is_floating_point:
        return lt(x, 0) if x.dtype.is_signed else ne(x, x)
    value = widened(x)
    return Tensor(flow.logical_or(value < 0, flow.logical_and(value == 0, flow.reciprocal(value) < 0)))


def square(x: Tensor) -> Tensor:
    """x * x."""
    return mul(x, x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0); NaN stays."""
    if not x.dtype.is_signed:
        return x
    return store(flow.relu(widened(x)), x.dtype)


def isnan(x: Tensor) -> Tensor:
    """Which elements are NaN."""
    return ne(x, x) if not x.dtype.is_floating_point else Tensor(flow.isnan(widened(x)))


def isinf(x: Tensor) -> Tensor:
    """Which elements are infinite."""
    return ne(x, x) if not x.dtype.is_floating_point else Tensor(flow.isinf(widened(x)))


def isposinf(x: Tensor) -> Tensor:
    """Which elements are +inf."""
    return eq(x, math.inf) if x.dtype.is_floating_point else ne(x, x)


def isneginf(x: Tensor) -> Tensor:
    """Which elements are -inf."""
    return eq(x, -math.inf) if x.dtype.is_floating_point else ne(x, x)


def isfinite(x: Tensor) -> Tensor:
    """Which elements are neither infinite nor NaN."""
    return eq(x, x) if not x.dtype.is_floating_point else Tensor(flow.isfinite(widened(x)))


def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and the infinities replaced by numbers, by default 0 and the limits of the type."""
    if not x.dtype.is_floating_point:
        return x
    limit = dtypes.FInfo(x.dtype)
    result = where(isnan(x), 0.0 if nan is None else nan, x)
    result = where(isposinf(x), limit.max if posinf is None else posinf, result)
    return where(isneginf(x), limit.min if neginf is None else neginf, result)


def _no_uint64(dtype: DType, what: str, *operands: Any) -> None:
    """Refuse uint64 in operations whose result depends on its top bit, unless no value has it."""
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


def _of_nothing(function: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Give empty operands their empty result: OneFlow broadcasts them to shapes that are not empty."""

    @functools.wraps(function)
    def guarded(x: Any, y: Any) -> Tensor:
        shapes = [v.shape for v in (x, y) if isinstance(v, Tensor)]
        if not any(0 in shape for shape in shapes):
            return function(x, y)
        like = x if isinstance(x, Tensor) else y
        ones = (constant((1,), 1, v.dtype, like.device) if isinstance(v, Tensor) else v for v in (x, y))
        return constant(broadcast_shapes(*shapes), 0, function(*ones).dtype, like.device)

    return guarded


def _binary(kernel: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Tensor]:
    """A function of two operands whose result has their common type; bools become integers for the kernel."""

    @_of_nothing
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
        raise OperatorError("Subtraction of bool tensors.")
    return _sub(x, y if alpha == 1 else mul(y, alpha))


subtract = sub


def rsub(x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
    """y - alpha * x."""
    return sub(y, x, alpha=alpha)


@_of_nothing
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
        raise OperatorError(f"rounding_mode {rounding_mode!r}; there are 'trunc' and 'floor'.")
    dtype = result_type(x, y)
    if dtype.is_floating_point:
        return trunc(true_divide(x, y))
    return store(_int_division(x, y, dtype)[2], dtype)


divide = div


def _int_division(x: Any, y: Any, dtype: DType) -> tuple[Any, Any, Any]:
    """Dividend, divisor and truncated quotient as int64; the divisor is a Python int where y is a number.

    Dividing by zero, or the smallest integer by -1, ends the process in OneFlow; its division of two tensors does not
    broadcast and goes through float64.

    Raises:
        OperatorError: a divisor is zero (while a graph is traced it counts as 1, for there are no values to look at).
    """
    _no_uint64(dtype, "division", x, y)
    inside = dtypes.int64 if dtype is dtypes.bool_ else dtype
    a = _tensor_operand(x, inside, y)
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
    return a, b, _int_quotient(a, b, dtype.bits > 32)


def _int_quotient(a: Any, b: Any, wide: bool) -> Any:
    """a / b truncated, for tensors of one shape; `wide` where they may not fit into float64."""
    minus = (b == -1).to(flow.int64)  # its own inverse, and a trap of the processor
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


def _other_sign(rest: Any, divisor: Any) -> Any:
    """Where a remainder is not zero and has not the sign of the divisor."""
    if isinstance(divisor, flow.Tensor):
        return flow.logical_and(rest != 0, (rest < 0) != (divisor < 0))
    return rest > 0 if divisor < 0 else rest < 0


def _tensor_operand(x: Any, dtype: DType, like: Tensor) -> Any:
    value = operand(x, dtype)
    return value if isinstance(x, Tensor) else _constant((), value, dtype.compute, like.device)


@_of_nothing
def floor_divide(x: Any, y: Any) -> Tensor:
    """x / y rounded down; OneFlow's own truncates integers."""
    dtype = result_type(x, y)
    if dtype.is_floating_point:
        return _float_floor_divide(operand(x, dtype), operand(y, dtype), dtype, x if isinstance(x, Tensor) else y)
    a, b, quotient = _int_division(x, y, dtype)
    return store(quotient - _other_sign(a - quotient * b, b).to(flow.int64), dtype)


def _float_floor_divide(a: Any, b: Any, dtype: DType, like: Tensor) -> Tensor:
    """Exact as torch's and Python's: through the remainder, because a / b rounds."""
    a = a if isinstance(a, flow.Tensor) else _constant((), a, dtype.compute, like.device)
    b = b if isinstance(b, flow.Tensor) else _constant((), b, dtype.compute, like.device)
    quotient = a / b
    rest = flow.fmod(a, b)
    exact = (a - rest) / b
    exact = exact - _other_sign(rest, b).to(exact.dtype)
    floored = flow.floor(exact)
    floored = floored + ((exact - floored) > 0.5).to(exact.dtype)
    return store(flow.where(b == 0, quotient, flow.where(exact == 0, quotient * 0, floored)), dtype)


@_of_nothing
def fmod(x: Any, y: Any) -> Tensor:
    """The remainder with the sign of x."""
    dtype = result_type(x, y)
    if dtype.is_floating_point:
        like = x if isinstance(x, Tensor) else y
        return store(flow.fmod(_tensor_operand(x, dtype, like), _tensor_operand(y, dtype, like)), dtype)
    a, b, quotient = _int_division(x, y, dtype)
    return store(a - quotient * b, dtype)


@_of_nothing
def remainder(x: Any, y: Any) -> Tensor:
    """The remainder with the sign of y; OneFlow's `%` has that of x."""
    dtype = result_type(x, y)
    if not dtype.is_floating_point:
        a, b, quotient = _int_division(x, y, dtype)
        rest = a - quotient * b
        return store(rest + _other_sign(rest, b).to(flow.int64) * b, dtype)
    like = x if isinstance(x, Tensor) else y
    divisor = _tensor_operand(y, dtype, like)
    rest = flow.fmod(_tensor_operand(x, dtype, like), divisor)
    return store(flow.where(_other_sign(rest, divisor), rest + divisor, rest), dtype)


@_of_nothing
def pow(x: Any, y: Any) -> Tensor:
    """x ** y; integers by repeated multiplication, exact where OneFlow's goes through floating point."""
    dtype = result_type(x, y)
    if dtype.is_floating_point:
        return store(flow.pow(operand(x, dtype), operand(y, dtype)), dtype)
    inside = dtypes.int64 if dtype is dtypes.bool_ else dtype
    like = x if isinstance(x, Tensor) else y
    base = _tensor_operand(x, inside, like)
    if isinstance(y, Tensor):
        return store(_int_power(base, _tensor_operand(y, inside, like)), dtype)
    if y < 0:
        raise OperatorError("An integer to a negative integer power.")
    result = None
    for bit in bin(int(y))[:1:-1]:
        if bit == "1":
            result = base if result is None else result * base
        base = base * base
    return store(base * 0 + 1 if result is None else result, dtype)


def _int_power(base: Any, exponent: Any) -> Any:
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


def float_power(x: Any, y: Any) -> Tensor:
    """x ** y in float64."""
    return pow(*(convert(v, dtypes.float64) if isinstance(v, Tensor) else float(v) for v in (x, y)))


@_of_nothing
def atan2(x: Tensor, y: Tensor) -> Tensor:
    """The angle of (y, x)."""
    dtype = result_type(x, y)
    dtype = dtype if dtype.is_floating_point else dtypes.float32
    return store(flow.atan2(*_same_shape(x, y, dtype)), dtype)


arctan2 = atan2


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """The length of (x, y), without overflow."""
    big, small = maximum(abs(x), abs(y)), minimum(abs(x), abs(y))
    ratio = where(eq(big, 0), 0.0, div(small, big))
    return where(isinf(big), math.inf, mul(big, sqrt(add(mul(ratio, ratio), 1.0))))


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """log(exp(x) + exp(y)), without overflow."""
    big = maximum(x, y)
    difference = neg(abs(sub(x, y)))
    return where(isinf(big), big, add(big, log1p(exp(difference))))


def copysign(x: Any, y: Any) -> Tensor:
    """The size of x with the sign of y."""
    dtype = result_type(x, y)
    dtype = dtype if dtype.is_floating_point else dtypes.float32
    like = x if isinstance(x, Tensor) else y
    size, sign_of = (Tensor(_tensor_operand(v, dtype, like)) for v in (x, y))
    return convert(where(signbit(sign_of), neg(abs(size)), abs(size)), dtype)


def _same_shape(x: Any, y: Any, dtype: DType) -> tuple[Any, Any]:
    like = x if isinstance(x, Tensor) else y
    a, b = _tensor_operand(x, dtype, like), _tensor_operand(y, dtype, like)
    shape = broadcast_shapes(a.shape, b.shape)
    return expanded(a, shape), expanded(b, shape)


def _extremum(kernel: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Tensor]:
    """maximum and minimum: OneFlow loses a NaN of the first operand, torch keeps every NaN."""

    @_of_nothing
    def function(x: Any, y: Any) -> Tensor:
        dtype = result_type(x, y)
        _no_uint64(dtype, "comparison", x, y)
        inside = dtypes.int64 if dtype is dtypes.bool_ else dtype
        like = x if isinstance(x, Tensor) else y
        a, b = _tensor_operand(x, inside, like), _tensor_operand(y, inside, like)
        result = kernel(a, b)
        if dtype.is_floating_point:
            a = expanded(a, result.shape)
            result = flow.where(a != a, a, result)
        return store(result, dtype)

    return function


maximum = _extremum(flow.maximum)
minimum = _extremum(flow.minimum)


def fmax(x: Any, y: Any) -> Tensor:
    """The larger one; the other one where one is NaN."""
    return _ignoring_nan(maximum, x, y)


def fmin(x: Any, y: Any) -> Tensor:
    """The smaller one; the other one where one is NaN."""
    return _ignoring_nan(minimum, x, y)


def _ignoring_nan(choose: Callable[[Any, Any], Tensor], x: Tensor, y: Tensor) -> Tensor:
    x, y = as_tensor(x, y), as_tensor(y, x)
    return where(isnan(x), y, where(isnan(y), x, choose(x, y)))


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x between `min` and `max`, numbers or tensors; `max` wins where they cross."""
    if min is None and max is None:
        raise OperatorError("clamp without a bound.")
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        result = x if min is None else maximum(x, min)
        return result if max is None else minimum(result, max)
    bounds = [bound for bound in (min, max) if bound is not None]
    dtype = result_type(x, *bounds)
    _no_uint64(dtype, "comparison", x)
    inside = dtypes.int64 if dtype is dtypes.bool_ else dtype
    value = operand(x, inside)
    # As two steps: OneFlow's own lets `min` win where the bounds cross.
    if min is not None and max is not None and min <= max:
        return store(flow.clamp(value, _bound(min, inside), _bound(max, inside)), dtype)
    if min is not None:
        value = flow.clamp(value, min=_bound(min, inside))
    if max is not None:
        value = flow.clamp(value, max=_bound(max, inside))
    return store(value, dtype)


clip = clamp


def _bound(bound: Any, dtype: DType) -> Any:
    """A clamp bound: an integer one beyond int64 bounds nothing more than int64 itself does."""
    if dtype.is_floating_point:
        return float(bound)
    limits = dtypes.IInfo(dtypes.int64)
    return int(limits.max if bound > limits.max else limits.min if bound < limits.min else bound)


def clamp_min(x: Tensor, min: Any) -> Tensor:
    """x, at least `min`."""
    return clamp(x, min=min)


def clamp_max(x: Tensor, max: Any) -> Tensor:
    """x, at most `max`."""
    return clamp(x, max=max)


def _comparison(kernel: Callable[[Any, Any], Any], ordered: bool) -> Callable[[Any, Any], Tensor]:
    @_of_nothing
    def function(x: Any, y: Any) -> Tensor:
        dtype = result_type(x, y)
        inside = dtypes.int64 if not dtype.is_floating_point else dtype
        if dtype is dtypes.uint64:
            a, b = (operand(v, dtype) for v in (x, y))
            if ordered:  # flipping the top bit maps the order of uint64 onto that of int64
                a, b = (v + -(2**63) if isinstance(v, flow.Tensor) else _wrap_int64(v - 2**63) for v in (a, b))
            return Tensor(kernel(a, b), dtypes.bool_)
        a, b = (operand(v, inside) if isinstance(v, Tensor) else _plain(v, inside) for v in (x, y))
        return Tensor(kernel(a, b), dtypes.bool_)

    return function


def _wrap_int64(value: int) -> int:
    """A Python int reduced into the range of int64."""
    return (value + 2**63) % 2**64 - 2**63


def _plain(value: Any, dtype: DType) -> Any:
    """A number to compare with, not wrapped into the tensor's range: no int8 is larger than 300."""
    return float(value) if dtype.is_floating_point else _bound(value, dtypes.int64)


eq = _comparison(lambda a, b: a == b, False)
ne = not_equal = _comparison(lambda a, b: a != b, False)
lt = less = _comparison(lambda a, b: a < b, True)
le = less_equal = _comparison(lambda a, b: a <= b, True)
gt = greater = _comparison(lambda a, b: a > b, True)
ge = greater_equal = _comparison(lambda a, b: a >= b, True)


def _truth(x: Any, like: Any) -> Any:
    return widened(convert(as_tensor(x, like), dtypes.bool_))


@_of_nothing
def logical_and(x: Any, y: Any) -> Tensor:
    """Both non-zero."""
    return Tensor(flow.logical_and(_truth(x, y), _truth(y, x)))


@_of_nothing
def logical_or(x: Any, y: Any) -> Tensor:
    """One non-zero."""
    return Tensor(flow.logical_or(_truth(x, y), _truth(y, x)))


@_of_nothing
def logical_xor(x: Any, y: Any) -> Tensor:
    """Exactly one non-zero."""
    return Tensor(flow.logical_xor(_truth(x, y), _truth(y, x)))


def logical_not(x: Tensor) -> Tensor:
    """Zero."""
    return Tensor(flow.logical_not(_truth(x, x)))


def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    """x where the condition holds, else y; both may be numbers.

    Numbers take the type torch gives them (OneFlow makes the result float64).
    """
    dtype = result_type(x, y)
    chosen = [_tensor_operand(v, dtype, condition) for v in (x, y)]
    shape = broadcast_shapes(condition.shape, *(v.shape for v in chosen))
    if 0 in shape:
        return constant(shape, 0, dtype, condition.device)
    return store(flow.where(_truth(condition, condition), *chosen), dtype)


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


def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2 ** exponent, in two factors of float64 so that none overflows."""
    dtype = result_type(_float(x), exponent)
    count = operand(exponent, dtypes.float64)
    first = flow.floor(count / 2)
    value = operand(x, dtypes.float64) * flow.pow(2.0, first) * flow.pow(2.0, count - first)
    return convert(Tensor(value), dtype)


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa, 0.5 to 1, and int32 exponent of floats; 0, infinity and NaN are their own mantissa, with exponent 0."""
    value = operand(x, dtypes.float64)
    plain = flow.logical_and(flow.isfinite(value), value != 0)
    size = flow.where(plain, flow.abs(value), flow.ones_like(value))
    exponent = flow.floor(flow.log2(size)) + 1
    mantissa = ldexp(Tensor(size), Tensor(-exponent)).value  # the logarithm may be off by one near a power of two
    exponent = exponent + (mantissa >= 1).to(flow.float64) - (mantissa < 0.5).to(flow.float64)
    mantissa = ldexp(Tensor(value), Tensor(-exponent)).value
    exponent = flow.where(plain, exponent, flow.zeros_like(exponent))
    return store(flow.where(plain, mantissa, value), x.dtype), convert(Tensor(exponent), dtypes.int32)


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), x clamped to [eps, 1 - eps]."""
    x = x if eps is None else clamp(x, eps, 1 - eps)
    return log(div(x, rsub(x, 1)))


def sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x)."""
    scaled = mul(_float(x), math.pi)
    return where(eq(scaled, 0), 1.0, div(sin(scaled), scaled))


def xlogy(x: Tensor, y: Tensor) -> Tensor:
    """x * log(y), 0 where x is 0."""
    return where(logical_and(eq(x, 0), logical_not(isnan(y))), 0.0, mul(x, log(y)))


def isclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Which elements are equal within atol + rtol * |y|."""
    near = logical_and(le(abs(sub(x, y)), add(mul(abs(y), rtol), atol)), isfinite(y))
    result = logical_or(eq(x, y), near)
    return logical_or(result, logical_and(isnan(x), isnan(y))) if equal_nan else result


def _bitwise(of_bools: Callable[[Any, Any], Any], of_bits: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Tensor]:
    """Bit operations: OneFlow's `& | ^` are logical and it has no bitwise kernels, so integers are taken apart."""

    @_of_nothing
    def function(x: Any, y: Any) -> Tensor:
        dtype = result_type(x, y)
        if dtype is dtypes.bool_:
            return Tensor(of_bools(_truth(x, y), _truth(y, x)))
        if not dtype.is_integer:
            raise OperatorError(f"Bitwise operation on {dtype}.")
        a, b = _same_shape(x, y, dtype)
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
    """Bits that differ; turning the top bit of an int64 over is an addition."""
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
    """All bits turned over."""
    if x.dtype is dtypes.bool_:
        return logical_not(x)
    if not x.dtype.is_integer:
        raise OperatorError(f"Bitwise operation on {x.dtype}.")
    return store(-1 - widened(x), x.dtype)


def bitwise_left_shift(x: Any, y: Any) -> Tensor:
    """x * 2 ** y, the bits that leave are lost; 0 from the type's width on."""
    dtype = result_type(x, y)
    value, count = _same_shape(x, y, dtype)
    inside = flow.clamp(count, 0, 62)
    shifted = value * _int_power(inside * 0 + 2, inside)
    shifted = flow.where(count == 63, value * _power_of_two(63), shifted)
    return store(flow.where(flow.logical_or(count < 0, count >= dtype.bits), value * 0, shifted), dtype)


def bitwise_right_shift(x: Any, y: Any) -> Tensor:
    """x / 2 ** y rounded down; the sign bit fills signed types, 0 unsigned ones."""
    dtype = result_type(x, y)
    value, count = _same_shape(x, y, dtype)
    if dtype is dtypes.uint64:
        return _uint64_right_shift(value, count)
    shifted = _shifted_right(value, flow.clamp(count, 0, 62))
    outside = flow.logical_or(count < 0, count > 62)
    return store(flow.where(outside, (value < 0).to(flow.int64) * -1, shifted), dtype)


def _shifted_right(value: Any, count: Any) -> Any:
    """An int64 tensor divided by 2 ** count (0 to 62) and rounded down."""
    power = _int_power(count * 0 + 2, count)
    quotient = _int_quotient(value, power, True)
    return quotient - (value < quotient * power).to(flow.int64)


def _uint64_right_shift(value: Any, count: Any) -> Tensor:
    """The lower 63 bits shifted as a positive int64, and the top bit put where it goes."""
    top = (value < 0).to(flow.int64)
    lower = value + top * _power_of_two(63)
    back = flow.clamp(count * -1 + 63, 0, 62)
    shifted = _shifted_right(lower, flow.clamp(count, 0, 62)) + top * _int_power(back * 0 + 2, back)
    shifted = flow.where(count == 0, value, flow.where(count == 63, top, shifted))
    return Tensor(flow.where(flow.logical_or(count < 0, count > 63), value * 0, shifted), dtypes.uint64)
