"""YOLOv5, the detector that torchvision does not have."""

from __future__ import annotations

import torch
from torch import nn


class Convolution(nn.Sequential):
    """A convolution without bias, its batch normalisation and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding: int | None = None) -> None:
        padding = kernel // 2 if padding is None else padding
        layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        super().__init__(layer, nn.BatchNorm2d(outputs, eps=1e-3), nn.SiLU())


class Bottleneck(nn.Module):
    """Two convolutions, around which the input may go."""

    def __init__(self, channels: int, residual: bool) -> None:
        super().__init__()
        self.first, self.second = Convolution(channels, channels), Convolution(channels, channels, 3)
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns features of the input's shape."""
        y: torch.Tensor = self.second(self.first(x))
        return x + y if self.residual else y


class CrossStage(nn.Module):
    """Half of the channels through bottlenecks, half past them (C3)."""

    def __init__(self, inputs: int, outputs: int, depth: int = 1, residual: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.through, self.past = Convolution(inputs, half), Convolution(inputs, half)
        self.bottlenecks = nn.Sequential(*(Bottleneck(half, residual) for _ in range(depth)))
        self.joined = Convolution(2 * half, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns features `(batch, outputs, height, width)`."""
        y: torch.Tensor = self.joined(torch.cat((self.bottlenecks(self.through(x)), self.past(x)), 1))
        return y


class SpatialPyramid(nn.Module):
    """Three pools in a row, each of whose results is kept (SPPF)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduced, self.joined = Convolution(channels, channels // 2), Convolution(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns features of the input's shape."""
        steps = [self.reduced(x)]
        for _ in range(3):
            steps.append(self.pool(steps[-1]))
        y: torch.Tensor = self.joined(torch.cat(steps, 1))
        return y


class Detect(nn.Module):
    """Boxes of three levels, in pixels."""

    STRIDES = (8, 16, 32)
    ANCHORS = (
        ((10, 13), (16, 30), (33, 23)),
        ((30, 61), (62, 45), (59, 119)),
        ((116, 90), (156, 198), (373, 326)),
    )

    def __init__(self, channels: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.values = 5 + classes
        self.heads = nn.ModuleList(nn.Conv2d(wide, 3 * self.values, 1) for wide in channels)
        self.register_buffer("anchors", torch.tensor(self.ANCHORS, dtype=torch.float32))

    def forward(self, levels: list[torch.Tensor]) -> torch.Tensor:
        """Returns `(batch, boxes, 5 + classes)`: centre, size, whether it is an object, and its classes."""
        found = []
        for level, (head, x) in enumerate(zip(self.heads, levels, strict=True)):
            batch, _, height, width = x.shape
            y = head(x).view(batch, 3, self.values, height, width).permute(0, 1, 3, 4, 2).sigmoid()
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            cells = torch.stack((columns, rows), -1).to(y.dtype)
            centre = (y[..., :2] * 2 - 0.5 + cells) * self.STRIDES[level]
            size = (y[..., 2:4] * 2) ** 2 * self.anchors[level].view(1, 3, 1, 1, 2)
            found.append(torch.cat((centre, size, y[..., 4:]), -1).reshape(batch, -1, self.values))
        return torch.cat(found, 1)


class YOLOv5(nn.Module):
    """YOLOv5 6.0 (Jocher et al. 2021): a backbone, features of its levels up and down again, boxes.

    Args:
        classes: of objects.
        width: channels, relative to the largest model's; 0.5 is YOLOv5s.
        depth: bottlenecks, relative to the largest model's; 0.33 is YOLOv5s.
    """

    def __init__(self, classes: int, width: float = 0.5, depth: float = 0.33) -> None:
        super().__init__()
        a, b, c, d, e = (int(channels * width) for channels in (64, 128, 256, 512, 1024))
        one, two, three = (max(round(count * depth), 1) for count in (3, 6, 9))
        self.stem = nn.Sequential(Convolution(3, a, 6, 2, 2), Convolution(a, b, 3, 2), CrossStage(b, b, one))
        self.small = nn.Sequential(Convolution(b, c, 3, 2), CrossStage(c, c, two))
        self.middle = nn.Sequential(Convolution(c, d, 3, 2), CrossStage(d, d, three))
        self.large = nn.Sequential(Convolution(d, e, 3, 2), CrossStage(e, e, one), SpatialPyramid(e))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.from_large, self.at_middle = Convolution(e, d), CrossStage(2 * d, d, one, False)
        self.from_middle, self.at_small = Convolution(d, c), CrossStage(2 * c, c, one, False)
        self.to_middle, self.middle_again = Convolution(c, c, 3, 2), CrossStage(2 * c, d, one, False)
        self.to_large, self.large_again = Convolution(d, d, 3, 2), CrossStage(2 * d, e, one, False)
        self.detect = Detect((c, d, e), classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns boxes as `Detect` does, for images whose height and width are multiples of 32."""
        small = self.small(self.stem(image))
        middle = self.middle(small)
        large = self.from_large(self.large(middle))
        middle = self.from_middle(self.at_middle(torch.cat((self.up(large), middle), 1)))
        small = self.at_small(torch.cat((self.up(middle), small), 1))
        middle = self.middle_again(torch.cat((self.to_middle(small), middle), 1))
        large = self.large_again(torch.cat((self.to_large(middle), large), 1))
        boxes: torch.Tensor = self.detect([small, middle, large])
        return boxes
