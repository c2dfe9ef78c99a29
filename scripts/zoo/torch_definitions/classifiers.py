"""Image classifiers that torchvision does not have: MobileNet V1, ShuffleNet V1, SENet."""

from __future__ import annotations

import torch
from torch import nn


def _convolution(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the size but for its stride, and its batch normalisation."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


def _head(features: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


class MobileNetV1(nn.Module):
    """Depthwise separable convolutions (Howard et al. 2017).

    Args:
        classes: outputs.
        width: channels, relative to the paper's.
    """

    STAGES = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))

    def __init__(self, classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels = int(32 * width)
        layers = [_convolution(3, channels, 3, 2), nn.ReLU()]
        for wide, stride in self.STAGES:
            outputs = int(wide * width)
            layers += [_convolution(channels, channels, 3, stride, channels), nn.ReLU()]
            layers += [_convolution(channels, outputs), nn.ReLU()]
            channels = outputs
        self.features = nn.Sequential(*layers)
        self.head = _head(channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the classes' scores, `(N, classes)`, of images `(N, 3, H, W)`."""
        return self.head(self.features(image))


class ShuffleUnit(nn.Module):
    """Grouped convolutions with a channel shuffle between them; at stride 2 the input is pooled and joined."""

    def __init__(self, inputs: int, outputs: int, groups: int, stride: int) -> None:
        super().__init__()
        self.groups = groups
        inner = outputs // 4
        added = outputs - inputs if stride == 2 else outputs
        self.reduce = _convolution(inputs, inner, groups=groups)
        self.spread = _convolution(inner, inner, 3, stride, inner)
        self.expand = _convolution(inner, added, groups=groups)
        self.pool = nn.AvgPool2d(3, 2, 1) if stride == 2 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the unit's features, `(N, outputs, H, W)`, at stride 2 of half the height and width."""
        y = self.reduce(x).relu()
        y = y.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        y = self.expand(self.spread(y))
        return (x + y if self.pool is None else torch.cat([self.pool(x), y], 1)).relu()


class ShuffleNetV1(nn.Module):
    """Channel shuffles between grouped convolutions (Zhang et al. 2017), of 3 groups."""

    def __init__(self, classes: int, channels: int = 240, units: tuple[int, ...] = (4, 8, 4)) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, 24, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        layers: list[nn.Module] = []
        before = 24
        for count in units:
            layers += [ShuffleUnit(before, channels, 3, 2)]
            layers += [ShuffleUnit(channels, channels, 3, 1) for _ in range(count - 1)]
            before, channels = channels, 2 * channels
        self.stages = nn.Sequential(*layers)
        self.head = _head(before, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the classes' scores, `(N, classes)`, of images `(N, 3, H, W)`."""
        return self.head(self.stages(self.stem(image)))


class SqueezeExcitation(nn.Module):
    """A residual unit of two convolutions whose channels are weighted by what they hold on average."""

    def __init__(self, inputs: int, outputs: int, stride: int, reduction: int = 8) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(inputs, outputs, 3, stride), nn.ReLU(), _convolution(outputs, outputs, 3)
        )
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(outputs, outputs // reduction, 1),
            nn.ReLU(),
            nn.Conv2d(outputs // reduction, outputs, 1),
            nn.Sigmoid(),
        )
        self.shortcut = _convolution(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the unit's features, `(N, outputs, H, W)`."""
        y = self.residual(x)
        return (self.shortcut(x) + y * self.weigh(y)).relu()


class SENet(nn.Module):
    """A residual network of 18 layers with squeeze and excitation (Hu et al. 2017)."""

    def __init__(self, classes: int, channels: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, channels, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        units: list[nn.Module] = []
        before = channels
        for stage in range(4):
            outputs = channels << stage
            units += [SqueezeExcitation(before, outputs, 2 if stage else 1), SqueezeExcitation(outputs, outputs, 1)]
            before = outputs
        self.stages = nn.Sequential(*units)
        self.head = _head(before, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the classes' scores, `(N, classes)`, of images `(N, 3, H, W)`."""
        return self.head(self.stages(self.stem(image)))
