"""The report of a comparison node by node: its text, its form in JSON, and one node written as a model of its own."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx2nn.errors import InputError, shown, shown_name
from onnx2nn.verification.block_reports import BlockComparison
from onnx2nn.verification.gaps import Gap
from onnx2nn.verification.probe import Probe
from onnx2nn.verification.value_comparison import OutputComparison

MOST_NODES, MOST_NOTES, LONGEST_NOTE = 15, 5, 300
"""Limits of the text of a report, so that it fits a screen: its nodes, its notes, and the characters of a note."""


@dataclass(frozen=True)
class NodeComparison:
    """The differences of one output of one node.

    Attributes:
        node: the node's name in the file, or its output's where it has none.
        operator: `domain::op_type`, without the domain for ai.onnx.
        output: the value's name in the file.
        fx_node: the node of the module's graph that computes it.
        introduced: the module's node on the oracle's inputs against the oracle.
        inherited: the module's own value against the module's node on the oracle's inputs.
        total: the module's own value against the oracle.
        block: the path of the innermost block of the module that computes it, `""` for the module itself.
    """

    node: str
    operator: str
    output: str
    fx_node: str
    introduced: Gap
    inherited: Gap
    total: Gap
    block: str = ""

    def __str__(self) -> str:
        name = f"{shown_name(self.operator)} {shown_name(repr(self.node))}"
        return f"{name} introduces {self.introduced}; it inherits {self.inherited}"


@dataclass
class NodeVerification:
    """The comparisons of every node of one run.

    Attributes:
        oracle: name of the oracle.
        nodes: one comparison an output of a node, in the order of the module's graph.
        outputs: the graph's outputs as `verify` compares them.
        blocks: the differences summed for each block of the module, the module itself first.
        folded: nodes of the file that were computed at import, from constants or shapes, and do not run.
        notes: values that were left out, and why.
    """

    oracle: str
    nodes: list[NodeComparison] = field(default_factory=list)
    outputs: list[OutputComparison] = field(default_factory=list)
    blocks: list[BlockComparison] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _probe: Probe | None = field(default=None, repr=False)

    @property
    def first(self) -> NodeComparison | None:
        """The first node that introduces more than the threshold and its own noise allow; None only where `ok`."""
        return next((node for node in self.nodes if not node.introduced.ok), None)

    @property
    def ok(self) -> bool:
        """Whether no node introduces more than allowed, and every output agrees or is within the model's own noise."""
        return bool(self.outputs) and self.first is None and all(output.ok for output in self.outputs)

    @property
    def verdict(self) -> str:
        """The closing line; it names the first node that is off, or the noise that explains the differences."""
        head = f"{len(self.nodes)} values compared, {len(self.folded)} nodes folded at import"
        if self.first is not None:
            where = f", in block {self.first.block!r}" if self.first.block else ""
            return f"MISMATCH ({head}): the first node over the threshold{where}: {self.first}"
        if not self.ok:  # before the judgement only
            return f"MISMATCH ({head}): the outputs differ"
        noisy = [node for node in self.nodes if node.introduced.noise is not None]
        nodes = f"every node agrees, {len(noisy)} of them within their own noise" if noisy else "every node agrees"
        within = [output for output in self.outputs if not output.agrees]
        if not within:
            return f"OK ({head}): {nodes}"
        worst = max(within, key=lambda output: output.max_difference)
        return (
            f"OK ({head}): {nodes}; output {worst.name!r} differs by {worst.max_difference:.3g}, "
            f"within the model's own noise: values moved by {worst.noise_ulps} ULP change it by {worst.noise:.3g}"
        )

    @property
    def shown(self) -> list[NodeComparison]:
        """The nodes that a report shows, in order: those over the threshold, then those that introduce most."""
        chosen = sorted(self.nodes, key=lambda node: (node.introduced.ok, -node.introduced.max_abs))[:MOST_NODES]
        places = {id(node) for node in chosen}
        return [node for node in self.nodes if id(node) in places]

    @property
    def remarks(self) -> list[str]:
        """The lines below the nodes of a report: how many are not shown, and the notes."""
        left = len(self.nodes) - len(self.shown)
        off = sum(not node.introduced.ok for node in self.nodes)
        hidden = max(off - MOST_NODES, 0)
        which = f", {hidden} of them over the threshold" if hidden else ", all within the threshold"
        rest = [f"and {left} more values{which}"] if left else []
        more = [f"and {len(self.notes) - MOST_NOTES} more notes"] * (len(self.notes) > MOST_NOTES)
        return [*rest, *(shown(note, LONGEST_NOTE) for note in self.notes[:MOST_NOTES]), *more]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.shown), *self.remarks, self.verdict])

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain values that JSON can hold; infinities and NaN are the strings `inf`, `nan`."""
        return {
            "oracle": self.oracle,
            "ok": self.ok,
            "verdict": self.verdict,
            "first": self.first and _plain(self.first),
            "blocks": [_plain(block) for block in self.blocks],
            "nodes": [_plain(node) for node in self.nodes],
            "outputs": [{**_plain(output), "ok": output.ok, "agrees": output.agrees} for output in self.outputs],
            "folded": self.folded,
            "notes": self.notes,
        }

    def write_repro(self, folder: str | os.PathLike[str], node: str | None = None) -> Path:
        """Writes one node as a model of its own, with its inputs from the oracle.

        Inputs that the importer knew (weights, numbers computed from shapes) become initializers of the model.

        Args:
            folder: gets `model.onnx`, `inputs.npz` and `expected.npz` (the oracle's outputs); made if it is missing.
            node: name of the node or of one of its outputs; the first node over the threshold if left out.

        Returns:
            The path of `model.onnx`.

        Raises:
            InputError: the node is unknown, one of its inputs or outputs is no tensor, or the files cannot be written.
        """
        if node is None and self.first is None:
            raise InputError("No node is over the threshold. Name the node to write.")
        compared = {name.output for name in self.nodes}
        assert self._probe is not None  # verify_nodes gives one
        return self._probe.write_repro(Path(folder), node or self.first.output, compared)  # type: ignore[union-attr]


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
