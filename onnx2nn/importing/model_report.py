"""The report of a model's nodes, before its import: which operators are known, and which nodes contradict them."""

from __future__ import annotations

import onnx_ir as ir

from onnx2nn.errors import OperatorError, Problem, UnsupportedModelError
from onnx2nn.importing.malformed import malformed_nodes
from onnx2nn.importing.node_facts import node_name
from onnx2nn.importing.plan import Report, nodes_of, plan


class _Problems(dict[tuple[str, str, int, str], Problem]):
    """Problems by operator and reason."""

    def note(self, node: ir.Node, version: int, reason: str) -> None:
        key = (node.domain, node.op_type, version, reason)
        problem = self.setdefault(key, Problem(node.op_type, node.domain, version, reason, ""))
        problem.nodes.append(node_name(node))


def report(model: ir.Model) -> Report:
    """Returns the operators of a model, and a problem for each one that the table lacks or that is malformed."""
    result, problems, found = Report(), _Problems(), plan(model)
    malformed = {node: reason for node, _, reason in malformed_nodes(model, found.table)}
    for node, version in nodes_of(model):
        result.operators[f"{node.domain or 'ai.onnx'}::{node.op_type}"] += 1
        try:
            if node in malformed:
                raise OperatorError(malformed[node])
            found.find(node, version)
        except OperatorError as error:
            problems.note(node, version, str(error))
    result.problems = list(problems.values())
    return result


def refuse_malformed(model: ir.Model) -> None:
    """Ends an import whose nodes contradict their operators, before any pass reads them.

    Raises:
        UnsupportedModelError: lists these nodes.
    """
    problems = _Problems()
    for node, version, reason in malformed_nodes(model, plan(model).table):
        problems.note(node, version, reason)
    if problems:
        raise UnsupportedModelError(list(problems.values()))
