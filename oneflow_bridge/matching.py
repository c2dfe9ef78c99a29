"""Patterns of OneFlow ops in a job's graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from oneflow_bridge.job import DOMAIN, OPERANDS, RESULTS, attribute

Match = dict[str, Any]
"""Names of a pattern → the values and nodes that they stand for."""

_COMMUTATIVE = frozenset({"add_n", "broadcast_add", "broadcast_mul"})


@dataclass(frozen=True)
class Var:
    """Matches any value, the same one wherever the name stands."""

    name: str


@dataclass(frozen=True)
class Op:
    """Matches an op's first output.

    Attributes:
        types: op types, separated by spaces.
        inputs: patterns of the inputs, as many as the op has; two inputs of a commutative op match in either order.
        name: binds the node.
        alone: the op's output has no other reader.
    """

    types: str
    inputs: tuple[Any, ...]
    name: str = ""
    alone: bool = False


@dataclass(frozen=True)
class New:
    """The op to put in place: type, inputs by name, attributes."""

    op_type: str
    operands: dict[str, ir.Value]
    attributes: dict[str, Any] = field(default_factory=dict)
    result: str = "out"


def matches(value: ir.Value | None, pattern: Any, match: Match) -> Iterator[Match]:
    """Every way in which a value fits a pattern."""
    if value is None:
        return
    if isinstance(pattern, Var):
        if match.get(pattern.name, value) is value:
            yield {**match, pattern.name: value}
        return
    node = value.producer()
    if node is None or node.op_type not in pattern.types.split() or value is not node.outputs[0]:
        return
    if len(node.inputs) != len(pattern.inputs) or (pattern.alone and readers(value) > 1):
        return
    if pattern.name:
        match = {**match, pattern.name: node}
    orders = [node.inputs]
    if node.op_type in _COMMUTATIVE and len(node.inputs) == 2:
        orders.append(tuple(reversed(node.inputs)))
    for inputs in orders:
        yield from _all_match(inputs, pattern.inputs, match)


def _all_match(values: Sequence[ir.Value | None], patterns: Sequence[Any], match: Match) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for found in matches(values[0], patterns[0], match):
        yield from _all_match(values[1:], patterns[1:], found)


def readers(value: ir.Value) -> int:
    """How often a value is read; being a graph output counts."""
    return len(value.uses()) + value.is_graph_output()


def replace(graph: ir.Graph, node: ir.Node, new: New) -> ir.Node:
    """The new op takes the node's place, output value and name."""
    old = node.outputs[0]
    attributes = [attribute(name, value) for name, value in new.attributes.items()]
    attributes.append(ir.AttrStrings(OPERANDS, list(new.operands)))
    attributes.append(ir.AttrStrings(RESULTS, [new.result]))
    output = ir.Value(name=old.name, shape=old.shape, type=old.type)
    replacement = ir.Node(
        DOMAIN, new.op_type, list(new.operands.values()), attributes, outputs=[output], name=node.name
    )
    graph.insert_before(node, replacement)
    old.replace_all_uses_with(output, replace_graph_outputs=True)
    return replacement
