"""Writes examples/tutorial.ipynb, the notebook of docs/tutorial.md.

python scripts/notebook.py          # after the tutorial has changed
python scripts/notebook.py --check  # exit status 1 if the notebook is not current
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs" / "tutorial.md"
NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"

_SET_UP = """\
# In a fresh environment: %pip install "onnx2nn[all]" scikit-learn
import os

if not os.path.exists("examples"):  # paths below are those from the repository's root
    os.chdir("..")"""
_BLOCK = re.compile(r"^```python\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((\w+\.md)")


def notebook(text: str) -> str:
    """Returns a notebook in Jupyter's format 4.5, without outputs.

    Args:
        text: Markdown; its Python blocks become cells of code.
    """
    cells = [_cell("code", _SET_UP)]
    for position, part in enumerate(_BLOCK.split(text)):
        if part.strip():
            text_of = part if position % 2 else _LINK.sub(r"](../docs/\1", part)
            cells.append(_cell("code" if position % 2 else "markdown", text_of.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def main() -> int:
    """Writes or checks the notebook."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    checks = parser.parse_args().check
    text = notebook(SOURCE.read_text(encoding="utf-8"))
    if checks:
        return int(text != NOTEBOOK.read_text(encoding="utf-8"))
    NOTEBOOK.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
