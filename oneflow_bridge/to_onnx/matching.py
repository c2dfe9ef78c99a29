"""Ops of a job in place of what a pattern matched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from oneflow_bridge.to_onnx.job import DOMAIN, OPERANDS, RESULTS, attribute


@dataclass(frozen=True)
class New:
    """The op to put in place: type, inputs by name, attributes."""

    op_type: str
    operands: dict[str, ir.Value]
    attributes: dict[str, Any] = field(default_factory=dict)
    result: str = "out"


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
