"""Rules of functions that pad, flip, roll and fold: whose elements are those of the operand in other places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.rule import Result, Sizes
from onnx2nn.fx.shape_rules.terms import (
    Uncovered,
    axes_of,
    axis_of,
    is_number,
    larger,
    numbers,
    partial_rule,
    shape_of,
    smaller,
)
from onnx2nn.fx.spec import Spec
from onnx2nn.sizes.conditions import Truth, at_least_zero, at_most, conjunction, equal, less
from onnx2nn.sizes.expression import Number, product
from onnx2nn.sizes.selection import minimum


@partial_rule(torch.flip, "flip")
def _flip(sizes: Sizes, input: Spec, *dims: Any) -> Result:
    shape = shape_of(input)
    axes_of(dims[0] if len(dims) == 1 else dims, max(len(shape), 1))
    return Spec(shape, input.dtype)


@partial_rule(torch.roll, "roll")
def _roll(sizes: Sizes, input: Spec, shifts: Any, dims: Any = ()) -> Result:
    shape, counts, axes = shape_of(input), numbers(shifts), numbers(dims)
    for dim in axes:
        axis_of(dim, len(shape))
    return Spec(shape, input.dtype) if len(counts) == (len(axes) or 1) else None


@partial_rule(F.pad)
def _pad(sizes: Sizes, input: Spec, pad: Any, mode: str = "constant", value: Any = None) -> Result:
    shape, pads = list(shape_of(input)), numbers(list(pad))
    axes = len(pads) // 2
    if len(pads) % 2 or axes > len(shape):
        return None
    fits = None if mode == "constant" else _FITS.get(mode)
    if mode != "constant" and (fits is None or not 0 < axes <= 3 or len(shape) not in (axes + 1, axes + 2)):
        return None
    for axis in range(axes):
        place = len(shape) - 1 - axis
        size, before, after = shape[place], pads[2 * axis], pads[2 * axis + 1]
        if fits is None:
            kept = [size + minimum(before, 0), size + minimum(after, 0), size + minimum(before, 0) + minimum(after, 0)]
            sizes.require(conjunction(map(at_least_zero, kept)), "the size of a tensor and negative pads")
        else:
            if not all(isinstance(number, int) and number >= 0 for number in (before, after)):
                return None
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


@partial_rule(torch.diagonal, "diagonal")
def _diagonal(sizes: Sizes, input: Spec, offset: Any = 0, dim1: Any = 0, dim2: Any = 1) -> Result:
    shape = shape_of(input)
    rows, columns = axes_of([dim1, dim2], len(shape))
    if type(offset) is not int:
        return None
    length = smaller(sizes, shape[rows] + min(offset, 0), shape[columns] - max(offset, 0))
    kept = [size for axis, size in enumerate(shape) if axis not in (rows, columns)]
    return Spec((*kept, larger(sizes, length, 0)), input.dtype)


@partial_rule(torch.diag_embed, "diag_embed")
def _diag_embed(sizes: Sizes, input: Spec, offset: Any = 0, dim1: Any = -2, dim2: Any = -1) -> Result:
    shape = shape_of(input)
    axes = axes_of([dim1, dim2], len(shape) + 1)
    if type(offset) is not int or not shape:
        return None
    result = list(shape[:-1])
    for axis in sorted(axes):
        result.insert(axis, shape[-1] + abs(offset))
    return Spec(tuple(result), input.dtype)


def _divided(sizes: Sizes, size: Number, factor: int, reason: str) -> Number:
    sizes.equal(size % factor, 0, reason)
    return size // factor


@partial_rule(torch.pixel_shuffle, F.pixel_shuffle)
def _pixel_shuffle(sizes: Sizes, input: Spec, upscale_factor: Any) -> Result:
    shape = shape_of(input)
    if len(shape) < 3 or type(upscale_factor) is not int or upscale_factor < 1:
        return None
    *lead, channels, height, width = shape
    fewer = _divided(sizes, channels, upscale_factor**2, "the channels and the factor of pixel_shuffle")
    return Spec((*lead, fewer, height * upscale_factor, width * upscale_factor), input.dtype)


@partial_rule(torch.pixel_unshuffle, F.pixel_unshuffle)
def _pixel_unshuffle(sizes: Sizes, input: Spec, downscale_factor: Any) -> Result:
    shape = shape_of(input)
    if len(shape) < 3 or type(downscale_factor) is not int or downscale_factor < 1:
        return None
    *lead, channels, height, width = shape
    reason = "the size and the factor of pixel_unshuffle"
    # On the CPU it returns a tensor without elements in its old shape.
    if sizes.decide(equal(product(shape), 0)) is True:
        return None
    for size in shape:
        sizes.require(at_least_zero(size - 1), reason)
    small = [_divided(sizes, size, downscale_factor, reason) for size in (height, width)]
    return Spec((*lead, channels * downscale_factor**2, *small), input.dtype)


@partial_rule(torch.channel_shuffle, F.channel_shuffle)
def _channel_shuffle(sizes: Sizes, input: Spec, groups: Any) -> Result:
    shape = shape_of(input)
    if len(shape) < 3 or type(groups) is not int or groups < 1:
        return None
    _divided(sizes, shape[1], groups, "the channels and the groups of channel_shuffle")
    return Spec(shape, input.dtype)


@partial_rule("unfold")
def _windows(sizes: Sizes, input: Spec, dimension: Any, size: Any, step: Any) -> Result:
    shape = shape_of(input)
    axis = axis_of(dimension, len(shape))
    if not is_number(size) or not is_number(step):
        return None
    fits = [at_least_zero(size), at_most(size, shape[axis]), at_least_zero(step - 1)]
    sizes.require(conjunction(fits), "size and step of windows and the size of a tensor")
    return Spec((*shape[:axis], (shape[axis] - size) // step + 1, *shape[axis + 1 :], size), input.dtype)


def _two(value: Any, least: int) -> list[int]:
    items = numbers(value)
    pair = items * 2 if len(items) == 1 else items
    if len(pair) != 2 or any(type(item) is not int or item < least for item in pair):
        raise Uncovered
    return pair  # type: ignore[return-value]  # they are ints


def _blocks(sizes: Sizes, image: list[Number], kernel: list[int], options: tuple[Any, Any, Any]) -> Number:
    """Returns the number of places of a kernel in a padded image."""
    dilation, padding, stride = _two(options[0], 1), _two(options[1], 0), _two(options[2], 1)
    counts = []
    for size, width, spread, pad, step in zip(image, kernel, dilation, padding, stride, strict=True):
        count = (size + (2 * pad - spread * (width - 1) - 1)) // step + 1
        sizes.require(at_least_zero(count - 1), "the size of an image and of the blocks that are cut out of it")
        counts.append(count)
    return product(counts)


@partial_rule(F.unfold)
def _unfold(
    sizes: Sizes, input: Spec, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Result:
    shape, kernel = shape_of(input), _two(kernel_size, 1)
    if len(shape) not in (3, 4):
        return None
    *batch, channels, height, width = shape
    sizes.require(at_least_zero(product([channels, height, width]) - 1), "the size of an image that is unfolded")
    blocks = _blocks(sizes, [height, width], kernel, (dilation, padding, stride))
    return Spec((*batch, channels * kernel[0] * kernel[1], blocks), input.dtype)


@partial_rule(F.fold)
def _fold(
    sizes: Sizes,
    input: Spec,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Result:
    shape, image, kernel = shape_of(input), numbers(output_size), _two(kernel_size, 1)
    if len(shape) not in (2, 3):
        return None
    image = image * 2 if len(image) == 1 else image
    *batch, columns, places = shape
    channels = _divided(sizes, columns, kernel[0] * kernel[1], "the channels and the blocks that are folded")
    sizes.require(at_least_zero(product([columns, places]) - 1), "the size of the blocks that are folded")
    blocks = _blocks(sizes, image, kernel, (dilation, padding, stride))
    sizes.require(equal(places, blocks), "the number of the blocks that are folded and of their places")
    return Spec((*batch, channels, *image), input.dtype)
