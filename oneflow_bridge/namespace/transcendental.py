"""Exponentials, logarithms, trigonometry and the error functions, as torch defines them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import abs, add, div, mul, neg, rsub, sub
from oneflow_bridge.namespace.comparison import (
    clamp,
    eq,
    isinf,
    isnan,
    logical_and,
    logical_not,
    maximum,
    minimum,
    signbit,
    where,
)
from oneflow_bridge.namespace.dtypes import flow
from oneflow_bridge.namespace.operands import accepts_empty, as_float, broadcast_operands, tensor_operand
from oneflow_bridge.namespace.tensor import Tensor, convert, operand, result_type, store, widened


def _float_unary(kernel: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        x = as_float(x)
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


@accepts_empty
def atan2(x: Tensor, y: Tensor) -> Tensor:
    """The angle of (y, x)."""
    dtype = result_type(x, y)
    dtype = dtype if dtype.is_floating_point else dtypes.float32
    return store(flow.atan2(*broadcast_operands(x, y, dtype)), dtype)


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
    size, sign_of = (Tensor(tensor_operand(v, dtype, like)) for v in (x, y))
    return convert(where(signbit(sign_of), neg(abs(size)), abs(size)), dtype)


def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2 ** exponent, in two factors of float64 so that none overflows."""
    dtype = result_type(as_float(x), exponent)
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
    scaled = mul(as_float(x), math.pi)
    return where(eq(scaled, 0), 1.0, div(sin(scaled), scaled))


def xlogy(x: Tensor, y: Tensor) -> Tensor:
    """x * log(y), 0 where x is 0."""
    return where(logical_and(eq(x, 0), logical_not(isnan(y))), 0.0, mul(x, log(y)))
