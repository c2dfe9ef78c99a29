"""Shape rules of scans, sorting, searching and drawing."""

from __future__ import annotations

from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import (
    axis_of,
    common_dtype,
    common_float,
    equal_shapes,
    is_number,
    put,
    shape_of,
    summed,
)
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import at_most, disjunction, equal, less


def _axis(input: Spec, dim: Any) -> int:
    """Returns an axis, counted from the front; torch takes a scalar's axis 0."""
    return axis_of(dim, max(len(shape_of(input)), 1))


@rule(torch.cumsum, "cumsum", torch.cumprod, "cumprod")
def _cumulative(sizes: Sizes, input: Spec, dim: Any, *, dtype: Any = None) -> Result:
    _axis(input, dim)
    return Spec(input.shape, summed(dtype, common_dtype(input)))


@rule(torch.cummax, "cummax", torch.cummin, "cummin")
def _running_extreme(sizes: Sizes, input: Spec, dim: Any) -> Result:
    _axis(input, dim)
    return input, Spec(input.shape, torch.int64)


@rule(torch.sort, "sort")
def _sort(sizes: Sizes, input: Spec, dim: Any = -1, descending: Any = False, stable: Any = False) -> Result:
    _axis(input, dim)
    return input, Spec(input.shape, torch.int64)


@rule(torch.argsort, "argsort")
def _argsort(sizes: Sizes, input: Spec, dim: Any = -1, descending: Any = False, stable: Any = False) -> Result:
    _axis(input, dim)
    return Spec(input.shape, torch.int64)


@rule(torch.topk, "topk")
def _topk(sizes: Sizes, input: Spec, k: Any, dim: Any = -1, largest: Any = True, sorted: Any = True) -> Result:
    shape, axis = shape_of(input), _axis(input, dim)
    if not is_number(k) or common_dtype(input) is torch.bool:
        raise Uncovered
    sizes.require(at_most(0, k), "the count of topk")
    sizes.require(at_most(k, shape[axis] if shape else 1), "the count of topk")
    result = put(shape, axis, k) if shape else shape
    return Spec(result, input.dtype), Spec(result, torch.int64)


def _places(out_int32: Any) -> torch.dtype:
    return torch.int32 if out_int32 else torch.int64


@rule(torch.searchsorted)
def _searchsorted(
    sizes: Sizes,
    sorted_sequence: Spec,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Result:
    rows, values = shape_of(sorted_sequence), shape_of(input)
    common_dtype(sorted_sequence, input)
    if sorter is not None or not rows or (len(rows) > 1 and len(rows) != len(values)):
        raise Uncovered
    if len(rows) > 1:
        equal_shapes(sizes, rows[:-1], values[:-1], "the rows that are searched")
    return Spec(values, _places(out_int32))


@rule(torch.bucketize)
def _bucketize(sizes: Sizes, input: Any, boundaries: Spec, *, out_int32: bool = False, right: bool = False) -> Result:
    shape_of(boundaries, 1)
    common_dtype(input, boundaries)
    return Spec(shape_of(input), _places(out_int32))


@rule(torch.multinomial, "multinomial")
def _multinomial(
    sizes: Sizes, input: Spec, num_samples: Any, replacement: bool = False, *, generator: Any = None
) -> Result:
    shape = shape_of(input, 1, 2)
    common_float(input)
    if not is_number(num_samples):
        raise Uncovered
    sizes.require(less(0, num_samples), "the number of samples")
    drawn = less(0, shape[-1]) if len(shape) == 1 else disjunction([less(0, shape[-1]), equal(shape[0], 0)])
    sizes.require(drawn, "the categories that are drawn from")
    if not replacement:
        sizes.require(at_most(num_samples, shape[-1]), "the number of samples, at most that of categories")
    return Spec((*shape[:-1], num_samples), torch.int64)
