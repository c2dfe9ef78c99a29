"""Two models side by side, in plain values: what `onnx2nn.compare` returns and the page shows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from onnx2nn.errors import shown_name
from onnx2nn.reporting.model_report import OutputError
from onnx2nn.reporting.pages import write_page

MOST_ROWS = 40
"""Modules that the text of a comparison shows."""


@dataclass(frozen=True)
class WeightChange:
    """A weight that differs; a weight that one side lacks has no value there.

    Attributes:
        key: its path.
        left, right: element type and shape.
        difference: the largest of an element; None where they cannot be compared.
        magnitude: the largest element of the left one.
    """

    key: str
    left: str
    right: str
    difference: float | None = None
    magnitude: float | None = None

    def __str__(self) -> str:
        name = shown_name(self.key.rpartition(".")[2])
        if self.difference is not None:
            return f"{name} by {self.difference:.3g}"
        return f"{name} {self.left or 'missing'} → {self.right or 'missing'}"


@dataclass
class ModulePair:
    """A module of the same path in both trees, or in one.

    Attributes:
        path: its path, `""` for the models themselves.
        left, right: class and arguments, `""` where that side has none.
        left_value, right_value: element type and shape of its result.
        weights: its own weights that differ.
        calls: label → numbers of calls in the programs of both sides, where they differ.
        difference: the largest difference of an element of its results; None where they were not compared.
        agrees: whether its results agree within the tolerance of outputs; None where they were not compared.
        parts: whether its results are the first that do not agree.
    """

    path: str
    left: str
    right: str
    left_value: str = ""
    right_value: str = ""
    weights: list[WeightChange] = field(default_factory=list)
    calls: dict[str, list[int]] = field(default_factory=dict)
    difference: float | None = None
    agrees: bool | None = None
    parts: bool = False

    @property
    def status(self) -> str:
        """`"removed"`, `"added"`, `"changed"` or `"same"`."""
        if not self.right:
            return "removed"
        if not self.left:
            return "added"
        same = self.left == self.right and self.left_value == self.right_value and not self.weights and not self.calls
        return "same" if same else "changed"

    @property
    def changes(self) -> list[str]:
        """What differs, in words."""
        if self.status in ("removed", "added"):
            return [self.status]
        found = [f"{self.left} → {self.right}"] if self.left != self.right else []
        if self.left_value != self.right_value:
            found.append(f"result {self.left_value or '?'} → {self.right_value or '?'}")
        found += [str(change) for change in self.weights]
        found += [f"{label} {left} → {right} times" for label, (left, right) in self.calls.items()]
        return found


@dataclass
class ModelComparison:
    """Two trees of modules, aligned by the paths.

    Attributes:
        left, right: the names of the models.
        modules: the modules of both, each behind the one around it.
        outputs: the outputs of the right model against those of the left one, on the same inputs.
        run: the sizes of the inputs.
        notes: what was not compared, and why.
    """

    left: str
    right: str
    modules: list[ModulePair] = field(default_factory=list)
    outputs: list[OutputError] = field(default_factory=list)
    run: dict[str, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def changed(self) -> list[ModulePair]:
        """The modules that are not the same."""
        return [pair for pair in self.modules if pair.status != "same"]

    @property
    def first(self) -> ModulePair | None:
        """The module whose results are the first that do not agree."""
        return next((pair for pair in self.modules if pair.parts), None)

    @property
    def ok(self) -> bool:
        """Whether all outputs were compared and agree."""
        return bool(self.outputs) and all(output.ok for output in self.outputs)

    @property
    def verdict(self) -> str:
        """The closing line: `OK` or `MISMATCH`, and how many modules changed."""
        changed = f"{len(self.changed)} of {len(self.modules)} modules differ"
        if not self.outputs:
            return f"MISMATCH: the outputs were not compared; {changed}"
        if self.ok:
            return f"OK the outputs agree; {changed}"
        part = f", their values part at {shown_name(self.first.path or 'the outputs')!r}" if self.first else ""
        return f"MISMATCH: the outputs differ{part}; {changed}"

    def __str__(self) -> str:
        rows = [f"{shown_name(pair.path) or 'the model'}: {'; '.join(pair.changes)}" for pair in self.changed]
        more = [f"and {len(rows) - MOST_ROWS} more modules"] * (len(rows) > MOST_ROWS)
        return "\n".join([*rows[:MOST_ROWS], *more, *self.notes, self.verdict])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the comparison as one HTML file, which needs nothing from elsewhere.

        Raises:
            InputError: the file cannot be written.
        """
        write_page(path, "compare", f"{self.left} and {self.right}", self)
