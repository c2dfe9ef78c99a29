"""Nodes of a `torch.fx` graph, added in a fraction of the time that `Graph.create_node` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from onnx2nn.fx.modules.pickled_source import PROGRAM_NAMES, RESERVED_NAMES

_set_args, _set_kwargs = fx.Node.args.fset, fx.Node.kwargs.fset  # type: ignore[attr-defined]  # mypy sees values, not properties


def call_module_instead(node: fx.Node, target: str) -> None:
    """Makes the call of a function one of a module, to which its first argument is given alone."""
    node.op, node.target = "call_module", target
    if len(node.args) > 1:
        _set_args(node, node.args[:1])
    if node.kwargs:
        _set_kwargs(node, {})


def add_node(
    graph: fx.Graph,
    kind: str,
    target: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> fx.Node:
    """Adds a node that has no symbolic numbers of torch among its arguments, and no name that the program needs.

    `create_node` searches its arguments for torch's symbolic numbers. The search, and the derivation of a name from
    the target, take three quarters of its time. The setters are called as functions, because each assignment to a node
    removes it from its graph's index and inserts it again.

    Args:
        graph: gets the node, at its insert point.
        kind: the node's `op`.
        target: what it calls or reads.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    name = target if isinstance(target, str) else target.__name__
    if name in PROGRAM_NAMES:
        name = "result"
    node = graph.create_node(kind, target, name=name if name.islower() and name[0] != "_" else None)
    if args:
        _set_args(node, args)
    if kwargs:
        _set_kwargs(node, kwargs)
    return node


def add_argument(graph: fx.Graph, name: str, taken: set[str]) -> fx.Node:
    """Adds a placeholder to a graph, at its insert point.

    Torch writes `x = X` for an argument `X`, and then an argument `x` would be lost: none has the name of the value of
    another, nor one that the program uses itself. Such a name gets an underscore.

    Args:
        graph: gets the node.
        name: of the argument, an identifier.
        taken: the names of the graph's other arguments and their values, to which those of this one are added.
    """
    while name in taken or name in RESERVED_NAMES or name.lower() in PROGRAM_NAMES:
        name += "_"
    node = graph.placeholder(name)
    taken |= {name, node.name}
    return node
