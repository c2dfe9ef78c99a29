"""Prints `onnx2nn/optable/families.json`: which family of `onnx2nn.ops` has rows of which operators.

    python -m scripts.families

The table imports a family at the first question about one of its operators, and finds the family in this file.
scripts/tables.py writes it.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from unittest import mock

from onnx2nn.optable import registry
from onnx2nn.optable.row import Row

STORED = Path(registry.__file__).with_name("families.json")

_PACKAGE = "onnx2nn.ops."


def text() -> str:
    """Returns the text of the file; no family may be imported yet, as it watches their imports."""
    found: dict[str, set[str]] = {}
    add = registry.Table.add

    def note(table: registry.Table, row: Row) -> None:
        # The innermost module that is being executed has the row; a decorator of `optable` may stand between.
        names = [info.frame.f_globals["__name__"] for info in inspect.stack(0) if info.function == "<module>"]
        family = next(name for name in names if name.startswith(_PACKAGE)).removeprefix(_PACKAGE)
        found.setdefault(family, set()).add(f"{row.domain}.{row.operator}".lstrip("."))
        add(table, row)

    with mock.patch.object(registry.Table, "add", note):
        registry.TABLE.complete()
    lines = [f"  {json.dumps(family)}: {json.dumps(sorted(names))}" for family, names in sorted(found.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    print(text(), end="")
