"""The stored results: what a run wrote, which tests compare with and the document shows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("results.json")

SAME, DIFFERS, FAILS, ORIGINAL_FAILS = "same", "differs", "import fails", "original fails"

PACKAGES = ("torch", "torchvision", "transformers")
"""What all results are of, beside the packages of each tool."""


@dataclasses.dataclass(frozen=True)
class Tool:
    """What a tool's module says of it.

    Attributes:
        title: what the table calls it.
        text: a sentence on it.
        packages: what has to be installed, by the names that pip knows.
        held: whether only the held tests use it, or only where its packages are installed: they are large.
    """

    title: str
    text: str
    packages: tuple[str, ...] = ()
    held: bool = False


@dataclasses.dataclass(frozen=True)
class Cell:
    """How a tool does on an import beside the original.

    Attributes:
        status: one of `SAME`, `DIFFERS`, `FAILS` and `ORIGINAL_FAILS`.
        reason: the difference or the error, `""` for `SAME`.
    """

    status: str
    reason: str = ""


Cells = Mapping[str, Mapping[str, Mapping[str, Cell]]]
"""A cell by tool, model and exporter."""


@dataclasses.dataclass(frozen=True)
class Results:
    """What a run found.

    Attributes:
        versions: by package.
        tools: by name.
        dates: of the runs of tools that are held, by name.
        cells: by tool, model and exporter.
        modules: by model and exporter, how many of the modules that run in the original run in the import, and how
            many there are.
        calls: by model and exporter, the calls of the original in one forward, those of the import, and the lines of
            the longest program of a module in the import, see `cells.calls`.
    """

    versions: Mapping[str, str]
    tools: Mapping[str, Tool]
    dates: Mapping[str, str]
    cells: Cells
    modules: Mapping[str, Mapping[str, tuple[int, int]]]
    calls: Mapping[str, Mapping[str, tuple[int, int, int]]]


def read() -> Results:
    """Returns the results of the file."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    cells = {
        tool: {
            model: {exporter: Cell(**cell) for exporter, cell in exporters.items()}
            for model, exporters in models.items()
        }
        for tool, models in found.pop("cells").items()
    }
    modules = {
        model: {exporter: (run, all_of_them) for exporter, (run, all_of_them) in exporters.items()}
        for model, exporters in found.pop("modules").items()
    }
    calls = {
        model: {exporter: (theirs, own, lines) for exporter, (theirs, own, lines) in exporters.items()}
        for model, exporters in found.pop("calls").items()
    }
    tools = {name: Tool(**{**tool, "packages": tuple(tool["packages"])}) for name, tool in found.pop("tools").items()}
    return Results(tools=tools, cells=cells, modules=modules, calls=calls, **found)


def write(results: Results) -> None:
    """Writes the file."""
    text = json.dumps(dataclasses.asdict(results), indent=1, ensure_ascii=False)
    PATH.write_text(text + "\n", encoding="utf-8")
