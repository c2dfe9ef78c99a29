"""Replaces calls that pnnx converts to something else, or not at all, by calls that it converts rightly."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F


def decompose(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy in which calls with a rule in the table are written with other calls."""
    result = fx.GraphModule(module, copy.deepcopy(module.graph))
    for node in list(result.graph.nodes):
        rule: Any = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None:
            continue
        with result.graph.inserting_before(node):
            args, kwargs = fx.map_arg((node.args, node.kwargs), _proxy)
            new = rule(*args, **kwargs)
        if new is not None:
            node.replace_all_uses_with(new.node)
            result.graph.erase_node(node)
    result.recompile()
    return result


def _proxy(node: fx.Node) -> Any:
    return fx.Proxy(node)


def _normalized(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Any:
    """`F.normalize`: NCNN's Normalize works along channels, and pnnx writes it for other axes too."""
    if p == 1:
        length = x.abs().sum(dim, keepdim=True)
    elif p == 2:
        length = x.square().sum(dim, keepdim=True).sqrt()
    else:
        length = x.abs().pow(p).sum(dim, keepdim=True).pow(1 / p)
    return x / torch.clamp(length, min=eps)


def _first_rows(x: Any, index: Any) -> Any:
    """The first rows of a table, as many as the input has: pnnx takes the first axis for the batch."""
    counted = isinstance(index, tuple) and any(
        isinstance(part, slice) and isinstance(part.stop, fx.Proxy) for part in index
    )
    if not counted or not isinstance(x, fx.Proxy) or x.node.op != "get_attr" or not isinstance(index[0], slice):
        return None
    table: Any = x.unsqueeze(0)
    behind = (slice(None), *index)
    return table[behind].squeeze(0)


_RULES = {F.normalize: _normalized, operator.getitem: _first_rows}
