"""Layouts of the images that convolutions of integers read, in loops that inductor writes with vectors.

oneDNN's kernel reads images with channels last. Inductor writes the loops before it in that order, number by number
where they read the planes of an image one behind the other, or add pads.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from onnx2nn.ops.integer_convolutions import Window
from onnx2nn.optimization.graph_calls import GraphCalls

_aten = torch.ops.aten

_BYTES = 4
"""Of an int32."""


def laid_out(calls: GraphCalls, x: fx.Node, pads: Sequence[int], zero: int, groups: int) -> fx.Node:
    """Returns an image for oneDNN's kernel.

    Args:
        calls: writes the calls.
        x: `(N, C, H, W)`, uint8.
        pads: left, right, top and bottom; none for nothing.
        zero: what the pads hold.
        groups: how many groups the channels form.

    Returns:
        The image with its pads. One of few channels gets others of any numbers behind them.
    """
    if 1 < x.meta["val"].shape[1] < _BYTES + 1 and groups == 1 and sys.byteorder == "little":
        return _of_words(calls, x, pads, zero)
    return padded(calls, x, pads, zero) if pads else x


def padded(calls: GraphCalls, x: fx.Node, pads: Sequence[int], value: int) -> fx.Node:
    """Returns an image with pads that hold a value; the arguments are those of `laid_out`."""
    pixels = calls.call(_aten.permute.default, x, [0, 2, 3, 1])  # the loop goes over the dimensions in this order
    wider = calls.call(_aten.constant_pad_nd.default, pixels, [0, 0, *pads], value)
    return calls.call(_aten.permute.default, wider, [0, 3, 1, 2])


def windows(calls: GraphCalls, x: fx.Node, kernel: Sequence[int], window: Window) -> tuple[fx.Node, list[Any]]:
    """Returns the windows of an image as rows, `(N * H' * W', C * kH * kW)`, and the sizes N, H' and W'.

    The image is written to memory before: inductor would compute an element anew in each window that reads it.

    Args:
        calls: writes the calls.
        x: `(N, C, H, W)` with its pads.
        kernel: kH and kW.
        window: its stride and dilation.
    """
    x = calls.call(torch.ops.prims.inductor_force_stride_order.default, x, x.meta["val"].contiguous().stride())
    for axis, (size, stride, dilation) in enumerate(zip(kernel, window.stride, window.dilation, strict=True)):
        x = calls.call(_aten.unfold.default, x, 2 + axis, (size - 1) * dilation + 1, stride)
        if dilation > 1:
            x = calls.call(_aten.slice.Tensor, x, 4 + axis, 0, sys.maxsize, dilation)
    x = calls.call(_aten.permute.default, x, [0, 2, 3, 1, 4, 5])
    sizes = calls.sizes(x, 0, 1, 2)
    elements = math.prod(x.meta["val"].shape[3:])
    return calls.call(_aten.reshape.default, calls.call(_aten.clone.default, x), [-1, elements]), sizes


def _of_words(calls: GraphCalls, x: fx.Node, pads: Sequence[int], zero: int) -> fx.Node:
    """Writes each pixel as the bytes of an int32: the loop reads the planes, and writes words, as vectors."""
    words = None
    for channel in range(x.meta["val"].shape[1]):
        plane = calls.call(_aten.select.int, x, 1, channel)
        plane = calls.call(torch.ops.prims.convert_element_type.default, plane, torch.int32)
        if words is None:
            words = plane
        else:
            shifted = calls.call(_aten.bitwise_left_shift.Tensor_Scalar, plane, 8 * channel)
            words = calls.call(_aten.bitwise_or.Tensor, words, shifted)
    if pads:
        word = int.from_bytes(bytes([zero] * _BYTES), "little", signed=True)
        words = calls.call(_aten.constant_pad_nd.default, words, list(pads), word)
    pixels = calls.call(_aten.view.dtype, calls.call(_aten.unsqueeze.default, words, -1), torch.uint8)
    return calls.call(_aten.permute.default, pixels, [0, 3, 1, 2])
