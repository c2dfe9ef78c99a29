"""Every error that onnx2nn raises on purpose; all derive from `Onnx2nnError`.

All messages have one voice: one or two sentences with full stops. The first says what was found and where, by the name
of the file, argument, input or node. The second says what to do, in the imperative. A message begins with a capital
letter, or with the path, argument or option that it is about. The text of another package's error stands last, behind a
colon, unchanged; so does a command to run. Only the reason of an `OperatorError` begins in lower case: it follows the
name of its node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LONGEST_MESSAGE = 20_000
"""Characters of a message, by default; what a longer one says further is left out, and counted."""

LONGEST_NAME = 200
"""Characters of a name in a list."""

MOST_LISTED = 50
"""Entries of a list in a message; the number of the others follows."""


def shown(text: str, longest: int | None = LONGEST_MESSAGE) -> str:
    """Returns a text for a terminal or a log: without characters that control these, and not too long.

    Names come from files of strangers. A terminal obeys escape sequences, and characters that turn the direction of
    text hide what stands there. Both are written as Python escapes them.

    Args:
        text: the text; its lines stay lines.
        longest: its most characters, None for any number.
    """
    if longest is not None and len(text) > longest:
        text = f"{text[:longest]}... ({len(text) - longest} more characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def shown_name(text: str, longest: int = LONGEST_NAME) -> str:
    """Returns a name of a file as `shown`, in one line."""
    return shown(text, longest).replace("\n", "\\n")


def listed(entries: Sequence[object], kind: str) -> list[str]:
    """Returns the lines of a list, indented, of which a message shows the first ones.

    Args:
        entries: the entries.
        kind: what they are, in the plural.
    """
    lines = [f"  {entry}" for entry in entries[:MOST_LISTED]]
    return lines + [f"  and {len(entries) - MOST_LISTED} more {kind}"] * (len(entries) > MOST_LISTED)


class Onnx2nnError(Exception):
    """Base of the errors below; its text is one message written for the person at the keyboard.

    It is as `shown` gives it: names in it control no terminal, and its length is limited.
    """

    def __init__(self, *arguments: object):
        self._whole = arguments
        super().__init__(*arguments)
        self.limit_length(LONGEST_MESSAGE)

    def limit_length(self, longest: int) -> None:
        """Shows so many characters of the text, and counts the others."""
        self.args = tuple(shown(value, longest) if isinstance(value, str) else value for value in self._whole)

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how a copy is made, in another process too: of its text and attributes, as subclasses take others."""
        return _copied, (type(self), self.args), self.__dict__


def _copied(kind: type[Onnx2nnError], arguments: tuple[object, ...]) -> Onnx2nnError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error


class ModelFileError(Onnx2nnError):
    """The input is not a readable ONNX model: missing, truncated, not ONNX, inconsistent, or outside a stated limit."""

    def of_file(self, path: str) -> ModelFileError:
        """Returns the error with the file's path or URL before its text."""
        return ModelFileError(f"{path}: {self}")


class LimitError(ModelFileError):
    """The file costs more than a limit allows; the text names the limit, both numbers, and how to raise it.

    Attributes:
        limit: the limit's name in `onnx2nn.Limits`.
        found: the number found, or how far it was counted.
        allowed: the number allowed.
    """

    def __init__(self, limit: str, found: float, allowed: float, what: str, unit: str = ""):
        self.limit, self.found, self.allowed, self._what, self._unit = limit, found, allowed, what, unit
        super().__init__(
            f"{what} {f'{found} {unit}'.strip()}, above the limit of {allowed} (Limits.{limit}). If the file is to be "
            f"trusted, raise it: limits=onnx2nn.Limits({limit}=...), or --limit {limit}=... of a command."
        )

    def of_file(self, path: str) -> LimitError:
        """Returns the error with the file's path before its text."""
        return LimitError(self.limit, self.found, self.allowed, f"{path}: {self._what}", self._unit)


class MissingDependencyError(Onnx2nnError):
    """An optional package is needed; the text holds the pip command that brings it."""


class InputError(Onnx2nnError):
    """A value or option of the caller does not fit the model: an unknown input name, a wrong rank or dtype."""


class ModuleInputError(InputError, TypeError, RuntimeError):
    """The inputs of a call are not the model's; also a `TypeError` and a `RuntimeError`, as for any other module."""


class CallError(Onnx2nnError):
    """A call of a module failed in one node, which the text names; torch's own error is its cause.

    It is of that error's class too (`like`), so that who catches an IndexError of torch's catches it.
    """

    kind: type[Exception] = Exception
    """The class of torch's error."""

    @staticmethod
    def like(kind: type[Exception], text: str) -> CallError:
        """Returns a CallError that is also an error of a class of torch's, of NumPy's or of Python's."""
        return _call_error(kind)(text)

    def __str__(self) -> str:
        return Exception.__str__(self)  # that of a KeyError is quoted

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how a copy is made: a class that `like` made has no name of its own."""
        if self.kind is Exception:
            return super().__reduce__()
        return _copied_like, (self.kind, self.args), self.__dict__


_CALL_ERRORS: dict[type[Exception], type[CallError]] = {}


def _call_error(kind: type[Exception]) -> type[CallError]:
    if kind not in _CALL_ERRORS:
        _CALL_ERRORS[kind] = type("CallError", (CallError, kind), {"__module__": __name__, "kind": kind})
    return _CALL_ERRORS[kind]


def _copied_like(kind: type[Exception], arguments: tuple[object, ...]) -> Onnx2nnError:
    return _copied(_call_error(kind), arguments)


class OperatorError(Onnx2nnError):
    """One node asks for something its operator cannot express; raised by row bodies with the reason alone.

    The importer, or the module that is called, adds the node: a body says only what was found and what would work.
    """


class UnfulfilledError(OperatorError):
    """The sizes in one node are not as its operator demands; another branch of an If may still be chosen."""


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
        where = ", ".join(map(shown_name, self.nodes[:3])) + (", ..." if len(self.nodes) > 3 else "")
        name = f"{shown_name(self.domain) or 'ai.onnx'}::{shown_name(self.operator)}-{self.version}"
        count = f"{len(self.nodes)} node{'s' * (len(self.nodes) != 1)}"
        reason = shown_name(self.reason, LONGEST_MESSAGE // 20)
        return f"{name} ({count}: {where}): {reason} {self.advice}".rstrip()


class UnsupportedModelError(Onnx2nnError):
    """The model holds nodes that cannot be imported; `problems` lists all of them."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        count = sum(len(problem.nodes) for problem in problems)
        lines = [f"{count} node{'s' * (count != 1)} cannot be imported:", *listed(problems, "problems")]
        super().__init__("\n".join(lines))


class NcnnError(Onnx2nnError):
    """A module cannot become an NCNN model; `obstacles` lists all nodes that NCNN cannot run, a line each."""

    def __init__(self, summary: str, obstacles: list[str]):
        self.obstacles = obstacles
        super().__init__("\n".join([f"{summary}:", *listed(obstacles, "obstacles")]))


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, the error's type where it has none; for errors of other packages."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
