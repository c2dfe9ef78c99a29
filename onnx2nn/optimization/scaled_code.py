"""Numbers that multiply the results of convolutions, or are added to them, in programs that inductor compiles."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from onnx2nn.optimization.graph_calls import GraphCalls

_aten = torch.ops.aten
_FACTORS = {_aten.mul.Tensor, _aten.div.Tensor}
_SUMMANDS = {_aten.add.Tensor, _aten.sub.Tensor}
FOLDED = _FACTORS | _SUMMANDS
"""What inductor's freezing folds into a convolution before it."""


def fold_numbers(graph: fx.Graph) -> None:
    """Moves numbers behind convolutions into their weights. It is a pass of inductor before its freezing.

    Law: `conv(x, w, b) * s` is `conv(x, w * s, b * s)`, and `conv(x, w, b) + s` is `conv(x, w, b + s)`. Inductor's
    freezing would do it too, but registers the number of each convolution under one name, so that one of several
    different numbers is taken for all (torch 2.13: wrong results).

    Args:
        graph: of operators, whose nodes have their results as `meta["val"]`.
    """
    for conv in graph.find_nodes(op="call_function", target=_aten.convolution.default):
        while (user := _number_behind(conv)) is not None:
            x, weight, bias, *options = conv.args
            operator, number = user.target, user.args[1]
            calls = GraphCalls(graph)
            with graph.inserting_before(conv):
                if operator in _FACTORS:
                    weight = calls.call(operator, weight, number)
                    bias = None if bias is None else calls.call(operator, bias, number)
                else:
                    bias = _none_yet(calls, conv) if bias is None else bias
                    bias = calls.call(operator, bias, number)
            conv.args = (x, weight, bias, *options)
            user.replace_all_uses_with(conv)
            graph.erase_node(user)


def _number_behind(conv: fx.Node) -> fx.Node | None:
    """Returns the only reader of a convolution of floats with its own weights, where it adds or multiplies a number."""
    user = next(iter(conv.users)) if len(conv.users) == 1 else None
    if user is None or user.target not in FOLDED or user.kwargs or user.args[0] is not conv:
        return None
    weight: Any = conv.args[1]
    alone = len(weight.users) == 1 and weight.meta["val"].is_floating_point()
    return user if alone and isinstance(user.args[1], (int, float)) else None


def _none_yet(calls: GraphCalls, conv: fx.Node) -> fx.Node:
    """Returns a bias of zeros for a convolution without one."""
    value = conv.meta["val"]
    return calls.call(_aten.full.default, [value.shape[1]], 0.0, dtype=value.dtype, device=value.device)
