"""Recombines layers that a job decomposes: on CPU, OneFlow's LayerNorm, GroupNorm and means are up to a dozen ops.

A rule is a pattern in the notation of `onnx2nn.rewrite.patterns`, read with the ops of jobs (`JOB`), and a function
that builds the op that the pattern stands for, or declines. The results are OneFlow ops (some exist on GPU only), so a
rule may build on the result of an earlier one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from oneflow_bridge.to_onnx.job import DIMENSIONS, OPERANDS, RESULTS, Dimensions, sizes_of
from oneflow_bridge.to_onnx.lstm import raise_lstms
from oneflow_bridge.to_onnx.replacement import JOB, New, replace
from onnx2nn.ground.pass_times import timed
from onnx2nn.rewrite.patterns import Match, matches, parse, roots

Build = Callable[[Match, ir.Value], "New | None"]


@dataclass(frozen=True)
class Rule:
    """A pattern, and the function that builds its replacement or declines with None."""

    pattern: Any
    build: Build


@timed("raising")
def raise_ops(model: ir.Model) -> None:
    """Replaces decomposed layers by one op each, in place, and removes unused nodes."""
    by_type: dict[str, list[Rule]] = {}
    for rule in RULES:
        for op_type in roots(rule.pattern):
            by_type.setdefault(op_type, []).append(rule)
    for node in list(model.graph):
        for rule in by_type.get(node.op_type, ()):
            found = matches(node.outputs[0], rule.pattern, {})
            new = next(filter(None, (rule.build(match, node.outputs[0]) for match in found)), None)
            if new is not None:
                node = replace(model.graph, node, new)
    raise_lstms(model)
    RemoveUnusedNodesPass()(model)


def _axes(node: ir.Node, name: str, rank: int) -> list[int]:
    axes = node.attributes[name].value
    return sorted(axis % rank for axis in axes) if len(axes) else list(range(rank))


def _mean(match: Match, out: ir.Value) -> New | None:
    """sum * (1 / n) is the mean where n is the number of summed elements."""
    total, x = match["sum"], match["x"]
    axes = _axes(total, "axis", len(x.shape))
    if not _is_reciprocal(match["factor"], total, [x.shape[a] for a in axes]) or x.dtype != out.dtype:
        return None
    return New("reduce_mean", {"x": x}, {"axis": axes, "keepdims": total.attributes["keepdims"].value}, "y")


def _is_reciprocal(factor: Any, total: ir.Node, extents: Sequence[Any]) -> bool:
    """Whether `factor`, one number or one a trace, is 1 / the product of the extents in every trace."""
    if total.graph is None or not isinstance(factor, (float, tuple)):
        return False
    dimensions: Dimensions = total.graph.meta[DIMENSIONS]
    counts: list[int] = [1]
    for extent in extents:
        sizes = (extent,) if isinstance(extent, int) else dimensions.sizes[str(extent.value)]
        if len(sizes) > 1:
            counts = counts * len(sizes) if len(counts) == 1 else counts
            counts = [c * s for c, s in zip(counts, sizes, strict=True)]
        else:
            counts = [c * sizes[0] for c in counts]
    values = list(factor) if isinstance(factor, tuple) else [factor] * len(counts)
    counts = counts if len(counts) == len(values) else counts * len(values)
    return all(math.isclose(v * c, 1, rel_tol=1e-6) for v, c in zip(values, counts, strict=True))


def _layer_norm(match: Match, out: ir.Value) -> New | None:
    x, mean, var, epsilon = match["x"], match["mean"], match["var"], match["epsilon"]
    rank = len(x.shape)
    axes = _axes(mean, "axis", rank)
    same = axes == _axes(var, "dim" if var.op_type == "var" else "axis", rank)
    if not same or axes != list(range(rank - len(axes), rank)) or not isinstance(epsilon, (int, float)):
        return None
    if any(not isinstance(x.shape[a], int) for a in axes):
        # LayerNormalization needs a scale of a known shape; a later rule may make a group or instance norm of this op.
        return New("standardise", {"x": x}, {"axis": axes[0], "epsilon": epsilon}, "y")
    return _as_layer_norm(x, axes[0], epsilon)


def _as_layer_norm(x: ir.Value, axis: int, epsilon: float, **parameters: ir.Value) -> New:
    attributes = {"begin_norm_axis": axis, "begin_params_axis": axis, "epsilon": epsilon}
    return New("layer_norm", {"x": x, **parameters}, attributes, "y")


def _with_parameter(name: str) -> Build:
    def build(match: Match, out: ir.Value) -> New | None:
        x, norm, parameter = match["x"], match["norm"], match["parameter"]
        axis = norm.attributes["begin_norm_axis"].value
        if sizes_of(parameter) != sizes_of(x)[axis:] or parameter.dtype != x.dtype or not parameter.is_initializer():
            return None
        known = {"gamma": match["gamma"]} if "gamma" in match else {}
        return _as_layer_norm(x, axis, norm.attributes["epsilon"].value, **known, **{name: parameter})

    return build


def _group_norm(match: Match, out: ir.Value) -> New | None:
    x, norm = match["x"], match["norm"]
    shape, grouped = sizes_of(x), sizes_of(match["split"].outputs[0])
    axis = norm.attributes["axis" if norm.op_type == "standardise" else "begin_norm_axis"].value
    if sizes_of(out) != shape or len(grouped) != 3 or axis != 2 or len(shape) < 3 or grouped[0] != shape[0]:
        return None
    channels, groups = shape[1], grouped[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
        return None
    parameters: dict[str, ir.Value] = {name: match[name] for name in ("beta", "gamma") if name in match}
    if any(sizes_of(p) != [channels] for p in parameters.values()):
        return None
    attributes = {
        "num_groups": groups,
        "epsilon": norm.attributes["epsilon"].value,
        "data_format": "channels_first",
        "activation": "none",
        "affine": int(bool(parameters)),
    }
    return New("group_norm", {"x": x, **parameters}, attributes, "y")


def _activation(op_type: str) -> Build:
    return lambda match, out: New(op_type, {"in": match["x"]})


def _biased_conv(match: Match, out: ir.Value) -> New:
    """A convolution's bias along the channels."""
    conv = match["conv"]
    attributes = {k: a.value for k, a in conv.attributes.items() if k not in (OPERANDS, RESULTS)}
    return New(conv.op_type, {"in": match["x"], "weight": match["weight"], "bias": match["bias"]}, attributes)


def _linear(match: Match, out: ir.Value) -> New | None:
    """x weight' + bias."""
    weight, bias = match["weight"], match["bias"]
    if len(weight.shape) != 2 or sizes_of(bias) != sizes_of(weight)[:1] or sizes_of(out)[-1:] != sizes_of(bias):
        return None
    axis = match["add"].attributes.get("axis")
    if axis is not None and axis.value != len(sizes_of(out)) - 1:
        return None
    return New("fused_matmul_bias", {"x": match["x"], "weight": weight, "bias": bias})


_CENTRED = parse("x - (mean := reduce_mean(x, keepdims=1))", JOB)
_VARIANCE = parse(
    "(var := var(x, keepdim=1, unbiased=0) | reduce_mean(square(CENTRED) | CENTRED ** 2, keepdims=1))",
    JOB,
    CENTRED=_CENTRED,
)
_STABLE = parse("scalar_add(VARIANCE, epsilon)", JOB, VARIANCE=_VARIANCE)
_STANDARDISED = parse("CENTRED * rsqrt(STABLE) | CENTRED / sqrt(STABLE)", JOB, CENTRED=_CENTRED, STABLE=_STABLE)

_NORMALISED = parse("(norm := NORM((split := reshape(x))))", JOB, NORM="layer_norm standardise")
_AFFINE = "reshape(INNER * reshape(gamma) + reshape(beta))"
_REGROUPED = parse("reshape(NORMALISED)", JOB, NORMALISED=_NORMALISED)

_HALVED_PRODUCT = "(x * 0.5 | x / 2) * FACTOR | x * (FACTOR * 0.5 | FACTOR / 2) | x * FACTOR * 0.5 | x * FACTOR / 2"
"""x * FACTOR / 2, however it is bracketed."""

_ERF = parse(f"erf(x / {math.sqrt(2)} | x * {math.sqrt(0.5)}) + 1", JOB)
_TANH = parse(f"tanh(add_n(x, x ** 3 * 0.044715) * {math.sqrt(2 / math.pi)}) + 1", JOB)

_CONV = parse(
    "(conv := ~CONV(x, weight, data_format='channels_first'))",
    JOB,
    CONV="conv1d conv2d conv3d deconv1d deconv2d deconv3d",
)
_PRODUCT = parse("~MATMUL(x, weight, transpose_a=0, transpose_b=1, alpha=1.0)", JOB, MATMUL="matmul broadcast_matmul")

RULES: tuple[Rule, ...] = (
    Rule(parse("scalar_mul((sum := reduce_sum(x)), factor)", JOB), _mean),
    Rule(_STANDARDISED, _layer_norm),
    Rule(parse("(norm := ~layer_norm(x)) * parameter", JOB), _with_parameter("gamma")),
    Rule(parse("(norm := ~layer_norm(x, gamma)) + parameter", JOB), _with_parameter("beta")),
    Rule(parse(_AFFINE, JOB, INNER=_REGROUPED), _group_norm),
    Rule(parse(_AFFINE, JOB, INNER=_NORMALISED), _group_norm),
    Rule(_REGROUPED, _group_norm),
    Rule(parse("reshape(REGROUPED)", JOB, REGROUPED=_REGROUPED), _group_norm),
    Rule(parse(_HALVED_PRODUCT, JOB, FACTOR=_ERF), _activation("gelu")),
    Rule(parse(_HALVED_PRODUCT, JOB, FACTOR=_TANH), _activation("fast_gelu")),
    Rule(parse("x * sigmoid(x)", JOB), _activation("silu")),
    Rule(parse("bias_add(CONV, bias, axis=1)", JOB, CONV=_CONV), _biased_conv),
    Rule(parse("(add := bias_add(PRODUCT, bias) | PRODUCT + bias)", JOB, PRODUCT=_PRODUCT), _linear),
)
