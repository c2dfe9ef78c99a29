"""One self-contained HTML file of a report: its values as JSON, and the sources in `page/`.

Names come from files of strangers. Values reach the page as JSON in a script element that no browser executes; the
page's own scripts write them as text nodes. A content security policy names the hashes of these scripts and of the
style sheet, so that nothing else runs, and nothing is loaded.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import math
import os
from importlib import resources
from typing import Any

from onnx2nn.errors import shown_name
from onnx2nn.ground.atomic_files import replacing

_SCRIPTS = {
    "report": ("vendor/dagre.js", "dom.js", "format.js", "tree.js", "graph.js", "details.js", "plot.js", "report.js"),
    "compare": ("dom.js", "format.js", "compare.js"),
}
"""The sources of each page's script, in their order."""

LONGEST_TEXT = 20_000
"""Characters of a name, a text or a program in a page; more would make the page slow, and are counted."""

_DIGITS = 5
"""Digits of a number; a page shows three."""


def write_page(path: str | os.PathLike[str], kind: str, title: str, report: Any) -> None:
    """Writes a page.

    Args:
        path: the file, which is replaced if it exists.
        kind: a key of `_SCRIPTS`.
        title: what the page is about.
        report: a dataclass of plain values.

    Raises:
        InputError: the file cannot be written.
    """
    text = page(kind, title, plain(report))
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def page(kind: str, title: str, values: Any) -> str:
    """Returns a page as HTML."""
    script = "\n".join(["(() => {", '"use strict";', *map(_source, _SCRIPTS[kind]), "})();"])
    style = _source("style.css")
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    parts = {
        "POLICY": html.escape(policy),
        "TITLE": html.escape(f"{shown_name(title)} · onnx2nn {kind}"),
        "STYLE": style,
        "KIND": kind,
        "DATA": _inert(json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))),
        "SCRIPT": script,
    }
    pieces = _source("page.html").split("%%")  # text, a part's name, text, ...
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _source(name: str) -> str:
    """Returns a source of the page; none may end the element that it stands in."""
    text = resources.files("onnx2nn.reporting").joinpath("page", *name.split("/")).read_text(encoding="utf-8")
    assert name == "page.html" or not any(end in text.lower() for end in ("</script", "<!--", "</style")), name
    return text


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _inert(text: str) -> str:
    """Returns JSON without characters that mean something to HTML, inside of strings where alone they can stand."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def plain(value: Any) -> Any:
    """Returns dataclasses as dicts without fields that have their defaults; numbers are rounded, NaN is None."""
    if dataclasses.is_dataclass(value):
        found = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            default = field.default_factory() if callable(field.default_factory) else field.default
            if item != default:
                found[field.name] = plain(item)
        return found
    if isinstance(value, dict):
        return {_short(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return _short(value) if isinstance(value, str) else value


def _short(text: str) -> str:
    cut = len(text) - LONGEST_TEXT
    return f"{text[:LONGEST_TEXT]}… ({cut} more characters)" if cut > 0 else text
