"""Operators at the edges of numbers: what tests/edge_cases.py found, stored, and its part of docs/conformance.md."""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

STORED = Path(__file__).resolve().parent / "conformance_results" / "edges.json"


@dataclass(frozen=True)
class Edge:
    """What three implementations say of an operator at an edge.

    Attributes:
        operator: its name.
        edge: what is at the edge.
        inputs: texts of the inputs, see `text_of`.
        ours: texts of this package's outputs, or of an error.
        runtime: ONNX Runtime's.
        reference: onnx.reference's.
        ruling: where they differ, which of them is the standard's, and why.
    """

    operator: str
    edge: str
    inputs: list[str]
    ours: list[str]
    runtime: list[str]
    reference: list[str]
    ruling: str = ""

    @property
    def differs(self) -> bool:
        """Whether the three have different answers."""
        return not self.ours == self.runtime == self.reference


def text_of(values: np.ndarray) -> str:
    """Returns the numbers of a tensor, floats with three digits, or the shape of a tensor without elements."""
    if not values.size:
        return f"shape ({', '.join(map(str, values.shape))})"
    return "[" + ", ".join(_number(value) for value in values.ravel().tolist()) + "]"


def _number(value: float) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def text(edges: Sequence[Edge]) -> str:
    """Returns the text of the file in which the answers are stored."""
    return "[\n" + ",\n".join(json.dumps(asdict(edge)) for edge in edges) + "\n]\n"


def stored() -> list[Edge]:
    """Returns the answers as stored."""
    return [Edge(**edge) for edge in json.loads(STORED.read_text(encoding="utf-8"))]


def section(edges: Sequence[Edge]) -> list[str]:
    """Returns the lines of docs/conformance.md."""
    different = [edge for edge in edges if edge.differs]
    same: dict[str, list[str]] = collections.defaultdict(list)
    for edge in edges:
        if not edge.differs:
            same[edge.operator].append(edge.edge)
    lines = [
        "## At the edges of numbers",
        "",
        f"{len(edges)} calls with NaN, infinities, -0, denormals and empty tensors, beside ONNX Runtime without its"
        " optimisations and onnx.reference",
        f"(tests/edge_cases.py). {len(edges) - len(different)} have one answer. The others are listed with the answer"
        " that follows from the standard; = is onnx2nn's.",
        "",
        "| operator | edge | inputs | onnx2nn | ONNX Runtime | onnx.reference | by the standard |",
        "|---|---|---|---|---|---|---|",
    ]
    for edge in different:
        others = ["=" if answer == edge.ours else "; ".join(answer) for answer in (edge.runtime, edge.reference)]
        cells = [edge.operator, edge.edge, "; ".join(edge.inputs), "; ".join(edge.ours), *others, edge.ruling]
        lines.append("| " + " | ".join(cells) + " |")
    names = "; ".join(f"{operator} ({', '.join(notes)})" for operator, notes in sorted(same.items()))
    return [*lines, "", f"One answer: {names}.", ""]
