"""Teaches a network, whose ONNX file begins with the spectrogram, to tell five sounds of pygame apart in noise.

python examples/sounds.py    # a minute; needs onnx2nn[all] and pygame-ce, which brings the sounds
"""

from __future__ import annotations

import importlib.util
import wave
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import onnx2nn

SOUNDS = ["boom", "car_door", "house_lo", "punch", "whiff"]  # 8 bits, 11,025 samples a second
LENGTH = 1024  # samples of a piece, about a tenth of a second


class Listener(nn.Module):
    """A piece of sound, (N, 1024), as a spectrogram, which two convolutions see: the scores of five sounds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(65, 24, 3), nn.Conv1d(24, 24, 3)
        self.head = nn.Linear(24, len(SOUNDS))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """Returns the scores."""
        window = torch.hann_window(128)
        spectrum = torch.stft(sound, 128, 64, window=window, center=False, return_complex=True).abs()  # (N, 65, 15)
        x = self.second(self.first(spectrum.clamp(min=1e-2).log()).relu()).relu()
        return self.head(x.amax(2))


def read(name: str) -> torch.Tensor:
    """Returns a sound of pygame's examples, mean 0 and deviation 1."""
    folder = Path(importlib.util.find_spec("pygame").origin).parent / "examples" / "data"  # without starting pygame
    with wave.open(str(folder / f"{name}.wav")) as file:
        samples = torch.tensor(list(file.readframes(file.getnframes())), dtype=torch.float32)
    return (samples - samples.mean()) / samples.std()


def pieces(sounds: list[torch.Tensor], count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns pieces of sounds with noise, (count, 1024), and which sound each is of."""
    labels = torch.randint(len(sounds), (count,), generator=generator)
    starts = [int(torch.randint(len(sounds[i]) - LENGTH, (), generator=generator)) for i in labels]
    clean = torch.stack([sounds[i][start : start + LENGTH] for i, start in zip(labels, starts, strict=True)])
    return clean + 0.1 * torch.randn(clean.shape, generator=generator), labels


def main(written: str = "listener.onnx", steps: int = 150) -> dict[str, float]:
    """Writes the untrained network as ONNX, imports and trains it, writes it again; returns the accuracies."""
    sounds, generator = [read(name) for name in SOUNDS], torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    some, batch = torch.zeros(2, LENGTH), torch.export.Dim("batch")
    torch.onnx.export(Listener().eval(), (some,), written, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    model = onnx2nn.load(written)
    heard, answers = pieces(sounds, 300, generator)

    def accuracy() -> float:
        with torch.no_grad():
            return (model(heard).argmax(1) == answers).float().mean().item()

    before = accuracy()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(steps):
        given, labels = pieces(sounds, 64, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(given), labels).backward()
        optimizer.step()
    after = accuracy()
    print(f"{before:.0%} of the pieces right before, {after:.0%} after")
    print(onnx2nn.export_onnx(model, written))
    return {"before": before, "after": after}


if __name__ == "__main__":
    main()
