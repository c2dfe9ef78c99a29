"""Shape rules of reductions over axes: sums, means, variances, extremes and their places, truths, norms."""

from __future__ import annotations

from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import (
    axes_or_all,
    common_dtype,
    common_float,
    is_integral,
    positive,
    reduced,
    shape_of,
    summed,
)
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Spec

_ORDERED = "an axis with an extreme, which is not empty"


def _over(input: Spec, dim: Any, keepdim: Any, dtype: torch.dtype | None) -> Spec:
    shape = shape_of(input)
    return Spec(reduced(shape, axes_or_all(dim, len(shape)), keepdim), dtype)


@rule(torch.sum, "sum")
def _sum(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Result:
    return _over(input, dim, keepdim, summed(dtype, common_dtype(input)))


@rule(torch.prod, "prod")
def _prod(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Result:
    if isinstance(dim, (list, tuple)):
        raise Uncovered
    return _sum(sizes, input, dim, keepdim, dtype=dtype)


@rule(torch.mean, "mean")
def _mean(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Result:
    found = dtype or common_dtype(input)
    if is_integral(found):
        raise Uncovered
    return _over(input, dim, keepdim, found)


def _check_named(dim: Any) -> None:
    """Covers what torch takes for no axes in one way: not an empty list."""
    if isinstance(dim, (list, tuple)) and not dim:
        raise Uncovered


@rule(torch.logsumexp, "logsumexp", torch.special.logsumexp)
def _logsumexp(sizes: Sizes, input: Spec, dim: Any, keepdim: bool = False) -> Result:
    _check_named(dim)
    return _over(input, dim, keepdim, common_float(input))


@rule(torch.var, "var", torch.std, "std")
def _spread(
    sizes: Sizes,
    input: Spec,
    dim: Any = None,
    unbiased: Any = True,
    keepdim: bool = False,
    *,
    correction: Any = 1,
) -> Result:
    """The rule of `var` and `std`; a flag in the place of `dim` is `unbiased`, as in one of torch's overloads."""
    if isinstance(dim, bool):
        dim = None
    return _over(input, dim, keepdim, common_float(input))


@rule(torch.any, "any", torch.all, "all")
def _truth(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False) -> Result:
    _check_named(dim)
    return _over(input, dim, keepdim, torch.uint8 if input.dtype == torch.uint8 else torch.bool)


@rule(torch.count_nonzero, "count_nonzero")
def _count_nonzero(sizes: Sizes, input: Spec, dim: Any = None) -> Result:
    return _over(input, dim, False, torch.int64)


def _not_empty(sizes: Sizes, input: Spec, dim: Any) -> None:
    """Requires that reduced axes are not empty."""
    shape = shape_of(input)
    axes = axes_or_all(dim, len(shape))
    positive(sizes, [shape[axis] for axis in axes] if shape else [], _ORDERED)


def _ordered(input: Spec) -> torch.dtype:
    """Returns the dtype of numbers that have an order."""
    dtype = common_dtype(input)
    if dtype.is_complex:
        raise Uncovered
    return dtype


@rule(torch.amax, "amax", torch.amin, "amin")
def _extreme(sizes: Sizes, input: Spec, dim: Any = (), keepdim: bool = False) -> Result:
    dtype = _ordered(input)
    if dim is None:
        raise Uncovered
    _not_empty(sizes, input, dim)
    return _over(input, dim, keepdim, dtype)


@rule(torch.max, "max", torch.min, "min")
def _extreme_and_place(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False) -> Result:
    """The rule of `max` and `min`: one result over all axes, two over one axis."""
    dtype = _ordered(input)
    if type(dim) is not int and (dim is not None or keepdim):
        raise Uncovered
    _not_empty(sizes, input, dim)
    values = _over(input, dim, keepdim, dtype)
    return values if dim is None else (values, _over(input, dim, keepdim, torch.int64))


@rule(torch.median, "median", torch.nanmedian, "nanmedian")
def _median(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False) -> Result:
    if common_dtype(input) is torch.bool or (dim is None and keepdim):
        raise Uncovered
    if dim is None:
        return _over(input, None, False, input.dtype)
    return _extreme_and_place(sizes, input, dim, keepdim)


@rule(torch.argmax, "argmax", torch.argmin, "argmin")
def _place(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False) -> Result:
    """The rule of `argmax` and `argmin`."""
    if not (dim is None or type(dim) is int) or common_dtype(input) is torch.bool:
        raise Uncovered
    _not_empty(sizes, input, dim)
    return _over(input, dim, keepdim, torch.int64)


def _normed(sizes: Sizes, input: Spec, ord: Any, dim: Any, keepdim: Any, dtype: Any) -> Result:
    given = common_float(input)
    if dtype is not None or type(ord) not in (int, float):
        raise Uncovered
    if ord < 0 or ord == float("inf"):
        _not_empty(sizes, input, dim)
    return _over(input, dim, keepdim, given)


@rule(torch.linalg.vector_norm)
def _vector_norm(
    sizes: Sizes, x: Spec, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Result:
    return _normed(sizes, x, ord, dim, keepdim, dtype)


@rule(torch.norm, "norm")
def _norm(
    sizes: Sizes,
    input: Spec,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: Any = None,
) -> Result:
    if out is not None:
        raise Uncovered
    return _normed(sizes, input, 2 if p in ("fro", None) else p, dim, keepdim, dtype)
