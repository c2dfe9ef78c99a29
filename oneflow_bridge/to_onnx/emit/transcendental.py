"""Exponentials, logarithms, the error and gamma functions: series where ONNX has no operator."""

from __future__ import annotations

import math

import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


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
