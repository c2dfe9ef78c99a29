"""Arithmetic of a tensor and a number, which is an attribute of the op or a tensor of one element."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from oneflow_bridge.to_onnx.emit.arithmetic import floordiv, fmod, truncdiv
from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import Scalar, emit, row
from oneflow_bridge.to_onnx.lowering.schemas import FLOATS

for _name, _onnx in {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}.items():
    row(f"scalar_{_name}_by_tensor", _onnx, "x scalar")


def _promoted(g: Builder, x: ir.Value) -> ir.Value:
    """x in the type of the result: a float scalar makes an integer tensor float."""
    return g.Cast(x, to=g.result().dtype)


@emit("scalar_add")
def scalar_add(g: Builder, in_: ir.Value, *, operand: Scalar) -> ir.Value:
    """x + s."""
    return g.Add(_promoted(g, in_), operand)


@emit("scalar_mul")
def scalar_mul(g: Builder, in_: ir.Value, *, operand: Scalar) -> ir.Value:
    """x * s."""
    return g.Mul(_promoted(g, in_), operand)


@emit("scalar_div")
def scalar_div(g: Builder, in_: ir.Value, *, operand: Scalar) -> ir.Value:
    """x / s."""
    return g.Div(_promoted(g, in_), operand)


@emit("scalar_pow")
def scalar_pow(g: Builder, in_: ir.Value, *, operand: Scalar) -> ir.Value:
    """x ** s; a square is a product."""
    base = _promoted(g, in_)
    return g.Mul(base, base) if operand == 2 else g.Pow(base, g.full(operand, base))


@emit("scalar_reverse_pow")
def scalar_reverse_pow(g: Builder, in_: ir.Value, *, operand: Scalar) -> ir.Value:
    """s ** x."""
    exponent = _promoted(g, in_)
    return g.Pow(g.full(operand, exponent), exponent)


def _as_tensor(function: Callable[[Builder, ir.Value, ir.Value], ir.Value]) -> Callable[..., ir.Value]:
    """The function of two tensors for a tensor and a number."""

    def with_scalar(g: Builder, in_: ir.Value, *, operand: Scalar) -> ir.Value:
        x = _promoted(g, in_)
        return function(g, x, g.full(operand, x))

    return with_scalar


emit("scalar_floordiv")(_as_tensor(floordiv))
emit("scalar_truncdiv")(_as_tensor(truncdiv))
emit("scalar_fmod")(_as_tensor(fmod))


@emit("clip_by_scalar")
def clip_by_scalar(
    g: Builder, x: ir.Value, *, floating_min: float, integral_min: int, floating_max: float, integral_max: int
) -> ir.Value:
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
