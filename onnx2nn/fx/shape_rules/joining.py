"""Shape rules of functions that join tensors or take one apart: cat, stack, split, chunk, unbind."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import (
    axis_of,
    dtypes,
    equal_shapes,
    is_number,
    numbers,
    positive_int,
    put,
    shape_of,
)
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import at_least_zero, equal
from onnx2nn.sizes.expression import Number

_UNKNOWN_COUNT = "the number of parts depends on a dynamic dimension"
"""Why a call is left to run time: how many results it has is a fact about sizes, which samples would not prove."""


@rule(torch.cat, torch.concat, torch.concatenate)
def _cat(sizes: Sizes, tensors: Any, dim: Any = 0) -> Result:
    shapes = [shape_of(tensor) for tensor in tensors]
    rank = max(map(len, shapes), default=0)
    # torch leaves out vectors without elements, whatever the rank of the others.
    kept = [shape for shape in shapes if not (rank > 1 and len(shape) == 1 and sizes.decide(equal(shape[0], 0)))]
    if not kept or any(len(shape) != rank for shape in kept):
        raise Uncovered
    axis = axis_of(dim, rank)
    first, *others = kept
    result = list(first)
    for shape in others:
        for other, size in enumerate(shape):
            if other == axis:
                result[axis] += size
            else:
                result[other] = sizes.equal(result[other], size, "the sizes of tensors that are concatenated")
    return Spec(tuple(result), dtypes(torch.cat, (list(tensors),), {}))


@rule(torch.stack)
def _stack(sizes: Sizes, tensors: Any, dim: Any = 0) -> Result:
    shapes = [shape_of(tensor) for tensor in tensors]
    if not shapes:
        raise Uncovered
    axis, result = axis_of(dim, len(shapes[0]) + 1), shapes[0]
    for shape in shapes[1:]:
        result = equal_shapes(sizes, result, shape, "the sizes of tensors that are stacked")
    return Spec((*result[:axis], len(shapes), *result[axis:]), dtypes(torch.stack, (list(tensors),), {}))


def _parts(input: Spec, axis: int, lengths: list[Number]) -> Result:
    return tuple(Spec(put(shape_of(input), axis, length), input.dtype) for length in lengths)


@rule(torch.split, "split")
def _split(sizes: Sizes, tensor: Spec, split_size_or_sections: Any, dim: Any = 0) -> Result:
    shape = shape_of(tensor)
    axis = axis_of(dim, len(shape))
    if isinstance(split_size_or_sections, (list, tuple)):
        lengths = numbers(split_size_or_sections)
        for length in lengths:
            sizes.require(at_least_zero(length), "the sizes of the parts of a tensor")
        sizes.equal(sum(lengths), shape[axis], "the sum of the sizes of parts and the size of a tensor")
        return _parts(tensor, axis, lengths)
    return _parts(tensor, axis, _equal_lengths(sizes, shape[axis], split_size_or_sections))


def _equal_lengths(sizes: Sizes, size: Number, length: Any) -> list[Number]:
    """Returns the sizes of parts of one length, of which the last may be shorter."""
    if not is_number(length):
        raise Uncovered
    if sizes.decide(equal(size, length)) is True:
        return [size]
    if type(size) is not int or type(length) is not int:
        raise TraceError(_UNKNOWN_COUNT)
    if length < 1:
        raise Uncovered
    sizes.allow_parts(-(-size // length))
    return [min(length, size - start) for start in range(0, size, length)] or [0]


@rule(torch.chunk, "chunk")
def _chunk(sizes: Sizes, input: Spec, chunks: Any, dim: Any = 0) -> Result:
    shape = shape_of(input)
    axis = axis_of(dim, len(shape))
    size, chunks = shape[axis], positive_int(chunks)
    sizes.allow_parts(chunks)
    if sizes.decide(equal(size % chunks, 0)) is True:
        return _parts(input, axis, [size // chunks] * chunks)
    length = -(-size // chunks)
    if isinstance(size, int):
        return _parts(input, axis, _equal_lengths(sizes, size, length))
    rest = size - length * (chunks - 1)
    if not sizes.decide(at_least_zero(rest - 1)):  # torch makes no chunk behind the last element
        raise TraceError(_UNKNOWN_COUNT)
    return _parts(input, axis, [length] * (chunks - 1) + [rest])


@rule(F.glu)
def _glu(sizes: Sizes, input: Spec, dim: Any = -1) -> Result:
    shape = shape_of(input)
    axis = axis_of(dim, len(shape))
    sizes.require(equal(shape[axis] % 2, 0), "glu halves a dimension")
    return Spec(put(shape, axis, shape[axis] // 2), input.dtype)


@rule(torch.tensor_split, "tensor_split")
def _tensor_split(sizes: Sizes, input: Spec, indices_or_sections: Any, dim: Any = 0) -> Result:
    shape = shape_of(input)
    axis = axis_of(dim, len(shape))
    count = positive_int(indices_or_sections)
    sizes.allow_parts(count)
    return _parts(input, axis, [(shape[axis] + (count - 1 - part)) // count for part in range(count)])


@rule(torch.unbind, "unbind")
def _unbind(sizes: Sizes, input: Spec, dim: Any = 0) -> Result:
    shape = shape_of(input)
    axis = axis_of(dim, len(shape))
    size = shape[axis]
    if not isinstance(size, int):
        raise TraceError(_UNKNOWN_COUNT)
    sizes.allow_parts(size)
    return (Spec(put(shape, axis), input.dtype),) * size
