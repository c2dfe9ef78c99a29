"""Replacement of matched ops in a job's graph, and the notation of patterns for jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from oneflow_bridge.to_onnx.job import op_node
from onnx2nn.rewrite.patterns import Notation

JOB = Notation(
    tensors={"+": "broadcast_add", "-": "broadcast_sub", "*": "broadcast_mul", "/": "broadcast_div"},
    numbers={"+": "scalar_add", "*": "scalar_mul", "/": "scalar_div", "**": "scalar_pow"},
    negation="negative",
)
"""The ops of a job that the signs of a pattern stand for (see `onnx2nn.rewrite.patterns`)."""


@dataclass(frozen=True)
class New:
    """The op to put in place: type, inputs by name (several may have one), attributes."""

    op_type: str
    operands: Mapping[str, ir.Value] | Sequence[tuple[str, ir.Value]]
    attributes: dict[str, Any] = field(default_factory=dict)
    result: str = "out"


def replace(graph: ir.Graph, node: ir.Node, new: New) -> ir.Node:
    """Puts the new op in the node's place, with its output's name, shape and type, and its own name."""
    old = node.outputs[0]
    output = ir.Value(name=old.name, shape=old.shape, type=old.type)
    operands = list(new.operands.items() if isinstance(new.operands, Mapping) else new.operands)
    replacement = op_node(new.op_type, operands, [(new.result, output)], new.attributes, node.name or "")
    graph.insert_before(node, replacement)
    old.replace_all_uses_with(output, replace_graph_outputs=True)
    return replacement
