"""Runs two programs on the same inputs, and compares the values of paired calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import fx

from onnx2nn.transferring.programs import LINEAR, Call, Program

TOLERANCE = 1e-6
"""The largest difference of values in float64, relative to the largest one.

Scales and epsilons stand in files as float32, which is exact to 6e-8, and other calls compute them in float64.
"""

_LARGEST_DENOMINATOR = 256


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
        last |= {call.given for call in program.calls if call.kind in LINEAR}
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


def factors(
    pairs: Mapping[Call, Call], module: Program, feeds: Sequence[Sequence[Any]], theirs: Recorded
) -> dict[Call, float]:
    """Returns the factors between what layers and their partners are called on.

    A simplifier folds the number by which a value is multiplied into the layer behind it, the half of a GELU for
    example. The run goes on as if the layer's weight had the factor already, so that it finds all factors at once.

    Args:
        pairs: the module's call → the file's.
        module: the module's program, with the file's weights.
        feeds: its inputs.
        theirs: the values of the file's program.

    Returns:
        Layer of the module → the factor that its weight must have; only those that have one, the same for all inputs.
    """
    found: dict[Call, list[float | None]] = {}
    for index, tensors in enumerate(feeds):
        expected = {
            ours: theirs.values[partner.given][index]
            for ours, partner in pairs.items()
            if ours.kind in LINEAR and partner.given in theirs.values
        }
        run = _Scaled(module.module, expected)
        with torch.no_grad():
            run.run(*tensors)
        for call in expected:
            found.setdefault(call, []).append(run.found.get(call))
    return {call: many[0] for call, many in found.items() if many[0] is not None and len(set(many)) == 1}


class _Scaled(fx.Interpreter):
    """Runs a program with factors for what its layers are called on, where their partners' values have them."""

    def __init__(self, module: fx.GraphModule, expected: Mapping[Call, torch.Tensor]):
        super().__init__(module)
        self._calls = {call.node: call for call in expected}
        self._expected = expected
        self.found: dict[Call, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        call = self._calls.get(n)
        if call is None or call.given is None:
            return super().run_node(n)
        value = self.env[call.given]
        factor = _factor(_moments(value.double()), self._expected[call])
        if factor is None:
            return super().run_node(n)
        self.found[call] = factor
        self.env[call.given] = value * factor
        try:
            return super().run_node(n)
        finally:
            self.env[call.given] = value


def _factor(ours: torch.Tensor, theirs: torch.Tensor) -> float | None:
    """Returns the factor between two values by their moments; None where there is none, or it is 1.

    Where a simple fraction is as near as the moments tell, it is taken: programs multiply by such numbers.
    """
    size = float(theirs[1] / ours[1]) if float(ours[1]) else math.nan
    for found in (size, -size):
        expected = ours * found
        expected[1].abs_()
        if found < 0:
            expected[2:] = expected[2:].flip(0)
        if math.isfinite(found) and relative(expected, theirs) <= TOLERANCE and abs(found - 1) > TOLERANCE:
            simple = float(Fraction(found).limit_denominator(_LARGEST_DENOMINATOR))
            return simple if abs(simple - found) <= TOLERANCE * abs(found) else found
    return None


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
