"""Models of torch.onnx's own tests: a word language model, DCGAN's halves, super-resolution."""

from __future__ import annotations

import itertools

import torch
from torch import nn


class WordLanguageModel(nn.Module):
    """Embedding, two LSTM layers, linear decoder: torch's word language model, its state going in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 24, num_layers=2)
        self.decoder = nn.Linear(24, 50)

    def forward(
        self, tokens: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns logarithms of probabilities `(steps, batch, 50)` and the state, for tokens and a state."""
        output, (hidden, cell) = self.rnn(self.encoder(tokens), (hidden, cell))
        return self.decoder(output).log_softmax(-1), hidden, cell


class Generator(nn.Module):
    """DCGAN's generator: noise to an image by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = [20, 32, 16, 8]
        for index, (before, after) in enumerate(itertools.pairwise(channels)):
            stride, padding = (1, 0) if index == 0 else (2, 1)
            layers += [nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False), nn.BatchNorm2d(after)]
            layers.append(nn.ReLU(True))
        self.main = nn.Sequential(*layers, nn.ConvTranspose2d(channels[-1], 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Returns images `(batch, 3, 32, 32)` for noise `(batch, 20, 1, 1)`."""
        return self.main(noise)


class Discriminator(nn.Module):
    """DCGAN's discriminator: an image to one probability."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        layers += [nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True)]
        self.main = nn.Sequential(*layers, nn.Conv2d(16, 1, 8, 1, 0, bias=False), nn.Sigmoid())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns probabilities `(batch)` for images `(batch, 3, 32, 32)`."""
        return self.main(image).view(-1, 1).squeeze(1)


class SuperResolution(nn.Module):
    """Torch's super-resolution example: convolutions and a pixel shuffle."""

    def __init__(self, factor: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 64, 5, 1, 2)
        self.conv2 = nn.Conv2d(64, 64, 3, 1, 1)
        self.conv3 = nn.Conv2d(64, 32, 3, 1, 1)
        self.conv4 = nn.Conv2d(32, factor**2, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(factor)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns an image of `factor` times the size, for one `(batch, 1, height, width)`."""
        x = torch.relu(self.conv1(image))
        x = torch.relu(self.conv2(x))
        return self.pixel_shuffle(self.conv4(torch.relu(self.conv3(x))))
