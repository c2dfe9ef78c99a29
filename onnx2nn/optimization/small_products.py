"""Products of pixels and a matrix by torch's BLAS, where oneDNN takes more time, which has to find a kernel."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from onnx2nn.optimization.timing import fastest

if TYPE_CHECKING:
    from onnx2nn.optimization.packed_layers import Activation

_LARGE = 1 << 24
"""From this number of multiplications on, finding a kernel takes no noticeable part of the time."""

_SECONDS = 0.002
"""After them, the least number of measurements is enough."""


class Product:
    """Pixels times a matrix, plus a bias and another tensor, and the activation of it.

    Args:
        weight: `(outputs, inputs)`, float32; it is not copied.
        activation: of the result, or None.
    """

    __slots__ = ("_activate", "_columns")

    def __init__(self, weight: torch.Tensor, activation: Activation | None):
        self._columns, self._activate = weight.t(), None if activation is None else _in_place(activation)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None, added: torch.Tensor | None) -> torch.Tensor:
        """Returns the result for `(N, inputs, H, W)`, in the memory format `channels_last`."""
        images, channels, height, width = x.shape
        rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
        y = torch.mm(rows, self._columns) if bias is None else torch.addmm(bias, rows, self._columns)
        if added is not None:
            y += added.permute(0, 2, 3, 1).reshape(y.shape)
        if self._activate is not None:
            y = self._activate(y)
        return y.view(images, height, width, -1).permute(0, 3, 1, 2)


def _in_place(activation: Activation) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns an activation that works in the memory that it is given, where there is one."""
    layer: Any = copy.copy(activation.layer)
    if hasattr(layer, "inplace"):
        layer.inplace = True
    return layer.forward  # type: ignore[no-any-return]  # of an activation


def multiplies_pixels(pixels: int, weight: Sequence[int], activation: Activation | None) -> bool:
    """Returns whether `Product` takes less time than oneDNN's convolution, see `_pixels_are_faster`."""
    return pixels * weight[0] * weight[1] < _LARGE and _pixels_are_faster(pixels.bit_length(), *weight[:2], activation)


@functools.lru_cache(maxsize=4096)
def _pixels_are_faster(bits: int, outputs: int, inputs: int, activation: Activation | None) -> bool:
    """Measures layers of ones, for numbers of pixels of as many bits together."""
    height, width = 1 << (bits - 1) // 2, 1 << bits // 2
    x = torch.ones(1, inputs, height, width).contiguous(memory_format=torch.channels_last)
    weight, bias, window = torch.ones(outputs, inputs, 1, 1), torch.ones(outputs), ([0, 0], [1, 1], [1, 1], 1)
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *window, list(x.shape))
    kernel = torch.ops.mkldnn._convolution_pointwise.default
    fused: Any = ("none", (), "") if activation is None else activation.of_kernel
    product = Product(weight.flatten(1), activation)

    def by_kernel(x: torch.Tensor) -> None:
        kernel(x, packed, bias, *window, *fused)

    def by_product(x: torch.Tensor) -> None:
        product(x, bias, None)

    with torch.no_grad():
        times = fastest((by_kernel, by_product), x, _SECONDS)
    return times[by_product] < times[by_kernel]
