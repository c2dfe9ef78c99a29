"""Calls of a module's parts by others than that module, which it has no part in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from realmodels import EXPORTERS, check_same, run, seeded
from torch import nn

import onnx2nn


class Mixed(nn.Module):
    """A layer, and functions of the module around it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.linear(x)) * x


class Gate(nn.Module):
    """A module whose parts others call too."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.act, self.mixed = nn.Linear(8, 8), nn.Tanh(), Mixed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixed(self.act(self.proj(x)))


class After(nn.Module):
    """Calls a module, then its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate.mixed(self.gate.proj(self.gate(x)))


class Before(After):
    """Calls the parts of a module, then the module twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(self.gate(self.gate.mixed(x)))


class Between(After):
    """Calls a part several times between two calls of the module around it, and another part after them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.gate(x)
        for _ in range(2):
            x = torch.cos(self.gate.proj(x))
        return self.gate.mixed(torch.relu(self.gate(x)))


class Never(After):
    """Calls the parts alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate.mixed(torch.cos(self.gate.proj(x)))


class Listed(nn.Module):
    """Calls a list of layers, and its first one again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Mixed())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](torch.cos(self.layers(x)))


class Deep(nn.Module):
    """Calls the parts of modules that other modules hold."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = After(), Between()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second.gate(self.second(self.first.gate.mixed(self.first(x))))


class Weighted(nn.Module):
    """A layer, a function and constants of an exporter's making."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(8, 8), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.linear(x) * torch.linspace(0, 1, x.shape[-1]))


class Codec(nn.Module):
    """A module of which others call a method that is not `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.last = nn.Sequential(Weighted(), Weighted()), Weighted()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Calls its modules."""
        return self.last(self.blocks(x))


class Method(nn.Module):
    """Calls a method of a module, so that the older exporter's scopes lack the module."""

    def __init__(self) -> None:
        super().__init__()
        self.codec = Codec()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.codec.encode(x)


def _inputs(*sizes: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(*sizes, 8, generator=torch.Generator().manual_seed(sum(sizes))),)


def _calls(network: nn.Module, names: list[str], inputs: Any) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    for name in names:
        network.get_submodule(name).register_forward_hook(
            lambda _, given, result, name=name: found.append((name, given, result))
        )
    run(network, inputs)
    return found


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
@pytest.mark.parametrize("kind", [After, Before, Between, Never, Listed, Deep, Method])
def test_each_module_makes_its_own_calls(kind: type[nn.Module], exporter: str, tmp_path: Path) -> None:
    """Hooks see the calls of the original, with equal arguments and results; so they do in the next import."""
    original = seeded(kind)
    path = EXPORTERS[exporter](f"outside-{kind.__name__}", original, _inputs(2, 5), _inputs(3, 7))
    module, inputs = onnx2nn.load(path), _inputs(4, 6)
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    again = onnx2nn.load(tmp_path / "again.onnx")
    used = {name for name, _, _ in _calls(original, [name for name, _ in original.named_modules() if name], inputs)}
    names = [name for name, _ in original.named_modules() if name in used]
    theirs = _calls(seeded(kind), names, inputs)
    for imported in (module, again):
        assert set(imported.state_dict()) == set(original.state_dict())
        ours = _calls(imported, names, inputs)
        assert [name for name, _, _ in ours] == [name for name, _, _ in theirs]
        for (name, given, result), (_, expected, wanted) in zip(ours, theirs, strict=True):
            check_same(given, expected, f"the arguments of {name}")
            check_same((result,), (wanted,), f"the results of {name}")
