"""Programs without the names of one graph: modules that do the same have one, and build graphs of their own from it."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import fx

from onnx2nn.fx.modules.graph_nodes import add_node


class Value(int):
    """The value of a call among the arguments of a later one: the number of the call."""


class Call(NamedTuple):
    """One node of a program, as `torch.fx.Node` describes it.

    Attributes:
        op: its kind.
        target: what it calls or reads; for an argument its name.
        args: its arguments, the values of other calls as `Value`.
        kwargs: its keyword arguments.
        type: the annotation of an argument.
    """

    op: str
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    type: Any = None


REPEAT = "onnx_repeat"
"""What the node of a further call of a module notes: of each call inside what the node there notes of the first."""


class Notes(NamedTuple):
    """What the graph of one module has beside its program.

    Attributes:
        arguments: their names.
        meta: of each node.
    """

    arguments: Sequence[str]
    meta: Sequence[Mapping[str, Any]]


class Program:
    """The calls of modules; equal to another program if they differ at most in names of values.

    Args:
        calls: in order, the last one is the output.
        names: other names by which programs differ.
    """

    def __init__(self, calls: Sequence[Call], names: Sequence[Any] = ()):
        self.calls, self.names = calls, names

    @functools.cached_property
    def _key(self) -> Hashable:
        return (*self.names, *map(_key, self.calls))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @classmethod
    def of(cls, graph: fx.Graph) -> Program:
        """Returns the program of a graph."""
        numbers: dict[fx.Node, Value] = {}
        calls: list[Call] = []
        for node in graph.nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), numbers.__getitem__)
            calls.append(Call(node.op, node.target, args, kwargs, node.type))
            numbers[node] = Value(len(numbers))
        return cls(calls)

    def graph(self, notes: Notes) -> fx.Graph:
        """Returns a new graph of the program."""
        graph, names = fx.Graph(), iter(notes.arguments)
        nodes: list[fx.Node] = []

        def node_of(value: Any) -> Any:
            return nodes[value] if type(value) is Value else value

        for call, meta in zip(self.calls, notes.meta, strict=True):
            target = next(names) if call.op == "placeholder" else call.target
            node = add_node(graph, call.op, target, *fx.node.map_aggregate((call.args, call.kwargs), node_of))
            if call.type is not None:
                node.type = call.type
            node.meta.update(meta)
            nodes.append(node)
        return graph


def _key(call: Call) -> Hashable:
    op, target, args, kwargs, annotation = call
    if op == "placeholder":
        return op, annotation
    return op, target, _plain_items(args), _plain(kwargs) if kwargs else ()


_EXACT = frozenset({Value, bool, int, str, type(None)})
"""Types of which two values are equal for all purposes if Python says so."""


def _plain_items(values: Sequence[Any]) -> tuple[Hashable, ...]:
    types = tuple(map(type, values))
    return (types, *values) if _EXACT.issuperset(types) else tuple(map(_plain, values))


def _plain(value: Any) -> Hashable:
    """Returns a value that is equal for equal arguments; equal numbers of different types are not."""
    if type(value) is Value:
        return value
    if isinstance(value, (list, tuple)):
        return (tuple if isinstance(value, tuple) else list, *_plain_items(value))
    if isinstance(value, dict):
        return (dict, *((name, _plain(item)) for name, item in value.items()))
    if isinstance(value, slice):
        return (slice, _plain(value.start), _plain(value.stop), _plain(value.step))
    return (type(value), repr(value))
