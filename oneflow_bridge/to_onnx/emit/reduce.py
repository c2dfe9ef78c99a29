"""Reductions over axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


def _axes(g: Builder, x: ir.Value, axis: Sequence[int]) -> list[int]:
    """The axes, from 0; none named means all."""
    rank = g.rank(x)
    return sorted(a % rank for a in axis) if len(axis) else list(range(rank))


def _reduced(g: Builder, operator: str, x: ir.Value, axes: Sequence[int], keepdims: bool) -> ir.Value:
    return g.reduce(operator, x, axes, keepdims) if axes else x


@emit("reduce_sum")
def reduce_sum(g: Builder, input_tensor: ir.Value, *, axis: Sequence[int], keepdims: bool) -> ir.Value:
    """The sum, in the type of the result (a bool is counted)."""
    x = g.Cast(input_tensor, to=g.result().dtype)
    return _reduced(g, "ReduceSum", x, _axes(g, input_tensor, axis), keepdims)


@emit("reduce_mean")
def reduce_mean(g: Builder, x: ir.Value, *, axis: Sequence[int], keepdims: bool) -> ir.Value:
    """The mean; a job has a sum and a product, which raising recombines."""
    axes = list(axis)
    if axes == list(range(2, g.rank(x))) and keepdims and len(axes) > 1:
        return g.GlobalAveragePool(x)
    return _reduced(g, "ReduceMean", x, axes, keepdims)


@emit("reduce_prod")
def reduce_prod(g: Builder, input_tensor: ir.Value, *, axis: Sequence[int], keepdims: bool) -> ir.Value:
    """The product."""
    return _reduced(g, "ReduceProd", g.Cast(input_tensor, to=g.result().dtype), _axes(g, input_tensor, axis), keepdims)


@emit("reduce_max")
def reduce_max(g: Builder, input_tensor: ir.Value, *, axis: Sequence[int], keepdims: bool) -> ir.Value:
    """The largest."""
    return _reduced(g, "ReduceMax", input_tensor, _axes(g, input_tensor, axis), keepdims)


@emit("reduce_min")
def reduce_min(g: Builder, input_tensor: ir.Value, *, axis: Sequence[int], keepdims: bool) -> ir.Value:
    """The smallest."""
    return _reduced(g, "ReduceMin", input_tensor, _axes(g, input_tensor, axis), keepdims)


@emit("reduce_any")
def reduce_any(g: Builder, input_tensor: ir.Value, *, axis: Sequence[int], keepdims: bool) -> ir.Value:
    """Whether any element is not 0."""
    return _counted(g, "ReduceMax", input_tensor, axis, keepdims)


@emit("reduce_all")
def reduce_all(g: Builder, input_tensor: ir.Value, *, axis: Sequence[int], keepdims: bool) -> ir.Value:
    """Whether all elements are not 0."""
    return _counted(g, "ReduceMin", input_tensor, axis, keepdims)


def _counted(g: Builder, operator: str, x: ir.Value, axis: Sequence[int], keepdims: bool) -> ir.Value:
    truth = x if x.dtype == ir.DataType.BOOL else g.Not(g.Equal(x, 0))
    found = _reduced(g, operator, g.Cast(truth, to=ir.DataType.INT32), _axes(g, x, axis), keepdims)
    return g.Cast(g.Greater(found, 0), to=g.result().dtype)


@emit("reduce_nansum")
def reduce_nansum(g: Builder, input_tensor: ir.Value, *, axis: Sequence[int], keepdims: bool) -> ir.Value:
    """The sum of all elements that are not NaN."""
    numbers = g.Where(g.IsNaN(input_tensor), g.full(0, input_tensor), input_tensor)
    return _reduced(g, "ReduceSum", numbers, _axes(g, input_tensor, axis), keepdims)


@emit("reduce_sum_like")
def reduce_sum_like(g: Builder, x: ir.Value, like: ir.Value, *, axis: Sequence[int]) -> ir.Value:
    """The sum over some axes, in the shape of another tensor."""
    if not len(axis):
        return x
    return g.Reshape(_reduced(g, "ReduceSum", x, _axes(g, x, axis), keepdims=True), g.sizes(g.result()))


@emit("var", ignore="dtype")
def var(g: Builder, input: ir.Value, *, dim: Sequence[int], unbiased: bool, keepdim: bool) -> ir.Value:
    """The variance: squares of the distance from the mean, divided by n, or n - 1 where unbiased."""
    axes = _axes(g, input, dim)
    centred = g.Sub(input, g.reduce("ReduceMean", input, axes, keepdims=True))
    squares = g.Mul(centred, centred)
    if not unbiased:
        return g.reduce("ReduceMean", squares, axes, keepdim)
    total = g.reduce("ReduceSum", squares, axes, keepdim)
    sizes = [g.sizes(input)[axis] for axis in axes]
    if all(isinstance(size, int) for size in sizes):
        return g.Div(total, math.prod(int(s) for s in sizes) - 1)
    count = g.reduce("ReduceProd", g.shape(sizes, input), [0], keepdims=False)
    return g.Div(total, g.Cast(g.Sub(count, 1), to=input.dtype))


@emit("square_sum")
def square_sum(g: Builder, x: ir.Value) -> ir.Value:
    """The sum of all squares, in the shape of the result."""
    return _like_result(g, g.reduce("ReduceSum", g.Mul(x, x), list(range(g.rank(x))), keepdims=False))


@emit("sqrt_square_sum")
def sqrt_square_sum(g: Builder, x: ir.Value) -> ir.Value:
    """The Euclidean norm of all elements."""
    return _like_result(g, g.Sqrt(g.reduce("ReduceSum", g.Mul(x, x), list(range(g.rank(x))), keepdims=False)))


def _like_result(g: Builder, x: ir.Value) -> ir.Value:
    return x if not g.sizes(g.result()) else g.append("Reshape", x, g.ints([int(s) for s in g.sizes(g.result())]))


def _total(g: Builder, terms: list[tuple[ir.Value, ir.Value]]) -> ir.Value:
    """The sum of all elements of the second ones, which have the shapes of the first."""
    parts = [g.reduce("ReduceSum", term, list(range(g.rank(x))), keepdims=False) for x, term in terms]
    return _like_result(g, functools.reduce(g.Add, parts))


@emit("multi_square_sum")
def multi_square_sum(g: Builder, x: list) -> ir.Value:
    """The sum of the squares of all elements of all inputs."""
    return _total(g, [(value, g.Mul(value, value)) for value in x])


@emit("count_not_finite")
def count_not_finite(g: Builder, x: ir.Value) -> ir.Value:
    """How many elements are NaN or infinite, int64 of shape (1,)."""
    bad = g.Not(g.Less(g.Abs(x), math.inf))
    total = g.reduce("ReduceSum", g.Cast(bad, to=ir.DataType.INT64), list(range(g.rank(x))), keepdims=False)
    return _like_result(g, total)


@emit("cumsum")
def cumsum(g: Builder, x: ir.Value, *, dim: int) -> ir.Value:
    """Running sums along an axis (ONNX CumSum, opset 11)."""
    x = g.Cast(x, to=g.result().dtype)
    return g.CumSum(x, g.const(dim % g.rank(x), ir.DataType.INT64))


@emit("cumprod")
def cumprod(g: Builder, x: ir.Value, *, dim: int) -> ir.Value:
    """Running products along an axis: the product of row i of a triangle that holds x up to i and 1 behind."""
    rank = g.rank(x)
    axis = dim % rank
    extent = g.static(g.sizes(x)[axis], "the axis of cumprod")
    mask = np.tril(np.ones((extent, extent), dtype=bool)).reshape(extent, extent, *[1] * (rank - 1 - axis))
    square = g.Where(g.const(mask), g.Unsqueeze(g.Cast(x, to=g.result().dtype), [axis]), g.const(1, g.result().dtype))
    return g.reduce("ReduceProd", square, [axis + 1], keepdims=False)


@emit("median")
def median(g: Builder, input: ir.Value) -> ir.Value:
    """The lower median of all elements."""
    count = math.prod(g.static(size, "the shape under median") for size in g.sizes(input))
    flat = g.append("Reshape", input, g.ints([-1]))
    smallest, _ = g.TopK(flat, (count - 1) // 2 + 1, 0, largest=False)
    return g.Squeeze(g.Slice(smallest, [-1], [2**31], [0]), [0])


@emit("median_with_indices")
def median_with_indices(g: Builder, input: ir.Value) -> dict[str, ir.Value]:
    """The lower median along the last axis, and where it is."""
    axis = g.rank(input) - 1
    count = g.static(g.sizes(input)[axis], "the axis of median")
    found = g.TopK(input, (count - 1) // 2 + 1, axis, largest=False)
    values, indices = (g.Squeeze(g.Slice(value, [-1], [2**31], [axis]), [axis]) for value in found)
    return {"values": values, "indices": indices}


@emit("multi_reduce_sum_pow_abs")
def multi_reduce_sum_pow_abs(g: Builder, x: list, *, p: float) -> ir.Value:
    """The sum of |x| ** p over all elements of all inputs."""
    return _total(g, [(value, g.Pow(g.Abs(value), g.full(p, value))) for value in x])


@emit("multi_reduce_max_abs", "local_multi_reduce_max_abs")
def multi_reduce_max_abs(g: Builder, x: list) -> ir.Value:
    """The largest |x| of all inputs."""
    return _extreme(g, x, "ReduceMax", g.Max)


@emit("multi_reduce_min_abs", "local_multi_reduce_min_abs")
def multi_reduce_min_abs(g: Builder, x: list) -> ir.Value:
    """The smallest |x| of all inputs."""
    return _extreme(g, x, "ReduceMin", g.Min)


def _extreme(g, x, operator, choose):  # type: ignore[no-untyped-def]
    best = None
    for value in x:
        part = g.reduce(operator, g.Abs(value), list(range(g.rank(value))), keepdims=False)
        best = part if best is None else choose(best, part)
    return _like_result(g, best)
