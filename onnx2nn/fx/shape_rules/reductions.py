"""Shape rules of reductions."""

from __future__ import annotations

from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import axes_of, common_float, positive, reduced
from onnx2nn.fx.shape_rules.rule import Result, Sizes, rule
from onnx2nn.fx.spec import Spec

_ORDERED = "an axis with an extreme, which is not empty"


def _is_integral(dtype: torch.dtype | None) -> bool:
    return dtype is not None and not dtype.is_floating_point and not dtype.is_complex


def _over(input: Spec, dim: Any, keepdim: Any, dtype: torch.dtype | None) -> Result:
    axes = None if input.shape is None else axes_of(dim, len(input.shape))
    if axes is None or input.shape is None or dtype is None:
        return None
    return Spec(reduced(input.shape, axes, bool(keepdim)), dtype)


def _summed(dtype: Any, given: torch.dtype | None) -> torch.dtype | None:
    """Returns the dtype of a sum or product: integers and bools add up to int64."""
    return dtype or (torch.int64 if _is_integral(given) else given)


@rule(torch.sum, "sum")
def _sum(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Result:
    return _over(input, dim, keepdim, _summed(dtype, input.dtype))


@rule(torch.prod, "prod")
def _prod(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Result:
    if isinstance(dim, (list, tuple)):
        return None
    return _over(input, dim, keepdim, _summed(dtype, input.dtype))


@rule(torch.mean, "mean")
def _mean(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Result:
    dtype = dtype or input.dtype
    return None if _is_integral(dtype) else _over(input, dim, keepdim, dtype)


@rule(torch.logsumexp, "logsumexp", torch.special.logsumexp)
def _logsumexp(sizes: Sizes, input: Spec, dim: Any, keepdim: bool = False) -> Result:
    if isinstance(dim, (list, tuple)) and not dim:
        return None
    return _over(input, dim, keepdim, common_float(input))


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


rule(torch.var, "var", torch.std, "std")(_spread)


def _truth(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False) -> Result:
    if isinstance(dim, (list, tuple)) and not dim:
        return None
    return _over(input, dim, keepdim, torch.uint8 if input.dtype == torch.uint8 else torch.bool)


rule(torch.any, "any", torch.all, "all")(_truth)


@rule(torch.count_nonzero, "count_nonzero")
def _count_nonzero(sizes: Sizes, input: Spec, dim: Any = None) -> Result:
    return _over(input, dim, False, torch.int64)


def _not_empty(sizes: Sizes, input: Spec, dim: Any) -> bool:
    """Requires that reduced axes are not empty; returns whether the axes are valid."""
    axes = None if input.shape is None else axes_of(dim, len(input.shape))
    if axes is None or input.shape is None:
        return False
    positive(sizes, [input.shape[axis] for axis in axes] if input.shape else [], _ORDERED)
    return True


def _extreme(sizes: Sizes, input: Spec, dim: Any = (), keepdim: bool = False) -> Result:
    if dim is None or input.dtype is None or input.dtype.is_complex or not _not_empty(sizes, input, dim):
        return None
    return _over(input, dim, keepdim, input.dtype)


rule(torch.amax, "amax", torch.amin, "amin")(_extreme)


def _extreme_and_place(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False) -> Result:
    """The rule of `max` and `min`: one result over all axes, two over one axis."""
    if input.dtype is None or input.dtype.is_complex or not (dim is None or type(dim) is int):
        return None
    if not _not_empty(sizes, input, dim):
        return None
    values = _over(input, dim, keepdim, input.dtype)
    if dim is None:
        return None if keepdim else values
    return values, _over(input, dim, keepdim, torch.int64)


rule(torch.max, "max", torch.min, "min")(_extreme_and_place)


@rule(torch.median, "median", torch.nanmedian, "nanmedian")
def _median(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False) -> Result:
    if input.dtype in (None, torch.bool):
        return None
    if dim is None:
        return None if keepdim else _over(input, None, False, input.dtype)
    return _extreme_and_place(sizes, input, dim, keepdim)


def _place(sizes: Sizes, input: Spec, dim: Any = None, keepdim: bool = False) -> Result:
    """The rule of `argmax` and `argmin`."""
    if not (dim is None or type(dim) is int) or input.dtype in (None, torch.bool):
        return None
    if not _not_empty(sizes, input, dim):
        return None
    return _over(input, dim, keepdim, torch.int64)


rule(torch.argmax, "argmax", torch.argmin, "argmin")(_place)


def _normed(sizes: Sizes, input: Spec, ord: Any, dim: Any, keepdim: Any, dtype: Any) -> Result:
    if dtype is not None or common_float(input) is None or type(ord) not in (int, float):
        return None
    if (ord < 0 or ord == float("inf")) and not _not_empty(sizes, input, dim):
        return None
    return _over(input, dim, keepdim, input.dtype)


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
    return None if out is not None else _normed(sizes, input, 2 if p in ("fro", None) else p, dim, keepdim, dtype)
