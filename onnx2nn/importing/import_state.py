"""The state that all graphs of one import share, for every framework."""

from __future__ import annotations

import onnx_ir as ir

from onnx2nn.errors import Problem, UnsupportedModelError
from onnx2nn.importing.node_facts import node_name
from onnx2nn.importing.plan import Plan


class ImportState:
    """One import: its model, its plan, and the nodes that could not be imported.

    Args:
        model: as `reader.read` gives it.
        plan: the rows and functions of its nodes.

    Attributes:
        problems: the nodes that could not be imported so far, by operator and reason.
        left: the nodes on constants that are left to run time because of a limit, and why.
        cause: the first error of a framework or of Python.
    """

    def __init__(self, model: ir.Model, plan: Plan):
        self.model, self.plan, self.author, self.account = model, plan, plan.author, plan.account
        self.problems: dict[tuple[str, str, int, str], Problem] = {}
        self.left: list[str] = []
        self.cause: Exception | None = None

    def report(self, node: ir.Node, version: int, reason: str) -> None:
        """Notes that `node` cannot be imported; the walk goes on, so that all problems are found."""
        key = (node.domain, node.op_type, version, reason)
        problem = self.problems.setdefault(key, Problem(node.op_type, node.domain, version, reason, ""))
        problem.nodes.append(node_name(node))

    def report_failure(self, node: ir.Node, version: int, error: Exception) -> None:
        """Notes that `node` fails with an error of the framework, or of Python."""
        self.cause = self.cause or error
        self.report(node, version, f"it cannot be computed: {_told(error)}.")

    def raise_problems(self) -> None:
        """Ends the import if there are problems.

        Raises:
            UnsupportedModelError: lists all nodes that cannot be imported.
        """
        if self.problems:
            raise UnsupportedModelError(list(self.problems.values())) from self.cause


def _told(error: Exception) -> str:
    """Returns the message of an error of a framework or of Python in one line."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if first.startswith("zip() argument"):  # as of starts and ends
        return "lists that belong together have different lengths"
    return f"{type(error).__name__}: {first}".rstrip(":. ")
