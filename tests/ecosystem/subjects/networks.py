"""Networks that no library has in this size: a U-Net and a tagger."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Stage(nn.Module):
    """A convolution, a normalisation and an activation of the U-Net."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x)))


class UNet(nn.Module):
    """Two stages down, one at the bottom, two up, with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = Stage(3, 8), Stage(8, 16), Stage(16, 16)
        self.pool1, self.pool2 = nn.MaxPool2d(2), nn.MaxPool2d(2)
        self.expand = nn.ConvTranspose2d(16, 16, 2, 2)
        self.up2, self.up1 = Stage(32, 8), Stage(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(self.pool1(first))
        bottom = self.bottom(self.pool2(second))
        up = self.up2(torch.cat([self.expand(bottom), second], 1))
        up = functional.interpolate(up, scale_factor=2.0, mode="nearest")
        return self.head(self.up1(torch.cat([up, first], 1)))


class Head(nn.Module):
    """The tagger's classifier of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(32, 32)
        self.act = nn.Tanh()
        self.out = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.act(self.hidden(x)))


class Tagger(nn.Module):
    """Embedding, bidirectional LSTM, classifier: a tag for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.head = Head()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states)
