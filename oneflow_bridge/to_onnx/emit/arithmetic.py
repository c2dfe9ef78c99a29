"""Elementwise arithmetic, comparison, logic, casts and the ops with a scalar."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.emit.builder import FLOATS, Builder
from oneflow_bridge.to_onnx.emit.registry import emit, row
from oneflow_bridge.to_onnx.job import DTYPES

for _oneflow, _onnx in {
    **{"abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan"},
    **{"atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor"},
    **{"log": "Log", "negative": "Neg", "reciprocal": "Reciprocal", "rint": "Round", "round": "Round", "sign": "Sign"},
    **{"sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan"},
}.items():
    row(_oneflow, _onnx)

for _oneflow, _onnx in {
    **{"broadcast_add": "Add", "broadcast_sub": "Sub", "broadcast_mul": "Mul", "broadcast_div": "Div"},
    **{"broadcast_pow": "Pow", "pow": "Pow", "broadcast_maximum": "Max", "broadcast_minimum": "Min"},
    **{"elementwise_maximum": "Max", "elementwise_minimum": "Min"},
}.items():
    row(_oneflow, _onnx, "x y", "z")


@emit("square")
def square(g: Builder, x: ir.Value) -> ir.Value:
    """x * x."""
    return g.Mul(x, x)


@emit("rsqrt")
def rsqrt(g: Builder, x: ir.Value) -> ir.Value:
    """1 / sqrt(x)."""
    return g.Reciprocal(g.Sqrt(x))


@emit("expm1")
def expm1(g: Builder, x: ir.Value) -> ir.Value:
    """exp(x) - 1; near 0 by tanh, where the difference would lose all digits."""
    half = g.Tanh(g.Mul(x, 0.5))
    near = g.Div(g.Mul(half, 2), g.Sub(g.full(1, x), half))
    return g.Where(g.Less(g.Abs(x), 0.5), near, g.Sub(g.Exp(x), 1))


@emit("log1p")
def log1p(g: Builder, x: ir.Value) -> ir.Value:
    """log(1 + x); near 0 corrected for the rounding of 1 + x."""
    one_more = g.Add(x, 1)
    rounded = g.Sub(one_more, 1)
    exact = g.Equal(rounded, 0)
    corrected = g.Mul(g.Log(one_more), g.Div(x, g.Where(exact, g.full(1, x), rounded)))
    small = g.Where(exact, x, corrected)
    return g.Where(g.Less(g.Abs(x), 0.5), small, g.Log(one_more))


@emit("log2")
def log2(g: Builder, x: ir.Value) -> ir.Value:
    """Logarithm to base 2."""
    return g.Mul(g.Log(x), 1 / math.log(2))


@emit("log10")
def log10(g: Builder, x: ir.Value) -> ir.Value:
    """Logarithm to base 10."""
    return g.Mul(g.Log(x), 1 / math.log(10))


@emit("erfc")
def erfc(g: Builder, x: ir.Value) -> ir.Value:
    """1 - erf(x)."""
    return g.Sub(g.full(1, x), g.Erf(x))


@emit("erfinv")
def erfinv(g: Builder, x: ir.Value) -> ir.Value:
    """Inverse error function: Giles' single-precision polynomials (2010), then two Newton steps on Erf."""
    w = g.Neg(g.Log(g.Mul(g.Sub(g.full(1, x), x), g.Add(x, 1))))
    near = _polynomial(g, g.Sub(w, 2.5), _GILES_CENTRE)
    far = _polynomial(g, g.Sub(g.Sqrt(w), 3.0), _GILES_TAIL)
    guess = g.Mul(g.Where(g.Less(w, 5.0), near, far), x)
    for _ in range(2 if x.dtype == ir.DataType.DOUBLE else 0):
        slope = g.Mul(g.Exp(g.Neg(g.Mul(guess, guess))), 2 / math.sqrt(math.pi))
        guess = g.Sub(guess, g.Div(g.Sub(g.Erf(guess), x), slope))
    edge = g.Equal(g.Abs(x), 1)
    return g.Where(edge, g.Mul(x, math.inf), guess)


_GILES_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503),
    *(-0.00417768164, 0.246640727, 1.50140941),
)
_GILES_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613),
    *(0.00943887047, 1.00167406, 2.83297682),
)


def _polynomial(g: Builder, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """Horner's scheme, the highest power first."""
    total = g.full(coefficients[0], x)
    for coefficient in coefficients[1:]:
        total = g.Add(g.Mul(total, x), coefficient)
    return total


_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)


@emit("lgamma")
def lgamma(g: Builder, x: ir.Value) -> ir.Value:
    """log |gamma(x)| by Lanczos' series (g = 7, n = 9) in float64, reflected below 1/2."""
    wide = g.Cast(x, to=ir.DataType.DOUBLE)
    reflect = g.Less(wide, 0.5)
    z = g.Sub(g.Where(reflect, g.Sub(g.full(1, wide), wide), wide), 1)
    series = g.full(_LANCZOS[0], z)
    for index, coefficient in enumerate(_LANCZOS[1:], 1):
        series = g.Add(series, g.Div(g.full(coefficient, z), g.Add(z, index)))
    t = g.Add(z, 7.5)
    stirling = g.Sub(g.Mul(g.Add(z, 0.5), g.Log(t)), t)
    value = g.Add(g.Add(stirling, 0.5 * math.log(2 * math.pi)), g.Log(series))
    part = g.Sub(wide, g.Floor(wide))  # |sin(pi x)| has period 1
    mirrored = g.Sub(g.full(math.log(math.pi), z), g.Add(g.Log(g.Abs(g.Sin(g.Mul(part, math.pi)))), value))
    infinite = g.Equal(g.Abs(wide), math.inf)
    return g.Cast(g.Where(infinite, g.Abs(wide), g.Where(reflect, mirrored, value)), to=x.dtype)


@emit("reciprocal_no_nan")
def reciprocal_no_nan(g: Builder, x: ir.Value) -> ir.Value:
    """1 / x, and 0 for 0."""
    zero = g.Equal(x, 0)
    return g.Where(zero, g.full(0, x), g.Reciprocal(g.Where(zero, g.full(1, x), x)))


@emit("trunc")
def trunc(g: Builder, in_: ir.Value) -> ir.Value:
    """Towards 0."""
    return in_ if in_.dtype not in FLOATS else g.Where(g.Less(in_, 0), g.Ceil(in_), g.Floor(in_))


@emit("isnan")
def isnan(g: Builder, in_: ir.Value) -> ir.Value:
    """Whether x is no number; an integer always is one."""
    return g.IsNaN(in_) if in_.dtype in FLOATS else g.Not(g.Equal(in_, in_))


@emit("isinf")
def isinf(g: Builder, in_: ir.Value) -> ir.Value:
    """Whether x is infinite; the operator came at opset 10."""
    return g.Equal(g.Abs(in_), math.inf) if in_.dtype in FLOATS else g.Not(g.Equal(in_, in_))


@emit("isfinite")
def isfinite(g: Builder, in_: ir.Value) -> ir.Value:
    """Whether x is a number and not infinite."""
    return g.Less(g.Abs(in_), math.inf) if in_.dtype in FLOATS else g.Equal(in_, in_)


@emit("logical_not")
def logical_not(g: Builder, x: ir.Value) -> ir.Value:
    """Whether x is 0 or false."""
    return g.Not(_truth(g, x))


@emit("not_equal_zero")
def not_equal_zero(g: Builder, x: ir.Value) -> ir.Value:
    """1 where x is not 0, in the type of x."""
    return g.Cast(_truth(g, x), to=g.result().dtype)


def _truth(g: Builder, x: ir.Value) -> ir.Value:
    return x if x.dtype == ir.DataType.BOOL else g.Not(g.Equal(x, 0))


@emit("broadcast_equal")
def equal(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x == y."""
    return g.Cast(g.Equal(x, y), to=g.result().dtype)


@emit("broadcast_not_equal")
def not_equal(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x != y."""
    return g.Cast(g.Not(g.Equal(x, y)), to=g.result().dtype)


@emit("broadcast_greater")
def greater(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x > y."""
    return g.Cast(g.Greater(x, y), to=g.result().dtype)


@emit("broadcast_greater_equal")
def greater_equal(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x >= y."""
    return g.Cast(g.GreaterOrEqual(x, y), to=g.result().dtype)


@emit("broadcast_less")
def less(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x < y."""
    return g.Cast(g.Less(x, y), to=g.result().dtype)


@emit("broadcast_less_equal")
def less_equal(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x <= y."""
    return g.Cast(g.LessOrEqual(x, y), to=g.result().dtype)


@emit("broadcast_logical_and")
def logical_and(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x and y; a number is true where it is not 0."""
    return g.And(_truth(g, x), _truth(g, y))


@emit("broadcast_logical_or")
def logical_or(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x or y."""
    return g.Or(_truth(g, x), _truth(g, y))


@emit("broadcast_logical_xor")
def logical_xor(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Either x or y."""
    return g.Xor(_truth(g, x), _truth(g, y))


@emit("broadcast_isclose_eq_nan", ignore="equal_nan")
def isclose_equal_nan(g: Builder, x: ir.Value, y: ir.Value, *, atol: float, rtol: float) -> ir.Value:
    """|x - y| <= atol + rtol |y|, or both NaN."""
    return g.Or(isclose(g, x, y, atol=atol, rtol=rtol), g.And(g.IsNaN(x), g.IsNaN(y)))


@emit("broadcast_isclose_neq_nan", ignore="equal_nan")
def isclose(g: Builder, x: ir.Value, y: ir.Value, *, atol: float, rtol: float) -> ir.Value:
    """|x - y| <= atol + rtol |y|; equal infinities are close."""
    near = g.LessOrEqual(g.Abs(g.Sub(x, y)), g.Add(g.Mul(g.Abs(y), rtol), atol))
    finite = g.Less(g.Abs(y), math.inf)
    return g.Or(g.Equal(x, y), g.And(near, finite))


@emit("broadcast_fmod")
def fmod(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The remainder with the sign of x; integers have none other in OneFlow."""
    return g.Mod(x, y, fmod=1)


@emit("broadcast_floor_mod")
def floor_mod(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The remainder with the sign of y."""
    return g.Mod(x, y, fmod=0) if x.dtype not in FLOATS else g.Sub(x, g.Mul(g.Floor(g.Div(x, y)), y))


@emit("floordiv")
def floordiv(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Floats are floored, integers cut towards 0: that is what OneFlow computes."""
    quotient = g.Div(x, y)
    return g.Floor(quotient) if x.dtype in FLOATS else quotient


@emit("truncdiv")
def truncdiv(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The quotient, cut towards 0."""
    return trunc(g, g.Div(x, y))


@emit("atan2")
def atan2(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The angle of the point (y, x): OneFlow's x is the ordinate."""
    both_zero = g.And(g.Equal(x, 0), g.Equal(y, 0))
    steep = g.Greater(g.Abs(x), g.Abs(y))
    one = g.full(1, x)
    flat = g.Atan(g.Div(x, g.Where(g.Or(steep, both_zero), one, y)))
    sign = g.Where(g.Less(x, 0), g.full(-1, x), one)
    flat = g.Where(g.Less(y, 0), g.Add(flat, g.Mul(sign, math.pi)), flat)
    upright = g.Sub(g.Mul(sign, math.pi / 2), g.Atan(g.Div(y, g.Where(steep, x, one))))
    return g.Where(both_zero, g.full(0, x), g.Where(steep, upright, flat))


@emit("xlogy")
def xlogy(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x log(y), and 0 for x = 0."""
    zero = g.Equal(x, 0)
    return g.Where(g.And(zero, g.Not(g.IsNaN(y))), g.full(0, x), g.Mul(x, g.Log(y)))


@emit("xdivy")
def xdivy(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x / y, and 0 for x = 0."""
    zero = g.Equal(x, 0)
    return g.Where(g.And(zero, g.Not(g.IsNaN(y))), g.full(0, x), g.Div(x, y))


@emit("bias_add")
def bias_add(g: Builder, a: ir.Value, b: ir.Value, *, axis: int) -> ir.Value:
    """a + b with b along one axis of a."""
    after = g.rank(a) - 1 - axis % g.rank(a)
    return g.Add(a, g.Unsqueeze(b, list(range(1, 1 + after))) if after else b)


@emit("add_n")
def add_n(g: Builder, in_: list) -> ir.Value:
    """The sum of all inputs; ONNX Sum takes floats only."""
    if len(in_) == 2 or in_[0].dtype not in FLOATS:
        total = in_[0]
        for value in in_[1:]:
            total = g.Add(total, value)
        return total
    return g.Sum(*in_)


@emit("fused_weighted_sum")
def fused_weighted_sum(g: Builder, in_: list, *, weights: list, alpha: float) -> ir.Value:
    """The sum of inputs times weights, times alpha."""
    return g.Mul(g.Sum(*(g.Mul(value, weight) for value, weight in zip(in_, weights, strict=True))), alpha)


@emit("cast")
def cast(g: Builder, in_: ir.Value, *, dtype: str) -> ir.Value:
    """In another type."""
    if dtype not in DTYPES:
        g.refuse(f"casts to {dtype}, which ONNX does not have.")
    if DTYPES[dtype] == ir.DataType.BOOL:
        return _truth(g, in_)
    return g.Cast(in_, to=DTYPES[dtype])


@emit("cast_like")
def cast_like(g: Builder, in_: ir.Value, dtype_like: ir.Value) -> ir.Value:
    """In the type of another tensor."""
    return g.Cast(in_, to=dtype_like.dtype)


@emit("fused_cast_scale")
def fused_cast_scale(g: Builder, x: ir.Value, scale_by_tensor: ir.Value, *, scale: float) -> ir.Value:
    """x in the type of the result, times a number, times a one-element tensor."""
    like = g.Cast(x, to=g.result().dtype)
    return g.Mul(g.Mul(like, scale), g.Cast(scale_by_tensor, to=like.dtype))


def _operand(g: Builder, has_int: bool, has_float: bool, integer: int, number: float) -> float:
    """The scalar of a scalar op."""
    if bool(has_int) == bool(has_float):
        g.refuse("has no operand, or two.")
    return integer if has_int else number


def _promoted(g: Builder, x: ir.Value) -> ir.Value:
    """x in the type of the result: a float scalar makes an integer tensor float."""
    return g.Cast(x, to=g.result().dtype)


@emit("scalar_add")
def scalar_add(g, in_, *, has_int_operand, has_float_operand, int_operand, float_operand):  # type: ignore[no-untyped-def]
    """x + s."""
    return g.Add(_promoted(g, in_), _operand(g, has_int_operand, has_float_operand, int_operand, float_operand))


@emit("scalar_mul")
def scalar_mul(g, in_, *, has_int_operand, has_float_operand, int_operand, float_operand):  # type: ignore[no-untyped-def]
    """x * s."""
    return g.Mul(_promoted(g, in_), _operand(g, has_int_operand, has_float_operand, int_operand, float_operand))


@emit("scalar_div")
def scalar_div(g, in_, *, has_int_operand, has_float_operand, int_operand, float_operand):  # type: ignore[no-untyped-def]
    """x / s."""
    return g.Div(_promoted(g, in_), _operand(g, has_int_operand, has_float_operand, int_operand, float_operand))


@emit("scalar_pow")
def scalar_pow(g, in_, *, has_int_operand, has_float_operand, int_operand, float_operand):  # type: ignore[no-untyped-def]
    """x ** s; small whole powers are products."""
    exponent = _operand(g, has_int_operand, has_float_operand, int_operand, float_operand)
    base = _promoted(g, in_)
    if exponent == 2:
        return g.Mul(base, base)
    return g.Pow(base, g.full(exponent, base))


@emit("scalar_reverse_pow")
def scalar_reverse_pow(g, in_, *, has_int_operand, has_float_operand, int_operand, float_operand):  # type: ignore[no-untyped-def]
    """s ** x."""
    exponent = _promoted(g, in_)
    base = _operand(g, has_int_operand, has_float_operand, int_operand, float_operand)
    return g.Pow(g.full(base, exponent), exponent)


@emit("scalar_floordiv")
def scalar_floordiv(g, in_, *, has_int_operand, has_float_operand, int_operand, float_operand):  # type: ignore[no-untyped-def]
    """As `floordiv`."""
    x = _promoted(g, in_)
    return floordiv(g, x, g.full(_operand(g, has_int_operand, has_float_operand, int_operand, float_operand), x))


@emit("scalar_truncdiv")
def scalar_truncdiv(g, in_, *, has_int_operand, has_float_operand, int_operand, float_operand):  # type: ignore[no-untyped-def]
    """As `truncdiv`."""
    x = _promoted(g, in_)
    return truncdiv(g, x, g.full(_operand(g, has_int_operand, has_float_operand, int_operand, float_operand), x))


@emit("scalar_fmod")
def scalar_fmod(g, in_, *, has_int_operand, has_float_operand, int_operand, float_operand):  # type: ignore[no-untyped-def]
    """As `fmod`."""
    x = _promoted(g, in_)
    return fmod(g, x, g.full(_operand(g, has_int_operand, has_float_operand, int_operand, float_operand), x))


def _register_scalar_comparisons() -> None:
    functions = {
        "equal": equal,
        "not_equal": not_equal,
        "greater": greater,
        "greater_equal": greater_equal,
        "less": less,
        "less_equal": less_equal,
        "and": logical_and,
        "or": logical_or,
        "xor": logical_xor,
    }
    for name, function in functions.items():
        emit(f"scalar_logical_{name}")(_compared_with_scalar(function))


def _compared_with_scalar(function):  # type: ignore[no-untyped-def]
    def compare(g, in_, *, has_int_operand, has_float_operand, int_operand, float_operand):  # type: ignore[no-untyped-def]
        scalar = _operand(g, has_int_operand, has_float_operand, int_operand, float_operand)
        if in_.dtype not in FLOATS and scalar != int(scalar):
            in_ = g.Cast(in_, to=ir.DataType.DOUBLE)
        if in_.dtype == ir.DataType.BOOL:
            in_ = g.Cast(in_, to=ir.DataType.INT32)
        return function(g, in_, g.full(scalar, in_))

    return compare


_register_scalar_comparisons()


@emit("scalar_add_by_tensor")
def scalar_add_by_tensor(g: Builder, x: ir.Value, scalar: ir.Value) -> ir.Value:
    """x + a one-element tensor."""
    return g.Add(x, scalar)


@emit("scalar_sub_by_tensor")
def scalar_sub_by_tensor(g: Builder, x: ir.Value, scalar: ir.Value) -> ir.Value:
    """x - a one-element tensor."""
    return g.Sub(x, scalar)


@emit("scalar_mul_by_tensor")
def scalar_mul_by_tensor(g: Builder, x: ir.Value, scalar: ir.Value) -> ir.Value:
    """x * a one-element tensor."""
    return g.Mul(x, scalar)


@emit("scalar_div_by_tensor")
def scalar_div_by_tensor(g: Builder, x: ir.Value, scalar: ir.Value) -> ir.Value:
    """x / a one-element tensor."""
    return g.Div(x, scalar)


@emit("clip_by_scalar")
def clip_by_scalar(g, x, *, floating_min, integral_min, floating_max, integral_max):  # type: ignore[no-untyped-def]
    """x within both bounds."""
    return g.Clip(x, *((floating_min, floating_max) if x.dtype in FLOATS else (integral_min, integral_max)))


@emit("clip_by_scalar_min")
def clip_by_scalar_min(g: Builder, x: ir.Value, *, floating_min: float, integral_min: int) -> ir.Value:
    """x, at least a number."""
    return g.Max(x, g.full(floating_min if x.dtype in FLOATS else integral_min, x))


@emit("clip_by_scalar_max")
def clip_by_scalar_max(g: Builder, x: ir.Value, *, floating_max: float, integral_max: int) -> ir.Value:
    """x, at most a number."""
    return g.Min(x, g.full(floating_max if x.dtype in FLOATS else integral_max, x))


@emit("where")
def where(g: Builder, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """x where the condition is not 0, else y."""
    return g.Where(_truth(g, condition), x, y)


def _choice(g, has_int, has_float, has_bool, integer, number, boolean):  # type: ignore[no-untyped-def]
    chosen = [value for has, value in ((has_int, integer), (has_float, number), (has_bool, bool(boolean))) if has]
    if len(chosen) != 1:
        g.refuse("has no operand, or two.")
    return chosen[0]


@emit("where_scalar_x")
def where_scalar_x(
    g, condition, y, *, has_int_operand, has_float_operand, has_bool_operand, int_operand, float_operand, bool_operand
):  # type: ignore[no-untyped-def]
    """A number where the condition is not 0, else y."""
    number = _choice(g, has_int_operand, has_float_operand, has_bool_operand, int_operand, float_operand, bool_operand)
    y = _promoted(g, y)
    return g.Where(_truth(g, condition), g.full(number, y), y)


@emit("where_scalar_y")
def where_scalar_y(
    g, condition, x, *, has_int_operand, has_float_operand, has_bool_operand, int_operand, float_operand, bool_operand
):  # type: ignore[no-untyped-def]
    """x where the condition is not 0, else a number."""
    number = _choice(g, has_int_operand, has_float_operand, has_bool_operand, int_operand, float_operand, bool_operand)
    x = _promoted(g, x)
    return g.Where(_truth(g, condition), x, g.full(number, x))


@emit("where_scalar_xy")
def where_scalar_xy(
    g,
    condition,
    *,
    has_x_int_operand,
    has_x_float_operand,
    has_x_bool_operand,
    has_y_int_operand,
    has_y_float_operand,
    has_y_bool_operand,
    x_int_operand,
    x_float_operand,
    x_bool_operand,
    y_int_operand,
    y_float_operand,
    y_bool_operand,
):  # type: ignore[no-untyped-def]
    """One of two numbers."""
    x = _choice(
        g, has_x_int_operand, has_x_float_operand, has_x_bool_operand, x_int_operand, x_float_operand, x_bool_operand
    )
    y = _choice(
        g, has_y_int_operand, has_y_float_operand, has_y_bool_operand, y_int_operand, y_float_operand, y_bool_operand
    )
    dtype = g.result().dtype
    return g.Where(_truth(g, condition), g.const(x, dtype), g.const(y, dtype))


@emit("masked_fill")
def masked_fill(
    g, x, mask, *, has_int_operand, has_float_operand, has_bool_operand, int_operand, float_operand, bool_operand
):  # type: ignore[no-untyped-def]
    """A number where the mask is not 0, else x."""
    number = _choice(g, has_int_operand, has_float_operand, has_bool_operand, int_operand, float_operand, bool_operand)
    return g.Where(_truth(g, mask), g.full(_bounded(number, x), x), x)


def _bounded(number: float, like: ir.Value) -> float:
    """The number, infinite where it exceeds the range of a half-precision type (as OneFlow's cast does)."""
    if like.dtype == ir.DataType.FLOAT16 and abs(number) > float(np.finfo(np.float16).max):
        return math.copysign(math.inf, number)
    return number
