"""U-Net: a contracting and an expanding path joined by skip connections (Ronneberger, Fischer and Brox 2015)."""

from __future__ import annotations

from itertools import pairwise

import paddle
from paddle import nn
from paddle.nn import functional


def double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3 by 3 convolutions, each with batch normalization and ReLU, that keep the image's size."""
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2D(channels, outputs, 3, padding=1, bias_attr=False), nn.BatchNorm2D(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Layer):
    """Gives `classes` scores to every pixel.

    Args:
        classes: number of output channels.
        width: channels of the first level; each of the four levels below doubles them. The paper's is 64.
        learned: whether the expanding path doubles the size by transposed convolutions, as in the paper, or by bilinear
            interpolation to the size of the skip connection, which allows sizes that are no multiple of 16.
    """

    def __init__(self, classes: int, width: int = 64, learned: bool = True) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.first = double_convolution(3, width)
        self.down = nn.LayerList([double_convolution(*pair) for pair in pairwise(widths)])
        rising = list(pairwise(reversed(widths)))
        self.learned = learned
        if learned:
            self.grow = nn.LayerList([nn.Conv2DTranspose(deep, shallow, 2, 2) for deep, shallow in rising])
        else:
            self.grow = nn.LayerList([nn.Conv2D(deep, shallow, 1) for deep, shallow in rising])
        self.up = nn.LayerList([double_convolution(2 * shallow, shallow) for _, shallow in rising])
        self.classify = nn.Conv2D(width, classes, 1)

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        """Maps images `(N, 3, H, W)` to scores `(N, classes, H, W)`."""
        levels = [self.first(image)]
        for block in self.down:
            levels.append(block(functional.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for grow, block in zip(self.grow, self.up):  # noqa: B905 (Paddle's tracer does not know `strict`)
            skip = levels.pop()
            x = grow(x)
            if not self.learned:
                x = functional.interpolate(x, size=paddle.shape(skip)[2:], mode="bilinear", align_corners=False)
            x = block(paddle.concat([skip, x], axis=1))
        return self.classify(x)
