"""What a file says of itself: its producer, operators and nodes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx2nn.errors import Problem
from onnx2nn.importing.node_facts import inner_graphs, node_name
from onnx2nn.importing.plan import Report
from onnx2nn.reporting.model_report import FileFacts, FileNode, Operator


def facts_of(model: ir.Model, name: str, checked: Report) -> FileFacts:
    """Returns the facts of a model.

    Args:
        model: the model.
        name: of the file.
        checked: its nodes.
    """
    graph = model.graph
    return FileFacts(
        name,
        " ".join(part for part in (model.producer_name, model.producer_version) if part),
        {domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        checked.operators.total(),
        sum(value.const_value.nbytes for value in graph.initializers.values() if value.const_value is not None),
        {value.name or "": _type(value) for value in graph.inputs if value.name not in graph.initializers},
        {value.name or "": _type(value) for value in graph.outputs},
    )


def _type(value: ir.Value) -> str:
    kind = "?" if value.dtype is None else value.dtype.name.lower()
    if not isinstance(value.type, (ir.TensorType, type(None))):
        return str(value.type)
    if value.shape is None:
        return f"{kind} of unknown rank"
    sizes = (size.value if isinstance(size, ir.SymbolicDim) else size for size in value.shape)
    return f"{kind} [{', '.join('?' if size is None else str(size) for size in sizes)}]"


def operators_of(checked: Report, problems: Sequence[Problem]) -> list[Operator]:
    """Returns the operators of a file, the most frequent first, with the problems of each."""
    found = []
    for name, count in checked.operators.most_common():
        own = [
            f"{problem.reason} {problem.advice}".strip()
            for problem in problems
            if f"{problem.domain or 'ai.onnx'}::{problem.operator}" == name
        ]
        found.append(Operator(name.removeprefix("ai.onnx::"), count, own))
    return found


def nodes_of(model: ir.Model) -> list[FileNode]:
    """Returns the nodes of a model's graph, without those of inner graphs."""
    return [
        FileNode(
            node_name(node),
            f"{node.domain}::{node.op_type}" if node.domain else node.op_type,
            [value.name or "" for value in node.outputs],
        )
        for node in model.graph
    ]


def producers_of(model: ir.Model) -> dict[str, tuple[int, list[str]]]:
    """Returns, by the name of a value of the graph, the position of its node and the names of the values it needs."""
    found: dict[str, tuple[int, list[str]]] = {}
    for position, node in enumerate(model.graph):
        inner = [value for graph in inner_graphs([node]) for step in graph.all_nodes() for value in step.inputs]
        read = [value.name for value in (*node.inputs, *inner) if value is not None and value.name]
        found |= {value.name: (position, read) for value in node.outputs if value.name}
    return found
