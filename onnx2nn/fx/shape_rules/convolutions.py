"""Shape rules of convolutions and transposed convolutions over one to three spatial dimensions."""

from __future__ import annotations

from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import common_float, equal_shapes, known_per_axis, positive_int, shape_of
from onnx2nn.fx.shape_rules.rule import Result, Rule, Sizes, Uncovered, rule_of_ranks
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.sizes.conditions import at_most, conjunction, disjunction, equal, less
from onnx2nn.sizes.expression import Number


def _filled(sizes: Sizes, batch: Number, channels: Number, spatial: tuple[Number, ...]) -> None:
    """Requires what torch's convolutions do: an empty input has no images or no channels."""
    filled = [less(0, size) for size in spatial]
    if not all(map(sizes.decide, filled)):
        some = disjunction([equal(batch, 0), equal(channels, 0), conjunction(filled)])
        sizes.require(some, "an input of a convolution that is not empty")


def _operands(rank: int, input: Spec, weight: Spec, bias: Spec | None, groups: Any) -> tuple[Shape, Shape, int]:
    """Returns the shapes of input and weight, and the number of groups; the input has a batch or is one sample."""
    common_float(input, weight, bias)
    return shape_of(input, rank + 1, rank + 2), shape_of(weight, rank + 2), positive_int(groups)


def _require_bias(sizes: Sizes, bias: Spec | None, channels: Number) -> None:
    if bias is not None:
        equal_shapes(sizes, shape_of(bias), (channels,), "the bias of a convolution")


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
        x, w, groups = _operands(rank, input, weight, bias, groups)
        steps, spreads = known_per_axis(stride, rank, 1), known_per_axis(dilation, rank, 1)
        pads = known_per_axis(0 if padding == "valid" else padding, rank)
        if w[1] == 0:
            raise Uncovered
        _require_bias(sizes, bias, w[0])
        channels, spatial = x[-rank - 1], x[-rank:]
        sizes.equal(channels, w[1] * groups, "the channels of a convolution")
        if groups != 1:
            sizes.require(equal(w[0] % groups, 0), "the groups of a convolution")
        sizes.require(at_most(groups, w[0]), "the groups of a convolution")
        _filled(sizes, x[0] if len(x) == rank + 2 else 1, channels, spatial)
        outputs = []
        for size, kernel, step, pad, spread in zip(spatial, w[2:], steps, pads, spreads, strict=True):
            sizes.require(less(0, kernel), "the kernel of a convolution")
            room = size + (2 * pad - spread * (kernel - 1) - 1)
            sizes.require(at_most(0, room), "an input of a convolution that is at least as large as its kernel")
            outputs.append(room // step + 1)
        return Spec((*x[: -rank - 1], w[0], *outputs), input.dtype)

    return convolution


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
        x, w, groups = _operands(rank, input, weight, bias, groups)
        steps, spreads = known_per_axis(stride, rank, 1), known_per_axis(dilation, rank, 1)
        pads, extras = known_per_axis(padding, rank), known_per_axis(output_padding, rank)
        if any(e >= max(s, d) for e, s, d in zip(extras, steps, spreads, strict=True)):
            raise Uncovered
        _require_bias(sizes, bias, w[1] * groups)
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
        return Spec((*x[: -rank - 1], w[1] * groups, *outputs), input.dtype)

    return transposed


rule_of_ranks(_convolution, torch.conv1d, torch.conv2d, torch.conv3d)
rule_of_ranks(_transposed, torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
