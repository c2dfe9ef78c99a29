"""Values of a program that may lie in the memory of others: torch.cond does not take a view beside its source."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from onnx2nn.fx.values.tensor import Tensor

_VIEWS = frozenset(
    {"T", "chunk", "contiguous", "detach", "diagonal", "dropout", "expand", "expand_as", "flatten", "float", "mT"}
    | {"movedim", "narrow", "permute", "ravel", "real", "reshape", "select", "split", "squeeze", "swapaxes", "t"}
    | {"tensor_split", "to", "transpose", "type", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as"}
)
"""Methods and functions of torch whose results may be views of their first argument, or this argument itself."""


def views(values: Sequence[Any]) -> list[int]:
    """Returns the positions of the traced tensors that may be views of another one, or of what that is a view of."""
    nodes = {index: value.node for index, value in enumerate(values) if isinstance(value, Tensor)}
    sources = {index: _source(node) for index, node in nodes.items()}
    seen: dict[fx.Node, set[fx.Node]] = {}
    for index, source in sources.items():
        seen.setdefault(source, set()).add(nodes[index])
    return [index for index, source in sources.items() if nodes[index] is not source and len(seen[source]) > 1]


def _source(node: fx.Node) -> fx.Node:
    """Returns the node in whose memory the result of a node may lie."""
    while node.op in ("call_method", "call_function") and _is_view(node.target) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_view(target: Any) -> bool:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return target is operator.getitem or name in _VIEWS
