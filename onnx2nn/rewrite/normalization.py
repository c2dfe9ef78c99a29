"""Rules for normalisations that the exporter wrote as means, square roots and products."""

from __future__ import annotations

import math
import re

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.patterns import NODES, Match, largest_constant_rank, parse, tensor_of
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample, flat
from onnx2nn.rewrite.value_facts import ValueFacts

# Layer normalisation and root mean square normalisation.

_CENTRED = "(x - (mean := ReduceMean(x, ...) | GlobalAveragePool(x)))"
_SQUARES = f"({_CENTRED} ** 2 | {_CENTRED} * {_CENTRED})"
_DEVIATION = f"Sqrt((ReduceMean({_SQUARES}, ...) | GlobalAveragePool({_SQUARES})) + +eps)"
_STANDARDISED = f"({_CENTRED} / {_DEVIATION} | {_CENTRED} * (Reciprocal({_DEVIATION}) | 1 / {_DEVIATION}))"

_GUARD = "And(Equal(ReduceMin(x, ...), ReduceMax(x, ...)), Equal((mean := ReduceMean(x, ...)) - mean, 0))"
_STABLE = f"(centred := Where({_GUARD}, 0, x - mean))"
_VARIANCE = "(Cast(ReduceMean(Cast(centred * centred, to=11), ...), to=1) | ReduceMean(centred * centred, ...))"
_OF_JAX = f"{_STABLE} / Sqrt({_VARIANCE} + +eps)"
"""jax2onnx gives equal numbers exactly 0. So does torch, whose mean of equal numbers is exact."""

_FACTOR = f"(factor := (Reciprocal({_DEVIATION}) | 1 / {_DEVIATION}) * weight)"
_TENSORFLOW = f"x * {_FACTOR} + ((-mean) * factor + bias)"

_FROM_MEAN = "(x - (Reshape((mean := ReduceMean(x, ...)), target) | (mean := ReduceMean(x, ...))))"
_OF_CHANNELS = f"Reciprocal(Sqrt(ReduceMean({_FROM_MEAN} * {_FROM_MEAN}, ...) + eps)) * weight"
_CHANNELS_FIRST = f"x * (factor := {_OF_CHANNELS}) + ((-mean) * factor + bias)"
"""What tf2onnx makes of a layer between convolutions. Of a transpose of the means it makes a Reshape that changes
nothing."""

_ROOT = "Sqrt(ReduceMean(x ** 2 | x * x, ...) + +eps)"
_SCALED = f"(x / {_ROOT} | x * (Reciprocal({_ROOT}) | 1 / {_ROOT}))"


def _dims_and_epsilon(match: Match, facts: ValueFacts) -> tuple[int, float] | None:
    """Returns the number of last dimensions that are normalised, and epsilon.

    None for other axes, of any of the reductions, and where a constant has more dimensions than `x`.
    """
    epsilon, rank = facts.number(match["eps"]), facts.rank(match["x"])
    counts = set()
    if rank is not None and largest_constant_rank(match) > max(rank, 1):
        return None
    for node in match[NODES]:
        # tf2onnx writes the mean over the last of three dimensions so.
        if node.op_type == "GlobalAveragePool":
            if rank != 3:
                return None
            counts.add(1)
        if "reduction" not in facts.table.traits_of(node.op_type):
            continue
        axes = facts.axes(node) or []
        if "keepdims" in node.attributes and not node.attributes["keepdims"].as_int():
            return None
        axes = sorted(axis - rank if axis >= 0 and rank is not None else axis for axis in axes)
        if not axes or axes != list(range(-len(axes), 0)):
            return None
        counts.add(len(axes))
    return (counts.pop(), epsilon) if len(counts) == 1 and epsilon is not None else None


def _x_shape(match: Match, facts: ValueFacts, inner: tuple[int, ...], least: int = 0) -> tuple[int, ...]:
    """Returns a sample shape for `x` whose last dimensions are `inner`, of the rank of `x`, else at least `least`."""
    rank = facts.rank(match["x"]) or max(len(inner) + 2, least)
    return (*(2, 3, 5, 4, 3, 2)[: rank - len(inner)], *inner)


def _affine_sample(match: Match, facts: ValueFacts) -> Sample:
    shape, found = facts.constant_shape(match["weight"]) or (), _dims_and_epsilon(match, facts)
    inner = tuple(size if size > 1 else 7 for size in (shape[-found[0] :] if found else shape))
    sample = {"x": _x_shape(match, facts, inner, len(shape)), "weight": shape, "bias": shape}
    return {name: sample[name] for name in sample if name in match}


def _plain_sample(match: Match, facts: ValueFacts) -> Sample:
    found = _dims_and_epsilon(match, facts)
    return {"x": _x_shape(match, facts, (7, 6, 5)[: found[0] if found else 1])}


def _layer_norm(match: Match, facts: ValueFacts) -> NewNode | None:
    found, shape = _dims_and_epsilon(match, facts), facts.constant_shape(match["weight"])
    if found is None or shape is None or facts.constant_shape(match["bias"]) != shape:
        return None
    weight, bias = match["weight"], match["bias"]
    if _is_row(shape, found[0], match, facts):
        weight, bias = flat(weight), flat(bias)
    elif len(shape) != found[0]:
        return None
    inputs = (match["x"], weight, bias)
    return NewNode("LayerNormalization", inputs, {"axis": -found[0], "epsilon": found[1]})


def _is_row(shape: tuple[int, ...], dims: int, match: Match, facts: ValueFacts) -> bool:
    """Returns whether a weight of the last dimension has further ones of size 1, as those of TensorFlow and JAX."""
    return len(shape) > dims == 1 and set(shape[:-1]) == {1} and len(shape) <= (facts.rank(match["x"]) or 0)


def _layer_norm_of_channels(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the layer normalisation of an image's channels, which the layer has last."""
    epsilon, shape = facts.number(match["eps"]), facts.constant_shape(match["weight"])
    if epsilon is None or facts.rank(match["x"]) != 4 or shape is None or facts.constant_shape(match["bias"]) != shape:
        return None
    # A Reshape has the name of the transpose that it was.
    own = [node for node in match[NODES] if node.op_type != "Reshape"]
    means = [node for node in own if node.op_type == "ReduceMean"]
    if len(shape) != 4 or shape[0] * shape[2] * shape[3] != 1 or any(facts.axes(node) != [1] for node in means):
        return None
    last = NewNode("Transpose", (match["x"],), {"perm": [0, 2, 3, 1]})
    inputs = (last, flat(match["weight"]), flat(match["bias"]))
    norm = NewNode("LayerNormalization", inputs, {"axis": -1, "epsilon": epsilon}, like=own)
    return NewNode("Transpose", (norm,), {"perm": [0, 3, 1, 2]})


def _channels_sample(match: Match, facts: ValueFacts) -> Sample:
    shape = facts.constant_shape(match["weight"]) or ()
    sizes = (facts.ints(match["target"]) if "target" in match else None) or [None] * 4
    free = [known if known and known > 0 else size for known, size in zip(sizes[2:], (4, 5), strict=True)]
    return {"x": (2, shape[1], *free), "weight": shape, "bias": shape}


def _plain_layer_norm(match: Match, facts: ValueFacts) -> NewNode | None:
    found = _dims_and_epsilon(match, facts)
    return found and NewNode(f"{OWN}::LayerNorm", (match["x"],), {"dims": found[0], "epsilon": found[1]})


def _rms_norm(match: Match, facts: ValueFacts) -> NewNode | None:
    found, shape = _dims_and_epsilon(match, facts), facts.constant_shape(match["weight"])
    if found is None or shape is None:
        return None
    row = _is_row(shape, found[0], match, facts)
    if not row and len(shape) != found[0]:
        return None
    weight = flat(match["weight"]) if row else match["weight"]
    return NewNode("RMSNormalization", (match["x"], weight), {"axis": -found[0], "epsilon": found[1]})


def _plain_rms_norm(match: Match, facts: ValueFacts) -> NewNode | None:
    found = _dims_and_epsilon(match, facts)
    return found and NewNode(f"{OWN}::RMSNorm", (match["x"],), {"dims": found[0], "epsilon": found[1]})


# Weights that the exporter filled in.


def _without_weights(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a normalisation without what the exporter filled in: biases of 0, and weights of 1 beside these."""
    node: ir.Node = match["norm"]
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if weight is None or (bias is not None and not facts.is_exporter_default(bias, 0)):
        return None
    epsilon = {"epsilon": node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5}
    kept = _kept(weight, facts)
    if node.op_type == "InstanceNormalization" and tensor_of(weight) is not None:
        return NewNode(f"{OWN}::InstanceNorm", (match["x"], *kept), epsilon)
    if kept:
        return None
    return NewNode(f"{OWN}::LayerNorm", (match["x"],), {"dims": len(facts.constant_shape(weight) or ()), **epsilon})


def _batch_norm_without_weights(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a batch normalisation without a bias, at the precision of one with weights of the statistics' type."""
    norm: ir.Node = match["norm"]
    weight, bias, *statistics = norm.inputs[1:]
    kinds = {None if (tensor := tensor_of(value)) is None else tensor.dtype for value in norm.inputs[1:]}
    if (
        weight is None
        or bias is None
        or len(kinds) > 1
        or None in kinds
        or not norm.attributes.keys() <= _INFERENCE.keys()
    ):
        return None
    if not facts.is_exporter_default(bias, 0):
        return None
    given = {name: attribute.value for name, attribute in norm.attributes.items()}
    epsilon, momentum, training = (_INFERENCE | given).values()
    if training or any(output.uses() for output in norm.outputs[1:]):
        return None
    inputs = (match["x"], *statistics, *_kept(weight, facts))
    return NewNode(f"{OWN}::BatchNorm", inputs, {"epsilon": epsilon, "momentum": momentum})


def _kept(weight: ir.Value, facts: ValueFacts, number: int = 1) -> tuple[ir.Value, ...]:
    """Returns a weight as further inputs of a node: none where the exporter filled it in with a number."""
    return () if facts.is_exporter_default(weight, number) else (weight,)


def _batch_norm_of_batch(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a batch normalisation with the statistics of its batch, as of a convolution's standardised weight.

    A BatchNormalization that is given its statistics has no gradient through them. One in training has, and reads no
    others for its first output.
    """
    norm: ir.Node = match["norm"]
    declared = facts.declared(match["x"]) or []
    shape = [size for size in declared if size is not None]
    if len(shape) < max(2, len(declared)) or any(output.uses() for output in norm.outputs[1:]):
        return None
    means = [node for node in match[NODES] if node.op_type == "ReduceMean"]
    others = [axis for axis in range(len(shape)) if axis != 1]
    if any(sorted(facts.axes(node) or []) != others for node in means) or math.prod(shape) <= shape[1]:
        return None
    given = {name: attribute.value for name, attribute in norm.attributes.items()}
    epsilon, _, training = (_INFERENCE | given).values()
    statistics = np.zeros(shape[1], np.float32), np.ones(shape[1], np.float32)
    inputs = (match["x"], *norm.inputs[1:3], *statistics)
    return None if training else NewNode("BatchNormalization", inputs, {"epsilon": epsilon, "training_mode": 1})


def _batch_sample(match: Match, facts: ValueFacts) -> Sample:
    return {"x": facts.shape(match["x"]) or (1, 2, 3)}


_INFERENCE = {"epsilon": 1e-5, "momentum": 0.9, "training_mode": 0}
"""The attributes of a BatchNormalization that uses its statistics, and their defaults."""


def _exporter_default_sample(match: Match, facts: ValueFacts) -> Sample:
    shape = facts.constant_shape(match["norm"].inputs[1]) or ()
    if match["norm"].op_type == "LayerNormalization":
        return {"x": _x_shape(match, facts, shape)}
    return {"x": (2, *shape, *(4, 5, 3)[: (facts.rank(match["x"]) or 4) - 2])}


_OF_BATCH = (
    "BatchNormalization(x, _, _, ReduceMean(x, ...), ReduceMean((apart := x - ReduceMean(x, ...)) * apart, ...))"
)

# Group normalisation, which torch's exporters write as an instance normalisation of the groups.

_GROUPS = "Reshape((norm := InstanceNormalization(Reshape(x, split), ones, zeros)), sizes)"


def _group_norm(match: Match, facts: ValueFacts) -> NewNode | None:
    split, ones, zeros = facts.ints(match["split"]), facts.array(match["ones"]), facts.array(match["zeros"])
    if split is None or len(split) != 3 or not split[1] or split[1] < 1 or ones is None or zeros is None:
        return None
    if (ones != 1).any() or zeros.any() or _contradicts(facts.ints(match["sizes"]), match["x"]):
        return None
    norm: ir.Node = match["norm"]
    epsilon = norm.attributes["epsilon"].as_float() if "epsilon" in norm.attributes else 1e-5
    attributes = {"num_groups": split[1], "epsilon": epsilon}
    inputs = (match["x"], match["split"], match["sizes"])
    if "weight" not in match:
        return NewNode(f"{OWN}::GroupNorm", inputs, attributes)
    biases = _kept(match["bias"], facts, 0)
    if not biases and not _kept(match["weight"], facts):
        return NewNode(f"{OWN}::GroupNorm", inputs, attributes)
    shapes = [facts.constant_shape(value) for value in (match["weight"], *biases)]
    if shapes[0] is None or shapes[0] != shapes[-1] or len(shapes[0]) < 2 or set(shapes[0][1:]) != {1}:
        return None
    return NewNode(f"{OWN}::GroupNorm", (*inputs, flat(match["weight"]), *map(flat, biases)), attributes)


def _contradicts(sizes: list[int | None] | None, value: ir.Value) -> bool:
    """Returns whether the target of a reshape is known to be another shape than a value has."""
    if sizes is None or value.shape is None:
        return False
    known = [size if size and size > 0 else None for size in sizes]
    pairs = zip(known, value.shape, strict=False)
    return len(known) != len(value.shape) or any(a and isinstance(b, int) and a != b for a, b in pairs)


def _group_sample(match: Match, facts: ValueFacts) -> Sample:
    shape = facts.constant_shape(match["weight"]) if "weight" in match else None
    groups = (facts.ints(match["split"]) or [0, 1])[1] or 1
    channels = shape[0] if shape is not None and len(shape) > 1 and shape[0] > 1 else 2 * groups
    rank = facts.rank(match["x"]) or (len(shape) + 1 if shape is not None and len(shape) > 1 else 4)
    free = (2, channels, *(4, 5, 3)[: rank - 2])
    sizes = facts.ints(match["sizes"]) or [None] * len(free)  # numbers where the exporter saw fixed sizes
    x = {"x": tuple(known if known and known > 0 else size for known, size in zip(sizes, free, strict=True))}
    if shape is None or facts.is_exporter_default(match["weight"], 1):
        return x
    return {**x, "weight": shape} | ({"bias": shape} if _kept(match["bias"], facts, 0) else {})


# Batch normalisation, which TensorFlow folds into a factor and a shift.


def _batch_norm(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a batch normalisation with mean 0 and variance 1 - epsilon.

    TensorFlow's node names distinguish it from other layers.
    """
    named = [match[node].name or "" for node in ("factor", "sum")]
    if not all(map(_BATCH_NORM.search, named)) or named[0].rpartition("/")[0] != named[1].rpartition("/")[0]:
        return None
    channels = facts.channels(match["scale"], match["x"])
    if channels is None or facts.channels(match["shift"], match["x"]) != channels:
        return None
    scale, shift = flat(match["scale"]), flat(match["shift"])
    statistics = np.zeros(channels, np.float32), np.full(channels, 1 - _KERAS["epsilon"], np.float32)
    return NewNode("BatchNormalization", (match["x"], scale, shift, *statistics), _KERAS)


_BATCH_NORM = re.compile(r"/batchnorm/(mul|add)_1(__\d+)?$")
_KERAS = {"epsilon": 1e-3, "momentum": 0.99}
"""Keras's defaults. The exporter folded the author's values into factor and shift."""


def _batch_norm_sample(match: Match, facts: ValueFacts) -> Sample:
    scale, shift = (facts.constant_shape(match[name]) or () for name in ("scale", "shift"))
    x = (2, math.prod(scale), *(4, 5, 3)[: (facts.rank(match["x"]) or 2) - 2])
    return {"x": x, "scale": scale, "shift": shift}


# F.normalize.

_CLAMPED = "(clip := Clip((norm := ReduceL2(x, ...) | ReduceL1(x, ...)), ...))"


def _normalize(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds F.normalize, `x / max(norm, epsilon)`. ONNX's LpNormalization has no epsilon."""
    norm, clip = match["norm"], match["clip"]
    axes = facts.axes(norm) or []
    if len(axes) != 1 or ("keepdims" in norm.attributes and not norm.attributes["keepdims"].as_int()):
        return None
    limit = clip.inputs[2] if len(clip.inputs) > 2 else None
    epsilon = clip.attributes["min"].as_float() if "min" in clip.attributes else None
    epsilon = facts.number(clip.inputs[1]) if len(clip.inputs) > 1 else epsilon
    if epsilon is None or limit is not None or "max" in clip.attributes:
        return None
    attributes = {"p": float(norm.op_type[-1]), "axis": axes[0], "epsilon": epsilon}
    inputs = (match["x"], match["sizes"]) if "sizes" in match else (match["x"],)
    return NewNode(f"{OWN}::Normalize", inputs, attributes)


def _normalize_sample(match: Match, facts: ValueFacts) -> Sample:
    sizes = facts.ints(match["sizes"]) if "sizes" in match else None  # numbers where the exporter saw fixed sizes
    given = tuple(size for size in sizes or () if size) if sizes and all(sizes) else None
    x = given or facts.shape(match["x"]) or (2, 3, 5, 4)
    return {"x": x} if given or "sizes" not in match else {"x": x, "sizes": np.array(x, np.int64)}


CHANNELS_LAST = (
    Rule("LayerNorm", parse(_TENSORFLOW), _layer_norm, _affine_sample),
    Rule("LayerNorm", parse(_CHANNELS_FIRST), _layer_norm_of_channels, _channels_sample),
)
"""Rules for layers that normalise the last dimension. They run before `channels_first`, which may move it."""

OF_JAX = (
    Rule("LayerNorm", parse(f"{_OF_JAX} * weight + bias"), _layer_norm, _affine_sample, one_layer=True),
    Rule("LayerNorm", parse(_OF_JAX), _plain_layer_norm, _plain_sample),
)
"""Rules for layers of Equinox, and of Flax that compute the variance of what is centred."""

RULES = (
    Rule("LayerNorm", parse(f"{_STANDARDISED} * weight + bias"), _layer_norm, _affine_sample, one_layer=True),
    Rule(
        "RMSNorm",
        parse(f"{_SCALED} * weight | Cast({_SCALED}, to=1) * weight"),
        _rms_norm,
        _affine_sample,
        one_layer=True,
    ),
    Rule("LayerNorm", parse(_STANDARDISED), _plain_layer_norm, _plain_sample),
    Rule("RMSNorm", parse(_SCALED), _plain_rms_norm, _plain_sample),
    Rule("LayerNorm", parse("(norm := LayerNormalization(x, ...))"), _without_weights, _exporter_default_sample),
    Rule("InstanceNorm", parse("(norm := InstanceNormalization(x, _, _))"), _without_weights, _exporter_default_sample),
    Rule("BatchNorm", parse(f"(norm := {_OF_BATCH})"), _batch_norm_of_batch, _batch_sample),
    Rule(
        "BatchNorm",
        parse("(norm := BatchNormalization(x, _, _, _, _))"),
        _batch_norm_without_weights,
        _exporter_default_sample,
    ),
    Rule("GroupNorm", parse(f"{_GROUPS} * weight + bias"), _group_norm, _group_sample, one_layer=True),
    Rule("GroupNorm", parse(_GROUPS), _group_norm, _group_sample),
    Rule("BatchNorm", parse("(sum := (factor := x * +scale) + +shift)"), _batch_norm, _batch_norm_sample),
    Rule("normalize", parse(f"x / (Expand({_CLAMPED}, sizes) | {_CLAMPED})"), _normalize, _normalize_sample),
)
