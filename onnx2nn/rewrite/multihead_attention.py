"""A rule for nn.MultiheadAttention, with the masks of its call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.evaluation import Evaluator
from onnx2nn.rewrite.patterns import Match, matches, parse, tensor_of
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts

_PACKED = "((packed := Linear(query, weight, bias)) | (packed := MatMul(query, weight)))"
_HEADS_FIRST = "Transpose(Reshape({}, folded_{}), perm=[1, 0, 2])"


def _product(name: str) -> str:
    """Returns the pattern of an input that is multiplied by rows of the packed weight, with or without a bias."""
    product = f"MatMul({name}, Transpose({name}_weight, perm=[1, 0]))"
    return f"({product} + {name}_bias | {product})"


def _split(product: str, count: int) -> tuple[str, ...]:
    """Returns the patterns of the `count` parts of one product."""
    split = f"(split := Transpose(Reshape({product}, sizes), perm=[2, 0, 1, 3]))"
    return tuple(f"Gather({split if index == 0 else 'split'}, {index})" for index in range(count))


_INPUTS = ("query", "key", "value")
_PROJECTIONS = (
    _split(_PACKED, 3),
    (_product("query"), *_split(_product("key"), 2)),
    tuple(map(_product, _INPUTS)),
)
"""Patterns of the queries, keys and values: of one tensor, of one tensor and another, and of three."""


def _joined(projections: Sequence[str]) -> str:
    """Returns the patterns of what the heads give, as a dimension of their own, or folded into the batch."""
    folded = [_HEADS_FIRST.format(each, index) for index, each in enumerate(projections)]
    apart = [f"Reshape({each}, {heads})" for each, heads in zip(folded, ("heads", "_", "_"), strict=True)]
    alternatives = ((apart, "[2, 0, 1, 3]"), (folded, "[1, 0, 2]"))
    return " | ".join(
        f"Reshape(Transpose((attention := ScaledDotProductAttention({', '.join(inner)}, ...)), perm={perm}), _)"
        for inner, perm in alternatives
    )


_MULTIHEAD = f"Reshape((out := Gemm({' | '.join(map(_joined, _PROJECTIONS))}, out_weight, ...)), _)"

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


def _is_from_multihead_module(attention: ir.Node, bias: ir.Value | None, weight: ir.Value) -> bool:
    """Returns whether the weights' names or the exporter's metadata show that the nodes come from the module."""
    noted = "MultiheadAttention" in attention.metadata_props.get("pkg.torch.onnx.class_hierarchy", "")
    named = bias is not None and (bias.name or "").endswith("in_proj_bias")
    return noted or named or (weight.name or "").endswith("out_proj.weight")


def _is_scaled(attention: ir.Node, size: float) -> bool:
    scale = attention.attributes.get("scale")
    return scale is None or bool(np.isclose(scale.as_float(), size**-0.5, rtol=1e-6))


def _packed(parts: Sequence[ir.Value], match: Match, facts: ValueFacts) -> ir.Value | None:
    """Returns the constant whose rows the values are, all of them in this order; None where there is none.

    Rows are told apart by numbers in the places of their elements. A trace computes their bounds of the queries' size.
    """
    nodes = [part.producer() for part in parts]
    whole = nodes[0].inputs[0] if nodes[0] is not None and nodes[0].inputs else None
    shape = facts.constant_shape(whole)
    if whole is None or shape is None or any(node is None or node.inputs[0] is not whole for node in nodes):
        return None
    rows = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    given = {whole: rows, match["query"]: np.zeros((1, 1, shape[0] // 3))}
    evaluator = Evaluator(facts.table, facts.F, facts.opsets, facts.account, given)
    found = [array for part in parts if (array := evaluator.known_array(part)) is not None]
    each = len(found) == len(parts) and all(array.shape[1:] == rows.shape[1:] for array in found)
    return whole if each and np.array_equal(np.concatenate(found), rows) else None


def _weights(match: Match, facts: ValueFacts) -> tuple[ir.Value | None, ir.Value | None]:
    """Returns the packed weight and bias of the projections, None for one that is absent or not known."""
    if "packed" in match:
        return match["weight"], match.get("bias")
    found = []
    for kind in ("weight", "bias"):
        parts = [match[f"{name}_{kind}"] for name in _INPUTS if f"{name}_{kind}" in match]
        found.append(_packed(parts, match, facts) if parts else None)
    return found[0], found[1]


def _multihead(match: Match, facts: ValueFacts) -> NewNode | None:
    attention, out, (weight, bias) = match["attention"], match["out"], _weights(match, facts)
    features = (facts.constant_shape(match["out_weight"]) or (0,))[0]
    transposed = "packed" not in match
    shapes = [facts.constant_shape(value) for value in (weight, match["out_weight"])]
    inner = (features, 3 * features)
    if weight is None or shapes != [inner[::-1] if transposed else inner, (features, features)]:
        return None
    if any(f"{name}_bias" in match for name in _INPUTS) != (transposed and bias is not None):
        return None
    if not _is_from_multihead_module(attention, bias, match["out_weight"]):
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
    if transposed:
        facts.equate(match["query"], match["key"], 1)
    attributes = {"num_heads": heads} | ({"transB": 1} if transposed else {})
    if "is_causal" in attention.attributes:
        attributes["is_causal"] = 1
    tensors = (weight, bias, match["out_weight"], out_bias, masks.attention, masks.padding)
    others = (match["key"], match.get("value", match["key"])) if transposed else ()
    return NewNode(f"{OWN}::MultiheadAttention", (match["query"], *tensors, *others), attributes)


# Sample inputs.


def _sizes(target: ir.Value | None, count: int, facts: ValueFacts) -> list[int | None]:
    """Returns the `count` sizes in a Reshape's target, None for each size that is known at run time only."""
    sizes = facts.ints(target) or []
    return [size if size and size > 0 else None for size in sizes] if len(sizes) == count else [None] * count


def _heads_first(match: Match, index: int, facts: ValueFacts) -> list[int | None]:
    """Returns the number of steps, of samples times heads, and a head's size; None for what the inputs alone determine.

    The newer exporter computes them of the sizes of the model's inputs, as of an image that became a sequence.
    """
    target = match[f"folded_{index}"]
    known, inputs = _sizes(target, 3, facts), {match[name] for name in _INPUTS if name in match}
    if None not in known[:2]:
        return known

    def placeholder(value: ir.Value) -> np.ndarray[Any, Any] | None:
        if value in inputs or (value.shape is None and any(use.node.op_type == "Shape" for use in value.uses())):
            raise ValueError("its sizes are those of the sample, or not declared")
        return facts.placeholder(value)

    evaluator = Evaluator(facts.table, facts.F, facts.opsets, facts.account, {}, placeholder=placeholder)
    sizes = evaluator.known_array(target)
    return known if sizes is None or sizes.shape != (3,) else [int(size) if size > 0 else None for size in sizes]


def _sample(match: Match, facts: ValueFacts) -> Sample:
    features = (facts.constant_shape(match["out_weight"]) or (0,))[0]
    heads, masks = _heads(match, facts, features) or 1, _masks([*match["attention"].inputs, None][3], facts) or _Masks()
    queries, keys, batch = _counts(match, masks, heads, facts)
    sample: dict[str, Any] = {"query": (queries, batch, features), "out_weight": (features, features)}
    sample |= dict.fromkeys(("key", "value"), (keys, batch, features))
    sample |= {"weight": (features, 3 * features), "bias": (3 * features,)}
    shapes = {2: (queries, keys), 3: (batch * heads, queries, keys)}
    for name, mask in (("mask", masks.attention), ("padding", masks.padding)):
        if mask is not None and facts.array(mask) is None:
            match[name] = mask
            shape = (batch, keys) if name == "padding" else shapes[facts.rank(mask) or 2]
            sample[name] = _random_flags(shape) if _is_bool_mask(mask) else shape
    return {name: item for name, item in sample.items() if name in match}


def _counts(match: Match, masks: _Masks, heads: int, facts: ValueFacts) -> tuple[int, int, int]:
    """Returns the numbers of queries, keys and samples as far as the file determines them, else small sizes.

    A file of torch's older exporter may have its example's numbers in a Reshape of what it declares as dynamic. The
    layer, which has the author's sizes, is compared at these.
    """
    one = "packed" in match or match["query"] is match["key"]
    sizes, split = (_sizes(match.get(name), 4, facts) for name in ("sizes", "heads"))
    folded = [_heads_first(match, 0, facts), *(_sizes(match[f"folded_{i}"], 3, facts) for i in (1, 2))]
    if not one and sizes[0] is None:
        folded[1] = _heads_first(match, 1, facts)
    padding = facts.shape(masks.padding) if masks.padding is not None else None
    mask = facts.shape(masks.attention) if masks.attention is not None else None
    query, key = (facts.shape(x) if (x := match.get(name)) and x.shape else None for name in ("query", "key"))
    queries = [folded[0][0], query[0] if query else None, mask[-2] if mask else None]
    keys = [sizes[0], *(target[0] for target in folded[1:]), key[0] if key else None]
    keys += [mask[-1] if mask else None, padding[1] if padding else None]
    batches = [sizes[1], split[0], *(target[1] // heads for target in folded if target[1])]
    batches += [query[1] if query else None, mask[0] // heads if mask and len(mask) > 2 else None]
    batches += [padding[0] if padding else None]
    steps = next(filter(None, [*queries, *keys] if one else queries), 5)
    return steps, steps if one else next(filter(None, keys), 7), next(filter(None, batches), 3)


def _is_bool_mask(mask: ir.Value) -> bool:
    """Returns whether a mask is a condition, rather than a term that is added to the scores."""
    return mask.dtype == ir.DataType.BOOL or any(use.node.op_type == "Where" and use.idx == 0 for use in mask.uses())


def _random_flags(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Returns a bool mask that is True for some keys. The first key stays, so that every query attends to a key."""

    flags = np.random.default_rng(1).random(shape) < 0.3
    flags[..., 0] = False
    return flags


RULES = (Rule("MultiheadAttention", parse(_MULTIHEAD), _multihead, _sample),)
