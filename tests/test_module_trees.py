"""The trees of random nested modules: every block runs alone, and modules give what the original's give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from realmodels import EXPORTERS, run, seeded
from torch import nn

import onnx2nn
from tests.module_trees import Count, check, fault_of
from tests.random_modules import draw

FAST = {"torchscript": 24, "dynamo": 4}
"""Modules of the fast tier; the newer exporter takes ten times as long."""

PARTS, IN_A_PART = 8, 60
"""The held tier's modules. A part is a test, for processes and shards."""

FOUND = 0.5
"""Share of the modules that run in the original which run as often in the import; the others have calls that are not
told apart, or are no modules in a file, such as dropout."""


def _check_some(seeds: range, exporter: str, *, long: bool = False) -> None:
    total, faults = Count(), []
    for seed in seeds:
        fault, count = fault_of(draw(seed), exporter, long=long)
        total += count
        faults += [f"seed {seed}: {fault}"] if fault and not fault.startswith("export fails") else []
    assert not faults, "\n".join(faults)
    assert total.found >= FOUND * total.modules > 0


@pytest.mark.parametrize("exporter", sorted(FAST))
def test_some_modules(exporter: str) -> None:
    _check_some(range(FAST[exporter]), exporter)


@pytest.mark.parametrize("exporter", sorted(FAST))
def test_what_is_saved_and_exported_again(exporter: str, tmp_path: Path) -> None:
    """A pickle, a copy, a program of torch.export, a second import."""
    check(draw(8), exporter, tmp_path, long=True)


ONCE_DIFFERENT = {
    29: "a module of a list is dissolved, and its calls are exported as those of the list",
    30: "a value of a module of a list moves out of it, and is exported as a call of the list",
    48: "a list holds nothing that runs",
    57: "the first module of a list holds nothing that runs",
    1028: "a module of a list is dissolved, and its calls are exported as those of the list",
}
"""Seeds of modules whose second import had another tree, and why it had."""


@pytest.mark.parametrize("seed", ONCE_DIFFERENT)
def test_a_second_import_has_the_same_tree(seed: int, tmp_path: Path) -> None:
    check(draw(seed), "torchscript", tmp_path, long=True)


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("exporter", sorted(FAST))
def test_many_modules(exporter: str, part: int, request: pytest.FixtureRequest) -> None:
    first = (request.config.getoption("--seed") * PARTS + part) * IN_A_PART + 1000
    _check_some(range(first, first + IN_A_PART), exporter, long=True)


class Encoder(nn.Module):
    """A part that is called twice, with a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) + x


class Siamese(nn.Module):
    """Two calls of one part that do not depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.encoder(x) - self.encoder(y)


class Repeated(nn.Module):
    """Two calls of one part, of which the second takes what the first gave, as ALBERT's layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.encoder(x) + y)


@pytest.mark.parametrize("kind", [Siamese, Repeated])
@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_a_part_that_is_called_twice_is_one(exporter: str, kind: type[nn.Module]) -> None:
    """It is one block that is called twice."""
    inputs = (torch.randn(2, 6), torch.randn(2, 6))
    module = onnx2nn.load(EXPORTERS[exporter](f"called-twice-{kind.__name__}", seeded(kind), inputs))
    calls: list[torch.Tensor] = []
    module.encoder.register_forward_hook(lambda _, args, result: calls.append(result))
    expected = seeded(kind)
    run(module, inputs)
    assert len(calls) == 2
    torch.testing.assert_close(calls[0], expected.encoder(inputs[0]))
