"""Rules: attention, in the forms that torch's exporters and written out attention have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.registry import load_rows
from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.facts import Facts
from onnx2nn.rewrite.patterns import Match, parse
from onnx2nn.rewrite.rule import New, Rule, Sample

_LOWEST = -1e30
"""A score that is lower attends nothing: exp(-1e30) is 0."""

_MAX_MASK = 1 << 20
"""Elements of a constant mask that is looked at."""

# The square root of 1 / sqrt(size), by which the TorchScript exporter multiplies queries and keys.
_ROOT = parse("(root := Sqrt(Cast(1 / Sqrt(Cast(Slice(Shape(q), -1, _, ...))))))")

_QUERY = parse("q * ROOT | q * +query_factor | q / +query_divisor | q", ROOT=_ROOT)
_KEYS = parse("(repeat_k := RepeatInterleave(k)) | k")
_TURNED = parse("(turn := Transpose(KEYS * +key_factor | KEYS)) | kt", KEYS=_KEYS)
_KEY = parse("TURNED * ROOT | TURNED * +key_factor | TURNED / +key_divisor | TURNED", TURNED=_TURNED, ROOT=_ROOT)
_PRODUCT = parse("MatMul(QUERY, KEY)", QUERY=_QUERY, KEY=_KEY)
_SCORES = parse("PRODUCT * +factor | PRODUCT / +divisor | PRODUCT", PRODUCT=_PRODUCT)
_CAUSAL = parse("Where(Equal(Trilu(Expand(1, size), upper=0), 0), +low, 0)")
_MASKED = parse(
    "CAUSAL + SCORES | Where(allowed, 0, +low) + SCORES | (mask * 1 | mask) + SCORES | SCORES"
    " | Where(kept, SCORES, +low) | Where(filled, +low, SCORES)",
    CAUSAL=_CAUSAL,
    SCORES=_SCORES,
)
_SOFTMAX = parse("(softmax := Softmax(MASKED))", MASKED=_MASKED)
_WEIGHTS = parse("Where(IsNaN(SOFTMAX), 0, softmax) | Cast(SOFTMAX, to=1) | SOFTMAX", SOFTMAX=_SOFTMAX)
_ATTENTION = parse("MatMul(WEIGHTS, (repeat_v := RepeatInterleave(v)) | v)", WEIGHTS=_WEIGHTS)


def _scale(match: Match, facts: Facts) -> float | None:
    """Returns by what the products are multiplied; 0 for 1 / sqrt(size), None where it is no constant."""
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
    """Returns the size of a query, None where the file does not say."""
    shape = match["q"].shape
    return shape[-1] if shape is not None and len(shape) and isinstance(shape[-1], int) else None


def _attends_last(softmax: ir.Node, rank: int | None) -> bool:
    """Whether the softmax is over the last dimension."""
    axis = softmax.attributes["axis"].as_int() if "axis" in softmax.attributes else -1
    return axis == -1 or (rank is not None and axis == rank - 1)


def _key(match: Match) -> tuple[Any, bool] | None:
    """Returns the keys, and whether they stand transposed."""
    if "kt" in match:
        return match["kt"], True
    perm = list(match["turn"].attributes["perm"].as_ints()) if "perm" in match["turn"].attributes else None
    if perm is None or len(perm) < 2:
        return None
    perm[-2:] = perm[:-3:-1]
    keys = match["k"]
    return (keys if perm == sorted(perm) else New("Transpose", (keys,), {"perm": perm})), False


def _is_causal(mask: ir.Value, facts: Facts) -> bool:
    """Whether a constant mask lets every query attend the keys up to its own place."""
    shape = facts.constant_shape(mask)
    if shape is None or len(shape) < 2 or math.prod(shape) > _MAX_MASK or shape[-1] != shape[-2]:
        return False
    array = facts.array(mask)
    if array is None or math.prod(shape[:-2]) != 1 or array.dtype.kind != "f":
        return False
    array = array.reshape(shape[-2:])
    lower = np.tri(shape[-1], dtype=bool)
    return bool((array[lower] == 0).all() and (array[~lower] < _LOWEST).all())


def _reads_table(mask: ir.Value) -> bool:
    """Whether a mask is read from a weight at run time, as a window's relative positions are.

    Torch's kernels lay their result out differently where the mask has a gradient, so that torch.onnx.export, which
    traces without gradients and decomposes with them, fails at the next reshape.
    """
    node, movers = mask.producer(), load_rows().operators("layout_only") | {"Transpose"}
    while node is not None and node.op_type in movers and node.inputs[0]:
        node = node.inputs[0].producer()
    return (
        node is not None and node.op_type == "Gather" and node.inputs[1] is not None and node.inputs[1].is_initializer()
    )


def _mask(match: Match, facts: Facts) -> tuple[Any, bool] | None:
    """Returns the mask, None for none, and whether it is the causal one."""
    low = facts.number(match["low"]) if "low" in match else None
    if "low" in match and (low is None or low > _LOWEST):
        return None
    if "size" in match:
        return None, True
    if "allowed" in match:  # with a finite number, a query that may attend nothing attends all alike: `+ mask` fits
        return (match["allowed"], False) if low == -math.inf else None
    if "kept" in match:
        return New("Where", (match["kept"], np.asarray(0, np.float32), np.asarray(low, np.float32))), False
    if "filled" in match:
        return New("Where", (match["filled"], np.asarray(low, np.float32), np.asarray(0, np.float32))), False
    mask = match.get("mask")
    if mask is not None and _reads_table(mask):
        return None
    if mask is not None and facts.number(mask) == 0:  # Paddle's scale has an offset
        return None, False
    if mask is not None and _is_causal(mask, facts):
        return None, True
    return mask, False


def _attention(match: Match, facts: Facts) -> New | None:
    scale, key, mask = _scale(match, facts), _key(match), _mask(match, facts)
    rank = facts.rank(match["q"]) or (len(match["turn"].attributes["perm"].as_ints()) if "turn" in match else None)
    if scale is None or key is None or mask is None or not _attends_last(match["softmax"], rank):
        return None
    repeats = [match[name].attributes["repeats"].as_int() for name in ("repeat_k", "repeat_v") if name in match]
    if len(repeats) == 1 or len(set(repeats)) > 1:
        return None
    attributes = {"scale": scale} if scale else {}
    flags = {"is_causal": int(mask[1]), "transposed": int(key[1]), "grouped": int(bool(repeats))}
    attributes |= {name: flag for name, flag in flags.items() if flag}
    return New(f"{OWN}::ScaledDotProductAttention", (match["q"], key[0], match["v"], mask[0]), attributes)


def _sample(match: Match, facts: Facts) -> Sample:
    rank = facts.rank(match["q"]) or (len(match["turn"].attributes["perm"].as_ints()) if "turn" in match else 4)
    queries, keys, size = 5, 7, _size(match) or 4
    if "size" in match:
        sizes = facts.ints(match["size"]) or [None, None]
        queries, keys = sizes[-2] or queries, sizes[-1] or keys
    mask = facts.constant_shape(match.get("mask"))
    causal = mask is not None and _is_causal(match["mask"], facts)
    for shape in (mask if causal else None, *(facts.constant_shape(match.get(name)) for name in ("kept", "filled"))):
        if shape is not None and len(shape) > 1:
            queries, keys = (size if size > 1 else old for size, old in zip(shape[-2:], (queries, keys), strict=True))
    heads = (2, 3, 6)[-(rank - 2) :] if rank > 2 else ()
    repeat = match["repeat_k"].attributes["repeats"].as_int() if "repeat_k" in match else 1
    inner = heads if repeat == 1 else (*heads[:1], 2)
    heads = heads if repeat == 1 else (*heads[:1], 2 * repeat)
    sample: dict[str, Any] = {"q": (*heads, queries, size), "v": (*inner, keys, 3)}
    turned = (*inner, size, keys)
    if "kt" in match:
        sample["kt"] = turned
    else:
        perm = match["turn"].attributes["perm"].as_ints()
        sample["k"] = tuple(turned[list(perm).index(axis)] for axis in range(len(perm)))
    if "mask" in match and not causal and facts.number(match["mask"]) is None:
        sample["mask"] = (queries, keys)
    for name in ("allowed", "kept", "filled"):
        if name in match and facts.array(match[name]) is None:
            sample[name] = (np.random.default_rng(1).random((queries, keys)) < 0.7) ^ (name == "filled")
    return sample


ATTENTION = (Rule("scaled_dot_product_attention", _ATTENTION, _attention, _sample),)
