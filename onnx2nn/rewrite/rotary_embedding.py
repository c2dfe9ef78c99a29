"""Rules for rotary position embedding, in the two forms of the transformers library."""

from __future__ import annotations

import onnx_ir as ir

from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.patterns import Match, parse
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts

_UNBOUNDED = (1 << 31) - 1
"""A Slice's end from here on means the end of the dimension."""


def _axis(node: ir.Node, rank: int, facts: ValueFacts) -> int | None:
    """Returns the only axis of a Slice as a negative number; None where it has several or unknown axes."""
    axes = facts.ints(node.inputs[3]) if len(node.inputs) > 3 else None
    return None if axes is None or len(axes) != 1 or axes[0] is None else axes[0] % rank - rank


def _step(node: ir.Node, facts: ValueFacts) -> int | None:
    steps = facts.ints(node.inputs[4]) if len(node.inputs) > 4 else [1]
    return None if steps is None else steps[0]


def _is_last(axis: int, rank: int) -> bool:
    return axis in (-1, rank - 1)


# Llama, GPT-NeoX: x * cos + rotate_half(x) * sin.

_HALVES = "(joined := Concat(-(upper := Slice(x, start, ...)), (lower := Slice(x, _, end, ...))))"


def _halves(match: Match, facts: ValueFacts) -> NewNode | None:
    rank, upper, lower = facts.rank(match["x"]), match["upper"], match["lower"]
    if rank is None or not _is_last(match["joined"].attributes["axis"].as_int(), rank):
        return None
    if [_axis(node, rank, facts) for node in (upper, lower)] != [-1, -1]:
        return None
    if [_step(node, facts) for node in (upper, lower)] != [1, 1] or facts.ints(lower.inputs[1]) != [0]:
        return None
    last = facts.ints(upper.inputs[2])
    if last is None or last[0] is None or last[0] < _UNBOUNDED:
        return None
    return NewNode(f"{OWN}::RotaryEmbedding", tuple(match[name] for name in ("x", "cos", "sin", "start", "end")))


def _halves_sample(match: Match, facts: ValueFacts) -> Sample:
    """Returns sample inputs whose last dimension is twice the size of a slice, 8 where that is unknown."""

    half = facts.ints(match["start"])
    width = 2 * half[0] if half and half[0] else 8
    return {"x": (*(2, 3, 5, 4, 3, 2)[: (facts.rank(match["x"]) or 1) - 1], width), "cos": (width,), "sin": (width,)}


# GPT-J: x * cos + rotate_every_two(x) * sin.

_PAIRS = (
    "Reshape((joined := Concat((minus := Unsqueeze(-(odd := Slice(x, ...)), _)),"
    " (plus := Unsqueeze((even := Slice(x, ...)), _)))), target)"
)


def _pairs(match: Match, facts: ValueFacts) -> NewNode | None:
    rank, odd, even = facts.rank(match["x"]), match["odd"], match["even"]
    if rank is None or not _is_last(match["joined"].attributes["axis"].as_int(), rank + 1):
        return None
    new_axes = [facts.axes(match[name]) for name in ("minus", "plus")]
    if any(axes is None or len(axes) != 1 or not _is_last(axes[0], rank + 1) for axes in new_axes):
        return None
    if [_axis(node, rank, facts) for node in (odd, even)] != [-1, -1]:
        return None
    if [_step(node, facts) for node in (odd, even)] != [2, 2]:
        return None
    if [facts.ints(node.inputs[1]) for node in (odd, even)] != [[1], [0]]:
        return None
    ends = [facts.ints(node.inputs[2]) for node in (odd, even)]
    if any(end is None or end[0] is None or end[0] < _UNBOUNDED for end in ends):
        return None
    inputs = tuple(match[name] for name in ("x", "cos", "sin", "target"))
    return NewNode(f"{OWN}::InterleavedRotaryEmbedding", inputs)


def _pairs_sample(match: Match, facts: ValueFacts) -> Sample:
    shape = facts.shape(match["x"]) or (*(2, 3, 5, 4, 3, 2)[: (facts.rank(match["x"]) or 1) - 1], 8)
    return {"x": shape, "cos": shape[-1:], "sin": shape[-1:]}


RULES = (
    Rule("RotaryEmbedding", parse(f"x * cos + {_HALVES} * sin"), _halves, _halves_sample),
    Rule("RotaryEmbedding", parse(f"x * cos + {_PAIRS} * sin"), _pairs, _pairs_sample),
)
