"""Runs two programs on the same inputs, and compares the values of paired calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from onnx2nn.transferring.programs import Call, Program

TOLERANCE = 1e-6
"""The largest difference of values in float64, relative to the largest one.

Scales and epsilons stand in files as float32, which is exact to 6e-8, and other calls compute them in float64.
"""


@dataclass(frozen=True)
class Parting:
    """The first call of the module whose value is not that of its partner.

    Attributes:
        call: the module's call.
        partner: the file's.
        difference: relative to the largest element.
    """

    call: Call
    partner: Call
    difference: float

    def __str__(self) -> str:
        return f"{self.call} and the file's {self.partner} give values that differ by {self.difference:.1e}"


class Recorded:
    """The values of a program's calls for several inputs, each as numbers that no layout changes."""

    def __init__(self, program: Program, feeds: Sequence[Sequence[Any]]):
        last = {call.last for call in program.calls if call.kind.split()[0] not in ("input", "output")}
        self.outputs: list[tuple[Any, ...]] = []
        self.values: dict[fx.Node, list[torch.Tensor]] = {}
        for tensors in feeds:
            run = _Recorder(program.module, last)
            with torch.no_grad():
                found = run.run(*tensors)
            self.outputs.append(tuple(found) if isinstance(found, (tuple, list)) else (found,))
            for node, value in run.found.items():
                self.values.setdefault(node, []).append(value)


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, nodes: set[fx.Node | None]):
        super().__init__(module)
        self._nodes = nodes
        self.found: dict[fx.Node, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n in self._nodes and isinstance(value, torch.Tensor) and value.is_floating_point():
            self.found[n] = _moments(value.double())
        return value


def _moments(value: torch.Tensor) -> torch.Tensor:
    """Returns numbers that do not depend on the order of the elements, of the magnitude of the elements."""
    flat = value.reshape(-1)
    if not flat.numel():
        return torch.zeros(4, dtype=torch.float64)
    return torch.stack([flat.mean(), flat.square().mean().sqrt(), flat.max(), flat.min()])


def parting(pairs: Mapping[Call, Call], ours: Recorded, theirs: Recorded) -> Parting | None:
    """Returns the first paired calls whose values part, None where all values and all outputs agree."""
    for call, partner in pairs.items():
        if call.last in ours.values and partner.last in theirs.values:
            apart = max(map(relative, ours.values[call.last], theirs.values[partner.last]))
            if not apart <= TOLERANCE:
                return Parting(call, partner, apart)
    outputs = [(call, partner) for call, partner in pairs.items() if call.kind.startswith("output")]
    for index, (call, partner) in enumerate(outputs):
        apart = max(
            relative(mine[index], other[index]) for mine, other in zip(ours.outputs, theirs.outputs, strict=True)
        )
        if not apart <= TOLERANCE:
            return Parting(call, partner, apart)
    return None


def relative(ours: Any, theirs: Any) -> float:
    """Returns the largest difference of two tensors, relative to the largest element; infinite for other shapes."""
    if ours.shape != theirs.shape:
        return float("inf")
    if not ours.numel():
        return 0.0
    ours, theirs = ours.double(), theirs.double()
    both = (ours == theirs) | (ours.isnan() & theirs.isnan())
    gap = torch.where(both, 0.0, (ours - theirs).abs())
    scale = theirs.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-30)
    found = float((gap / scale).max())
    return float("inf") if math.isnan(found) else found  # a NaN on one side only
