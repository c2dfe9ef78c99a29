"""Every error that onnx2nn raises on purpose; all derive from `Onnx2nnError`.

All messages have one voice: one or two sentences with full stops. The first says what was found and where, by the name
of the file, argument, input or node. The second says what to do, in the imperative. A message begins with a capital
letter, or with the path, argument or option that it is about. The text of another package's error stands last, behind a
colon, unchanged; so does a command to run. Only the reason of an `OperatorError` begins in lower case: it follows the
name of its node.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class Onnx2nnError(Exception):
    """Base of the errors below; its text is one message written for the person at the keyboard."""


class ModelFileError(Onnx2nnError):
    """The input is not a readable ONNX model: missing, truncated, not ONNX, inconsistent, or outside a stated limit."""


class MissingDependencyError(Onnx2nnError):
    """An optional package is needed; the text holds the pip command that brings it."""


class InputError(Onnx2nnError):
    """A value or option of the caller does not fit the model: an unknown input name, a wrong rank or dtype."""


class OperatorError(Onnx2nnError):
    """One node asks for something its operator cannot express; raised by row bodies with the reason alone.

    The importer adds the node, so a body says only what was found and what would work.
    """


class FrozenDimensionError(Onnx2nnError):
    """A dimension that the file fixes cannot be made dynamic; the text names the node that fixes it."""


class VerificationError(Onnx2nnError):
    """Two runs of the same model disagree by more than the stated tolerance."""


@dataclass(frozen=True)
class Problem:
    """One reason why a model cannot be imported, with every node it concerns.

    Attributes:
        operator: ONNX operator name (`op_type`).
        domain: operator domain, `""` being `ai.onnx`.
        version: opset version that the model imports for this domain; 0 where it imports none.
        reason: the finding, as a clause.
        advice: a sentence for the user.
        nodes: names (or output names) of the nodes concerned.
    """

    operator: str
    domain: str
    version: int
    reason: str
    advice: str
    nodes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = ", ".join(self.nodes[:3]) + (", ..." if len(self.nodes) > 3 else "")
        name = f"{self.domain or 'ai.onnx'}::{self.operator}-{self.version}"
        count = f"{len(self.nodes)} node{'s' * (len(self.nodes) != 1)}"
        return f"{name} ({count}: {where}): {self.reason} {self.advice}".rstrip()


class UnsupportedModelError(Onnx2nnError):
    """The model holds nodes that cannot be imported; `problems` lists all of them."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        count = sum(len(problem.nodes) for problem in problems)
        lines = [f"{count} node{'s' * (count != 1)} cannot be imported:", *(f"  {problem}" for problem in problems)]
        super().__init__("\n".join(lines))


class NcnnError(Onnx2nnError):
    """A module cannot become an NCNN model; `obstacles` lists all nodes that NCNN cannot run, a line each."""

    def __init__(self, summary: str, obstacles: list[str]):
        self.obstacles = obstacles
        super().__init__("\n".join([f"{summary}:", *(f"  {obstacle}" for obstacle in obstacles)]))


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, the error's type where it has none; for errors of other packages."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
