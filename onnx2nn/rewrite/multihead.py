"""Rules: nn.MultiheadAttention of one sequence to itself, with the masks that it was called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.facts import Facts
from onnx2nn.rewrite.patterns import Match, matches, parse, tensor_of
from onnx2nn.rewrite.rule import New, Rule, Sample

_PACKED = "((packed := Linear(x, weight, bias)) | (packed := MatMul(x, weight)))"
_SPLIT = f"(split := Transpose(Reshape({_PACKED}, sizes), perm=[2, 0, 1, 3]))"
_TURNED = "Transpose(Reshape(Gather({}, {}), turned_{}), perm=[1, 0, 2])"


def _inner(heads: tuple[str, str, str] | None) -> str:
    """Queries, keys and values; with their heads as a dimension of its own, or as part of the batch."""
    each = [_TURNED.format(split, index, index) for index, split in enumerate((_SPLIT, "split", "split"))]
    return ", ".join(each if heads is None else [f"Reshape({e}, {h})" for e, h in zip(each, heads, strict=True)])


_JOINED = (
    f"Reshape(Transpose((attention := ScaledDotProductAttention({_inner(('heads', '_', '_'))}, ...)),"
    " perm=[2, 0, 1, 3]), _)"
    f" | Reshape(Transpose((attention := ScaledDotProductAttention({_inner(None)}, ...)), perm=[1, 0, 2]), _)"
)
_MULTIHEAD = f"Reshape((out := Gemm({_JOINED}, out_weight, ...)), _)"

_PLAIN_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}


# ---- masks


@dataclass(frozen=True)
class _Masks:
    """What a call of nn.MultiheadAttention says of the scores.

    Attributes:
        attention: `attn_mask`, `(queries, keys)` or `(batch * heads, queries, keys)`; added, or a bool one that is True
            where a query does not attend.
        padding: `key_padding_mask`, `(batch, keys)`, of the same two kinds.
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


def _masks(value: ir.Value | None, facts: Facts) -> _Masks | None:
    """Returns the masks that were made the scores' one; None where it is something else."""
    if value is None:
        return _Masks()
    for match in matches(value, _MASK, {}):
        found = {name: match[name] for name in _RANKS if name in match}
        flags = {name: _forbidden(mask, facts) for name, mask in found.items()}
        if None not in flags.values():  # torch wants both of one kind
            found = {name: flag for name, flag in flags.items() if flag is not None}
        if all(_fits(mask, _RANKS[name], facts) for name, mask in found.items()):
            return _Masks(found.get("mask"), found.get("padding"))
    return None


def _fits(mask: ir.Value, ranks: tuple[int, ...], facts: Facts) -> bool:
    """Whether a mask has a dimension for each that torch demands; a query's mask is not everyone's."""
    rank, shape = facts.rank(mask), facts.shape(mask)
    return rank in ranks and (rank == min(ranks) or shape is None or 1 not in shape[:2])


def _forbidden(mask: ir.Value, facts: Facts) -> ir.Value | None:
    """Returns the bool mask of which torch made one to add; None where it is none."""
    for match in matches(mask, _FORBIDDEN, {}):
        if facts.number(match["low"]) == -np.inf:
            forbidden: ir.Value = match["forbidden"]
            return forbidden
    return None


# ---- the layer


def _heads(match: Match, facts: Facts, features: int) -> int | None:
    """Returns how many heads there are, None where the file does not say."""
    heads = facts.ints(match["heads"]) if "heads" in match else None
    if heads is not None and len(heads) == 4 and heads[1] is not None and heads[1] > 0:
        return heads[1]
    turned, scale = facts.ints(match["turned_0"]), match["attention"].attributes.get("scale")
    size = turned[2] if turned is not None and len(turned) == 3 else None
    if size is None and scale is not None:
        size = round(scale.as_float() ** -2)
    return features // size if size and size > 0 and features % size == 0 else None


def _is_named(match: Match) -> bool:
    """Whether the weights' names, or what the exporter noted of the module, tell it from other attention."""
    noted = "MultiheadAttention" in match["attention"].metadata_props.get("pkg.torch.onnx.class_hierarchy", "")
    bias, weight = match.get("bias"), match["out_weight"]
    named = bias is not None and (bias.name or "").endswith("in_proj_bias")
    return noted or named or (weight.name or "").endswith("out_proj.weight")


def _is_scaled(attention: ir.Node, size: float) -> bool:
    scale = attention.attributes.get("scale")
    return scale is None or bool(np.isclose(scale.as_float(), size**-0.5, rtol=1e-6))


def _multihead(match: Match, facts: Facts) -> New | None:
    attention, out, bias = match["attention"], match["out"], match.get("bias")
    shapes = [facts.constant_shape(match[name]) for name in ("weight", "out_weight")]
    if shapes != [(features := (shapes[0] or (0,))[0], 3 * features), (features, features)] or not _is_named(match):
        return None
    if any(out.attributes[name].value != value for name, value in _PLAIN_GEMM.items() if name in out.attributes):
        return None
    if "transB" not in out.attributes or any(name in attention.attributes for name in ("transposed", "grouped")):
        return None
    heads, masks = _heads(match, facts, features), _masks([*attention.inputs, None][3], facts)
    if heads is None or masks is None or not _is_scaled(attention, features / heads):
        return None
    out_bias = [*out.inputs, None][2]
    if out_bias is None and bias is not None:  # torch's exporter leaves zeros out
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
    return New(f"{OWN}::MultiheadAttention", (match["x"], *tensors), attributes)


# ---- values to compare on


def _sizes(target: ir.Value, count: int, facts: Facts) -> list[int | None]:
    """Returns the sizes that a reshape names, None for each that it leaves open."""
    sizes = facts.ints(target) or []
    return [size if size and size > 0 else None for size in sizes] if len(sizes) == count else [None] * count


def _sample(match: Match, facts: Facts) -> Sample:
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
            sample[name] = _flags(shape) if _is_flag(mask) else shape
    return {name: item for name, item in sample.items() if name in match}


def _steps_and_batch(match: Match, masks: _Masks, heads: int, facts: Facts) -> tuple[int, int]:
    """Returns the sizes of the sequences that the file names near the attention, others for those it leaves open."""
    if match["x"].shape is not None:
        steps, batch, _ = facts.shape(match["x"]) or (5, 3, 0)
        return steps, batch
    sizes, turned = _sizes(match["sizes"], 4, facts), [_sizes(match[f"turned_{i}"], 3, facts) for i in range(3)]
    split = _sizes(match["heads"], 4, facts) if "heads" in match else [None] * 4
    padding = facts.shape(masks.padding) if masks.padding is not None else None
    mask = facts.shape(masks.attention) if masks.attention is not None else None
    named = [mask[-1] if mask else None, padding[1] if padding else None, sizes[0], *(sizes[0] for sizes in turned)]
    joint = (target[1] // heads for target in turned if target[1])
    batches = [mask[0] // heads if mask and len(mask) > 2 else None, padding[0] if padding else None]
    return next(filter(None, named), 5), next(filter(None, (*batches, sizes[1], split[0], *joint)), 3)


def _is_flag(mask: ir.Value) -> bool:
    """Whether a mask chooses, rather than being added."""
    return mask.dtype == ir.DataType.BOOL or any(use.node.op_type == "Where" and use.idx == 0 for use in mask.uses())


def _flags(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Some of the keys, but the first, are not attended."""
    flags = np.random.default_rng(1).random(shape) < 0.3
    flags[..., 0] = False
    return flags


MULTIHEAD = (Rule("MultiheadAttention", parse(_MULTIHEAD), _multihead, _sample),)
