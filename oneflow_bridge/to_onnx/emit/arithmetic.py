"""Elementwise arithmetic, rounding and casts."""

from __future__ import annotations

import onnx_ir as ir

from oneflow_bridge.to_onnx.emit.comparison import truth
from oneflow_bridge.to_onnx.job import DTYPES
from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit, row
from oneflow_bridge.to_onnx.lowering.schemas import FLOATS

for _oneflow, _onnx in {
    **{"abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan"},
    **{"atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor"},
    **{"log": "Log", "negative": "Neg", "reciprocal": "Reciprocal", "rint": "Round", "round": "Round", "sign": "Sign"},
    **{"sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan"},
}.items():
    row(_oneflow, _onnx)


for _oneflow, _onnx in {
    **{"broadcast_add": "Add", "broadcast_mul": "Mul", "broadcast_div": "Div"},
    **{"broadcast_pow": "Pow", "pow": "Pow", "broadcast_maximum": "Max", "broadcast_minimum": "Min"},
    **{"elementwise_maximum": "Max", "elementwise_minimum": "Min"},
}.items():
    row(_oneflow, _onnx, "x y", "z")


@emit("broadcast_sub")
def broadcast_sub(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x - y; of booleans x and not y, as False - True is False in OneFlow (measured)."""
    return g.And(x, g.Not(y)) if x.dtype == ir.DataType.BOOL else g.Sub(x, y)


@emit("square")
def square(g: Builder, x: ir.Value) -> ir.Value:
    """x * x."""
    return g.Mul(x, x)


@emit("rsqrt")
def rsqrt(g: Builder, x: ir.Value) -> ir.Value:
    """1 / sqrt(x)."""
    return g.Reciprocal(g.Sqrt(x))


@emit("reciprocal_no_nan")
def reciprocal_no_nan(g: Builder, x: ir.Value) -> ir.Value:
    """1 / x, and 0 for 0."""
    zero = g.Equal(x, 0)
    return g.Where(zero, g.full(0, x), g.Reciprocal(g.Where(zero, g.full(1, x), x)))


@emit("trunc")
def trunc(g: Builder, in_: ir.Value) -> ir.Value:
    """Towards 0."""
    return in_ if in_.dtype not in FLOATS else g.Where(g.Less(in_, 0), g.Ceil(in_), g.Floor(in_))


@emit("broadcast_fmod")
def fmod(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The remainder with the sign of x; integers have none other in OneFlow, and booleans leave none (measured)."""
    return g.And(x, g.Not(g.Or(x, y))) if x.dtype == ir.DataType.BOOL else g.Mod(x, y, fmod=1)


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
        return truth(g, in_)
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
