"""Shape rules of scans, sorting, searching and drawing."""

from __future__ import annotations

from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import axis_of, common_float, equal_shapes, is_number, is_spec, replaced_at
from onnx2nn.fx.shape_rules.rule import Result, Sizes, rule
from onnx2nn.fx.spec import Spec
from onnx2nn.sizes.conditions import at_most, disjunction, equal, less


def _has_axis(input: Spec, dim: Any) -> bool:
    return is_spec(input) and axis_of(dim, len(input.shape or ())) is not None


def _cumulative(sizes: Sizes, input: Spec, dim: Any, *, dtype: Any = None) -> Result:
    """The rule of `cumsum` and `cumprod`: integers and bools add up to int64."""
    if not _has_axis(input, dim) or input.dtype is None:
        return None
    is_integral = not input.dtype.is_floating_point and not input.dtype.is_complex
    return Spec(input.shape, dtype or (torch.int64 if is_integral else input.dtype))


rule(torch.cumsum, "cumsum", torch.cumprod, "cumprod")(_cumulative)


def _running_extreme(sizes: Sizes, input: Spec, dim: Any) -> Result:
    return (input, Spec(input.shape, torch.int64)) if _has_axis(input, dim) else None


rule(torch.cummax, "cummax", torch.cummin, "cummin")(_running_extreme)


@rule(torch.sort, "sort")
def _sort(sizes: Sizes, input: Spec, dim: Any = -1, descending: Any = False, stable: Any = False) -> Result:
    return (input, Spec(input.shape, torch.int64)) if _has_axis(input, dim) else None


@rule(torch.argsort, "argsort")
def _argsort(sizes: Sizes, input: Spec, dim: Any = -1, descending: Any = False, stable: Any = False) -> Result:
    return Spec(input.shape, torch.int64) if _has_axis(input, dim) else None


@rule(torch.topk, "topk")
def _topk(sizes: Sizes, input: Spec, k: Any, dim: Any = -1, largest: Any = True, sorted: Any = True) -> Result:
    if not _has_axis(input, dim) or not is_number(k) or input.dtype == torch.bool:
        return None
    axis, shape = axis_of(dim, len(input.shape or ())), input.shape or ()
    assert axis is not None
    sizes.require(at_most(0, k), "the count of topk")
    sizes.require(at_most(k, shape[axis] if shape else 1), "the count of topk")
    result = replaced_at(shape, axis, k)
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
    if not is_spec(sorted_sequence, input) or sorter is not None or sorted_sequence.dtype != input.dtype:
        return None
    rows = sorted_sequence.shape or ()
    if not rows or (len(rows) > 1 and len(rows) != len(input.shape)):
        return None
    if len(rows) > 1:
        equal_shapes(sizes, rows[:-1], input.shape[:-1], "the rows that are searched")
    return Spec(input.shape, _places(out_int32))


@rule(torch.bucketize)
def _bucketize(sizes: Sizes, input: Any, boundaries: Spec, *, out_int32: bool = False, right: bool = False) -> Result:
    if not is_spec(input, boundaries) or len(boundaries.shape or ()) != 1 or input.dtype != boundaries.dtype:
        return None
    return Spec(input.shape, _places(out_int32))


@rule(torch.multinomial, "multinomial")
def _multinomial(
    sizes: Sizes, input: Spec, num_samples: Any, replacement: bool = False, *, generator: Any = None
) -> Result:
    shape = input.shape or ()
    if common_float(input) is None or len(shape) not in (1, 2) or not is_number(num_samples):
        return None
    sizes.require(less(0, num_samples), "the number of samples")
    drawn = less(0, shape[-1]) if len(shape) == 1 else disjunction([less(0, shape[-1]), equal(shape[0], 0)])
    sizes.require(drawn, "the categories that are drawn from")
    if not replacement:
        sizes.require(at_most(num_samples, shape[-1]), "the number of samples, at most that of categories")
    return Spec((*shape[:-1], num_samples), torch.int64)
