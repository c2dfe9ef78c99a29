"""Puts layers together again that a job decomposes: on CPU, OneFlow's LayerNorm, GroupNorm and means are a dozen ops.

A rule is a pattern in the notation of the ops themselves and a function that builds the op it stands for, or declines.
The results are OneFlow ops (some exist on GPU only), so a rule may build on what an earlier one found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from oneflow_bridge.to_onnx.job import DIMENSIONS, OPERANDS, RESULTS, VARYING, Dimensions, sizes_of
from oneflow_bridge.to_onnx.lstm import raise_lstms
from oneflow_bridge.to_onnx.matching import New, replace
from onnx2nn.rewrite.patterns import Match, Op, Var, matches

Build = Callable[[Match, ir.Value], "New | None"]


@dataclass(frozen=True)
class Rule:
    """A pattern and what it stands for."""

    pattern: Op
    build: Build


def raise_ops(model: ir.Model) -> None:
    """Replaces decomposed layers by the op they were, in place, and drops what is no longer read."""
    by_type: dict[str, list[Rule]] = {}
    for rule in RULES:
        for op_type in rule.pattern.types.split():
            by_type.setdefault(op_type, []).append(rule)
    for node in list(model.graph):
        for rule in by_type.get(node.op_type, ()):
            new = next(
                filter(None, (rule.build(m, node.outputs[0]) for m in matches(node.outputs[0], rule.pattern, {}))), None
            )
            if new is not None:
                node = replace(model.graph, node, new)
    raise_lstms(model)
    RemoveUnusedNodesPass()(model)


# ---- what rules read from a match


def _attribute(node: ir.Node, name: str) -> Any:
    varying = node.meta.get(VARYING, {})
    return varying[name] if name in varying else node.attributes[name].value


def scalar(node: ir.Node) -> float | None:
    """The number of a scalar op; None where it varies between traces."""
    name = "int_operand" if node.attributes["has_int_operand"].value else "float_operand"
    value = _attribute(node, name)
    return None if isinstance(value, (str, tuple)) else value


def _is(node: ir.Node, number: float) -> bool:
    value = scalar(node)
    return value is not None and math.isclose(value, number, rel_tol=1e-6)


def _axes(node: ir.Node, name: str, rank: int) -> list[int]:
    axes = node.attributes[name].value
    return sorted(axis % rank for axis in axes) if len(axes) else list(range(rank))


def _x() -> Var:
    return Var("x")


# ---- mean


def _mean(match: Match, out: ir.Value) -> New | None:
    """sum * (1 / n) is the mean where n is the number of elements that were added."""
    total, factor = match["sum"], match["factor"]
    x = match["x"]
    axes = _axes(total, "axis", len(x.shape))
    if not _reciprocal_of(total, factor, [x.shape[a] for a in axes]) or x.dtype != out.dtype:
        return None
    return New("reduce_mean", {"x": x}, {"axis": axes, "keepdims": total.attributes["keepdims"].value}, "y")


def _reciprocal_of(total: ir.Node, factor: ir.Node, extents: Sequence[Any]) -> bool:
    if total.graph is None:
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
    value = _attribute(factor, "float_operand")
    if factor.attributes["has_int_operand"].value or isinstance(value, str):
        return False
    values = list(value) if isinstance(value, tuple) else [value] * len(counts)
    counts = counts if len(counts) == len(values) else counts * len(values)
    return all(math.isclose(v * c, 1, rel_tol=1e-6) for v, c in zip(values, counts, strict=True))


# ---- layer normalisation

_CENTRED = Op("broadcast_sub", (_x(), Op("reduce_mean", (_x(),), "mean")))
_VARIANCES = (
    Op("var", (_x(),), "var"),
    Op("reduce_mean", (Op("square", (_CENTRED,)),), "var"),
    Op("reduce_mean", (Op("scalar_pow", (_CENTRED,), "power"),), "var"),
)


def _standardised() -> Iterator[Op]:
    """(x - mean) / sqrt(variance + epsilon), as a product or a quotient."""
    for variance in _VARIANCES:
        stable = Op("scalar_add", (variance,), "epsilon")
        yield Op("broadcast_mul", (_CENTRED, Op("rsqrt", (stable,))))
        yield Op("broadcast_div", (_CENTRED, Op("sqrt", (stable,))))


def _layer_norm(match: Match, out: ir.Value) -> New | None:
    x, mean, var, epsilon = match["x"], match["mean"], match["var"], scalar(match["epsilon"])
    rank = len(x.shape)
    axes = _axes(mean, "axis", rank)
    is_var = var.op_type == "var"
    same = axes == _axes(var, "dim" if is_var else "axis", rank)
    kept = mean.attributes["keepdims"].value and var.attributes["keepdim" if is_var else "keepdims"].value
    if not same or not kept or axes != list(range(rank - len(axes), rank)) or epsilon is None:
        return None
    if (is_var and var.attributes["unbiased"].value) or ("power" in match and not _is(match["power"], 2)):
        return None
    if any(not isinstance(x.shape[a], int) for a in axes):
        # LayerNormalization needs a scale of a known shape, unless a group or instance norm is made of it.
        return New("standardise", {"x": x}, {"axis": axes[0], "epsilon": epsilon}, "y")
    return _as_layer_norm(x, axes[0], epsilon)


def _as_layer_norm(x: ir.Value, axis: int, epsilon: float, **parameters: ir.Value) -> New:
    attributes = {"begin_norm_axis": axis, "begin_params_axis": axis, "epsilon": epsilon}
    return New("layer_norm", {"x": x, **parameters}, attributes, "y")


_BARE = Op("layer_norm", (_x(),), "norm", alone=True)
_SCALED = Op("layer_norm", (_x(), Var("gamma")), "norm", alone=True)


def _with_parameter(name: str) -> Build:
    def build(match: Match, out: ir.Value) -> New | None:
        x, norm, parameter = match["x"], match["norm"], match["parameter"]
        axis = norm.attributes["begin_norm_axis"].value
        if sizes_of(parameter) != sizes_of(x)[axis:] or parameter.dtype != x.dtype or not _is_constant(parameter):
            return None
        known = {"gamma": match["gamma"]} if "gamma" in match else {}
        return _as_layer_norm(x, axis, norm.attributes["epsilon"].value, **known, **{name: parameter})

    return build


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer()


# ---- group and instance normalisation

_GROUPS = Op("reshape", (_x(),), "split")
_NORMALISED = Op("layer_norm standardise", (_GROUPS,), "norm")


def _affine(inner: Any) -> Op:
    scaled = Op("broadcast_mul", (inner, Op("reshape", (Var("gamma"),))))
    return Op("broadcast_add", (scaled, Op("reshape", (Var("beta"),))))


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


# ---- activations

_ERF = Op("scalar_add", (Op("erf", (Op("scalar_div scalar_mul", (_x(),), "inner"),)),), "one")
_CUBE = Op("scalar_mul", (Op("scalar_pow", (_x(),), "power"),), "cubic")
_TANH = Op("scalar_add", (Op("tanh", (Op("scalar_mul", (Op("add_n", (_x(), _CUBE)),), "inner"),)),), "one")


def _halved_product(factor: Op) -> Iterator[Op]:
    """x * factor / 2, however it is bracketed."""
    yield Op("broadcast_mul", (Op("scalar_mul scalar_div", (_x(),), "half"), factor))
    yield Op("broadcast_mul", (_x(), Op("scalar_mul scalar_div", (factor,), "half")))
    yield Op("scalar_mul scalar_div", (Op("broadcast_mul", (_x(), factor)),), "half")


def _halves(node: ir.Node) -> bool:
    return _is(node, 0.5 if node.op_type == "scalar_mul" else 2)


def _gelu(match: Match, out: ir.Value) -> New | None:
    inner = match["inner"]
    root = math.sqrt(2) if inner.op_type == "scalar_div" else math.sqrt(0.5)
    return (
        New("gelu", {"in": match["x"]})
        if _halves(match["half"]) and _is(match["one"], 1) and _is(inner, root)
        else None
    )


def _fast_gelu(match: Match, out: ir.Value) -> New | None:
    wanted = {"one": 1, "inner": math.sqrt(2 / math.pi), "cubic": 0.044715, "power": 3}
    right = all(_is(match[name], number) for name, number in wanted.items())
    return New("fast_gelu", {"in": match["x"]}) if right and _halves(match["half"]) else None


# ---- bias


def _biased_conv(match: Match, out: ir.Value) -> New | None:
    """A convolution's bias along the channels."""
    conv, x = match["conv"], match["x"]
    if match["add"].attributes["axis"].value != 1 or conv.attributes["data_format"].value != "channels_first":
        return None
    attributes = {k: a.value for k, a in conv.attributes.items() if k not in (OPERANDS, RESULTS)}
    return New(conv.op_type, {"in": x, "weight": match["weight"], "bias": match["bias"]}, attributes)


def _linear(match: Match, out: ir.Value) -> New | None:
    """x weight' + bias."""
    product, weight, bias = match["product"], match["weight"], match["bias"]
    attributes = {name: product.attributes[name].value for name in ("transpose_a", "transpose_b", "alpha")}
    if attributes != {"transpose_a": 0, "transpose_b": 1, "alpha": 1.0} or len(weight.shape) != 2:
        return None
    if sizes_of(bias) != sizes_of(weight)[:1] or sizes_of(out)[-1:] != sizes_of(bias):
        return None
    if "add" in match and "axis" in match["add"].attributes:
        axis = match["add"].attributes["axis"].value
        if axis != len(sizes_of(out)) - 1:
            return None
    return New("fused_matmul_bias", {"x": match["x"], "weight": weight, "bias": bias})


_CONV = Op("conv1d conv2d conv3d deconv1d deconv2d deconv3d", (_x(), Var("weight")), "conv", alone=True)
_PRODUCT = Op("matmul broadcast_matmul", (_x(), Var("weight")), "product", alone=True)
_TIMES = Var("parameter")

RULES: tuple[Rule, ...] = (
    Rule(Op("scalar_mul", (Op("reduce_sum", (_x(),), "sum"),), "factor"), _mean),
    *(Rule(pattern, _layer_norm) for pattern in _standardised()),
    Rule(Op("broadcast_mul", (_BARE, _TIMES)), _with_parameter("gamma")),
    Rule(Op("broadcast_add", (_SCALED, _TIMES)), _with_parameter("beta")),
    Rule(Op("reshape", (_affine(Op("reshape", (_NORMALISED,))),)), _group_norm),
    Rule(Op("reshape", (_affine(_NORMALISED),)), _group_norm),
    Rule(Op("reshape", (_NORMALISED,)), _group_norm),
    Rule(Op("reshape", (Op("reshape", (_NORMALISED,)),)), _group_norm),
    *(Rule(pattern, _gelu) for pattern in _halved_product(_ERF)),
    *(Rule(pattern, _fast_gelu) for pattern in _halved_product(_TANH)),
    Rule(Op("broadcast_mul", (_x(), Op("sigmoid", (_x(),)))), lambda match, out: New("silu", {"in": match["x"]})),
    Rule(Op("bias_add", (_CONV, Var("bias")), "add"), _biased_conv),
    Rule(Op("bias_add broadcast_add", (_PRODUCT, Var("bias")), "add"), _linear),
)
