"""Comparison, logic and choice."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import Scalar, emit
from oneflow_bridge.to_onnx.lowering.schemas import FLOATS


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
    return g.Not(truth(g, x))


@emit("not_equal_zero")
def not_equal_zero(g: Builder, x: ir.Value) -> ir.Value:
    """1 where x is not 0, in the type of x."""
    return g.Cast(truth(g, x), to=g.result().dtype)


def truth(g: Builder, x: ir.Value) -> ir.Value:
    """x as a bool: whether it is not 0."""
    return x if x.dtype == ir.DataType.BOOL else g.Not(g.Equal(x, 0))


def _compared(operator: str) -> Callable[[Builder, ir.Value, ir.Value], ir.Value]:
    def compare(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
        return g.Cast(getattr(g, operator)(x, y), to=g.result().dtype)

    return compare


def _combined(operator: str) -> Callable[[Builder, ir.Value, ir.Value], ir.Value]:
    """A logical operator; a number is true where it is not 0."""

    def combine(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
        return getattr(g, operator)(truth(g, x), truth(g, y))

    return combine


def _not_equal(g: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    return g.Cast(g.Not(g.Equal(x, y)), to=g.result().dtype)


_OPERATORS = {
    **{"equal": _compared("Equal"), "not_equal": _not_equal, "greater": _compared("Greater")},
    **{"greater_equal": _compared("GreaterOrEqual"), "less": _compared("Less"), "less_equal": _compared("LessOrEqual")},
    **{"logical_and": _combined("And"), "logical_or": _combined("Or"), "logical_xor": _combined("Xor")},
}


def _with_scalar(compare: Callable[[Builder, ir.Value, ir.Value], ir.Value]) -> Callable[..., ir.Value]:
    """The operator for a tensor and a number, compared in a type that holds both."""

    def compare_with_scalar(g: Builder, in_: ir.Value, *, operand: Scalar) -> ir.Value:
        g.fixed(operand)
        if in_.dtype not in FLOATS and operand != int(operand):
            in_ = g.Cast(in_, to=ir.DataType.DOUBLE)
        if in_.dtype == ir.DataType.BOOL:
            in_ = g.Cast(in_, to=ir.DataType.INT32)
        return compare(g, in_, g.full(operand, in_))

    return compare_with_scalar


for _name, _operator in _OPERATORS.items():
    emit(f"broadcast_{_name}")(_operator)
    emit(f"scalar_logical_{_name.removeprefix('logical_')}")(_with_scalar(_operator))


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


@emit("where")
def where(g: Builder, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """x where the condition is not 0, else y."""
    return g.Where(truth(g, condition), x, y)


@emit("where_scalar_x")
def where_scalar_x(g: Builder, condition: ir.Value, y: ir.Value, *, operand: Scalar) -> ir.Value:
    """A number where the condition is not 0, else y."""
    y = g.Cast(y, to=g.result().dtype)
    return g.Where(truth(g, condition), g.full(operand, y), y)


@emit("where_scalar_y")
def where_scalar_y(g: Builder, condition: ir.Value, x: ir.Value, *, operand: Scalar) -> ir.Value:
    """x where the condition is not 0, else a number."""
    x = g.Cast(x, to=g.result().dtype)
    return g.Where(truth(g, condition), x, g.full(operand, x))


@emit("where_scalar_xy")
def where_scalar_xy(g: Builder, condition: ir.Value, *, x_operand: Scalar, y_operand: Scalar) -> ir.Value:
    """One of two numbers."""
    x, y = (g.const(number, g.result().dtype) for number in (x_operand, y_operand))
    return g.Where(truth(g, condition), x, y)


@emit("masked_fill")
def masked_fill(g: Builder, x: ir.Value, mask: ir.Value, *, operand: Scalar) -> ir.Value:
    """A number where the mask is not 0, else x."""
    return g.Where(truth(g, mask), g.full(_bounded(operand, x), x), x)


def _bounded(number: float, like: ir.Value) -> float:
    """The number, infinite where it exceeds the range of a half-precision type (as OneFlow's cast does)."""
    if like.dtype == ir.DataType.FLOAT16 and abs(number) > float(np.finfo(np.float16).max):
        return math.copysign(math.inf, number)
    return number
