"""Shape rules of functions that give the elements of one tensor another shape or order."""

from __future__ import annotations

from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import (
    axes_of,
    axis_of,
    is_number,
    numbers,
    put,
    shape_of,
    variadic,
)
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import at_least_zero, disjunction, equal
from onnx2nn.sizes.expression import Number, product


@rule("view")
def _view(sizes: Sizes, input: Spec, *shape: Any) -> Result:
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        if input.dtype is None or input.dtype.itemsize != shape[0].itemsize:
            raise Uncovered
        return Spec(shape_of(input), shape[0])
    return _reshape(sizes, input, *shape)


@rule(torch.reshape, "reshape")
def _reshape(sizes: Sizes, input: Spec, *shape: Any) -> Result:
    target = _filled(sizes, product(shape_of(input)), variadic(shape), "the elements of a tensor and of its new shape")
    return Spec(tuple(target), input.dtype)


@rule("reshape_as", "view_as")
def _reshape_as(sizes: Sizes, input: Spec, other: Spec) -> Result:
    return _reshape(sizes, input, shape_of(other))


def _filled(sizes: Sizes, count: Number, target: list[Number], reason: str) -> list[Number]:
    """Returns a shape of `count` elements, in which -1 stands for one unknown dimension."""
    unknown = [axis for axis, size in enumerate(target) if _is(size, -1)]
    for axis, size in enumerate(target):
        if axis not in unknown:
            sizes.require(at_least_zero(size), reason)
    if len(unknown) > 1:
        raise Uncovered
    if not unknown:
        sizes.equal(count, product(target), reason)
        return target
    (axis,) = unknown
    known = product(target[:axis] + target[axis + 1 :])
    if _is(known, 0):
        raise Uncovered  # any size would fit: torch refuses it
    found = count // known
    sizes.equal(count, known * found, reason)
    return [*target[:axis], found, *target[axis + 1 :]]


def _is(size: Any, number: int) -> bool:
    return type(size) is int and size == number


@rule(torch.flatten, "flatten")
def _flatten(sizes: Sizes, input: Spec, start_dim: Any = 0, end_dim: Any = -1) -> Result:
    shape = shape_of(input) or (1,)
    first, last = axis_of(start_dim, len(shape)), axis_of(end_dim, len(shape))
    if first > last:
        raise Uncovered
    return Spec((*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :]), input.dtype)


@rule(torch.ravel, "ravel")
def _ravel(sizes: Sizes, input: Spec) -> Result:
    return Spec((product(shape_of(input)),), input.dtype)


@rule(torch.unflatten, "unflatten")
def _unflatten(known: Sizes, input: Spec, dim: Any, sizes: Any) -> Result:
    shape = shape_of(input)
    axis = axis_of(dim, len(shape))
    if not numbers(sizes):
        raise Uncovered
    target = _filled(known, shape[axis], numbers(sizes), "the size of an axis and of the axes that it is split into")
    return Spec(put(shape, axis, *target), input.dtype)


@rule(torch.squeeze, "squeeze")
def _squeeze(sizes: Sizes, input: Spec, dim: Any = None) -> Result:
    shape = shape_of(input)
    axes = range(len(shape)) if dim is None else axes_of(dim, max(len(shape), 1))
    ones = {axis: sizes.decide(equal(shape[axis], 1)) for axis in axes if shape}
    if None in ones.values() and not sizes.open_rank:  # else the spec is of the sizes that are not 1
        raise Uncovered
    return Spec(tuple(size for axis, size in enumerate(shape) if not ones.get(axis)), input.dtype)


@rule(torch.unsqueeze, "unsqueeze")
def _unsqueeze(sizes: Sizes, input: Spec, dim: Any) -> Result:
    shape = shape_of(input)
    axis = axis_of(dim, len(shape) + 1)
    return Spec((*shape[:axis], 1, *shape[axis:]), input.dtype)


@rule(torch.transpose, torch.swapaxes, torch.swapdims, "transpose", "swapaxes", "swapdims")
def _transpose(sizes: Sizes, input: Spec, dim0: Any, dim1: Any) -> Result:
    shape = list(shape_of(input))
    one, other = axis_of(dim0, max(len(shape), 1)), axis_of(dim1, max(len(shape), 1))
    if shape:
        shape[one], shape[other] = shape[other], shape[one]
    return Spec(tuple(shape), input.dtype)


@rule(torch.t, "t")
def _t(sizes: Sizes, input: Spec) -> Result:
    shape = shape_of(input, 0, 1, 2)
    return Spec(shape[::-1], input.dtype)


@rule(torch.permute, "permute")
def _permute(sizes: Sizes, input: Spec, *dims: Any) -> Result:
    shape = shape_of(input)
    axes = axes_of(variadic(dims), len(shape))
    if len(axes) != len(shape):
        raise Uncovered
    return Spec(tuple(shape[axis] for axis in axes), input.dtype)


@rule(torch.movedim, torch.moveaxis, "movedim", "moveaxis")
def _movedim(sizes: Sizes, input: Spec, source: Any, destination: Any) -> Result:
    shape = shape_of(input)
    sources, targets = axes_of(source, len(shape)), axes_of(destination, len(shape))
    if len(sources) != len(targets):
        raise Uncovered
    order = [axis for axis in range(len(shape)) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return Spec(tuple(shape[axis] for axis in order), input.dtype)


@rule(torch.broadcast_to, "expand", "broadcast_to")
def _expand(sizes: Sizes, input: Spec, *size: Any) -> Result:
    shape, target = shape_of(input), variadic(size)
    lead = len(target) - len(shape)
    if lead < 0:
        raise Uncovered
    result = []
    for axis, wanted in enumerate(target):
        old = shape[axis - lead] if axis >= lead else 1
        if _is(wanted, -1) and axis >= lead:
            wanted = old
        sizes.require(at_least_zero(wanted), "the size that a tensor is expanded to")
        fits = disjunction([equal(old, wanted), equal(old, 1)])
        sizes.require(fits, f"the size of a tensor that is expanded ({old!r} and {wanted!r})")
        result.append(wanted)
    return Spec(tuple(result), input.dtype)


@rule("expand_as")
def _expand_as(sizes: Sizes, input: Spec, other: Spec) -> Result:
    return _expand(sizes, input, shape_of(other))


@rule("repeat")
def _repeat(sizes: Sizes, input: Spec, *repeats: Any) -> Result:
    shape, counts = shape_of(input), variadic(repeats)
    if len(counts) < len(shape):
        raise Uncovered
    for count in counts:
        sizes.require(at_least_zero(count), "how often a tensor is repeated")
    padded = (*[1] * (len(counts) - len(shape)), *shape)
    return Spec(tuple(size * count for size, count in zip(padded, counts, strict=True)), input.dtype)


@rule(torch.tile, "tile")
def _tile(sizes: Sizes, input: Spec, *dims: Any) -> Result:
    counts = variadic(dims)
    return _repeat(sizes, input, [*[1] * (len(shape_of(input)) - len(counts)), *counts])


@rule(torch.repeat_interleave, "repeat_interleave")
def _repeat_interleave(sizes: Sizes, input: Spec, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Result:
    shape = (product(shape_of(input)),) if dim is None else shape_of(input)
    if not is_number(repeats) or output_size is not None:
        raise Uncovered
    axis = axis_of(0 if dim is None else dim, len(shape))
    sizes.require(at_least_zero(repeats), "how often elements are repeated")
    return Spec(put(shape, axis, shape[axis] * repeats), input.dtype)
