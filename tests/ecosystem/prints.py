"""`print(model)` of imports beside the originals, in docs/names.md: `python -m tests.ecosystem.prints --write`."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from tests.ecosystem.document import EXPORTER_TITLES, MODEL_TITLES
from tests.ecosystem.subjects.subject import SUBJECTS

DOCUMENT = Path(__file__).parents[2] / "docs" / "names.md"
COMMAND = "python -m tests.ecosystem.prints --write"
BEGIN, END = f"<!-- Written by `{COMMAND}`; do not edit. -->\n", "<!-- The end of what is written. -->\n"

SHOWN = ("resnet18", "bert", "llama")
"""Models whose print is in the document, of the new exporter's file."""

_TEXT = """
`print(model)` of an import reads as the original's. Below, `-` is before a line of the original alone, `+` before one
of the import alone. Dropout is in no file, arguments that no result depends on have their defaults, and modules stand
in the order of their calls. Files of the older exporter (`dynamo=False`) lack the classes' names and normalisations
that were folded. The table counts lines.

"""


def printed(model: str, exporter: str) -> tuple[list[str], list[str]]:
    """Returns the lines of an original and of its import, of which print shows the program too."""
    subject = SUBJECTS[model]
    module = subject.imported(exporter)
    return repr(subject.original()).splitlines(), nn.Module.__repr__(module).splitlines()


def section() -> str:
    """Returns the generated part of the document."""
    lines = {(model, exporter): printed(model, exporter) for model in SUBJECTS for exporter in EXPORTER_TITLES}
    head = " | ".join(f"{title} exporter" for title in EXPORTER_TITLES.values())
    table = [f"| model | {head} |", f"|---{'|---' * len(EXPORTER_TITLES)}|"]
    for model in SUBJECTS:
        counts = [_count(*lines[model, exporter]) for exporter in EXPORTER_TITLES]
        table.append(f"| {MODEL_TITLES[model]} | {' | '.join(counts)} |")
    parts = [_TEXT, "\n".join(table), "\n"]
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
