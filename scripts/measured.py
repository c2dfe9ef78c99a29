"""onnx2nn/optable/measured.json: what runs found about operators, for `onnx2nn ops`, which has no suite and no OneFlow.

`scripts/tables.py` writes the sections `conformance`, `oneflow_import`, `exported`, `layers` and `types`,
`scripts/oneflow_tables.py` the section `oneflow_export`.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.conformance import Result

PATH = Path(__file__).resolve().parent.parent / "onnx2nn" / "optable" / "measured.json"


def read() -> dict[str, dict[str, Any]]:
    """Returns the file's sections."""
    found: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def update(section: str, found: Mapping[str, Any]) -> None:
    """Replaces a section of the file."""
    sections = {**read(), section: found}
    lines = []
    for name, operators in sorted(sections.items()):
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(operators.items()))
        lines.append(f" {json.dumps(name)}: {{\n{rows}\n }}")
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def conformance(results: Sequence[Result]) -> dict[str, list[int]]:
    """Returns operator → its cases in ONNX's suite: all, those that pass, those asked of torch.export, that pass it.

    Cases without an operator, and those whose stored values are wrong, are left out.
    """
    found: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0, 0])
    for result in results:
        if result.operator and result.verdict != "disputed":
            asked = result.exported in ("passed", "failed")
            facts = (True, result.verdict == "passed", asked, result.exported == "passed")
            found[result.operator] = [count + fact for count, fact in zip(found[result.operator], facts, strict=True)]
    return dict(found)


def oneflow_export(ops: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Returns ONNX operator → the OneFlow ops that are written with it, of OneFlow op → ONNX operators."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for op in sorted(ops):
        for operator in ops[op]:
            found[operator].append(op)
    return dict(found)
