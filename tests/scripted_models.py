"""Loops and branches written in PyTorch and scripted: the models, and their files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from realmodels import Tensors, seeded
from torch import nn


class RepeatedLayer(nn.Module):
    """A layer applied as often as the second input says."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            x = torch.tanh(self.linear(x))
        return x


class RepeatedProduct(nn.Module):
    """A product with a parameter of the module's own, as often as the second input says."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.linspace(-0.5, 0.5, 16).reshape(4, 4))

    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            x = x + torch.tanh(x @ self.mix)
        return x


class DecayingSum(nn.Module):
    """A loop over the rows, whose count is a size of the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[0])
        for row in range(x.size(0)):
            total = total * 0.5 + x[row]
        return total


class HalvedUntilSmall(nn.Module):
    """A loop that ends when a condition on the data does; its second output counts the rounds."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rounds = torch.zeros((), dtype=torch.int64)
        while bool(x.abs().max() > 1.0):
            x = x * 0.5
            rounds = rounds + 1
        return x, rounds


class Branch(nn.Module):
    """Two branches of which the data chooses one; each captures the outer value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            y = x * 2
        else:
            y = x - 1
        return y


class Experts(nn.Module):
    """Layers in branches and in a branch of a branch; `shared` is used around them too."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.cold, self.warm, self.hot = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.shared(x)
        if bool(x.sum() > 0):
            if bool(x.sum() > 10):
                z = self.hot(y)
            else:
                z = self.warm(y)
        else:
            z = self.shared(self.cold(y))
        return z


class Rates(nn.Module):
    """A recurrent network for each of two sampling rates, as voice detectors have them."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = nn.LSTM(4, 3), nn.LSTM(4, 3)

    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        x = x.unsqueeze(1)
        if count == 16:
            y = self.fast(x)[0]
        else:
            y = self.slow(x)[0]
        return y


class Listener(nn.Module):
    """Looks at one frame of sound; scripted, `squeeze` is an If of the number of frames."""

    def __init__(self, frame: int) -> None:
        super().__init__()
        self.filters, self.memory = nn.Conv1d(1, 4, frame, frame // 2), nn.LSTM(4, 3)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.filters(x.unsqueeze(1)).relu().squeeze(-1)
        _, (h, c) = self.memory(seen.unsqueeze(0), (state[:1], state[1:]))
        return h.sum(-1), torch.cat([h, c])


class VoiceDetector(nn.Module):
    """For two sampling rates, each with frames of its own; a file of it declares one open length for both."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = Listener(32), Listener(12)

    def forward(self, x: torch.Tensor, state: torch.Tensor, rate: int) -> tuple[torch.Tensor, torch.Tensor]:
        if rate == 16:
            y = self.fast(x, state)
        else:
            y = self.slow(x, state)
        return y


def _ramp(rows: int, scale: float = 1.0) -> torch.Tensor:
    return torch.linspace(-1, 2, rows * 4).reshape(rows, 4) * scale


SCRIPTED: dict[str, tuple[Callable[[], nn.Module], list[Tensors]]] = {
    "repeated_layer": (
        RepeatedLayer,
        [(_ramp(2), torch.tensor(3)), (_ramp(3), torch.tensor(0)), (_ramp(1), torch.tensor(9))],
    ),
    "repeated_product": (RepeatedProduct, [(_ramp(2), torch.tensor(3)), (_ramp(3), torch.tensor(0))]),
    "decaying_sum": (DecayingSum, [(_ramp(3),), (_ramp(1),), (_ramp(6),)]),
    "halved_until_small": (HalvedUntilSmall, [(_ramp(3),), (_ramp(2, 0.1),), (_ramp(5, 99.0),)]),
    "rates": (Rates, [(_ramp(3), torch.tensor(16)), (_ramp(5), torch.tensor(8))]),
    "experts": (Experts, [(_ramp(3, 0.1),), (_ramp(3, -1.0),), (_ramp(5, 9.0),)]),
    "branch": (Branch, [(_ramp(3),), (_ramp(3, -1.0),), (_ramp(5, -2.0),)]),
}


def script(name: str, folder: Path) -> tuple[nn.Module, Path]:
    """Exports by the TorchScript exporter, which alone writes Python loops as Loop nodes."""
    build, calls = SCRIPTED[name]
    model = seeded(build)
    path = folder / f"{name}.onnx"
    names = ["x", "count"][: len(calls[0])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(model)
        torch.onnx.export(
            scripted, calls[0], str(path), dynamo=False, input_names=names, dynamic_axes={"x": {0: "rows"}}
        )
    return model, path


def sound(batch: int, length: int, rate: int) -> Tensors:
    wave = torch.linspace(-1, 2, batch * length).reshape(batch, length).sin()
    return wave, torch.linspace(-1, 1, 6 * batch).reshape(2, batch, 3), torch.tensor(rate)


def export_voice(folder: Path) -> Path:
    """Exports a detector for two rates with one open length."""
    path = folder / "voice.onnx"
    axes = {"x": {0: "batch", 1: "length"}, "state": {1: "states"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(seeded(VoiceDetector))
        torch.onnx.export(
            scripted, sound(2, 40, 16), str(path), dynamo=False, input_names=["x", "state", "rate"], dynamic_axes=axes
        )
    return path
