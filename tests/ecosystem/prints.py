"""`print(model)` of imports beside the originals, in docs/names.md: `python -m tests.ecosystem.prints --write`.

The document also says how many containers of an import can be called.
"""

from __future__ import annotations

import argparse
import difflib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

import onnx2nn
from tests.ecosystem.document import EXPORTER_TITLES, MODEL_TITLES
from tests.ecosystem.subjects.subject import SUBJECTS

DOCUMENT = Path(__file__).parents[2] / "docs" / "names.md"
COMMAND = "python -m tests.ecosystem.prints --write"
BEGIN, END = f"<!-- Written by `{COMMAND}`; do not edit. -->\n", "<!-- The end of what is written. -->\n"

SHOWN = ("resnet18", "bert", "llama")
"""Models whose print is in the document, of the new exporter's file."""

_TEXT = """
`print(model)` of an import reads as the original's. Below, `-` is before a line of the original alone, `+` before one
of the import alone. Dropout is in no file, arguments that no result depends on have their defaults, and modules without
parameters and buffers stand in the order of their calls. Files of the older exporter (`dynamo=False`) lack the classes'
names and normalisations that were folded. The table counts lines, and containers: modules inside of the import that
hold modules or a program. Those that count are called by the program or are lists, dictionaries or sequences of
modules; the others only hold weights, for the calls of which the file has no scope.

"""

_OTHERS = """
The containers of files of other frameworks, and of files without scopes, by the folder of `tests/data`:

"""

DATA = Path(__file__).parents[1] / "data"
FRAMEWORKS = ("torch", "tensorflow", "paddle", "oneflow")

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_LAYERS = ("torch.nn.", "onnx2nn.layers")
"""Where the classes of layers stand, which are no containers."""


class Containers(NamedTuple):
    """The containers of imports: those that can be called or are lists of modules, and all."""

    good: int
    all: int

    @classmethod
    def of(cls, *imports: nn.Module) -> Containers:
        """Counts the containers of some imports."""
        good = total = 0
        for imported in imports:
            for module in imported.modules():
                can_be_called = type(module).forward is not nn.Module.forward
                is_layer = type(module).__module__.startswith(_LAYERS) and not isinstance(module, _LISTS)
                if module is not imported and not (is_layer and can_be_called):
                    total += 1
                    good += can_be_called or isinstance(module, _LISTS)
        return cls(good, total)

    def __str__(self) -> str:
        return f"{self.good} of {self.all}" if self.all else "none"


def containers_of_data(framework: str) -> Containers:
    """Counts the containers of the imports of one folder of `tests/data`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the files lack is not what is counted
        return Containers.of(*(onnx2nn.load(path) for path in sorted((DATA / framework).glob("*.onnx"))))


def containers_of_subject(model: str, exporter: str) -> Containers:
    """Counts the containers of the import of one of the models whose tools are compared."""
    return Containers.of(SUBJECTS[model].imported(exporter))


def printed(model: str, exporter: str) -> tuple[list[str], list[str]]:
    """Returns the lines of an original and of its import, of which print shows the program too."""
    subject = SUBJECTS[model]
    module = subject.imported(exporter)
    return repr(subject.original()).splitlines(), nn.Module.__repr__(module).splitlines()


def section() -> str:
    """Returns the generated part of the document."""
    lines = {(model, exporter): printed(model, exporter) for model in SUBJECTS for exporter in EXPORTER_TITLES}
    head = " | ".join(f"{title} exporter | its containers" for title in EXPORTER_TITLES.values())
    table = [f"| model | {head} |", f"|---{'|---|---' * len(EXPORTER_TITLES)}|"]
    for model in SUBJECTS:
        cells = [
            f"{_count(*lines[model, exporter])} | {containers_of_subject(model, exporter)}"
            for exporter in EXPORTER_TITLES
        ]
        table.append(f"| {MODEL_TITLES[model]} | {' | '.join(cells)} |")
    others = ["| files | containers |", "|---|---|"]
    others += [f"| {framework} | {containers_of_data(framework)} |" for framework in FRAMEWORKS]
    parts = [_TEXT, "\n".join(table), "\n", _OTHERS, "\n".join(others), "\n"]
    for model in SHOWN:
        parts.append(f"\n{MODEL_TITLES[model]}:\n\n```diff\n" + "\n".join(_beside(*lines[model, "dynamo"])) + "\n```\n")
    return "".join(parts) + "\n"


def _beside(theirs: Sequence[str], ours: Sequence[str]) -> list[str]:
    lines = difflib.ndiff(list(theirs), list(ours), charjunk=None)
    return [
        line[:2].replace("  ", " ") + line[2:] if line[0] == " " else line[0] + line[2:]
        for line in lines
        if line[0] != "?"
    ]


def _count(theirs: Sequence[str], ours: Sequence[str]) -> str:
    kinds = [line[0] for line in difflib.ndiff(list(theirs), list(ours), charjunk=None)]
    return f"{kinds.count(' ')} of {len(theirs)} equal, {kinds.count('+')} others"


def document() -> str:
    """Returns the whole document with its generated part anew."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + section() + END + after


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/names.md; else print the section")
    if parser.parse_args().write:
        DOCUMENT.write_text(document(), encoding="utf-8")
    else:
        print(section())


if __name__ == "__main__":
    main()
