"""The states in which stacks of recurrent layers begin and end, as values of the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.rewrite.patterns import int_of, origin
from onnx2nn.rewrite.recurrent_weights import slice_bounds
from onnx2nn.rewrite.value_facts import ValueFacts

_MOST_PARTS = 64
"""The most values that are looked at of those that an initial state is made of."""


@dataclass
class InitialState:
    """An initial state of all layers.

    Attributes:
        source: the value that holds it, `(layers * directions, batch, hidden)`; None for zeros.
        zeros: the values of zeros that the layers read instead.
    """

    source: ir.Value | None
    zeros: list[ir.Value]


@dataclass
class FinalState:
    """A last state of all layers.

    Attributes:
        value: the value that holds it, `(layers * directions, batch, hidden)`; None where it has no readers.
        node: the Concat of the layers' states; None for a single layer.
    """

    value: ir.Value | None
    node: ir.Node | None


def initial_state(values: Sequence[ir.Value | None], directions: int, facts: ValueFacts) -> InitialState | None:
    """Returns the initial state of all layers, of which `values` has those of each; None where it is no one value."""
    present = [value for value in values if value is not None]
    if all(is_zeros(value, facts) for value in present):
        return InitialState(None, present)
    if len(values) == 1:
        return InitialState(values[0], [])
    sources = set()
    for layer, value in enumerate(values):
        node = None if value is None else value.producer()
        if node is None or node.op_type != "Slice" or node.inputs[0] is None:
            return None
        if slice_bounds(node, facts) != (layer * directions, (layer + 1) * directions):
            return None
        sources.add(node.inputs[0])
    return InitialState(sources.pop(), []) if len(sources) == 1 else None


def is_zeros(value: ir.Value | None, facts: ValueFacts) -> bool:
    """Returns whether a value is filled with zeros, or a slice of such a value, or such ones with a new dimension."""
    pending = [value]
    for _ in range(_MOST_PARTS):
        if not pending:
            return True
        part = pending.pop()
        array = facts.array(part)
        node = None if part is None else origin(part).producer()
        if array is not None and not array.any():
            continue
        if array is not None or node is None:
            return False
        if node.op_type in ("Slice", "Unsqueeze"):
            pending.append(node.inputs[0])
        elif node.op_type == "Concat":
            pending += node.inputs
        elif not _fills_with_zeros(node, facts):
            return False
    return False


def _fills_with_zeros(node: ir.Node, facts: ValueFacts) -> bool:
    """Returns whether a node gives a tensor of a computed shape that is filled with zeros."""
    if node.op_type == "ConstantOfShape":
        fill: Any = node.attributes["value"].value.numpy() if "value" in node.attributes else np.zeros(1)
        return not fill.any()
    if node.op_type == "ConstantFill":
        return "value" not in node.attributes or node.attributes["value"].as_float() == 0
    inner = facts.array(node.inputs[0]) if node.op_type == "Expand" else None
    return inner is not None and not inner.any()


def final_state(nodes: Sequence[ir.Node], index: int) -> FinalState | None:
    """Returns a last state of all layers; None where the state of one layer is read separately."""
    values = [node.outputs[index] if len(node.outputs) > index else None for node in nodes]
    if not any(value is not None and (value.uses() or value.is_graph_output()) for value in values):
        return FinalState(None, None)
    if len(nodes) == 1:
        return FinalState(values[0], None)
    joins = {None if value is None else only_reader(value) for value in values}
    join = joins.pop() if len(joins) == 1 else None
    if join is None or join.op_type != "Concat" or int_of(join, "axis", -1) != 0:
        return None
    return FinalState(join.outputs[0], join) if list(join.inputs) == values else None


def only_reader(value: ir.Value) -> ir.Node | None:
    """Returns the only reader of a value, apart from Shape nodes; None where it has several readers or is an output."""
    nodes = [use.node for use in value.uses() if use.node.op_type != "Shape"]
    return nodes[0] if len(nodes) == 1 and not value.is_graph_output() else None
