"""The lines of a forward's source, and the members of the module tree that they read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from onnx2nn.importing.regions import Path

_MEMBER = re.compile("\0([^\0]*)\0")
"""A member of the module tree in a line's text; Python's literals and names have no such character."""


@dataclass(eq=False)
class Line:
    """One assignment: `results = text`.

    Attributes:
        results: names it assigns, nested as the value is.
        text: the expression, in which `member` wrote the members of the module tree.
        uses: names it reads.
        comment: the node it comes from.
        scope: the path of the module in which the file says the node is, None where it says nothing.
        module: the dotted path of the module that it calls, `""` for none.
        numbers: whether it computes sizes, or numbers of them.
    """

    results: Any
    text: str
    uses: set[str] = field(default_factory=set)
    comment: str = ""
    scope: Path | None = None
    module: str = ""
    numbers: bool = False

    @property
    def names(self) -> list[str]:
        """All names it assigns."""
        return list(_leaves(self.results))

    @property
    def members(self) -> list[str]:
        """The dotted paths of the members of the module tree that it reads."""
        return _MEMBER.findall(self.text)


def member(path: str) -> str:
    """Returns the text in a line that stands for what is at a dotted path of the module tree."""
    return f"\0{path}\0"


def with_members(text: str, source: Callable[[str], str]) -> str:
    """Returns a line's text with `source(path)` for each member of the module tree."""
    return _MEMBER.sub(lambda found: source(found[1]), text)


def function_source(
    parameters: Sequence[str], lines: Sequence[Line], returned: str, uses: Set[str], required: Set[str], home: Path
) -> str:
    """Returns the source of a forward; each name is deleted behind its last use, and what nothing needs is left out.

    Args:
        parameters: the names of its inputs.
        lines: its assignments, in order.
        returned: the expression of its result.
        uses: the names that `returned` reads.
        required: names that are computed though nothing needs them.
        home: the path of the module that is `self` in it; all members that the lines read are inside.
    """
    needed = set(uses)
    body: list[str] = []
    for line in reversed(lines):
        names = set(line.names)
        if names.isdisjoint(needed) and names.isdisjoint(required):
            continue
        last = (line.uses - needed) | (names - needed)  # to be freed: no later line reads these names
        body.append(_source(line, last, home))
        needed |= line.uses
    result = with_members(returned, lambda path: _attribute(path, home))
    text = "".join(reversed(body))
    return f"def forward({', '.join(['self', *parameters])}):\n{text}    return {result}\n"


def target(results: Any) -> str:
    """Returns the source of what a line assigns to."""
    if isinstance(results, str):
        return results
    inner = ", ".join(map(target, results))
    return f"({inner},)" if len(results) == 1 else f"({inner})"


def _source(line: Line, last: set[str], home: Path) -> str:
    comment = f"  # {line.comment}" if line.comment else ""
    freed = f"; del {', '.join(sorted(last))}" if last else ""
    text = with_members(line.text, lambda path: _attribute(path, home))
    return f"    {target(line.results)} = {text}{freed}{comment}\n"


def _leaves(results: Any) -> Iterator[str]:
    if isinstance(results, str):
        yield results
        return
    for item in results:
        yield from _leaves(item)


def _attribute(path: str, home: Path) -> str:
    """Returns the source that reads a member inside of `home`; its steps may be digits."""
    source = "self"
    for step in path.split(".")[len(home) :]:
        source = f"{source}.{step}" if step.isidentifier() else f"getattr({source}, {step!r})"
    return source
