"""What a module computes of the result of another one, with its weights or without: neither module does the other's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from realmodels import EXPORTERS, check_same, run, seeded
from torch import nn

import onnx2nn
from tests.module_calls import calls_of, close


class Affine(nn.Module):
    """A scale and a shift of its own, in front of a function."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight + self.bias)


class Shift(nn.Module):
    """A bias of its own, in front of a function."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.bias)


class Standardised(nn.Module):
    """A layer normalisation without weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deviation = x - x.mean(-1, keepdim=True)
        return deviation / torch.sqrt(deviation.square().mean(-1, keepdim=True) + 1e-5)


class Shifted(nn.Module):
    """Layers without biases, in front of modules that add one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.out = nn.Linear(8, 6, bias=False), Shift(6)
        self.conv, self.after = nn.Conv1d(5, 5, 1, bias=False), Shift(1, 5, 1)
        self.up, self.behind = nn.ConvTranspose1d(5, 5, 1, bias=False), Shift(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.linear(self.after(self.conv(x)))) * self.behind(self.up(x)).mean(-1, keepdim=True)


class Own(nn.Module):
    """A layer without a bias, in a module that adds its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bias = nn.Linear(8, 6, bias=False), nn.Parameter(torch.randn(6))
        self.conv, self.shift = nn.Conv1d(5, 5, 1, bias=False), nn.Parameter(torch.randn(5, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(torch.tanh(self.conv(x) + self.shift)) + self.bias)


class Normalised(nn.Module):
    """A normalisation without weights, in front of a module with them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.affine = Standardised(), Affine(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.affine(self.norm(x))


class Padded(nn.Module):
    """Convolutions without padding, behind a module that pads and behind a call of it."""

    def __init__(self) -> None:
        super().__init__()
        self.pad, self.conv = nn.ConstantPad1d(1, 0.0), nn.Conv1d(5, 6, 3)
        self.last = nn.Conv1d(6, 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.pad(torch.tanh(self.conv(self.pad(x))), (2, 2)))


class Crossed(nn.Module):
    """A module that multiplies with parts of a weight, and adds parts of another one that is called like a layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.bias = nn.Parameter(torch.randn(2, 8, 1)), nn.Parameter(torch.randn(2, 8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = last = x.flatten(0, 1).unsqueeze(2)
        for i in range(2):
            last = first @ torch.tensordot(last, self.kernels[i], dims=([1], [0])) + self.bias[i] + last
        return last.squeeze(2)


class Held(nn.Module):
    """Calls one module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


class Penalised(nn.Module):
    """Returns what it computes last first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.linear(x)
        penalty = x.square().mean()
        return torch.tanh(x), penalty


class Scaler(nn.Module):
    """Standardises steps, and returns what that takes back."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean = x.mean(1, keepdim=True)
        scale = torch.sqrt((x - mean).square().mean(1, keepdim=True) + 1e-5)
        return (x - mean) / scale, mean, scale


class Standardising(nn.Module):
    """Passes on what a module without weights returns besides."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler, self.linear = Scaler(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, mean, scale = self.scaler(x)
        return torch.tanh(self.linear(x)), mean, scale


class Rescaled(nn.Module):
    """Takes the standardisation of a module inside back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Standardising(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, mean, scale = self.inner(x)
        return self.head(x) * scale + mean


def _inputs(*sizes: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(*sizes, 5, 8, generator=torch.Generator().manual_seed(sum(sizes))),)


PAIRS = [
    (kind, exporter)
    for kind in (Shifted, Own, Normalised, Padded, Crossed, Penalised, Rescaled)
    for exporter in sorted(EXPORTERS)
    if (kind, exporter) != (Padded, "dynamo")  # the newer exporter itself writes padding as the convolution's
]


@pytest.mark.parametrize(("kind", "exporter"), PAIRS)
def test_each_module_computes_what_its_author_wrote(kind: type[nn.Module], exporter: str) -> None:
    """Called alone, with the arguments of the original's call."""
    original = seeded(lambda: Held(kind()))
    path = EXPORTERS[exporter](f"callers-{kind.__name__}", original, _inputs(2), _inputs(3))
    module, inputs = onnx2nn.load(path), _inputs(4)
    check_same(run(module, inputs), run(original, inputs), "the network")
    calls: list[tuple[str, Any, Any]] = []
    for name, inner in original.named_modules():
        inner.register_forward_hook(lambda _, given, result, name=name: calls.append((name, given, result)))
    run(original, inputs)
    found = {name for name, _ in module.named_modules()}
    assert found >= {name for name, _, _ in calls}
    for name, given, result in calls:
        expected = result if isinstance(result, tuple) else (result,)
        check_same(run(module.get_submodule(name), given), expected, f"{name or 'the network'} alone")
    if kind is not Crossed:  # the exporters fold the parts of its weights
        module.load_state_dict(original.state_dict(), strict=True)


class Positions(nn.Embedding):
    """A table that bounds the positions, and looks up rows without that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.clamp(0, 5))

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Streams(nn.Module):
    """Uses a table both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Positions(9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x) * 2 + self.table.rows(x + 1)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_what_others_look_up_in_the_table_of_a_module_is_no_call_of_it(exporter: str) -> None:
    original = seeded(lambda: Held(Streams()))
    inputs = [(torch.arange(3 * n).reshape(n, 3) % 8,) for n in (2, 3, 4)]
    module = onnx2nn.load(EXPORTERS[exporter]("streams", original, *inputs[:2]))
    (ours, _), (theirs, _) = (calls_of(one, inputs[2]) for one in (module, original))
    check_same(run(module, inputs[2]), run(original, inputs[2]), "the network")
    for name, calls in theirs.items():
        assert close([result for _, result in ours[name]], [result for _, result in calls]), name
    module.load_state_dict(original.state_dict(), strict=True)
