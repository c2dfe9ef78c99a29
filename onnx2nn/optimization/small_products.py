"""Products of few rows, or pixels, and a matrix by torch's BLAS, where that takes less time than oneDNN.

oneDNN has to find a kernel in each call, and reads packed weights slower for a single row.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.optimization.activations import NO_ACTIVATION, Activation
from onnx2nn.optimization.timing import fastest

_LARGE = 1 << 23
"""From this number of multiplications on, finding a kernel takes no noticeable part of the time."""

_SECONDS = 0.002
"""After them, the least number of measurements is enough."""


class RowProduct:
    """Rows times a matrix, plus a bias, and the activation of it.

    Args:
        weight: `(outputs, inputs)`, float32; it is not copied.
        activation: of the result, or None.
    """

    __slots__ = ("_activate", "_weight")

    def __init__(self, weight: torch.Tensor, activation: Activation | None):
        self._weight, self._activate = weight, None if activation is None else _in_place(activation)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Returns the result for `(..., inputs)`."""
        y = F.linear(x, self._weight, bias)
        return y if self._activate is None else self._activate(y)


class PixelProduct:
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
        rows = x.flatten(1) if height == width == 1 else x.permute(0, 2, 3, 1).reshape(-1, channels)
        y = torch.mm(rows, self._columns) if bias is None else torch.addmm(bias, rows, self._columns)
        if added is not None:
            y += added.permute(0, 2, 3, 1).reshape(y.shape)
        if self._activate is not None:
            y = self._activate(y)
        if height == width == 1:
            return y.view(images, -1, 1, 1)
        return y.view(images, height, width, -1).permute(0, 3, 1, 2)


def _in_place(activation: Activation) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns an activation that works in the memory that it is given, where there is one."""
    layer: Any = copy.copy(activation.layer)
    if hasattr(layer, "inplace"):
        layer.inplace = True
    return layer.forward  # type: ignore[no-any-return]  # of an activation


def multiplies_rows(rows: int, weight: Sequence[int], activation: Activation | None) -> bool:
    """Returns whether `RowProduct` takes less time than oneDNN's product, as measured on ones.

    Args:
        rows: how many; numbers of as many bits are taken for one.
        weight: the shape of the matrix, `(outputs, inputs)`.
        activation: behind it.
    """
    return rows * weight[0] * weight[1] < _LARGE and _rows_are_faster(rows.bit_length(), *weight, activation)


def multiplies_pixels(pixels: int, weight: Sequence[int], activation: Activation | None) -> bool:
    """Returns whether `PixelProduct` takes less time than oneDNN's convolution, as measured on ones.

    Args:
        pixels: how many; numbers of as many bits are taken for one.
        weight: the shape of the weight, `(outputs, inputs, 1, 1)`.
        activation: behind it.
    """
    return pixels * weight[0] * weight[1] < _LARGE and _pixels_are_faster(pixels.bit_length(), *weight[:2], activation)


@functools.lru_cache(maxsize=4096)
def _rows_are_faster(bits: int, outputs: int, inputs: int, activation: Activation | None) -> bool:
    weight, bias = torch.ones(outputs, inputs), torch.ones(outputs)
    packed, fused = torch.ops.mkldnn._reorder_linear_weight(weight), NO_ACTIVATION
    if activation is not None:
        fused = activation.of_kernel
    kernel, product = torch.ops.mkldnn._linear_pointwise.default, RowProduct(weight, activation)
    x = torch.ones(1 << bits - 1, inputs)
    return _is_first_faster(lambda: product(x, bias), lambda: kernel(x, packed, bias, *fused))


@functools.lru_cache(maxsize=4096)
def _pixels_are_faster(bits: int, outputs: int, inputs: int, activation: Activation | None) -> bool:
    height, width = 1 << (bits - 1) // 2, 1 << bits // 2
    x = torch.ones(1, inputs, height, width).contiguous(memory_format=torch.channels_last)
    weight, bias, window = torch.ones(outputs, inputs, 1, 1), torch.ones(outputs), ([0, 0], [1, 1], [1, 1], 1)
    packed, fused = torch.ops.mkldnn._reorder_convolution_weight(weight, *window, list(x.shape)), NO_ACTIVATION
    if activation is not None:
        fused = activation.of_kernel
    kernel, product = torch.ops.mkldnn._convolution_pointwise.default, PixelProduct(weight.flatten(1), activation)
    return _is_first_faster(lambda: product(x, bias, None), lambda: kernel(x, packed, bias, *window, *fused))


def _is_first_faster(first: Callable[[], Any], second: Callable[[], Any]) -> bool:
    with torch.no_grad():
        times = fastest((first, second), _SECONDS)
    return times[first] < times[second]
