"""Models whose layers NCNN has, small: of torchvision, a detector, a recurrent network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from realmodels import export_dynamo, export_torchscript, seeded
from torch import nn

import onnx2nn
from onnx2nn.output.ncnn import NcnnModel
from scripts import torchvision_schemas

torchvision_schemas.predefine()
import torchvision  # noqa: E402  # after the line above, without which it does not load

DIGITS = Path(__file__).parents[1] / "examples" / "digits"
IMAGE = (torch.linspace(-1, 1, 3 * 64 * 64).reshape(1, 3, 64, 64),)


class Recurrent(nn.Module):
    """Words, a stack of two LSTM layers with their states, scores of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.rnn = nn.LSTM(8, 12, num_layers=2)
        self.scores = nn.Linear(12, 20)

    def forward(self, words: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output, (hidden, cell) = self.rnn(self.words(words), (hidden, cell))
        return self.scores(output), hidden, cell


class Detector(nn.Module):
    """Two scales, the coarse one enlarged and joined; boxes and scores of all cells in one list, as YOLO's head."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 16, 3, 4, 1), nn.BatchNorm2d(16), nn.SiLU())
        self.coarse = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.SiLU())
        self.up = nn.Upsample(scale_factor=2)
        self.heads = nn.ModuleList([nn.Conv2d(48, 9, 1), nn.Conv2d(32, 9, 1)])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        fine = self.fine(image)
        coarse = self.coarse(fine)
        levels = torch.cat([fine, self.up(coarse)], 1), coarse
        cells = [head(level).flatten(2) for head, level in zip(self.heads, levels, strict=True)]
        box, score = torch.cat(cells, 2).split([4, 5], 1)
        centre, size = box.chunk(2, 1)
        return torch.cat([centre - size / 2, centre + size / 2, torch.sigmoid(score)], 1)


def convert(path: Path, folder: Path) -> NcnnModel:
    return onnx2nn.to_ncnn(onnx2nn.load(path), folder)


def vision(name: str) -> nn.Module:
    return seeded(lambda: getattr(torchvision.models, name)(weights=None, num_classes=10))


MODELS: dict[str, Callable[[], Path]] = {
    "mobilenet_v3": lambda: export_dynamo("ncnn_mobilenet_v3", vision("mobilenet_v3_small"), IMAGE),
    "shufflenet_v2": lambda: export_torchscript("ncnn_shufflenet_v2", vision("shufflenet_v2_x0_5"), IMAGE),
    "detector": lambda: export_torchscript("ncnn_detector", seeded(Detector), IMAGE),
    "recurrent": lambda: export_torchscript(
        "ncnn_recurrent", seeded(Recurrent), (torch.arange(7).reshape(7, 1), torch.rand(2, 1, 12), torch.rand(2, 1, 12))
    ),
}
