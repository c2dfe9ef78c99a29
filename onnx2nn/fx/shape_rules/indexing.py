"""Shape rules of indexing: `x[...]`, `select` and `narrow`."""

from __future__ import annotations

import operator
from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import (
    axis_of,
    broadcast,
    chosen,
    is_number,
    larger,
    put,
    shape_of,
    smaller,
)
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.sizes.conditions import Truth, at_least_zero, at_most, conjunction, disjunction, less, negation
from onnx2nn.sizes.expression import MAX_DIMENSION, Number
from onnx2nn.sizes.selection import parted

INDEX_TYPES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})
"""The dtypes of index tensors; uint8 is a mask, like bool."""


@rule(operator.getitem, "__getitem__")
def _getitem(sizes: Sizes, a: Spec, b: Any) -> Result:
    return Spec(indexed(sizes, shape_of(a), b if type(b) is tuple else (b,)), a.dtype)


def indexed(sizes: Sizes, shape: Shape, index: tuple[Any, ...]) -> Shape:
    """Returns the shape of `x[index]`.

    Args:
        sizes: what is known of sizes.
        shape: the shape of `x`.
        index: the items of the index.
    """
    items = list(index)
    taken = sum(item is not None and item is not Ellipsis for item in items)
    if taken > len(shape) or sum(item is Ellipsis for item in items) > 1:
        raise Uncovered
    position = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    items[position : position + 1] = [slice(None)] * (len(shape) - taken)
    kept: list[Number] = []
    gathered: list[Shape] = []
    places: list[int] = []
    axis = 0
    for item in items:
        if item is None:
            kept.append(1)
            continue
        size, axis = shape[axis], axis + 1
        if isinstance(item, slice):
            kept.append(_slice_length(sizes, size, item))
        elif is_number(item):
            require_index(sizes, size, item)
        else:
            gathered.append(_index_shape(item))
            places.append(len(kept))
    if gathered:
        # Index tensors with other dimensions between them put theirs in front.
        place = places[0] if len(set(places)) == 1 else 0
        kept[place:place] = broadcast(sizes, gathered, "index tensors")
    return tuple(kept)


def _index_shape(item: Any) -> Shape:
    if isinstance(item, (list, range)) and item and all(type(i) is int for i in item):
        return (len(item),)
    shape = shape_of(item)
    if item.dtype not in INDEX_TYPES or not shape:  # torch reads the value of an index without dimensions
        raise Uncovered
    return shape


def require_index(sizes: Sizes, size: Number, index: Number) -> None:
    """Requires that an index lies within a dimension."""
    within = conjunction([at_least_zero(index + size), less(index, size)])
    sizes.require(within, "the index and the size of the indexed dimension")


def _slice_length(sizes: Sizes, size: Number, item: slice) -> Number:
    if item.start is None and item.stop is None and item.step is None:
        return size
    start, stop, step = (0 if item.start is None else item.start), item.stop, (1 if item.step is None else item.step)
    if not is_number(start) or not (stop is None or is_number(stop)) or not is_number(step):
        raise Uncovered
    if sizes.decide(at_least_zero(step - 1)) is not True:
        raise Uncovered
    end = size if stop is None else _end(sizes, size, stop)
    length = larger(sizes, _length(sizes, size, start, end), 0)
    return (length + (step - 1)) // step


def _end(sizes: Sizes, size: Number, stop: Number) -> Number:
    """Returns the first place behind a slice: a negative one counts from the end, once."""
    parts = parted(stop)
    if parts is None:
        return _end_of_one(sizes, size, stop, False)
    condition, one, other = parts
    there = _end_of_one(sizes, size, one, negation(condition))
    return chosen(sizes, condition, there, _end_of_one(sizes, size, other, condition))


def _end_of_one(sizes: Sizes, size: Number, stop: Number, unless: Truth) -> Number:
    """Returns the first place behind a slice; it may be any place where the condition `unless` holds."""
    if isinstance(stop, int) and stop >= MAX_DIMENSION:
        return size
    negative = less(stop, 0)
    truth = sizes.decide(negative)
    if truth is None and unless is not False and sizes.decide(disjunction((unless, negative))) is True:
        truth = True
    if truth is not None:
        return larger(sizes, stop + size, 0) if truth else smaller(sizes, stop, size)
    return chosen(sizes, negative, larger(sizes, stop + size, 0), smaller(sizes, stop, size))


def _length(sizes: Sizes, size: Number, start: Number, end: Number) -> Number:
    """Returns the length from `start` to `end`, negative where it is empty, so that `start` need not be limited."""
    negative = less(start, 0)
    truth = sizes.decide(negative)
    from_end = smaller(sizes, end - size - start, end) if truth is not False else 0
    if truth is not None:
        return from_end if truth else end - start
    return chosen(sizes, negative, from_end, end - start)


@rule(torch.select, "select")
def _select(sizes: Sizes, input: Spec, dim: Any, index: Any) -> Result:
    shape = shape_of(input)
    axis = axis_of(dim, len(shape))
    if not is_number(index):
        raise Uncovered
    require_index(sizes, shape[axis], index)
    return Spec(put(shape, axis), input.dtype)


@rule(torch.narrow, "narrow")
def _narrow(sizes: Sizes, input: Spec, dim: Any, start: Any, length: Any) -> Result:
    shape = shape_of(input)
    axis = axis_of(dim, len(shape))
    if not is_number(start, length):
        raise Uncovered
    size = shape[axis]
    first = chosen(sizes, less(start, 0), start + size, start)
    fits = [at_least_zero(start + size), at_least_zero(length), at_most(first + length, size)]
    sizes.require(conjunction(fits), "start, length and size of narrow")
    return Spec(put(shape, axis, length), input.dtype)
