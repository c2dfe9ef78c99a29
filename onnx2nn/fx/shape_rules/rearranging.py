"""Shape rules of functions that pad, flip, roll and fold, whose elements are those of the operand in other places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import (
    axes_of,
    axis_of,
    is_number,
    known_per_axis,
    larger,
    numbers,
    per_axis,
    positive_int,
    shape_of,
    smaller,
)
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.sizes.conditions import Truth, at_least_zero, at_most, conjunction, equal, less
from onnx2nn.sizes.expression import Number, product
from onnx2nn.sizes.selection import minimum


@rule(torch.flip, "flip")
def _flip(sizes: Sizes, input: Spec, *dims: Any) -> Result:
    shape = shape_of(input)
    axes_of(dims[0] if len(dims) == 1 else dims, max(len(shape), 1))
    return Spec(shape, input.dtype)


@rule(torch.roll, "roll")
def _roll(sizes: Sizes, input: Spec, shifts: Any, dims: Any = ()) -> Result:
    shape, counts, axes = shape_of(input), numbers(shifts), numbers(dims)
    for dim in axes:
        axis_of(dim, len(shape))
    if len(counts) != (len(axes) or 1):
        raise Uncovered
    return Spec(shape, input.dtype)


@rule(F.pad)
def _pad(sizes: Sizes, input: Spec, pad: Any, mode: str = "constant", value: Any = None) -> Result:
    shape, pads = list(shape_of(input)), numbers(list(pad))
    axes = len(pads) // 2
    if len(pads) % 2 or axes > len(shape):
        raise Uncovered
    fits = None if mode == "constant" else _FITS.get(mode)
    if mode != "constant" and (fits is None or not 0 < axes <= 3 or len(shape) not in (axes + 1, axes + 2)):
        raise Uncovered
    for axis in range(axes):
        place = len(shape) - 1 - axis
        size, before, after = shape[place], pads[2 * axis], pads[2 * axis + 1]
        if fits is None:
            kept = [size + minimum(before, 0), size + minimum(after, 0), size + minimum(before, 0) + minimum(after, 0)]
            sizes.require(conjunction(map(at_least_zero, kept)), "the size of a tensor and negative pads")
        else:
            if not all(isinstance(number, int) and number >= 0 for number in (before, after)):
                raise Uncovered
            sizes.require(conjunction([fits(size, before), fits(size, after)]), f"the size of a tensor and {mode} pads")
        shape[place] = size + before + after
    if mode in ("reflect", "replicate"):
        for size in shape[len(shape) - axes - 1 :]:
            sizes.require(at_least_zero(size - 1), f"the size of a tensor with {mode} pads")
    return Spec(tuple(shape), input.dtype)


_FITS: dict[str, Callable[[Number, Number], Truth]] = {
    "reflect": lambda size, pad: less(pad, size),
    "circular": lambda size, pad: at_most(pad, size),
    "replicate": lambda size, pad: less(0, size),
}
"""The condition on a size and a pad, by mode."""


@rule(torch.diagonal, "diagonal")
def _diagonal(sizes: Sizes, input: Spec, offset: Any = 0, dim1: Any = 0, dim2: Any = 1) -> Result:
    shape = shape_of(input)
    rows, columns = axes_of([dim1, dim2], len(shape))
    if type(offset) is not int:
        raise Uncovered
    length = smaller(sizes, shape[rows] + min(offset, 0), shape[columns] - max(offset, 0))
    kept = [size for axis, size in enumerate(shape) if axis not in (rows, columns)]
    return Spec((*kept, larger(sizes, length, 0)), input.dtype)


@rule(torch.diag_embed, "diag_embed")
def _diag_embed(sizes: Sizes, input: Spec, offset: Any = 0, dim1: Any = -2, dim2: Any = -1) -> Result:
    shape = shape_of(input)
    axes = axes_of([dim1, dim2], len(shape) + 1)
    if type(offset) is not int or not shape:
        raise Uncovered
    result = list(shape[:-1])
    for axis in sorted(axes):
        result.insert(axis, shape[-1] + abs(offset))
    return Spec(tuple(result), input.dtype)


def _image(input: Spec) -> Shape:
    shape = shape_of(input)
    if len(shape) < 3:
        raise Uncovered
    return shape


def _divided(sizes: Sizes, size: Number, factor: int, reason: str) -> Number:
    sizes.equal(size % factor, 0, reason)
    return size // factor


@rule(torch.pixel_shuffle)
def _pixel_shuffle(sizes: Sizes, input: Spec, upscale_factor: Any) -> Result:
    shape, factor = _image(input), positive_int(upscale_factor)
    *lead, channels, height, width = shape
    fewer = _divided(sizes, channels, factor**2, "the channels and the factor of pixel_shuffle")
    return Spec((*lead, fewer, height * factor, width * factor), input.dtype)


@rule(torch.pixel_unshuffle)
def _pixel_unshuffle(sizes: Sizes, input: Spec, downscale_factor: Any) -> Result:
    shape, factor = _image(input), positive_int(downscale_factor)
    *lead, channels, height, width = shape
    reason = "the size and the factor of pixel_unshuffle"
    # On the CPU it returns a tensor without elements in its old shape.
    if sizes.decide(equal(product(shape), 0)) is True:
        raise Uncovered
    for size in shape:
        sizes.require(at_least_zero(size - 1), reason)
    small = [_divided(sizes, size, factor, reason) for size in (height, width)]
    return Spec((*lead, channels * factor**2, *small), input.dtype)


@rule(torch.channel_shuffle)
def _channel_shuffle(sizes: Sizes, input: Spec, groups: Any) -> Result:
    shape = _image(input)
    _divided(sizes, shape[1], positive_int(groups), "the channels and the groups of channel_shuffle")
    return Spec(shape, input.dtype)


@rule("unfold")
def _windows(sizes: Sizes, input: Spec, dimension: Any, size: Any, step: Any) -> Result:
    shape = shape_of(input)
    axis = axis_of(dimension, len(shape))
    if not is_number(size, step):
        raise Uncovered
    fits = [at_least_zero(size), at_most(size, shape[axis]), at_least_zero(step - 1)]
    sizes.require(conjunction(fits), "size and step of windows and the size of a tensor")
    return Spec((*shape[:axis], (shape[axis] - size) // step + 1, *shape[axis + 1 :], size), input.dtype)


def _blocks(sizes: Sizes, image: list[Number], kernel: list[int], options: tuple[Any, Any, Any]) -> Number:
    """Returns the number of places of a kernel in a padded image."""
    dilation, padding, stride = (known_per_axis(o, 2, least) for o, least in zip(options, (1, 0, 1), strict=True))
    counts = []
    for size, width, spread, pad, step in zip(image, kernel, dilation, padding, stride, strict=True):
        count = (size + (2 * pad - spread * (width - 1) - 1)) // step + 1
        sizes.require(at_least_zero(count - 1), "the size of an image and of the blocks that are cut out of it")
        counts.append(count)
    return product(counts)


@rule(F.unfold)
def _unfold(
    sizes: Sizes, input: Spec, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Result:
    shape, kernel = shape_of(input, 3, 4), known_per_axis(kernel_size, 2, 1)
    *batch, channels, height, width = shape
    sizes.require(at_least_zero(product([channels, height, width]) - 1), "the size of an image that is unfolded")
    blocks = _blocks(sizes, [height, width], kernel, (dilation, padding, stride))
    return Spec((*batch, channels * kernel[0] * kernel[1], blocks), input.dtype)


@rule(F.fold)
def _fold(
    sizes: Sizes,
    input: Spec,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Result:
    shape, image, kernel = shape_of(input, 2, 3), per_axis(output_size, 2), known_per_axis(kernel_size, 2, 1)
    *batch, columns, places = shape
    channels = _divided(sizes, columns, kernel[0] * kernel[1], "the channels and the blocks that are folded")
    sizes.require(at_least_zero(product([columns, places]) - 1), "the size of the blocks that are folded")
    blocks = _blocks(sizes, image, kernel, (dilation, padding, stride))
    sizes.require(equal(places, blocks), "the number of the blocks that are folded and of their places")
    return Spec((*batch, channels, *image), input.dtype)
