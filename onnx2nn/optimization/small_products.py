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

_MANY_PIXELS = 1 << 19
"""The same for pixels: larger ones gain less in a network than noise adds to the measurement."""

_CLEARLY = 0.8
"""The share of oneDNN's time up to which BLAS is taken: between other layers it gains less than by itself."""

_SECONDS = 0.002
"""After them, the least number of measurements is enough."""


Activate = Callable[[torch.Tensor], torch.Tensor]


def multiply_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activate: Activate | None
) -> torch.Tensor:
    """Returns rows times a matrix, plus a bias, and the activation of it.

    Args:
        x: `(..., inputs)`, float32.
        weight: `(outputs, inputs)`.
        bias: `(outputs,)` or None.
        activate: the activation or None, see `in_place`.
    """
    y = F.linear(x, weight, bias)
    return y if activate is None else activate(y)


def multiply_pixels(
    x: torch.Tensor,
    columns: torch.Tensor,
    bias: torch.Tensor | None,
    activate: Activate | None,
    added: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns pixels times a matrix, plus a bias and another tensor, and the activation of it.

    Args:
        x: `(N, inputs, H, W)`, float32.
        columns: `(inputs, outputs)`.
        bias: `(outputs,)` or None.
        activate: the activation or None, see `in_place`.
        added: of the result's shape, or None.

    Returns:
        `(N, outputs, H, W)`, in the memory format `channels_last`.
    """
    images, channels, height, width = x.shape
    rows = x.flatten(1) if height == width == 1 else x.permute(0, 2, 3, 1).reshape(-1, channels)
    y = torch.mm(rows, columns) if bias is None else torch.addmm(bias, rows, columns)
    if added is not None:
        y += added.permute(0, 2, 3, 1).reshape(y.shape)
    if activate is not None:
        y = activate(y)
    if height == width == 1:
        return y.view(images, -1, 1, 1)
    return y.view(images, height, width, -1).permute(0, 3, 1, 2)


def multiply_pixels_packed(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *fused: Any
) -> torch.Tensor:
    """Returns pixels times a matrix, plus a bias, and the activation of it, by oneDNN.

    Args:
        x: `(N, inputs, H, W)`, float32.
        weight: `(outputs, inputs)`, as oneDNN packs it.
        bias: `(outputs,)` or None.
        fused: the activation, see `Activation.of_kernel`.

    Returns:
        `(N, outputs, H, W)`, in the memory format `channels_last`.
    """
    y = torch.ops.mkldnn._linear_pointwise.default(x.permute(0, 2, 3, 1), weight, bias, *fused)
    return y.permute(0, 3, 1, 2)  # type: ignore[no-any-return]  # a tensor


def in_place(activation: Activation | None) -> Activate | None:
    """Returns the function of an activation, which works in the memory that it is given, where it can."""
    if activation is None:
        return None
    layer: Any = copy.copy(activation.layer)
    if hasattr(layer, "inplace"):
        layer.inplace = True
    return layer.forward  # type: ignore[no-any-return]  # of an activation


def blas_multiplies_rows(rows: int, weight: Sequence[int], activation: Activation | None) -> bool:
    """Returns whether `multiply_rows` takes less time than oneDNN's product, as measured on ones.

    Args:
        rows: how many; numbers of as many bits are taken for one.
        weight: the shape of the matrix, `(outputs, inputs)`.
        activation: behind it.
    """
    return rows * weight[0] * weight[1] < _LARGE and _rows_are_faster(rows.bit_length(), *weight, activation)


def blas_multiplies_pixels(pixels: int, weight: Sequence[int], activation: Activation | None) -> bool:
    """Returns whether `multiply_pixels` takes less time than `multiply_pixels_packed`, as measured on ones.

    Args:
        pixels: how many; numbers of as many bits are taken for one.
        weight: the shape of the weight, `(outputs, inputs, 1, 1)`.
        activation: behind it.
    """
    return pixels * weight[0] * weight[1] < _MANY_PIXELS and _pixels_are_faster(
        pixels.bit_length(), *weight[:2], activation
    )


@functools.lru_cache(maxsize=4096)
def _rows_are_faster(bits: int, outputs: int, inputs: int, activation: Activation | None) -> bool:
    weight, bias = _ones(outputs, inputs), _ones(outputs)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    fused = NO_ACTIVATION if activation is None else activation.of_kernel
    kernel, activate = torch.ops.mkldnn._linear_pointwise.default, in_place(activation)
    x = _ones(1 << bits - 1, inputs)
    return _is_first_faster(lambda: multiply_rows(x, weight, bias, activate), lambda: kernel(x, packed, bias, *fused))


@functools.lru_cache(maxsize=4096)
def _pixels_are_faster(bits: int, outputs: int, inputs: int, activation: Activation | None) -> bool:
    height, width = 1 << (bits - 1) // 2, 1 << bits // 2
    x = _ones(1, inputs, height, width).contiguous(memory_format=torch.channels_last)
    weight, bias = _ones(outputs, inputs), _ones(outputs)
    columns, packed = weight.t(), torch.ops.mkldnn._reorder_linear_weight(weight)
    fused = NO_ACTIVATION if activation is None else activation.of_kernel
    activate = in_place(activation)
    return _is_first_faster(
        lambda: multiply_pixels(x, columns, bias, activate), lambda: multiply_pixels_packed(x, packed, bias, *fused)
    )


def _is_first_faster(first: Callable[[], Any], second: Callable[[], Any]) -> bool:
    with torch.no_grad():
        times = fastest((first, second), _SECONDS)
    return times[first] < _CLEARLY * times[second]


def _ones(*shape: int) -> torch.Tensor:
    """Returns what a layer has here, whatever is the default elsewhere."""
    return torch.ones(shape, dtype=torch.float32, device="cpu")
