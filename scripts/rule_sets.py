"""The text of `onnx2nn/rewrite/rule_sets.json`: which operators a graph needs for one of a set of rules to apply.

scripts/tables.py writes it.
"""

from __future__ import annotations

import json
from pathlib import Path

from onnx2nn.rewrite import rule_sets

STORED = Path(rule_sets.__file__).with_suffix(".json")


def text() -> str:
    """Returns the text of the file."""
    lines = []
    for name in sorted(name for sweep in (*rule_sets.SWEEPS, *rule_sets.FOR_INFERENCE) for name in sweep):
        needed = {rule.required_operators for rule in rule_sets.all_rules([name])}
        least = sorted(sorted(one) for one in needed if not any(other < one for other in needed))
        lines.append(f"  {json.dumps(name)}: {json.dumps(least)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
