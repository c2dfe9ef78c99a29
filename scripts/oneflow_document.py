"""Replaces a section of docs/oneflow.md between its two marks; the scripts that measure write these sections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "oneflow.md"


def write(section: str, lines: Sequence[str]) -> None:
    """Replaces a section of the document.

    Raises:
        ValueError: the document has no such section.
    """
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = f"<!-- {section}: generated -->\n", f"<!-- {section}: end -->\n"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{DOCUMENT} has no section between {begin.strip()} and {end.strip()}")
    body = "\n".join(lines).strip("\n")
    DOCUMENT.write_text(f"{before}{begin}\n{body}\n\n{end}{after}", encoding="utf-8")
