"""Indexing as data: which range of which axis a call takes. Slices with steps, `unbind` and `chunk` are of one form."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

_PARTS: dict[Any, str] = {
    "unbind": "dim", torch.unbind: "dim", "chunk": "chunks", torch.chunk: "chunks",
    "split": "split_size", torch.split: "split_size",
}  # fmt: skip
"""Calls that give a tuple of parts, with the name of their second argument."""


@dataclass(frozen=True)
class Pick:
    """A range of an axis.

    Attributes:
        axis: of the tensor before any axis is dropped.
        start: the first index.
        step: 1 or more.
        count: how many indices.
        dropped: whether the result has the axis no longer.
    """

    axis: int
    start: int
    step: int
    count: int
    dropped: bool = False


def picks_of(node: Any, sizes: Sequence[int]) -> list[Pick] | None:
    """Returns the ranges that a call takes from its first argument, None for a call that does something else.

    Args:
        node: `x[...]`, `select` or `narrow`, or a part of `unbind`, `chunk` or `split`, which is `parts[i]`.
        sizes: of the tensor: of the first argument, for a part that of the call that made it.
    """
    if node.target is operator.getitem:
        source, index = node.args
        if isinstance(source, fx.Node) and source.target in _PARTS:
            return _part(source, index, sizes) if isinstance(index, int) else None
        return _indexed(index if isinstance(index, tuple) else (index,), sizes)
    if node.target in ("select", "narrow") and not node.kwargs and all(type(value) is int for value in node.args[1:]):
        axis, start, *count = node.args[1:]
        axis %= len(sizes)
        start = start % sizes[axis] if start < 0 else start
        return [Pick(axis, start, 1, count[0] if count else 1, not count)]
    return None


def makes_parts(node: Any) -> bool:
    """Returns whether the node's result is a tuple whose members `picks_of` understands."""
    return node.target in _PARTS


def _indexed(index: Sequence[Any], sizes: Sequence[int]) -> list[Pick] | None:
    named = sum(part is not None and part is not Ellipsis for part in index)
    found: list[Pick] = []
    axis = 0
    for part in index:
        if part is Ellipsis:
            axis += len(sizes) - named
        elif type(part) is int:
            found.append(Pick(axis, part % sizes[axis], 1, 1, dropped=True))
            axis += 1
        elif isinstance(part, slice):
            try:
                taken = range(*part.indices(sizes[axis]))
            except TypeError:  # a bound that is computed
                return None
            found.append(Pick(axis, taken.start, taken.step, len(taken)))
            axis += 1
        elif part is not None:
            return None
    return found


def _part(call: Any, index: int, sizes: Sequence[int]) -> list[Pick] | None:
    given = {**dict(zip(("self", _PARTS[call.target], "dim"), call.args, strict=False)), **call.kwargs}
    axis = given.get("dim", 0) % len(sizes)
    if _PARTS[call.target] == "dim":
        return [Pick(axis, index % sizes[axis], 1, 1, dropped=True)]
    how = given[_PARTS[call.target]]
    if isinstance(how, (tuple, list)):
        lengths = list(how)
    else:
        width = -(-sizes[axis] // how) if _PARTS[call.target] == "chunks" else how
        lengths = [min(width, sizes[axis] - start) for start in range(0, sizes[axis], width)]
    position = index % len(lengths)
    return [Pick(axis, sum(lengths[:position]), 1, lengths[position])]
