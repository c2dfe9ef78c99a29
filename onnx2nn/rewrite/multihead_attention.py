"""A rule for nn.MultiheadAttention as self-attention, with the masks of its call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.patterns import Match, matches, parse, tensor_of
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts

_PACKED = "((packed := Linear(x, weight, bias)) | (packed := MatMul(x, weight)))"
_SPLIT = f"(split := Transpose(Reshape({_PACKED}, sizes), perm=[2, 0, 1, 3]))"
_HEADS_FIRST = "Transpose(Reshape(Gather({}, {}), folded_{}), perm=[1, 0, 2])"


def _inner(heads: tuple[str, str, str] | None) -> str:
    """Returns the patterns of queries, keys and values.

    Args:
        heads: names of the target shapes in which the heads are a dimension of their own, None where the heads are
            folded into the batch.
    """
    each = [_HEADS_FIRST.format(split, index, index) for index, split in enumerate((_SPLIT, "split", "split"))]
    return ", ".join(each if heads is None else [f"Reshape({e}, {h})" for e, h in zip(each, heads, strict=True)])


_JOINED = (
    f"Reshape(Transpose((attention := ScaledDotProductAttention({_inner(('heads', '_', '_'))}, ...)),"
    " perm=[2, 0, 1, 3]), _)"
    f" | Reshape(Transpose((attention := ScaledDotProductAttention({_inner(None)}, ...)), perm=[1, 0, 2]), _)"
)
_MULTIHEAD = f"Reshape((out := Gemm({_JOINED}, out_weight, ...)), _)"

_LINEAR_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}


# Masks.


@dataclass(frozen=True)
class _Masks:
    """The masks in a call of nn.MultiheadAttention.

    Attributes:
        attention: `attn_mask`, `(queries, keys)` or `(batch * heads, queries, keys)`: floats that are added to the
            scores, or a bool mask that is True where a query does not attend to a key.
        padding: `key_padding_mask`, `(batch, keys)`, of either dtype as well.
    """

    attention: ir.Value | None = None
    padding: ir.Value | None = None


_PADDING = "Expand(Reshape(padding, _), _)"
_PADDINGS = f"(Reshape(Reshape({_PADDING}, _), _) | Reshape({_PADDING}, _) | {_PADDING})"
_ALL_HEADS = "(Unsqueeze(Unsqueeze(mask, _), _) | Unsqueeze(mask, _) | mask)"
_BOTH = f"{_ALL_HEADS} + {_PADDINGS}"
_MASK = parse(f"{_BOTH} | Reshape({_BOTH}, _) | {_PADDINGS} | Reshape({_ALL_HEADS}, _) | {_ALL_HEADS}")
_FORBIDDEN = parse(
    "Where(Cast(forbidden, to=9) | forbidden, low, (zeros := ConstantOfShape(_)) | Expand(0, _) | +zeros)"
)
_RANKS = {"mask": (2, 3), "padding": (2,)}


def _masks(value: ir.Value | None, facts: ValueFacts) -> _Masks | None:
    """Returns the masks that were merged into the scores' mask `value`; None where it was made in another way."""
    if value is None:
        return _Masks()
    for match in matches(value, _MASK, {}):
        found = {name: match[name] for name in _RANKS if name in match}
        flags = {name: _forbidden(mask, facts) for name, mask in found.items()}
        if None not in flags.values():  # torch requires both masks to have one dtype
            found = {name: flag for name, flag in flags.items() if flag is not None}
        if all(_has_accepted_rank(mask, _RANKS[name], facts) for name, mask in found.items()):
            return _Masks(found.get("mask"), found.get("padding"))
    return None


def _has_accepted_rank(mask: ir.Value, ranks: tuple[int, ...], facts: ValueFacts) -> bool:
    """Returns whether torch accepts a mask of this rank. A mask with a third dimension must not be broadcast."""
    rank, shape = facts.rank(mask), facts.shape(mask)
    return rank in ranks and (rank == min(ranks) or shape is None or 1 not in shape[:2])


def _forbidden(mask: ir.Value, facts: ValueFacts) -> ir.Value | None:
    """Returns the bool mask from which torch made a float mask, `-inf` where it is True; None where it did not."""
    for match in matches(mask, _FORBIDDEN, {}):
        if facts.number(match["low"]) == -np.inf:
            forbidden: ir.Value = match["forbidden"]
            return forbidden
    return None


# The layer.


def _heads(match: Match, facts: ValueFacts, features: int) -> int | None:
    """Returns the number of heads, None where the file does not determine it."""
    heads = facts.ints(match["heads"]) if "heads" in match else None
    if heads is not None and len(heads) == 4 and heads[1] is not None and heads[1] > 0:
        return heads[1]
    folded, scale = facts.ints(match["folded_0"]), match["attention"].attributes.get("scale")
    size = folded[2] if folded is not None and len(folded) == 3 else None
    if size is None and scale is not None:
        size = round(scale.as_float() ** -2)
    return features // size if size and size > 0 and features % size == 0 else None


def _is_from_multihead_module(match: Match) -> bool:
    """Returns whether the weights' names or the exporter's metadata show that the nodes come from the module."""
    noted = "MultiheadAttention" in match["attention"].metadata_props.get("pkg.torch.onnx.class_hierarchy", "")
    bias, weight = match.get("bias"), match["out_weight"]
    named = bias is not None and (bias.name or "").endswith("in_proj_bias")
    return noted or named or (weight.name or "").endswith("out_proj.weight")


def _is_scaled(attention: ir.Node, size: float) -> bool:
    scale = attention.attributes.get("scale")
    return scale is None or bool(np.isclose(scale.as_float(), size**-0.5, rtol=1e-6))


def _multihead(match: Match, facts: ValueFacts) -> NewNode | None:
    attention, out, bias = match["attention"], match["out"], match.get("bias")
    shapes = [facts.constant_shape(match[name]) for name in ("weight", "out_weight")]
    if shapes != [
        (features := (shapes[0] or (0,))[0], 3 * features),
        (features, features),
    ] or not _is_from_multihead_module(match):
        return None
    if any(out.attributes[name].value != value for name, value in _LINEAR_GEMM.items() if name in out.attributes):
        return None
    if "transB" not in out.attributes or any(name in attention.attributes for name in ("transposed", "grouped")):
        return None
    heads, masks = _heads(match, facts, features), _masks([*attention.inputs, None][3], facts)
    if heads is None or masks is None or not _is_scaled(attention, features / heads):
        return None
    out_bias = [*out.inputs, None][2]
    if out_bias is None and bias is not None:  # torch's exporter omits a bias of zeros
        tensor = tensor_of(out.inputs[1])
        if tensor is None:
            return None
        out_bias = np.zeros(features, tensor.dtype.numpy())
    elif out_bias is not None and bias is None:
        return None
    if any(isinstance(item, ir.Value) and facts.constant_shape(item) is None for item in (bias, out_bias)):
        return None
    attributes = {"num_heads": heads}
    if "is_causal" in attention.attributes:
        attributes["is_causal"] = 1
    tensors = (match["weight"], bias, match["out_weight"], out_bias, masks.attention, masks.padding)
    return NewNode(f"{OWN}::MultiheadAttention", (match["x"], *tensors), attributes)


# Sample inputs.


def _sizes(target: ir.Value, count: int, facts: ValueFacts) -> list[int | None]:
    """Returns the `count` sizes in a Reshape's target, None for each size that is known at run time only."""
    sizes = facts.ints(target) or []
    return [size if size and size > 0 else None for size in sizes] if len(sizes) == count else [None] * count


def _sample(match: Match, facts: ValueFacts) -> Sample:
    features, wide = facts.constant_shape(match["weight"]) or (0, 0)
    heads, masks = _heads(match, facts, features) or 1, _masks([*match["attention"].inputs, None][3], facts) or _Masks()
    steps, batch = _steps_and_batch(match, masks, heads, facts)
    x = facts.shape(match["x"]) if match["x"].shape is not None else (steps, batch, features)
    sample: dict[str, Any] = {"x": x or (), "weight": (features, wide), "bias": (wide,)}
    sample |= {"out_weight": (features, features)}
    shapes = {2: (steps, steps), 3: (batch * heads, steps, steps)}
    for name, mask in (("mask", masks.attention), ("padding", masks.padding)):
        if mask is not None and facts.array(mask) is None:
            match[name] = mask
            shape = (batch, steps) if name == "padding" else shapes[facts.rank(mask) or 2]
            sample[name] = _random_flags(shape) if _is_bool_mask(mask) else shape
    return {name: item for name, item in sample.items() if name in match}


def _steps_and_batch(match: Match, masks: _Masks, heads: int, facts: ValueFacts) -> tuple[int, int]:
    """Returns sequence length and batch size as far as the file determines them, else small sizes."""
    if match["x"].shape is not None:
        steps, batch, _ = facts.shape(match["x"]) or (5, 3, 0)
        return steps, batch
    sizes, folded = _sizes(match["sizes"], 4, facts), [_sizes(match[f"folded_{i}"], 3, facts) for i in range(3)]
    split = _sizes(match["heads"], 4, facts) if "heads" in match else [None] * 4
    padding = facts.shape(masks.padding) if masks.padding is not None else None
    mask = facts.shape(masks.attention) if masks.attention is not None else None
    named = [mask[-1] if mask else None, padding[1] if padding else None, sizes[0], *(sizes[0] for sizes in folded)]
    joint = (target[1] // heads for target in folded if target[1])
    batches = [mask[0] // heads if mask and len(mask) > 2 else None, padding[0] if padding else None]
    return next(filter(None, named), 5), next(filter(None, (*batches, sizes[1], split[0], *joint)), 3)


def _is_bool_mask(mask: ir.Value) -> bool:
    """Returns whether a mask is a condition, rather than a term that is added to the scores."""
    return mask.dtype == ir.DataType.BOOL or any(use.node.op_type == "Where" and use.idx == 0 for use in mask.uses())


def _random_flags(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Returns a bool mask that is True for some keys. The first key stays, so that every query attends to a key."""

    flags = np.random.default_rng(1).random(shape) < 0.3
    flags[..., 0] = False
    return flags


RULES = (Rule("MultiheadAttention", parse(_MULTIHEAD), _multihead, _sample),)
