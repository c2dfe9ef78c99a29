"""The values and numbers of one class of the source: variables of its forward, and holes for numbers that vary."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from onnx2nn.errors import InputError
from onnx2nn.fx.blocks.value_hints import annotation, suggested_name
from onnx2nn.output.python_source.expressions import Collection, Expression, Hole, Slice, Text, Value, literal


class Values:
    """The state that the statements of one class share.

    Attributes:
        holes: the numbers of this instance, by the index of their hole.
        hints: a name for each of them.
        names: names for the values of the forward.
        types: annotations of the values.
        known: the expression for each node that was read so far.
        packed: the expression for nodes that come as one list.
    """

    def __init__(self) -> None:
        self.holes: list[Any] = []
        self.hints: list[str] = []
        self.names: dict[int, str] = {}
        self.types: dict[int, str] = {}
        self.known: dict[fx.Node, Expression] = {}
        self.packed: dict[tuple[fx.Node, ...], Expression] = {}
        self._annotations: dict[fx.Node, str] = {}
        self._count = 0

    def value(self, node: fx.Node, name: str | None = None, kind: str | None = None) -> Value:
        """Returns a new value for the result of `node`."""
        value = Value(self._count)
        self.names[self._count] = name or suggested_name(node)
        self.types[self._count] = kind or annotation(node, self._annotations)
        self._count += 1
        return value

    def hole(self, value: Any, hint: str) -> Hole:
        """Returns the hole for a number that may differ in another instance."""
        self.holes.append(value)
        self.hints.append(hint)
        return Hole(len(self.holes) - 1)

    def expression(self, value: Any, hint: str = "value") -> Expression:
        """Returns an argument of a call.

        Raises:
            InputError: the value cannot be written.
        """
        if isinstance(value, fx.Node):
            return self.known[value]
        if isinstance(value, bool) or value is None or isinstance(value, str):
            return Text(literal(value))
        if isinstance(value, (int, float)):
            return self.hole(value, hint)
        if isinstance(value, (tuple, list)) and self.packed and tuple(map(id, value)) in self._packed_ids():
            return self.packed[tuple(value)]
        if isinstance(value, (tuple, list)):
            return Collection("[]" if isinstance(value, list) else "()", tuple(self.expression(v, hint) for v in value))
        if isinstance(value, slice):
            bounds = (value.start, value.stop, value.step)
            return Slice(*(None if bound is None else self.expression(bound, hint) for bound in bounds))
        if value is ...:
            return Text("...")
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return Text(str(value))
        raise InputError(f"The value {value!r} ({type(value).__name__}) cannot be written as source.")

    def _packed_ids(self) -> set[tuple[int, ...]]:
        """Returns the identities of the nodes that come as one list."""
        return {tuple(map(id, nodes)) for nodes in self.packed}
