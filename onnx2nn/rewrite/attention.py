"""Rules for scaled dot-product attention, as torch's exporters decompose it and as models write it out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import OWN
from onnx2nn.provenance.exporter_metadata import place_of
from onnx2nn.rewrite.patterns import NODES, Match, parse
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts

_LOWEST = -1e30
"""Lower scores give weights of 0: exp(-1e30) is 0."""

_MAX_MASK = 1 << 20
"""Elements of the largest constant mask that is tested for causality."""

# The square root of 1 / sqrt(size), by which the TorchScript exporter multiplies queries and keys.
_ROOT = parse("(root := Sqrt(Cast(1 / Sqrt(Cast(Slice(Shape(q), -1, _, ...))))))")

_QUERY = parse("q * ROOT | q * +query_factor | q / +query_divisor | q", ROOT=_ROOT)
_KEYS = parse("(repeat_k := RepeatInterleave(k)) | k")
_TRANSPOSED = parse("(transpose := Transpose(KEYS * +key_factor | KEYS)) | kt", KEYS=_KEYS)
_KEY = parse(
    "TRANSPOSED * ROOT | TRANSPOSED * +key_factor | TRANSPOSED / +key_divisor | TRANSPOSED",
    TRANSPOSED=_TRANSPOSED,
    ROOT=_ROOT,
)
_PRODUCT = parse("MatMul(QUERY, KEY)", QUERY=_QUERY, KEY=_KEY)
_SCORES = parse("PRODUCT * +factor | PRODUCT / +divisor | PRODUCT", PRODUCT=_PRODUCT)
_CAUSAL = parse("Where(Equal(Trilu(Expand(1, size), upper=0), 0), +low, 0)")
_MASKED = parse(
    "CAUSAL + SCORES | Where(allowed, 0, +low) + SCORES | (mask * 1 | mask) + SCORES | SCORES"
    " | Where(selected, SCORES, +low) | Where(masked, +low, SCORES)",
    CAUSAL=_CAUSAL,
    SCORES=_SCORES,
)
_SOFTMAX = parse("(softmax := Softmax(MASKED))", MASKED=_MASKED)
_WEIGHTS = parse("Where(IsNaN(SOFTMAX), 0, softmax) | Cast(SOFTMAX, to=1) | SOFTMAX", SOFTMAX=_SOFTMAX)
_ATTENTION = parse("MatMul(WEIGHTS, (repeat_v := RepeatInterleave(v)) | v)", WEIGHTS=_WEIGHTS)


def _scale(match: Match, facts: ValueFacts) -> float | None:
    """Returns the scale of the scores; 0 for the default, 1 / sqrt(size of a query), None where it is not constant."""
    total = 1.0
    for name in ("query", "key", ""):
        for kind, sign in (("factor", 1), ("divisor", -1)):
            value = match.get(f"{name}_{kind}" if name else kind)
            if value is not None:
                number = facts.number(value)
                if not number:
                    return None
                total *= number**sign
    if "root" in match:
        return 0.0 if total == 1 else None
    size = _size(match)
    return 0.0 if size and math.isclose(total, size**-0.5, rel_tol=1e-6) else total


def _size(match: Match) -> int | None:
    """Returns the size of a query vector, None where the file does not declare it."""
    shape = match["q"].shape
    return shape[-1] if shape is not None and len(shape) and isinstance(shape[-1], int) else None


def _is_over_keys(match: Match, facts: ValueFacts, rank: int | None) -> bool:
    """Returns whether the softmax is over the last dimension, which holds the keys.

    A mask may have more dimensions than queries and keys, `rank`.
    """
    softmax = match["softmax"]
    axis = softmax.attributes["axis"].as_int() if "axis" in softmax.attributes else -1
    masks = [facts.rank(match[name]) for name in ("mask", "allowed", "selected", "masked") if name in match]
    scores = facts.rank(softmax.inputs[0])
    if scores is None and rank is not None and None not in masks:
        scores = max([rank, *(count for count in masks if count is not None)])
    return axis == -1 or (scores is not None and axis == scores - 1)


def _key(match: Match) -> tuple[Any, bool] | None:
    """Returns the keys and whether they are transposed, `(..., size, keys)`; None for another permutation."""
    if "kt" in match:
        return match["kt"], True
    perm = list(match["transpose"].attributes["perm"].as_ints()) if "perm" in match["transpose"].attributes else None
    if perm is None or len(perm) < 2:
        return None
    perm[-2:] = perm[:-3:-1]
    keys = match["k"]
    return (keys if perm == sorted(perm) else NewNode("Transpose", (keys,), {"perm": perm})), False


def _is_of_layers(match: Match, facts: ValueFacts) -> bool:
    """Returns whether a product is a linear layer: its second factor is a matrix of constants, not keys or values."""
    factors = (match[name] for name in ("kt", "k", "v") if name in match)
    return any(len(shape) <= 2 for shape in map(facts.constant_shape, factors) if shape is not None)


def _is_causal(mask: ir.Value, facts: ValueFacts) -> bool:
    """Returns whether a constant mask lets every query attend to the keys up to its own position, and to no others."""
    shape = facts.constant_shape(mask)
    if shape is None or len(shape) < 2 or math.prod(shape) > _MAX_MASK or shape[-1] != shape[-2]:
        return False
    array = facts.array(mask)
    if array is None or math.prod(shape[:-2]) != 1 or array.dtype.kind != "f":
        return False
    array = array.reshape(shape[-2:])
    lower = np.tri(shape[-1], dtype=bool)
    return bool((array[lower] == 0).all() and (array[~lower] < _LOWEST).all())


def _moves(operator: str) -> bool:
    """Returns whether an operator gives the elements of its first input in another layout."""
    return operator == "Transpose" or "layout_only" in TABLE.traits_of(operator)


def _is_gathered_from_weight(mask: ir.Value) -> bool:
    """Returns whether a Gather reads the mask from a weight, as windowed attention does with relative positions.

    Such a mask has a gradient, and then torch's kernels choose another memory layout for their result.
    torch.onnx.export traces without gradients and decomposes with them, so that it fails at the next reshape.
    """
    node = mask.producer()
    while node is not None and _moves(node.op_type) and node.inputs[0]:
        node = node.inputs[0].producer()
    return (
        node is not None and node.op_type == "Gather" and node.inputs[1] is not None and node.inputs[1].is_initializer()
    )


def _mask(match: Match, facts: ValueFacts) -> tuple[Any, bool] | None:
    """Returns the mask, None for no mask, and whether it is causal; None instead of a pair where the rule declines."""
    low = facts.number(match["low"]) if "low" in match else None
    if "low" in match and (low is None or low > _LOWEST):
        return None
    if "size" in match:
        return None, True
    # With a finite `low`, a query without allowed keys attends to all keys equally, unlike with a bool mask.
    if "allowed" in match:
        return (match["allowed"], False) if low == -math.inf else None
    if "selected" in match:
        return NewNode("Where", (match["selected"], np.asarray(0, np.float32), np.asarray(low, np.float32))), False
    if "masked" in match:
        return NewNode("Where", (match["masked"], np.asarray(low, np.float32), np.asarray(0, np.float32))), False
    mask = match.get("mask")
    if mask is not None and _is_gathered_from_weight(mask):
        return None
    if mask is not None and facts.number(mask) == 0:  # the bias of Paddle's scale operator, no mask
        return None, False
    if mask is not None and _is_causal(mask, facts):
        return None, True
    return mask, False


def _scales_itself(match: Match) -> bool:
    """Returns whether no other module than that of the products scales what they multiply, as its result."""
    scaling = [place_of(node) for node in match[NODES] if node.op_type in ("Mul", "Div")]
    around = {place.path for node in match[NODES] if node.op_type == "MatMul" and (place := place_of(node))}
    return all(place is None or not around or place.path in around for place in scaling)


def _attention(match: Match, facts: ValueFacts) -> NewNode | None:
    if _is_of_layers(match, facts) or not _scales_itself(match):
        return None
    scale, key, mask = _scale(match, facts), _key(match), _mask(match, facts)
    rank = facts.rank(match["q"]) or (
        len(match["transpose"].attributes["perm"].as_ints()) if "transpose" in match else None
    )
    if scale is None or key is None or mask is None or not _is_over_keys(match, facts, rank):
        return None
    repeats = [match[name].attributes["repeats"].as_int() for name in ("repeat_k", "repeat_v") if name in match]
    if len(repeats) == 1 or len(set(repeats)) > 1:
        return None
    attributes = {"scale": scale} if scale else {}
    flags = {"is_causal": int(mask[1]), "transposed": int(key[1]), "grouped": int(bool(repeats))}
    attributes |= {name: flag for name, flag in flags.items() if flag}
    return NewNode(f"{OWN}::ScaledDotProductAttention", (match["q"], key[0], match["v"], mask[0]), attributes)


def _sample(match: Match, facts: ValueFacts) -> Sample:
    rank = facts.rank(match["q"]) or (
        len(match["transpose"].attributes["perm"].as_ints()) if "transpose" in match else 4
    )
    queries, keys, size = 5, 7, _size(match) or 4
    if "size" in match:
        sizes = facts.ints(match["size"]) or [None, None]
        queries, keys = sizes[-2] or queries, sizes[-1] or keys
    mask = facts.constant_shape(match.get("mask"))
    causal = mask is not None and _is_causal(match["mask"], facts)
    for shape in (
        mask if causal else None,
        *(facts.constant_shape(match.get(name)) for name in ("selected", "masked")),
    ):
        if shape is not None and len(shape) > 1:
            queries, keys = (size if size > 1 else old for size, old in zip(shape[-2:], (queries, keys), strict=True))
    if match["q"] in (match["v"], match.get("k")):
        keys = queries
    width = size if match["q"] is match["v"] else 3
    heads = (2, 3, 6)[-(rank - 2) :] if rank > 2 else ()
    repeat = match["repeat_k"].attributes["repeats"].as_int() if "repeat_k" in match else 1
    inner = heads if repeat == 1 else (*heads[:1], 2)
    heads = heads if repeat == 1 else (*heads[:1], 2 * repeat)
    sample: dict[str, Any] = {"q": (*heads, queries, size), "v": (*inner, keys, width)}
    key_shape = (*inner, size, keys)
    if "kt" in match:
        sample["kt"] = key_shape
    else:
        perm = match["transpose"].attributes["perm"].as_ints()
        sample["k"] = tuple(key_shape[list(perm).index(axis)] for axis in range(len(perm)))
    if "mask" in match and not causal and facts.number(match["mask"]) is None:
        sample["mask"] = (queries, keys)
    for name in ("allowed", "selected", "masked"):
        if name in match and facts.array(match[name]) is None:
            sample[name] = (np.random.default_rng(1).random((queries, keys)) < 0.7) ^ (name == "masked")
    return sample


RULES = (Rule("scaled_dot_product_attention", _ATTENTION, _attention, _sample),)
