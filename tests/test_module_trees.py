"""The trees of random nested modules: every block runs alone, and modules give what the original's give."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from realmodels import EXPORTERS, run, seeded
from torch import nn

import onnx2nn
from tests.module_calls import calls_of, close
from tests.module_trees import Count, check, exported, fault_of, inputs_of
from tests.random_modules import (
    Model,
    draw,
    draw_attending,
    draw_backwards,
    draw_extended,
    draw_sized,
    draw_weighted,
)

FAST = {"torchscript": 24, "dynamo": 4}
"""Modules of the fast tier; the newer exporter takes ten times as long."""

DRAWN = [
    *itertools.product(sorted(FAST), [draw, draw_sized, draw_backwards, draw_extended, draw_attending]),
    ("dynamo", draw_weighted),
]
"""Exporters with kinds of modules. The older exporter computes what depends on weights alone, without a note."""

PARTS, IN_A_PART = 8, 60
"""The held tier's modules. A part is a test, for processes and shards."""

FOUND = 0.5
"""Share of the modules that run in the original which run as often in the import; the others have calls that are not
told apart, or are no modules in a file, such as dropout."""


def _check_some(seeds: range, exporter: str, drawn: Callable[[int], Model] = draw, *, long: bool = False) -> None:
    total, faults = Count(), []
    for seed in seeds:
        fault, count = fault_of(drawn(seed), exporter, long=long)
        total += count
        faults += [f"seed {seed}: {fault}"] if fault and not fault.startswith("export fails") else []
    assert not faults, "\n".join(faults)
    assert total.found >= FOUND * total.modules > 0


@pytest.mark.parametrize(("exporter", "drawn"), DRAWN)
def test_some_modules(exporter: str, drawn: Callable[[int], Model]) -> None:
    _check_some(range(FAST[exporter]), exporter, drawn)


@pytest.mark.parametrize("exporter", sorted(FAST))
def test_what_is_saved_and_exported_again(exporter: str, tmp_path: Path) -> None:
    """A pickle, a copy, programs of torch.export with their hooks and blocks, a second import."""
    check(draw(8), exporter, tmp_path, long=True)


@pytest.mark.parametrize("seed", [73011, 73233, 73320])
def test_what_the_older_exporter_does_not_write_is_no_fault(seed: int, tmp_path: Path) -> None:
    """A shared layer under another name, a list with the name of the module around it, transposes that are undone."""
    check(draw(seed), "torchscript", tmp_path)


def test_what_a_further_call_computes_itself_stands_in_a_module_of_the_file(tmp_path: Path) -> None:
    """The older exporter writes the modules of a further call into the first: the further one has none."""
    check(draw(7784), "torchscript", tmp_path)


def test_what_two_modules_share_moves_with_what_it_is_made_of(tmp_path: Path) -> None:
    """The older exporter computes the results of two modules without weights once: a part of it stayed in the first."""
    check(draw_attending(10106), "torchscript", tmp_path)


def test_attention_scales_no_result_of_another_module(tmp_path: Path) -> None:
    """A query that is half of what a module computes is this module's result, and the half no scale of attention."""
    check(draw_attending(7844), "torchscript", tmp_path)


def test_what_a_call_computes_itself_is_none_of_its_arguments(tmp_path: Path) -> None:
    """A module that adds what it kept in its last call adds in the first one what this call keeps."""
    check(draw(6232), "torchscript", tmp_path)


def test_what_a_further_call_alone_uses_stays(tmp_path: Path) -> None:
    """The older exporter names what stands in a further call of a module as what stands in its first one."""
    check(draw(7005), "torchscript", tmp_path)


ONCE_DIFFERENT = {
    29: "a module of a list is dissolved, and its calls are exported as those of the list",
    30: "a value of a module of a list moves out of it, and is exported as a call of the list",
    48: "a list holds nothing that runs",
    57: "the first module of a list holds nothing that runs",
    1028: "a module of a list is dissolved, and its calls are exported as those of the list",
    91254: "a constant stands in a module of a list without calls, which the second import lost",
}
"""Seeds of modules whose second import had another tree, or did not run, and why."""


@pytest.mark.parametrize("seed", ONCE_DIFFERENT)
def test_a_second_import_has_the_same_tree(seed: int, tmp_path: Path) -> None:
    check(draw(seed), "torchscript", tmp_path, long=True)


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("exporter", "drawn"), DRAWN)
def test_many_modules(exporter: str, drawn: Callable[[int], Model], part: int, request: pytest.FixtureRequest) -> None:
    first = (request.config.getoption("--seed") * PARTS + part) * IN_A_PART + 1000
    _check_some(range(first, first + IN_A_PART), exporter, drawn, long=True)


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


class Late(nn.Module):
    """Calls of parts of which the sums take the last one's result first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.encoder, self.act = nn.Linear(6, 6), Encoder(), nn.GLU()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        linear, encoder, gate = self.linear(x), self.encoder(x), self.act(x)
        return (self.act(y) + gate).sum() + (self.encoder(y) + encoder) * (self.linear(y) + linear)


class Outer(nn.Module):
    """Calls a module."""

    def __init__(self) -> None:
        super().__init__()
        self.late = Late()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.late(x.sin(), y.sin()))


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_calls_of_a_part_are_in_the_order_of_the_file(exporter: str) -> None:
    """Hooks of a part see them in the author's order, also where no call needs what another gives."""
    inputs = (torch.randn(2, 6), torch.randn(2, 6))
    original = seeded(Outer)
    module = onnx2nn.load(EXPORTERS[exporter]("late-calls", original, inputs))
    ours, theirs = (calls_of(one, inputs)[0] for one in (module, original))
    for name in ("late.linear", "late.encoder", "late.encoder.linear", "late.act"):
        assert close([result for _, result in ours[name]], [result for _, result in theirs[name]]), name


class Holder(nn.Module):
    """A layer under a name, and functions."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.get_submodule(self.name)(x)) * 0.5


class Sharing(nn.Module):
    """A layer in two modules, under `layer` and another name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        layer = nn.Linear(6, 6)
        self.one, self.other = Holder("layer", layer), Holder(name, layer)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(x)) + y


class Listed(nn.Module):
    """A list of modules that is called as the module around it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = nn.ModuleList([nn.Linear(6, 6, bias=False), nn.Tanh()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixer[1](self.mixer[0](x)) + x * 0.5


class Chained(nn.Sequential):
    """The same modules, with the same function."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 6, bias=False), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x * 0.5


class Mixing(nn.Module):
    """A module that is called `mixer`."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.mixer = kind()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.mixer(x) * y


class Convolution(nn.Module):
    """A convolution over the second or the third dimension, of what it takes and of what it gives."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.conv, self.first, self.last = nn.Conv1d(6, 6, 3, padding=1), first, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x if self.first == 2 else x.transpose(1, 2))
        return x if self.last == 2 else x.transpose(1, 2)


class Convolutions(nn.Module):
    """Two convolutions, and the dimension of time between them."""

    def __init__(self, between: int) -> None:
        super().__init__()
        self.one, self.other = Convolution(1, between), Convolution(between, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(x)) + y


EQUAL_FILES = {
    "the second name of a shared module": [functools.partial(Sharing, name) for name in ("layer", "gate")],
    "a list with the name of the module around it": [functools.partial(Mixing, kind) for kind in (Listed, Chained)],
    "two transposes that undo each other": [functools.partial(Convolutions, between) for between in (1, 2)],
}
"""What the older exporter does not write, so that of two modules one has other names or values in its import."""


@pytest.mark.parametrize("modules", EQUAL_FILES.values(), ids=EQUAL_FILES)
def test_what_a_file_does_not_tell(modules: list[Callable[[], nn.Module]], tmp_path: Path) -> None:
    """The files are the same bytes; the import of them computes what both modules do."""
    inputs, originals = inputs_of(3), [seeded(kind) for kind in modules]
    paths = [tmp_path / f"{number}.onnx" for number in range(len(originals))]
    for original, path in zip(originals, paths, strict=True):
        exported(original, "torchscript", path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    module = onnx2nn.load(paths[0])
    for original in originals:
        torch.testing.assert_close(run(module, inputs), run(original, inputs))


@pytest.mark.parametrize("seed", [500070, 500098, 500157])
def test_a_constant_of_a_block_and_of_its_dissolved_call(seed: int) -> None:
    assert fault_of(draw(seed), "dynamo")[0] == ""
