"""Shape rules of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import common_float, known_per_axis
from onnx2nn.fx.shape_rules.rule import Result, Rule, Sizes, rule
from onnx2nn.fx.spec import Spec
from onnx2nn.sizes.conditions import at_most, conjunction, disjunction, equal, less
from onnx2nn.sizes.expression import Number


def _filled(sizes: Sizes, batch: Number, channels: Number, spatial: tuple[Number, ...]) -> None:
    """Requires what torch's convolutions do: an empty input has no images or no channels."""
    some = conjunction(less(0, size) for size in spatial)
    sizes.require(
        disjunction([equal(batch, 0), equal(channels, 0), some]), "an input of a convolution that is not empty"
    )


def _convolution(rank: int) -> Rule:
    def convolution(
        sizes: Sizes,
        input: Spec,
        weight: Spec,
        bias: Spec | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Result:
        x, w, dtype = input.shape, weight.shape, common_float(input, weight, bias)
        steps, spreads = known_per_axis(stride, rank), known_per_axis(dilation, rank)
        pads = known_per_axis(0 if padding == "valid" else padding, rank)
        if dtype is None or x is None or w is None or steps is None or pads is None or spreads is None:
            return None
        if len(w) != rank + 2 or len(x) not in (rank + 1, rank + 2) or type(groups) is not int or groups < 1:
            return None
        if min(*steps, *spreads) < 1 or min(pads) < 0 or not _fits_bias(sizes, bias, w[0]):
            return None
        if w[1] == 0:
            return None
        channels, spatial = x[-rank - 1], x[-rank:]
        sizes.equal(channels, w[1] * groups, "the channels of a convolution")
        sizes.require(equal(w[0] % groups, 0), "the groups of a convolution")
        sizes.require(at_most(groups, w[0]), "the groups of a convolution")
        _filled(sizes, x[0] if len(x) == rank + 2 else 1, channels, spatial)
        outputs = []
        for size, kernel, step, pad, spread in zip(spatial, w[2:], steps, pads, spreads, strict=True):
            sizes.require(less(0, kernel), "the kernel of a convolution")
            room = size + 2 * pad - spread * (kernel - 1) - 1
            sizes.require(at_most(0, room), "an input of a convolution that is at least as large as its kernel")
            outputs.append(room // step + 1)
        return Spec((*x[: -rank - 1], w[0], *outputs), dtype)

    return convolution


def _fits_bias(sizes: Sizes, bias: Spec | None, channels: Number) -> bool:
    if bias is None:
        return True
    if bias.shape is None or len(bias.shape) != 1:
        return False
    sizes.equal(bias.shape[0], channels, "the bias of a convolution")
    return True


def _transposed(rank: int) -> Rule:
    def transposed(
        sizes: Sizes,
        input: Spec,
        weight: Spec,
        bias: Spec | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Result:
        x, w, dtype = input.shape, weight.shape, common_float(input, weight, bias)
        settings = [known_per_axis(value, rank) for value in (stride, padding, output_padding, dilation)]
        steps, pads, extras, spreads = (setting or () for setting in settings)
        if dtype is None or x is None or w is None or not (steps and pads and extras and spreads):
            return None
        if len(w) != rank + 2 or len(x) not in (rank + 1, rank + 2) or type(groups) is not int or groups < 1:
            return None
        if min(*steps, *spreads) < 1 or min(*pads, *extras) < 0 or not _fits_bias(sizes, bias, w[1] * groups):
            return None
        if any(e >= max(s, d) for e, s, d in zip(extras, steps, spreads, strict=True)):
            return None
        channels, spatial = x[-rank - 1], x[-rank:]
        sizes.equal(channels, w[0], "the channels of a transposed convolution")
        sizes.require(equal(w[0] % groups, 0), "the groups of a transposed convolution")
        sizes.require(at_most(groups, w[0]), "the groups of a transposed convolution")
        _filled(sizes, x[0] if len(x) == rank + 2 else 1, channels, spatial)
        outputs = []
        for size, kernel, step, pad, extra, spread in zip(spatial, w[2:], steps, pads, extras, spreads, strict=True):
            sizes.require(less(0, kernel), "the kernel of a transposed convolution")
            result = (size - 1) * step - 2 * pad + spread * (kernel - 1) + extra + 1
            sizes.require(less(0, result), "an output of a transposed convolution that is not empty")
            outputs.append(result)
        return Spec((*x[: -rank - 1], w[1] * groups, *outputs), dtype)

    return transposed


def _register(make: Callable[[int], Rule], *functions: Any) -> None:
    for rank, function in enumerate(functions, 1):
        rule(function)(make(rank))


_register(_convolution, torch.conv1d, torch.conv2d, torch.conv3d)
_register(_transposed, torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
