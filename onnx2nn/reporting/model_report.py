"""The report of a model, in plain values: what `onnx2nn.report` returns and the page shows.

Parts refer to each other by their positions: `Module.calls[i].nodes` are positions in `ModelReport.nodes`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from onnx2nn.errors import shown_name
from onnx2nn.reporting.pages import write_page


@dataclass(frozen=True)
class Weight:
    """A parameter, a buffer, or a constant that is not in state_dict.

    Attributes:
        key: its path in the module.
        role: `"parameter"`, `"buffer"` or `"constant"`.
        value: element type and shape, `float32 [64, 3, 7, 7]`.
        elements: their number.
        bytes: their size.
        tied: the key of a weight before it with the same storage, `""` without one.
        least, greatest, mean, deviation: of the finite elements; None where there are none.
        zeros: the number of elements that are 0.
        not_finite: the number of NaN and infinities.
        histogram: numbers of finite elements in bins of equal width from `least` to `greatest`.
        found: how the author's key was restored, `""` where the file has it.
    """

    key: str
    role: str
    value: str
    elements: int
    bytes: int
    tied: str = ""
    least: float | None = None
    greatest: float | None = None
    mean: float | None = None
    deviation: float | None = None
    zeros: int = 0
    not_finite: int = 0
    histogram: list[int] = field(default_factory=list)
    found: str = ""


@dataclass(frozen=True)
class Call:
    """A call in the program of a block, one of its inputs, or its output.

    Attributes:
        name: of the value in the program.
        kind: `"input"`, `"output"`, `"module"`, `"function"` or `"weight"`.
        label: the class, function or key.
        module: the called module, a position in `ModelReport.modules`; None where it is none.
        inputs: positions of other calls of the block.
        value: element type and shape of the result in the run, or a number.
        tensor: whether the result holds a tensor; sizes and other numbers are none.
        nodes: the nodes of the file that it computes, positions in `ModelReport.nodes`; the first ones by name, then
            those that were raised into it or computed at import.
        seconds: the time of the call in the run.
    """

    name: str
    kind: str
    label: str
    module: int | None
    inputs: list[int]
    value: str = ""
    tensor: bool = True
    nodes: list[int] = field(default_factory=list)
    seconds: float | None = None


@dataclass
class Module:
    """A module of the tree.

    Attributes:
        path: its path, `""` for the module itself.
        kind: the name of its class.
        detail: its arguments, as `print` shows them.
        parent: the module around it, a position; None for the module itself.
        parameters: the number of elements of parameters, those inside included.
        bytes: the size of parameters, buffers and constants, those inside included; shared ones count once.
        value: element type and shape of its result in the run.
        seconds: the time of its calls in the run, those inside included.
        calls: its program, for a block.
        code: its program as Python, a position in `ModelReport.programs`.
        weights: its own weights, positions in `ModelReport.weights`.
        nodes: the nodes of the file that its call computes, positions, for a layer.
    """

    path: str
    kind: str
    detail: str
    parent: int | None
    parameters: int = 0
    bytes: int = 0
    value: str = ""
    seconds: float | None = None
    calls: list[Call] = field(default_factory=list)
    code: int | None = None
    weights: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)


@dataclass
class FileNode:
    """A node of the file's graph.

    Attributes:
        name: its name, or its first output's.
        operator: `domain::op_type`, without the domain for ai.onnx.
        outputs: the names of its outputs.
        module: the module whose program computes it, a position; None where none does.
    """

    name: str
    operator: str
    outputs: list[str]
    module: int | None = None


@dataclass(frozen=True)
class NodeError:
    """The difference from ONNX Runtime at one value; numbers are largest absolute differences of an element.

    Attributes:
        node: the node of the file, a position; None where it is unknown.
        output: the name of the value.
        module: the block that computes it, a position.
        introduced, inherited, total: None where the values cannot be compared number by number.
        relative, ulp: what it introduces, relative to the element, and in representable numbers.
        noise: the node's own noise, where it was measured.
        ok: whether it is within the threshold or the noise.
        reason: why the values cannot be compared.
    """

    node: int | None
    output: str
    module: int
    introduced: float | None
    inherited: float | None
    total: float | None
    relative: float | None
    ulp: int | None
    noise: float | None
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class OutputError:
    """The comparison of one output of one run with ONNX Runtime: `OutputComparison` in plain values."""

    name: str
    value: str
    mse: float | None
    difference: float | None
    tolerance: float
    noise: float | None
    noise_ulps: int
    ok: bool
    reason: str = ""


@dataclass
class Verified:
    """The comparison with ONNX Runtime.

    Attributes:
        oracle: its name.
        verdict, nodes_verdict: the closing lines of `verify` and `verify_nodes`.
        ok: whether both agree.
        outputs: one comparison an output and run.
        nodes: one comparison an output of a node, in the order of the program.
        folded: nodes of the file that were computed at import.
        notes: what was left out, and why.
    """

    oracle: str
    verdict: str
    nodes_verdict: str
    ok: bool
    outputs: list[OutputError]
    nodes: list[NodeError]
    folded: int
    notes: list[str]


@dataclass(frozen=True)
class Operator:
    """An operator of the file.

    Attributes:
        name: `domain::op_type`, without the domain for ai.onnx.
        count: its nodes, those of inner graphs included.
        problems: why nodes of it cannot be imported.
    """

    name: str
    count: int
    problems: list[str]


@dataclass(frozen=True)
class Note:
    """Something that the import found, decided or changed.

    Attributes:
        what: the name of a dimension, key or pattern, or a condition.
        why: the reason, or what became of it.
        where: the node or module, `""` where there is none.
    """

    what: str
    why: str
    where: str = ""


@dataclass(frozen=True)
class FileFacts:
    """What the file says of itself.

    Attributes:
        name: the name of the file, or the kind of source.
        producer: the program that wrote it, with its version.
        opsets: the versions of its operator sets.
        nodes: the number of nodes, those of inner graphs included.
        weights: the bytes of its initializers.
        inputs, outputs: name → element type and shape; dynamic dimensions have their names.
    """

    name: str
    producer: str
    opsets: dict[str, int]
    nodes: int
    weights: int
    inputs: dict[str, str]
    outputs: dict[str, str]


@dataclass
class ModelReport:
    """Everything that a report shows of one model.

    Attributes:
        file: what the file says of itself.
        operators: its operators, the most frequent first.
        problems: what cannot be imported, as texts; `modules` is empty then.
        modules: the tree, each module behind the one around it.
        programs: the programs of blocks as Python; blocks with equal programs share one.
        weights: all weights.
        nodes: the nodes of the file's graph.
        run: the sizes of the inputs of the run in which shapes and times were measured; empty where there was none.
        verified: the comparison with ONNX Runtime; None where there was none, and `unverified` says why.
        unverified: why there is no comparison, or no run.
        notes: title → notes: guards, dynamic and fixed dimensions, raised patterns, restored keys and others.
        versions: of the packages that made the report.
    """

    file: FileFacts
    operators: list[Operator]
    problems: list[str] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    nodes: list[FileNode] = field(default_factory=list)
    run: dict[str, list[int]] = field(default_factory=dict)
    verified: Verified | None = None
    unverified: list[str] = field(default_factory=list)
    notes: dict[str, list[Note]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the model can be imported and nothing that was compared differs."""
        return not self.problems and (self.verified is None or self.verified.ok)

    @property
    def verdict(self) -> str:
        """The closing line: `OK`, `MISMATCH` or `PROBLEMS`, with the reason."""
        if self.problems:
            return f"PROBLEMS: {len(self.problems)} kinds of nodes cannot be imported"
        if self.verified is None:
            return f"OK imported, not compared: {'; '.join(self.unverified) or 'not asked for'}"
        return self.verified.verdict if self.verified.verdict.startswith("MISMATCH") else self.verified.nodes_verdict

    def __str__(self) -> str:
        blocks = sum(bool(module.calls) for module in self.modules)
        head = f"{shown_name(self.file.name)}: {self.file.nodes} nodes of {len(self.operators)} operators"
        tree = f", {len(self.modules)} modules, {blocks} of them with a program" if self.modules else ""
        return "\n".join([head + tree, *self.problems, self.verdict])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as one HTML file, which needs nothing from elsewhere; it appears complete or not at all.

        Raises:
            InputError: the file cannot be written.
        """
        write_page(path, "report", self.file.name, self)
