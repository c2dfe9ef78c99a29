"""Models that real exporters wrote with a batch of 1: with a free batch each sample has its own result of the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision_schemas  # noqa: F401
from realmodels import EXPORTERS, seeded
from torch import nn


class Crnn(nn.Module):
    """The text recogniser of Shi, Bai and Yao (2015): convolutions, columns as a sequence, two bidirectional LSTMs.

    Between the LSTMs, time and batch are merged for a linear layer and split again, as in the authors' code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d((4, 1)),
            nn.Conv2d(16, 16, (4, 1)),
        )
        self.first = nn.LSTM(16, 12, bidirectional=True)
        self.between = nn.Linear(24, 12)
        self.second = nn.LSTM(12, 12, bidirectional=True)
        self.head = nn.Linear(24, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolutions(x).squeeze(2).permute(2, 0, 1)
        for recurrent, linear in ((self.first, self.between), (self.second, self.head)):
            y, _ = recurrent(y)
            time, batch, size = y.shape
            y = linear(y.view(time * batch, size)).view(time, batch, -1)
        return y


class ColumnsAsRows(nn.Module):
    """A recogniser whose columns are rows of a matrix, `[T, C * H]`, between convolutions and recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3, (2, 4), 1)
        self.embed = nn.Linear(64, 16)
        self.recurrent = nn.GRU(16, 8, bidirectional=True)
        self.head = nn.Linear(16, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.convolution(x)).permute(3, 0, 1, 2)
        rows = y.reshape(y.shape[0] * y.shape[1], -1)
        y = self.embed(rows).view(y.shape[0], y.shape[1], 16)
        return self.head(self.recurrent(y)[0]).log_softmax(2)
