"""Shape rules of functions that move or select elements, and of those that make tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oneflow_bridge.from_onnx.dim import Dim, unknown_size
from oneflow_bridge.from_onnx.shape_rules.rule import (
    Shape,
    Uncovered,
    axes_of,
    axis_of,
    known_one,
    number_of,
    put,
    rule,
    shape_of,
    size_of,
    variadic,
)
from oneflow_bridge.namespace.dtypes import bool_
from onnx2nn.optable.row import NeedsValues
from onnx2nn.sizes import selection
from onnx2nn.sizes.expression import Number, bounds, product


@rule("reshape", "view")
def _reshape(x: Any, *dims: Any) -> Shape:
    sizes = variadic(dims)
    if any(not isinstance(size, (int, Dim)) for size in sizes):  # a view as another type
        raise Uncovered
    if not any(isinstance(size, int) and size == -1 for size in sizes):
        return tuple(map(size_of, sizes))
    known = [size_of(size) for size in sizes if not (isinstance(size, int) and size == -1)]
    divisor = product(known)
    rest = unknown_size() if isinstance(divisor, int) and divisor == 0 else product(shape_of(x)) // divisor
    return tuple(rest if isinstance(size, int) and size == -1 else size_of(size) for size in sizes)


@rule("flatten")
def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Shape:
    shape = shape_of(x)
    first, last = axis_of(start_dim, len(shape)), axis_of(end_dim, len(shape))
    return (*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :])


@rule("permute")
def _permute(x: Any, *dims: Any) -> Shape:
    shape = shape_of(x)
    return tuple(shape[axis] for axis in axes_of(variadic(dims), len(shape)))


@rule("transpose", "swapaxes", "swapdims")
def _transpose(x: Any, dim0: Any, dim1: Any) -> Shape:
    shape = list(shape_of(x))
    a, b = axes_of([dim0, dim1], len(shape))
    shape[a], shape[b] = shape[b], shape[a]
    return tuple(shape)


@rule("t")
def _t(x: Any) -> Shape:
    return tuple(reversed(shape_of(x)))


@rule("unsqueeze")
def _unsqueeze(x: Any, dim: Any) -> Shape:
    shape = shape_of(x)
    axis = axis_of(dim, len(shape) + 1)
    return (*shape[:axis], 1, *shape[axis:])


@rule("squeeze")
def _squeeze(x: Any, dim: Any = None) -> Shape:
    shape = shape_of(x)
    gone = []
    for axis in range(len(shape)) if dim is None else axes_of(dim, len(shape)):
        if bool(x.shape[axis] == 1):  # undecided: the body needs its value
            gone.append(axis)
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


@rule("expand", "broadcast_to")
def _expand(x: Any, *sizes: Any) -> Shape:
    shape, wanted = shape_of(x), variadic(sizes)
    padded = [None] * (len(wanted) - len(shape)) + list(shape)
    result: list[Number] = []
    for old, new in zip(padded, wanted, strict=True):
        result.append(old if isinstance(new, int) and new == -1 and old is not None else size_of(new))
    return tuple(result)


@rule("expand_as")
def _expand_as(x: Any, other: Any) -> Shape:
    return shape_of(other)


@rule("repeat", "tile")
def _repeat(x: Any, *counts: Any) -> Shape:
    shape, times = shape_of(x), variadic(counts)
    rank = max(len(times), len(shape))
    padded, counted = [1] * (rank - len(shape)) + list(shape), [1] * (rank - len(times)) + [size_of(n) for n in times]
    return tuple(old * count for old, count in zip(padded, counted, strict=True))


@rule("cat")
def _cat(tensors: Any, dim: Any = 0) -> Shape:
    shapes = [shape_of(tensor) for tensor in tensors]
    rank = len(shapes[0])
    if not rank or any(len(shape) != rank for shape in shapes):
        raise Uncovered
    axis, columns = axis_of(dim, rank), list(zip(*shapes, strict=True))
    return tuple(_sum(sizes) if place == axis else known_one(*sizes) for place, sizes in enumerate(columns))


def _sum(sizes: Iterable[Number]) -> Number:
    total: Number = 0
    for size in sizes:
        total = total + size
    return total


@rule("stack")
def _stack(tensors: Any, dim: Any = 0) -> Shape:
    shapes = [shape_of(tensor) for tensor in tensors]
    axis = axis_of(dim, len(shapes[0]) + 1)
    common = [known_one(*sizes) for sizes in zip(*shapes, strict=True)]
    return (*common[:axis], len(shapes), *common[axis:])


@rule("split", "split_with_sizes")
def _split(x: Any, sizes: Any, dim: Any = 0) -> list[Shape]:
    shape = shape_of(x)
    axis = axis_of(dim, len(shape))
    if not isinstance(sizes, (list, tuple)):
        sizes = _pieces(shape[axis], sizes)
    return [put(shape, axis, size_of(size)) for size in sizes]


@rule("chunk")
def _chunk(x: Any, chunks: int, dim: Any = 0) -> list[Shape]:
    size = shape_of(x)[axis_of(dim, len(shape_of(x)))]
    if not isinstance(size, int):
        raise Uncovered
    return _split(x, -(-size // chunks), dim)


def _pieces(size: Number, length: Any) -> list[int]:
    """Returns the lengths of the pieces of a known size."""
    if not isinstance(size, int) or not isinstance(length, int) or length < 1 or not size:
        raise Uncovered
    return [length] * (size // length) + [size % length] * (size % length > 0)


@rule("unbind")
def _unbind(x: Any, dim: Any = 0) -> list[Shape]:
    shape = shape_of(x)
    axis = axis_of(dim, len(shape))
    count = shape[axis]
    if not isinstance(count, int):
        raise Uncovered
    return [put(shape, axis)] * count


@rule("gather")
def _gather(x: Any, dim: Any, index: Any) -> Shape:
    return shape_of(index)


@rule("index_select")
def _index_select(x: Any, dim: Any, index: Any) -> Shape:
    shape = shape_of(x)
    return put(shape, axis_of(dim, len(shape)), product(shape_of(index)))


@rule("getitem")
def _getitem(x: Any, key: Any) -> Shape:
    shape, items = shape_of(x), list(key) if isinstance(key, tuple) else [key]
    places = [place for place, item in enumerate(items) if item is Ellipsis] or [len(items)]
    rest = len(shape) - sum(item is not None and item is not Ellipsis for item in items)
    items[places[0] : places[0] + 1] = [slice(None)] * rest
    if sum(not isinstance(item, (slice, int, type(None))) for item in items) > 1:
        raise Uncovered
    indexed = any(not isinstance(item, (slice, int, type(None))) for item in items)
    result: list[Number] = []
    axis = 0
    for item in items:
        if item is None:
            result.append(1)
            continue
        if isinstance(item, slice):
            result.append(_sliced(shape[axis], item))
        elif (
            isinstance(item, (bool, list))
            or getattr(item, "dtype", None) is bool_
            or (isinstance(item, int) and indexed)
        ):
            raise Uncovered
        elif not isinstance(item, int):
            result += shape_of(item)
        axis += 1
    return tuple(result)


def _sliced(size: Number, part: slice) -> Number:
    """Returns the length of a slice, whose ends are clamped to the dimension."""
    step = 1 if part.step is None else part.step
    if not isinstance(step, int) or step < 1:
        return unknown_size()
    try:
        first = 0 if part.start is None else _end(part.start, size)
        last = size if part.stop is None else _end(part.stop, size)
    except (NeedsValues, Uncovered):
        return unknown_size()
    return selection.maximum((last - first + (step - 1)) // step, 0)


def _end(value: Any, size: Number) -> Number:
    """Returns an end of a slice, counted from the front.

    Raises:
        Uncovered: it may be counted from either side.
    """
    least, most = bounds(number_of(value))
    if least is not None and least >= 0:
        return selection.minimum(number_of(value), size)
    if most is not None and most < 0:
        return selection.maximum(size + number_of(value), 0)
    raise Uncovered


@rule("zeros", "ones", "empty", "rand", "randn")
def _created(*size: Any, **_: Any) -> Shape:
    return tuple(map(size_of, variadic(size)))


@rule("full")
def _full(size: Any, *_: Any, **__: Any) -> Shape:
    return tuple(map(size_of, variadic((size,))))


@rule("new_zeros", "new_ones", "new_empty")
def _new(x: Any, *size: Any, **_: Any) -> Shape:
    return tuple(map(size_of, variadic(size)))


@rule("new_full")
def _new_full(x: Any, size: Any, *_: Any, **__: Any) -> Shape:
    return tuple(map(size_of, variadic((size,))))


@rule("arange")
def _arange(start: Any, end: Any = None, step: Any = 1, **_: Any) -> Shape:
    first, last = (0, number_of(start)) if end is None else (number_of(start), number_of(end))
    if not isinstance(step, int) or step < 1:
        return (unknown_size(),)
    return (selection.maximum((last - first + (step - 1)) // step, 0),)


@rule("select")
def _select(x: Any, dim: Any, index: Any) -> Shape:
    shape = shape_of(x)
    return put(shape, axis_of(dim, len(shape)))


@rule("narrow")
def _narrow(x: Any, dim: Any, start: Any, length: Any) -> Shape:
    shape = shape_of(x)
    return put(shape, axis_of(dim, len(shape)), size_of(length))


@rule("unflatten")
def _unflatten(x: Any, dim: Any, sizes: Any) -> Shape:
    shape = shape_of(x)
    if any(isinstance(size, int) and size == -1 for size in sizes):
        raise Uncovered
    return put(shape, axis_of(dim, len(shape)), *map(size_of, sizes))


@rule("movedim", "moveaxis")
def _movedim(x: Any, source: Any, destination: Any) -> Shape:
    shape = shape_of(x)
    placed = dict(zip(axes_of(destination, len(shape)), axes_of(source, len(shape)), strict=True))
    rest = iter(axis for axis in range(len(shape)) if axis not in placed.values())
    return tuple(shape[placed[axis] if axis in placed else next(rest)] for axis in range(len(shape)))
