"""Gathering, scattering, sorting and searching."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.emit.pool import scatter_operator
from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit, row

row("gather", "Gather", "in indices", "out", attributes={"axis": "axis"})
row("tensor_scatter_nd_update", "ScatterND", "params indices updates", "out")


@emit("tensor_scatter_nd_add")
def tensor_scatter_nd_add(g: Builder, params: ir.Value, indices: ir.Value, updates: ir.Value) -> ir.Value:
    """A tensor with slices added at index tuples; ScatterND adds since opset 16."""
    g.needs("ScatterND with addition", 16)
    return g.ScatterND(params, indices, updates, reduction="add")


@emit("embedding", ignore="padding_idx scale_grad_by_freq")
def embedding(g: Builder, weight: ir.Value, indices: ir.Value) -> ir.Value:
    """Rows of a table."""
    return g.Gather(weight, indices, axis=0)


@emit("gather_nd")
def gather_nd(g: Builder, params: ir.Value, indices: ir.Value) -> ir.Value:
    """Slices by index tuples in the last axis of the indices; an operator since opset 11."""
    if g.sizes(indices)[-1] == 1:
        return g.Gather(params, g.Squeeze(indices, [g.rank(indices) - 1]), axis=0)
    return g.GatherND(params, g.Cast(indices, to=ir.DataType.INT64))


@emit("dim_gather")
def dim_gather(g: Builder, input: ir.Value, index: ir.Value, *, dim: int) -> ir.Value:
    """One element for each index, along an axis (ONNX GatherElements, opset 11).

    ONNX indexes as many elements along the other axes as the data has; OneFlow may take fewer.
    """
    axis = dim % g.rank(input)
    cut = [
        (a, size)
        for a, (size, full) in enumerate(zip(g.sizes(index), g.sizes(input), strict=True))
        if a != axis and size != full
    ]
    for a, size in cut:
        input = g.Slice(input, [0], [g.static(size, "the index of gather")], [a])
    return g.GatherElements(input, index, axis=axis)


@emit("batch_gather")
def batch_gather(g: Builder, in_: ir.Value, indices: ir.Value) -> ir.Value:
    """Slices along the last axis of the indices, the axes before being a batch."""
    g.needs("GatherND with batch axes", 12)
    batch = g.rank(indices) - 1
    return g.GatherND(in_, g.Unsqueeze(g.Cast(indices, to=ir.DataType.INT64), [batch + 1]), batch_dims=batch)


@emit("dim_scatter_update")
def dim_scatter_update(g: Builder, input: ir.Value, index: ir.Value, src: ir.Value, *, dim: int) -> ir.Value:
    """input with elements replaced along an axis."""
    return g.append(scatter_operator(g), input, index, _source(g, index, src), axis=dim % g.rank(input))


@emit("dim_scatter_add")
def dim_scatter_add(g: Builder, input: ir.Value, index: ir.Value, src: ir.Value, *, dim: int) -> ir.Value:
    """input with elements added along an axis."""
    return _scattered(g, input, index, _source(g, index, src), dim, "add")


@emit("dim_scatter_add_like")
def dim_scatter_add_like(g: Builder, like: ir.Value, index: ir.Value, src: ir.Value, *, dim: int) -> ir.Value:
    """Zeros with elements added along an axis."""
    zeros = g.append("Expand", g.full(0, src), g.shape(g.sizes(like), like))
    return _scattered(g, zeros, index, _source(g, index, src), dim, "add", rank=g.rank(like))


@emit("dim_scatter_mul")
def dim_scatter_mul(g: Builder, input: ir.Value, index: ir.Value, src: ir.Value, *, dim: int) -> ir.Value:
    """input with elements multiplied along an axis."""
    return _scattered(g, input, index, _source(g, index, src), dim, "mul")


@emit("dim_scatter_update_scalar")
def dim_scatter_update_scalar(g: Builder, input: ir.Value, index: ir.Value, *, dim: int, src_scalar: float) -> ir.Value:
    """input with elements replaced by a number."""
    source = g.append("Expand", g.full(src_scalar, input), g.shape(g.sizes(index), index))
    return g.append(scatter_operator(g), input, index, source, axis=dim % g.rank(input))


@emit("dim_scatter_add_scalar")
def dim_scatter_add_scalar(g: Builder, input: ir.Value, index: ir.Value, *, dim: int, src_scalar: float) -> ir.Value:
    """input with a number added to elements."""
    source = g.append("Expand", g.full(src_scalar, input), g.shape(g.sizes(index), index))
    return _scattered(g, input, index, source, dim, "add")


@emit("dim_scatter_mul_scalar")
def dim_scatter_mul_scalar(g: Builder, input: ir.Value, index: ir.Value, *, dim: int, src_scalar: float) -> ir.Value:
    """input with elements multiplied by a number."""
    source = g.append("Expand", g.full(src_scalar, input), g.shape(g.sizes(index), index))
    return _scattered(g, input, index, source, dim, "mul")


def _source(g: Builder, index: ir.Value, src: ir.Value) -> ir.Value:
    """The part of the source that the index covers: ONNX wants both of one shape."""
    for axis, (size, full) in enumerate(zip(g.sizes(index), g.sizes(src), strict=True)):
        if size != full:
            src = g.Slice(src, [0], [g.static(size, "the index of scatter")], [axis])
    return src


def _scattered(g, data, index, source, dim, reduction, rank=None):  # type: ignore[no-untyped-def]
    g.needs(f"ScatterElements with reduction {reduction}", 16)
    axis = dim % (rank or g.rank(data))
    return g.append("ScatterElements", data, index, source, axis=axis, reduction=reduction)


@emit("scatter_nd", ignore="shape")
def scatter_nd(g: Builder, indices: ir.Value, updates: ir.Value) -> ir.Value:
    """Zeros with slices added at index tuples."""
    g.needs("ScatterND with reduction add", 16)
    zeros = g.append("Expand", g.full(0, updates), g.shape(g.sizes(g.result()), updates))
    return g.append("ScatterND", zeros, g.Cast(indices, to=ir.DataType.INT64), updates, reduction="add")


@emit("scatter_nd_like")
def scatter_nd_like(g: Builder, like: ir.Value, indices: ir.Value, updates: ir.Value) -> ir.Value:
    """As `scatter_nd`, in the shape of another tensor."""
    return scatter_nd(g, indices, updates)


@emit("index_add")
def index_add(g: Builder, input: ir.Value, index: ir.Value, source: ir.Value, *, dim: int, alpha: float) -> ir.Value:
    """input with slices of alpha * source added along an axis."""
    axis = dim % g.rank(input)
    scaled = source if alpha == 1 else g.Mul(source, alpha)
    shape = [1] * g.rank(input)
    shape[axis] = -1
    places = g.append("Reshape", index, g.ints(shape))
    places = g.append("Expand", places, g.shape(g.sizes(source), source))
    return _scattered(g, input, g.Cast(places, to=ir.DataType.INT64), scaled, axis, "add")


@emit("unsorted_segment_sum")
def unsorted_segment_sum(
    g: Builder, data: ir.Value, segment_ids: ir.Value, *, axis: int, num_segments: int
) -> ir.Value:
    """Sums of the slices that have the same id; the ids' axes are those of the data from `axis` on."""
    g.needs("ScatterND with reduction add", 16)
    depth = g.rank(segment_ids)
    rank = g.rank(data)
    ids = g.Unsqueeze(g.Cast(segment_ids, to=ir.DataType.INT64), [depth])
    order = [*range(axis, axis + depth), *range(axis), *range(axis + depth, rank)]
    moved = g.Transpose(data, order)
    rest = [g.sizes(data)[a] for a in order[depth:]]
    zeros = g.append("Expand", g.full(0, data), g.shape([num_segments, *rest], data))
    total = g.append("ScatterND", zeros, ids, moved, reduction="add")
    return g.Transpose(total, [*range(1, 1 + axis), 0, *range(1 + axis, 1 + len(rest))])


@emit("unsorted_segment_sum_like")
def unsorted_segment_sum_like(
    g: Builder, data: ir.Value, segment_ids: ir.Value, like: ir.Value, *, axis: int
) -> ir.Value:
    """As `unsorted_segment_sum`, with as many segments as another tensor has slices."""
    count = g.static(g.sizes(like)[axis], "the number of segments")
    return unsorted_segment_sum(g, data, segment_ids, axis=axis, num_segments=count)


@emit("unsorted_batch_segment_sum")
def unsorted_batch_segment_sum(g: Builder, data: ir.Value, segment_ids: ir.Value, *, num_segments: int) -> ir.Value:
    """Sums per batch of the slices that have the same id: a one-hot matrix times the data."""
    depth = g.rank(segment_ids)
    rest = g.sizes(data)[depth:]
    rows = g.OneHot(
        g.Cast(segment_ids, to=ir.DataType.INT64),
        g.const(num_segments, ir.DataType.INT64),
        g.const(np.array([0, 1]), data.dtype),
        axis=depth - 1,
    )
    width = 1
    for size in rest:
        width *= g.static(size, "the data of a segment sum")
    flat = g.Reshape(data, [*g.sizes(data)[:depth], width])
    return g.Reshape(g.MatMul(rows, flat), g.sizes(g.result()))


@emit("argmax")
def argmax(g: Builder, in_: ir.Value) -> ir.Value:
    """The index of the largest element along the last axis."""
    return g.Cast(g.ArgMax(in_, g.rank(in_) - 1, keepdims=False), to=g.result().dtype)


@emit("arg_sort")
def arg_sort(g: Builder, in_: ir.Value, *, direction: str) -> ir.Value:
    """The order that sorts the last axis."""
    return g.Cast(_sorted(g, in_, direction)[1], to=g.result().dtype)


@emit("sort")
def sort(g: Builder, in_: ir.Value, *, direction: str) -> ir.Value:
    """The last axis sorted."""
    return _sorted(g, in_, direction)[0]


def _sorted(g: Builder, x: ir.Value, direction: str) -> tuple[ir.Value, ir.Value]:
    axis = g.rank(x) - 1
    return g.TopK(x, g.sizes(x)[axis], axis, largest=direction == "DESCENDING")


@emit("top_k", ignore="sorted")
def top_k(g: Builder, in_: ir.Value, *, k: int | str) -> ir.Value:
    """The indices of the k largest elements of the last axis, the largest first."""
    return g.Cast(g.TopK(in_, k, g.rank(in_) - 1)[1], to=g.result().dtype)


@emit("in_top_k")
def in_top_k(g: Builder, targets: ir.Value, predictions: ir.Value, *, k: int) -> ir.Value:
    """Whether fewer than k predictions of a row exceed the target's."""
    places = g.Unsqueeze(g.Cast(targets, to=ir.DataType.INT64), [1])
    own = g.GatherElements(predictions, places, axis=1)
    better = g.Cast(g.Greater(predictions, own), to=ir.DataType.INT64)
    count = g.reduce("ReduceSum", better, [1], keepdims=False)
    return g.Cast(g.Less(count, g.full(k, count)), to=g.result().dtype)


@emit("searchsorted")
def searchsorted(g: Builder, sorted_sequence: ir.Value, values: ir.Value, *, out_int32: bool, right: bool) -> ir.Value:
    """Where each value would go in a sorted sequence: how many elements are smaller (or, right, not larger)."""
    rank = g.rank(values)
    aligned = g.Unsqueeze(sorted_sequence, [g.rank(sorted_sequence) - 1])
    wanted = g.Unsqueeze(values, [rank])
    before = g.LessOrEqual(aligned, wanted) if right else g.Less(aligned, wanted)
    kind = ir.DataType.INT32 if out_int32 else ir.DataType.INT64
    return g.reduce("ReduceSum", g.Cast(before, to=kind), [rank], keepdims=False)


@emit("searchsorted_scalar")
def searchsorted_scalar(
    g: Builder, sorted_sequence: ir.Value, *, out_int32: bool, right: bool, values: float
) -> ir.Value:
    """As `searchsorted` for one number."""
    wanted = g.full(values, sorted_sequence)
    before = g.LessOrEqual(sorted_sequence, wanted) if right else g.Less(sorted_sequence, wanted)
    kind = ir.DataType.INT32 if out_int32 else ir.DataType.INT64
    total = g.reduce("ReduceSum", g.Cast(before, to=kind), [0], keepdims=False)
    return total if not g.sizes(g.result()) else g.Unsqueeze(total, [0])


@emit("bincount")
def bincount(g: Builder, in_: ir.Value, weight: ir.Value | None = None, *, size: int) -> ir.Value:
    """How often each number below `size` occurs, or the sum of its weights."""
    kind = g.result().dtype
    hits = g.OneHot(
        g.Cast(in_, to=ir.DataType.INT64), g.const(size, ir.DataType.INT64), g.const(np.array([0, 1]), kind), axis=0
    )
    counted = hits if weight is None else g.Mul(hits, g.Cast(weight, to=kind))
    return g.reduce("ReduceSum", counted, [1], keepdims=False)
