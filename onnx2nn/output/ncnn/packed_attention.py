"""Cuts queries, keys and values out of their common tensor before it has five dimensions: NCNN has at most four.

Transformers compute the three by one layer and write `x.reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)[i]`. The channels
of part i lie next to each other, so cutting first gives the same result. The module for NCNN is compared afterwards.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

from torch import fx


def unpack_parts(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy in which parts of a packed tensor are cut out of its channels."""
    result = fx.GraphModule(module, copy.deepcopy(module.graph))
    for node in list(result.graph.nodes):
        parts = _parts(node)
        if parts is None:
            continue
        packed = node.args[0]
        source, *shape = _flat(packed.args)
        order = [(0, 1, None, 2, 3)[axis] for axis in _flat(node.args)[2:]]
        for position, old in parts:
            with result.graph.inserting_before(old):
                width = shape[3] * shape[4]
                cut = slice(position * width, (position + 1) * width)
                taken = result.graph.call_function(operator.getitem, (source, (slice(None), slice(None), cut)))
                split = result.graph.call_method("reshape", (taken, shape[0], shape[1], shape[3], shape[4]))
                new = result.graph.call_method("permute", (split, *order))
            old.replace_all_uses_with(new)
    result.graph.eliminate_dead_code()
    result.recompile()
    return result


def _parts(permute: fx.Node) -> list[tuple[int, fx.Node]] | None:
    """Returns the parts that are taken from a packed tensor, None where `permute` does not pack."""
    if permute.op != "call_method" or permute.target != "permute" or len(_flat(permute.args)) != 6:
        return None
    packed, *order = _flat(permute.args)
    if order[0] != 2 or packed.op != "call_method" or packed.target not in ("reshape", "view"):
        return None
    shape = _flat(packed.args)[1:]
    if len(shape) != 5 or len(packed.users) != 1 or not all(isinstance(size, int) and size > 0 for size in shape[2:]):
        return None
    parts = [part for use in permute.users if (part := _part(use, shape[2])) is not None]
    return parts if len(parts) == len(permute.users) else None


def _part(use: fx.Node, count: int) -> tuple[int, fx.Node] | None:
    """Returns the number of the part that `use` takes, and the node whose result is the part alone."""
    if use.target == "select" and use.args[1] == 0 and isinstance(use.args[2], int):
        return use.args[2] % count, use
    if use.target is not operator.getitem:
        return None
    index = use.args[1][0] if isinstance(use.args[1], tuple) and len(use.args[1]) == 1 else use.args[1]
    if isinstance(index, int):
        return index % count, use
    if not isinstance(index, slice) or index.step not in (None, 1) or len(use.users) != 1:
        return None
    start, stop = index.start or 0, count if index.stop is None else index.stop
    squeeze = next(iter(use.users))
    if not (isinstance(start, int) and isinstance(stop, int)) or not 0 <= start == stop - 1 < count:
        return None
    return (start, squeeze) if squeeze.target == "squeeze" and squeeze.args[1:] == (0,) else None


def _flat(args: Any) -> list[Any]:
    """Returns the arguments of a call, with sizes that are given as one tuple unpacked."""
    return [args[0], *args[1]] if len(args) == 2 and isinstance(args[1], (tuple, list)) else list(args)
