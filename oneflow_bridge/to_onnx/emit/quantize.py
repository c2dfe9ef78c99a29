"""Quantisation observers and fake quantisation.

Source of the formulas: OneFlow 0.9 min_max_observer, moving_average_min_max_observer, fake_quantization, quantization.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


@emit("min_max_observer")
def min_max_observer(
    g: Builder,
    in_: ir.Value,
    *,
    quantization_formula: str,
    quantization_bit: int,
    quantization_scheme: str,
    per_layer_quantization: bool,
) -> dict[str, ir.Value]:
    """Scale and zero point from the extremes of the tensor, or of each slice of its first axis."""
    rank = g.rank(in_)
    if quantization_formula == "cambricon" and not per_layer_quantization:
        g.refuse("has the formula cambricon per channel, which OneFlow itself cannot run.")
    axes = list(range(0 if per_layer_quantization else 1, rank))
    largest = g.reduce("ReduceMax", in_, axes, keepdims=False)
    smallest = g.reduce("ReduceMin", in_, axes, keepdims=False)
    if per_layer_quantization:
        largest, smallest = g.Unsqueeze(largest, [0]), g.Unsqueeze(smallest, [0])
    return _parameters(g, largest, smallest, quantization_formula, quantization_bit, quantization_scheme)


@emit("moving_average_min_max_observer", ignore="stop_update_after_iters momentum")
def moving_average_min_max_observer(
    g: Builder,
    in_: ir.Value,
    current_train_step: ir.Value,
    moving_max: ir.Value,
    moving_min: ir.Value,
    *,
    training: bool,
    quantization_formula: str,
    quantization_bit: int,
    quantization_scheme: str,
) -> dict[str, ir.Value]:
    """Scale and zero point from the extremes that training has recorded."""
    if training:
        g.refuse("updates its moving extremes: call model.eval() before the export.")
    if quantization_scheme == "symmetric" or quantization_formula == "cambricon":
        moving_min = moving_max  # the maximum holds magnitudes then, and OneFlow does not read the minimum
    return _parameters(g, moving_max, moving_min, quantization_formula, quantization_bit, quantization_scheme)


def _parameters(
    g: Builder, largest: ir.Value, smallest: ir.Value, formula: str, bits: int, scheme: str
) -> dict[str, ir.Value]:
    extreme = g.Max(g.Abs(largest), g.Abs(smallest))
    zero = g.Mul(extreme, 0)
    if formula == "cambricon":
        exponent = g.Sub(g.Floor(g.Mul(g.Log(extreme), 1 / math.log(2))), bits - 2)
        return {"scale": exponent, "zero_point": zero}
    if formula != "google":
        g.refuse(f"has the quantization formula {formula!r}; google and cambricon are known.")
    if scheme == "symmetric":
        return {"scale": g.Div(extreme, 2 ** (bits - 1) - 1), "zero_point": zero}
    scale = g.Div(g.Sub(largest, smallest), 2**bits - 1)
    return {"scale": scale, "zero_point": g.Neg(g.Round(g.Div(smallest, scale)))}


@emit("fake_quantization")
def fake_quantization(
    g: Builder,
    in_: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    *,
    quantization_formula: str,
    quantization_bit: int,
    quantization_scheme: str,
) -> ir.Value:
    """Quantised and back: QuantizeLinear and DequantizeLinear for 8 bits, arithmetic for others."""
    per_layer = _is_per_layer(g, scale)
    by_arithmetic = quantization_bit != 8 or (not per_layer and g.opset < 13) or g.opset < 10
    if quantization_formula == "cambricon" or by_arithmetic:
        known = (scale, zero_point, quantization_formula, quantization_bit, quantization_scheme)
        whole, factor, offset = _quantised(g, in_, *known)
        return g.Mul(whole if offset is None else g.Sub(whole, offset), factor)
    kind = ir.DataType.INT8 if quantization_scheme == "symmetric" else ir.DataType.UINT8
    point = g.Cast(zero_point, to=kind)
    if per_layer:
        scale, point = (g.append("Reshape", v, g.ints([])) for v in (scale, point))
    axis = {} if per_layer else {"axis": 0}
    whole = g.QuantizeLinear(in_, scale, point, **axis)
    return g.DequantizeLinear(whole, scale, point, **axis)


@emit("quantization")
def quantization(
    g: Builder,
    in_: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    *,
    quantization_formula: str,
    quantization_bit: int,
    quantization_scheme: str,
) -> ir.Value:
    """Quantised numbers, kept in the input's type."""
    known = (scale, zero_point, quantization_formula, quantization_bit, quantization_scheme)
    return g.Cast(_quantised(g, in_, *known)[0], to=g.result().dtype)


def _is_per_layer(g: Builder, scale: ir.Value) -> bool:
    return math.prod(g.static(size, "the number of scales") for size in g.sizes(scale)) == 1


def _quantised(
    g: Builder, x: ir.Value, scale: ir.Value, zero_point: ir.Value, formula: str, bits: int, scheme: str
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Quantised numbers, their factor, and their zero point where the scheme is affine."""
    if formula == "cambricon":
        factor = g.Pow(g.full(2, x), scale)
        return _limited(g, x, factor, None, bits, "symmetric"), factor, None
    per_layer = _is_per_layer(g, scale)
    scale, zero_point = (_along_first(g, v, x, per_layer) for v in (scale, zero_point))
    whole = _limited(g, x, scale, zero_point, bits, scheme)
    return whole, scale, zero_point if scheme == "affine" else None


def _along_first(g: Builder, value: ir.Value, x: ir.Value, per_layer: bool) -> ir.Value:
    """One number for all, or one for each slice of the first axis of x."""
    return value if per_layer else g.append("Reshape", value, g.ints([-1] + [1] * (g.rank(x) - 1)))


def _limited(g: Builder, x: ir.Value, scale: ir.Value, zero_point: ir.Value | None, bits: int, scheme: str) -> ir.Value:
    """round(x / scale + zero point) within the range of so many bits."""
    if scheme == "affine":
        assert zero_point is not None
        return g.Clip(g.Round(g.Add(g.Div(x, scale), zero_point)), 0, 2**bits - 1)
    limit = 2 ** (bits - 1) - 1
    return g.Clip(g.Round(g.Div(x, scale)), -limit - 1, limit)
