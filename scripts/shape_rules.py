"""The text of `onnx2nn/fx/shape_rules/functions.json`: which module has shape rules of functions of which names.

scripts/tables.py writes it.
"""

from __future__ import annotations

import json
from pathlib import Path

from onnx2nn.fx.shape_rules import rule

STORED = Path(rule.__file__).with_name("functions.json")


def text() -> str:
    """Returns the text of the file."""
    found: dict[str, set[str]] = {}
    for target, covering in rule.RULES.items():
        found.setdefault(covering.__module__.rpartition(".")[2], set()).add(rule.name_of(target))
    lines = [f"  {json.dumps(module)}: {json.dumps(sorted(names))}" for module, names in sorted(found.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"
