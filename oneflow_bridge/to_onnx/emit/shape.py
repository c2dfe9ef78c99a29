"""Shapes, layout, and tensors without tensor inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.job import DTYPES
from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit, row
from oneflow_bridge.to_onnx.lowering.schemas import FLOATS

INT64_MAX = 2**63 - 1

row("transpose", "Transpose", "input", "output", attributes={"perm": "perm"})


@emit("reshape", ignore="shape")
def reshape(g: Builder, in_: ir.Value) -> ir.Value:
    """The same elements in another shape."""
    return g.Reshape(in_, g.sizes(g.result()))


@emit("reshape_like")
def reshape_like(g: Builder, in_: ir.Value, like: ir.Value) -> ir.Value:
    """The same elements in the shape of another tensor."""
    return g.Reshape(in_, g.sizes(g.result()))


@emit("expand_dims")
def expand_dims(g: Builder, in_: ir.Value, *, axis: int) -> ir.Value:
    """With one more axis of size 1."""
    return g.Unsqueeze(in_, [axis % (g.rank(in_) + 1)])


@emit("squeeze")
def squeeze(g: Builder, in_: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    """Without axes of size 1."""
    return g.Squeeze(in_, [a % g.rank(in_) for a in axes]) if len(axes) else in_


@emit("expand", ignore="expand_shape")
def expand(g: Builder, in_: ir.Value) -> ir.Value:
    """Repeated along axes of size 1."""
    return g.Expand(in_, g.sizes(g.result()))


@emit("broadcast_like")
def broadcast_like(g: Builder, x: ir.Value, like: ir.Value, *, broadcast_axes: Sequence[int]) -> ir.Value:
    """Repeated to the shape of another tensor; the named axes of that shape may be missing in x."""
    rank = g.rank(g.result())
    missing = [a % rank for a in broadcast_axes]
    if g.rank(x) + len(missing) == rank and missing:
        x = g.Unsqueeze(x, sorted(missing))
    return g.append("Expand", x, g.shape(g.sizes(g.result()), like))


@emit("concat", ignore="max_dim_size")
def concat(g: Builder, in_: list, *, axis: int) -> ir.Value:
    """Concatenated along an axis."""
    return in_[0] if len(in_) == 1 else g.Concat(*in_, axis=axis % g.rank(in_[0]))


@emit("stack", ignore="max_dim_size")
def stack(g: Builder, in_: list, *, axis: int) -> ir.Value:
    """Stacked along a new axis."""
    axis %= g.rank(in_[0]) + 1
    parts = [g.Unsqueeze(value, [axis]) for value in in_]
    return parts[0] if len(parts) == 1 else g.Concat(*parts, axis=axis)


@emit("split_like")
def split_like(g: Builder, in_: ir.Value, like: list, *, axis: int) -> dict[str, list[ir.Value]]:
    """Cut along an axis into parts of the sizes of other tensors."""
    sizes = [g.static(g.sizes(value)[axis], "the size of a part") for value in g.job_outputs()]
    return {"out": list(g.Split(in_, sizes, axis))}


@emit("narrow")
def narrow(g: Builder, in_: ir.Value, *, dim: int, start: int | str, length: int | str) -> ir.Value:
    """`length` slices along an axis."""
    axis = dim % g.rank(in_)
    if length == g.sizes(in_)[axis]:
        return in_
    start = g.static(start, "where a slice starts")
    if isinstance(length, str):
        return g.Slice(in_, g.ints([start]), g.Add(g.size(length, in_), g.ints([start])), [axis])
    return g.Slice(in_, [start], [start + length], [axis])


@emit("slice")
def slice_(g: Builder, x: ir.Value, *, start: Sequence, stop: Sequence, step: Sequence[int]) -> ir.Value:
    """x[start:stop:step] over all axes."""
    bounds = _bounds(g, x, start, stop, step)
    if not bounds:
        return x
    axes, starts, stops, steps = zip(*bounds, strict=True)
    if any(isinstance(b, str) for b in (*starts, *stops)):
        return g.Slice(x, g.shape(starts, x), g.shape(stops, x), list(axes), list(steps))
    return g.Slice(x, list(starts), list(stops), list(axes), list(steps))


def _bounds(
    g: Builder, x: ir.Value, start: Sequence, stop: Sequence, step: Sequence[int]
) -> list[tuple[int, int | str, int | str, int]]:
    """(axis, start, stop, step) of the axes that are sliced; an open end is INT64_MAX."""
    bounds = []
    for axis, (size, first, last, by) in enumerate(zip(g.sizes(x), start, stop, step, strict=True)):
        whole = last == size or (isinstance(last, int) and isinstance(size, int) and last >= size)
        if first == 0 and whole and by == 1:
            continue
        bounds.append((axis, first, INT64_MAX if whole else last, by))
    return bounds


@emit("slice_update")
def slice_update(
    g: Builder, ref: ir.Value, value: ir.Value, *, start: Sequence, stop: Sequence, step: Sequence[int]
) -> ir.Value:
    """ref with x[start:stop:step] replaced: one axis after the other, the parts before, inside and after."""
    bounds = _bounds(g, ref, start, stop, step)
    if not bounds:
        return value
    return _put(g, ref, value, bounds)


def _put(g: Builder, ref: ir.Value, value: ir.Value, bounds: list) -> ir.Value:
    """Replaces along the first axis of `bounds`; along the others, inside the part that is replaced."""
    (axis, start, stop, step), *rest = bounds
    size = g.sizes(ref)[axis]
    if rest:
        inner = g.Slice(ref, *_written(g, ref, start, stop), axes=[axis], steps=[step])
        inner.shape = ir.Shape([*g.sizes(ref)[:axis], g.sizes(value)[axis], *g.sizes(ref)[axis + 1 :]])
        value = _put(g, inner, value, rest)
    if step != 1:
        extent = g.static(size, "the axis of a strided assignment")
        rows = range(extent)[start : extent if stop == INT64_MAX else stop : step]
        order = np.arange(extent)
        order[list(rows)] = extent + np.arange(len(rows))
        return g.Gather(g.Concat(ref, value, axis=axis), order, axis=axis)
    parts = [value]
    if start != 0:
        parts.insert(0, g.Slice(ref, *_written(g, ref, 0, start), axes=[axis]))
    if stop not in (INT64_MAX, size):
        parts.append(g.Slice(ref, *_written(g, ref, stop, INT64_MAX), axes=[axis]))
    return parts[0] if len(parts) == 1 else g.Concat(*parts, axis=axis)


def _written(g: Builder, ref: ir.Value, begin: int | str, end: int | str) -> tuple[Any, Any]:
    """Bounds of a Slice: lists where they are known, else tensors."""
    if isinstance(begin, str) or isinstance(end, str):
        return g.shape([begin], ref), g.shape([end], ref)
    return [begin], [end]


@emit("flip")
def flip(g: Builder, x: ir.Value, *, dims: Sequence[int]) -> ir.Value:
    """Reversed along axes."""
    axes = [d % g.rank(x) for d in dims]
    if not axes:
        return x
    if g.opset >= 10:
        return g.Slice(x, [-1] * len(axes), [-INT64_MAX] * len(axes), axes, [-1] * len(axes))
    sizes = g.sizes(x)
    for axis in axes:
        size = g.static(sizes[axis], "the axis that is reversed")
        x = g.Gather(x, np.arange(size - 1, -1, -1, dtype=np.int64), axis=axis)
    return x


@emit("roll")
def roll(g: Builder, in_: ir.Value, *, shifts: Sequence[int], dims: Sequence[int]) -> ir.Value:
    """Rolled along axes: elements shifted out at the end return at the start; without axes, the flat tensor.

    OneFlow counts axes from 0: -1 alone means the flat tensor, any other negative axis is not rolled (measured).
    """
    x = in_
    if list(dims) == [-1]:
        flat = g.append("Reshape", x, g.ints([-1]))
        rolled = _rolled(g, flat, shifts[0], 0, None)
        return g.append("Reshape", rolled, g.shape(g.sizes(x), x))
    for shift, axis in zip(shifts, dims, strict=True):
        if axis < 0:
            continue
        size = g.sizes(g.result())[axis]
        x = _rolled(g, x, shift, axis, size if isinstance(size, int) else None)
        x.shape = ir.Shape(g.sizes(g.result()))
    return x


def _rolled(g: Builder, x: ir.Value, shift: int, axis: int, size: int | None) -> ir.Value:
    shift = shift if size is None else shift % size
    if shift == 0:
        return x
    return g.Concat(g.Slice(x, [-shift], [INT64_MAX], [axis]), g.Slice(x, [0], [-shift], [axis]), axis=axis)


@emit("pad", ignore="padding")
def pad(
    g: Builder,
    x: ir.Value,
    *,
    padding_before: Sequence[int],
    padding_after: Sequence[int],
    floating_constant_value: float,
    integral_constant_value: int,
) -> ir.Value:
    """Padded with one number."""
    value = floating_constant_value if x.dtype in FLOATS else integral_constant_value
    return g.Pad(x, [*padding_before, *padding_after], value=value)


def _border(g: Builder, x: ir.Value, padding: Sequence[int]) -> list[int]:
    """(left, right, top, bottom ...) as all begins, then all ends."""
    pairs = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)][::-1]
    free = [0] * (g.rank(x) - len(pairs))
    return [*free, *(begin for begin, _ in pairs), *free, *(end for _, end in pairs)]


@emit("reflection_pad1d", "reflection_pad2d")
def reflection_pad(g: Builder, x: ir.Value, *, padding: Sequence[int]) -> ir.Value:
    """Padded by reflection, without the edge itself."""
    return g.Pad(x, _border(g, x, padding), mode="reflect")


@emit("replication_pad1d", "replication_pad2d")
def replication_pad(g: Builder, x: ir.Value, *, padding: Sequence[int]) -> ir.Value:
    """Padded with the edge."""
    return g.Pad(x, _border(g, x, padding), mode="edge")


@emit("tril")
def tril(
    g: Builder,
    in_: ir.Value,
    *,
    diagonal: int,
    floating_fill_value: float = 0.0,
    integer_fill_value: int = 0,
    is_floating_fill_value: bool = False,
) -> ir.Value:
    """The part on and below a diagonal, a number above it."""
    fill = floating_fill_value if is_floating_fill_value else integer_fill_value
    if g.opset >= 14 and fill == 0:
        return g.Trilu(in_, g.const(diagonal, ir.DataType.INT64), upper=0)
    return g.Where(_triangle(g, in_, diagonal, np.tril), in_, g.full(fill, in_))


@emit("triu")
def triu(g: Builder, in_: ir.Value, *, diagonal: int) -> ir.Value:
    """The part on and above a diagonal, 0 below it."""
    if g.opset >= 14:
        return g.Trilu(in_, g.const(diagonal, ir.DataType.INT64), upper=1)
    return g.Where(_triangle(g, in_, diagonal, np.triu), in_, g.full(0, in_))


def _triangle(g, x, diagonal, of):  # type: ignore[no-untyped-def]
    rows, columns = (g.static(size, "the matrix under tril or triu") for size in g.sizes(x)[-2:])
    return g.const(of(np.ones((rows, columns), dtype=bool), diagonal))


@emit("fused_scale_tril")
def fused_scale_tril(
    g: Builder,
    in_: ir.Value,
    *,
    diagonal: int,
    floating_fill_value: float,
    integer_fill_value: int,
    is_floating_fill_value: bool,
    floating_scale_value: float,
    integer_scale_value: int,
    is_floating_scale_value: bool,
) -> ir.Value:
    """tril(x) * scale, a number above the diagonal."""
    scale = floating_scale_value if is_floating_scale_value else integer_scale_value
    fill = floating_fill_value if is_floating_fill_value else integer_fill_value
    scaled = g.Mul(in_, scale)
    return g.Where(_triangle(g, in_, diagonal, np.tril), scaled, g.full(fill, in_))


@emit("diag")
def diag(g: Builder, in_: ir.Value, *, diagonal: int) -> ir.Value:
    """A vector as a diagonal of a square matrix, or a diagonal of a matrix as a vector."""
    if g.rank(in_) == 2:
        return diagonal_of(g, in_, offset=diagonal)
    size = g.static(g.sizes(g.result())[0], "the size of diag")
    mask = np.eye(size, k=diagonal, dtype=bool)
    begin, end = (max(diagonal, 0), max(-diagonal, 0))
    row_of = g.Pad(in_, [begin, end])
    return g.Where(g.const(mask), g.Unsqueeze(row_of, [0]), g.full(0, in_))


@emit("diagonal")
def diagonal_of(g: Builder, in_: ir.Value, *, offset: int) -> ir.Value:
    """The diagonal of the first two axes, which becomes the last axis."""
    rows, columns = (g.static(size, "the matrix under diagonal") for size in g.sizes(in_)[:2])
    first = np.arange(max(0, min(rows + min(offset, 0), columns - max(offset, 0))))
    flat = (first - min(offset, 0)) * columns + first + max(offset, 0)
    rest = g.sizes(in_)[2:]
    picked = g.Gather(g.Reshape(in_, [rows * columns, *rest]), flat.astype(np.int64), axis=0)
    return g.Transpose(picked, [*range(1, 1 + len(rest)), 0])


@emit("as_strided")
def as_strided(
    g: Builder, input: ir.Value, *, size: Sequence[int], stride: Sequence[int], storage_offset: int
) -> ir.Value:
    """Elements picked from the flat tensor by strides."""
    extents = [g.static(s, "the size of as_strided") for s in size]
    places = np.full([1] * len(extents), storage_offset, dtype=np.int64)
    for axis, (extent, by) in enumerate(zip(extents, stride, strict=True)):
        places = places + (np.arange(extent) * by).reshape([-1 if a == axis else 1 for a in range(len(extents))])
    return g.Gather(g.append("Reshape", input, g.ints([-1])), places.astype(np.int64), axis=0)


@emit("repeat")
def repeat(g: Builder, in_: ir.Value, *, repeat_num: int) -> ir.Value:
    """The tensor, repeated in time; one device sees it once a repetition."""
    return in_


@emit("repeat_interleave")
def repeat_interleave(g: Builder, in_: ir.Value, cumsum: ir.Value, *, repeat_num: int | str) -> ir.Value:
    """Each index as often as asked: output i is the number of running totals that are <= i."""
    places = g.Cast(_counted(g, repeat_num), to=cumsum.dtype)
    reached = g.LessOrEqual(g.Unsqueeze(cumsum, [0]), g.Unsqueeze(places, [1]))
    return g.Cast(
        g.reduce("ReduceSum", g.Cast(reached, to=ir.DataType.INT64), [1], keepdims=False), to=g.result().dtype
    )


def _counted(g: Builder, count: int | str) -> ir.Value:
    """0, 1 ... count - 1 as int64."""
    if isinstance(count, int):
        return g.const(np.arange(count, dtype=np.int64))
    zero, one = (g.const(number, ir.DataType.INT64) for number in (0, 1))
    return g.Range(zero, g.number(count, ir.DataType.INT64), one)


@emit("one_hot")
def one_hot(
    g: Builder,
    indices: ir.Value,
    *,
    depth: int,
    floating_on_value: float,
    integer_on_value: int,
    floating_off_value: float,
    integer_off_value: int,
    dtype: str,
) -> ir.Value:
    """One number at the index, another elsewhere, along a new last axis."""
    kind = DTYPES[dtype]
    on, off = (floating_on_value, floating_off_value) if kind in FLOATS else (integer_on_value, integer_off_value)
    places, count = g.Cast(indices, to=ir.DataType.INT64), g.const(depth, ir.DataType.INT64)
    if kind in (ir.DataType.FLOAT, ir.DataType.INT64):
        return g.OneHot(places, count, g.const(np.array([off, on]), kind), axis=-1)
    hit = g.Cast(g.OneHot(places, count, g.ints([0, 1]), axis=-1), to=ir.DataType.BOOL)
    return g.Where(hit, g.const(on, kind), g.const(off, kind))  # ONNX Runtime's OneHot gives float and int64 only


@emit("constant")
def constant(
    g: Builder, *, floating_value: float, integer_value: int, is_floating_value: bool, dtype: str, shape: Sequence
) -> ir.Value:
    """A tensor of one number, which may be a dynamic size."""
    return _filled(g, floating_value if is_floating_value else integer_value, dtype, shape)


def _filled(g: Builder, number: float | str, dtype: str, shape: Sequence) -> ir.Value:
    """A constant; large or dynamic ones are expanded from one element."""
    kind = DTYPES[dtype]
    if all(isinstance(size, int) for size in shape) and math.prod(shape) <= 1024 and not isinstance(number, str):
        return g.const(np.full([int(s) for s in shape], number), kind)
    return g.append("Expand", g.number(number, kind), g.shape(list(shape)))


@emit("empty")
def empty(g: Builder, *, dtype: str, shape: Sequence) -> ir.Value:
    """A tensor without defined contents: zeros."""
    return _filled(g, 0, dtype, shape)


@emit("eye")
def eye(g: Builder, *, rows: int | str, cols: int | str, dtype: str) -> ir.Value:
    """Ones on the main diagonal."""
    height, width = (g.static(size, "the size of eye") for size in (rows, cols))
    return g.const(np.eye(height, width), DTYPES[dtype])


@emit("arange")
def arange(
    g: Builder,
    *,
    integer_start: int | str,
    integer_delta: int | str,
    integer_limit: int | str,
    float_start: float,
    float_delta: float,
    float_limit: float,
    dtype: str,
) -> ir.Value:
    """start + i * step, in the type of the result."""
    kind = DTYPES[dtype]
    if isinstance(integer_limit, str):
        zero, one = (g.const(number, ir.DataType.INT64) for number in (integer_start, integer_delta))
        return g.Cast(g.Range(zero, g.Squeeze(g.size(integer_limit), [0]), one), to=kind)
    count = g.static(g.sizes(g.result())[0], "the length of arange")
    if kind in FLOATS:
        return g.const(float_start + np.arange(count) * float_delta, kind)
    start, step = (g.static(number, "arange") for number in (integer_start, integer_delta))
    return g.const(start + np.arange(count) * step, kind)


@emit("ones_like")
def ones_like(g: Builder, like: ir.Value) -> ir.Value:
    """Ones in the shape of another tensor."""
    return g.append("Expand", g.full(1, g.result()), g.shape(g.sizes(g.result()), like))


@emit("zero_like")
def zero_like(g: Builder, like: ir.Value) -> ir.Value:
    """Zeros in the shape of another tensor."""
    return g.append("Expand", g.full(0, g.result()), g.shape(g.sizes(g.result()), like))


@emit("fill_")
def fill(g: Builder, in_: ir.Value, *, floating_value: float, integral_value: int, is_floating_value: bool) -> ir.Value:
    """One number in the shape of another tensor."""
    number = floating_value if is_floating_value else integral_value
    return g.append("Expand", g.full(number, in_), g.shape(g.sizes(g.result()), in_))


@emit("fill_tensor_")
def fill_tensor(g: Builder, in_: ir.Value, value: ir.Value) -> ir.Value:
    """A one-element tensor in the shape of another."""
    return g.append("Expand", value, g.shape(g.sizes(g.result()), in_))
