"""Reductions and running reductions."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import abs, add, div, mul, pow, sub
from oneflow_bridge.namespace.comparison import (
    eq,
    isfinite,
    isnan,
    le,
    logical_and,
    logical_or,
    maximum,
    minimum,
    ne,
    where,
)
from oneflow_bridge.namespace.creation import arange, full
from oneflow_bridge.namespace.dtypes import DType, as_dtype, flow
from oneflow_bridge.namespace.indexing import gather
from oneflow_bridge.namespace.operands import refuse_uint64
from oneflow_bridge.namespace.shaping import narrow, permute, reshape, squeeze
from oneflow_bridge.namespace.sorting import Sorted, kthvalue, sort
from oneflow_bridge.namespace.tensor import Size, Tensor, axes, axis, convert, store, widened
from oneflow_bridge.namespace.transcendental import exp, log, sqrt
from onnx2nn.errors import OperatorError


def _dims(x: Tensor, dim: Any) -> tuple[int, ...]:
    """The dims to reduce; none given means all."""
    return axes(None if dim is None or (isinstance(dim, (list, tuple)) and not dim) else dim, x.ndim) if x.ndim else ()


def _reduced_shape(x: Tensor, dims: Sequence[int], keepdim: bool) -> list[int]:
    return [1 if d in dims else size for d, size in enumerate(x.shape) if keepdim or d not in dims]


def _reduce(
    x: Tensor, dim: Any, keepdim: bool, dtype: DType, empty: Any, kernel: Callable[[Any, list[int], bool], Any]
) -> Tensor:
    """Reduce `dim` of x, computed in `dtype`; `empty` is the result of nothing, which OneFlow leaves undefined."""
    dims = _dims(x, dim)
    x = convert(x, dtype)
    if not x.numel():
        if empty is None:
            raise OperatorError(f"This reduction has no result for an empty tensor of shape {tuple(x.shape)}.")
        return full(_reduced_shape(x, dims, keepdim), empty, dtype=dtype, device=x.device)
    if not dims:
        return x
    if x.ndim <= 5:
        return store(kernel(widened(x), list(dims), keepdim), dtype)
    # OneFlow ends the process on reductions of tensors of rank 8: kept and reduced dims become one each.
    kept = [d for d in range(x.ndim) if d not in dims]
    matrix = reshape(permute(x, [*kept, *dims]), Size(x.shape[d] for d in kept).numel(), -1)
    return reshape(store(kernel(widened(matrix), [1], False), dtype), _reduced_shape(x, dims, keepdim))


def _sum_type(x: Tensor, dtype: Any) -> DType:
    """torch sums integers and bools in int64."""
    if dtype is not None:
        return as_dtype(dtype)
    return x.dtype if x.dtype.is_floating_point else dtypes.int64


def sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum; 0 of nothing."""
    return _reduce(x, dim, keepdim, _sum_type(x, dtype), 0, lambda v, d, k: flow.sum(v, d, k))


def nansum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum without NaN."""
    return sum(where(isnan(x), 0, x), dim, keepdim, dtype=dtype)


def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean of floats; NaN of nothing."""
    wanted = x.dtype if dtype is None else as_dtype(dtype)
    if not wanted.is_floating_point:
        raise OperatorError(f"The mean of {wanted}; a float type is needed.")
    return _reduce(x, dim, keepdim, wanted, math.nan, lambda v, d, k: flow.mean(v, d, k))


def prod(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product; 1 of nothing."""
    return _reduce(x, dim, keepdim, _sum_type(x, dtype), 1, lambda v, d, k: flow._C.reduce_prod(v, d, k))


def _all_or_any(kernel: Callable[[Any, list[int], bool], Any], empty: bool) -> Callable[..., Tensor]:
    def function(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        return _reduce(x, dim, keepdim, dtypes.bool_, empty, kernel)

    return function


any = _all_or_any(lambda v, d, k: flow._C.reduce_any(v, d, k), False)
all = _all_or_any(lambda v, d, k: flow._C.reduce_all(v, d, k), True)


def _extremum(kernel: Callable[[Any, list[int], bool], Any], worst: float) -> Callable[..., Tensor]:
    """amax and amin: OneFlow loses NaN, and gives the largest finite number where all are the `worst`, infinite one."""

    def function(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        refuse_uint64(x.dtype, "comparison", x)
        if x.dtype is dtypes.bool_:
            return convert(function(convert(x, dtypes.int64), dim, keepdim), dtypes.bool_)

        def exact(value: Any, dims: list[int], keep: bool) -> Any:
            result = kernel(value, dims, keep)
            if not value.dtype.is_floating_point:
                return result
            for found, number in (
                (flow._C.reduce_any(value != value, dims, keep), math.nan),
                (flow._C.reduce_all(value == worst, dims, keep), worst),
            ):
                shape = (1,) * found.ndim
                filled = flow._C.constant(shape, number, dtype=value.dtype, device=value.device)
                result = flow.where(found, filled, result)
            return result

        return _reduce(x, dim, keepdim, x.dtype, None, exact)

    return function


amax = _extremum(lambda v, d, k: flow._C.reduce_max(v, d, k), -math.inf)
amin = _extremum(lambda v, d, k: flow._C.reduce_min(v, d, k), math.inf)


def max(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest element; with a dim its values and indices; with a tensor `maximum`."""
    if isinstance(dim, Tensor):
        return maximum(x, dim)
    if dim is None:
        return amax(x)
    return _with_indices(x, dim, keepdim, argmax)


def min(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest element; with a dim its values and indices; with a tensor `minimum`."""
    if isinstance(dim, Tensor):
        return minimum(x, dim)
    if dim is None:
        return amin(x)
    return _with_indices(x, dim, keepdim, argmin)


def _with_indices(x: Tensor, dim: int, keepdim: bool, find: Callable[..., Tensor]) -> Sorted:
    if x.ndim == 0:
        return Sorted(x, find(x))
    index = find(x, dim, True)
    values = gather(x, dim, index)
    return Sorted(values, index) if keepdim else Sorted(squeeze(values, dim), squeeze(index, dim))


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest and the largest."""
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def _arg_extremum(kernel: Callable[..., Any]) -> Callable[..., Tensor]:
    def function(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if not x.numel():
            raise OperatorError(f"argmax or argmin of a tensor of shape {tuple(x.shape)}.")
        if x.ndim == 0:  # the kernel ends the process
            return full((), 0, dtype=dtypes.int64, device=x.device)
        if dim is None:
            found = function(reshape(x, -1), 0)
            return reshape(found, [1] * x.ndim) if keepdim else found
        refuse_uint64(x.dtype, "comparison", x)
        place = axis(dim, x.ndim)
        value = widened(convert(x, dtypes.int64) if x.dtype is dtypes.bool_ else x)
        found = kernel(value, place, keepdim)
        if value.dtype.is_floating_point:
            nan = value != value
            first = flow.argmax(nan.to(flow.int64), place, keepdim)
            found = flow.where(flow._C.reduce_any(nan, [place], keepdim), first, found)
        return Tensor(found.to(flow.int64))

    return function


argmax = _arg_extremum(flow.argmax)
argmin = _arg_extremum(flow.argmin)


def var(
    x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None
) -> Tensor:
    """The variance over N - correction (1 unless told)."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = int(unbiased) if correction is None else correction
    dims = _dims(x, dim)
    count = 1
    for d in dims:
        count *= x.shape[d]
    inner = convert(x, dtypes.float32) if x.dtype.bits == 16 else x
    centered = sub(inner, mean(inner, dims, True))
    total = sum(mul(centered, centered), dims, keepdim)
    divisor = builtins.max(count - correction, 0)
    return convert(div(total, float(divisor)), x.dtype)


def std(
    x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None
) -> Tensor:
    """The square root of the variance."""
    return sqrt(var(x, dim, unbiased, keepdim, correction=correction))


def var_mean(
    x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None
) -> Any:
    """Variance and mean."""
    return var(x, dim, unbiased, keepdim, correction=correction), mean(x, dim, keepdim)


def std_mean(
    x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None
) -> Any:
    """Standard deviation and mean."""
    return std(x, dim, unbiased, keepdim, correction=correction), mean(x, dim, keepdim)


def logsumexp(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))), without overflow; -inf of nothing."""
    x = x if x.dtype.is_floating_point else convert(x, dtypes.float32)
    dims = _dims(x, dim)
    if not x.numel():
        return full(_reduced_shape(x, dims, keepdim), -math.inf, dtype=x.dtype, device=x.device)
    big = amax(x, dims, True)
    shift = where(ne(abs(big), math.inf), big, 0.0)
    total = log(sum(exp(sub(x, shift)), dims, True))
    result = Tensor(total.value.to(x.dtype.compute) + shift.value.to(x.dtype.compute))
    result = convert(result, x.dtype)
    return result if keepdim else reshape(result, _reduced_shape(x, dims, False))


def norm(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The p-norm of the elements, torch.norm and torch.linalg.vector_norm."""
    x = x if dtype is None else convert(x, as_dtype(dtype))
    p = 2 if p in (None, "fro") else p
    if p == math.inf:
        return amax(abs(x), dim, keepdim)
    if p == -math.inf:
        return amin(abs(x), dim, keepdim)
    if p == 0:
        return sum(convert(ne(x, 0), x.dtype), dim, keepdim)
    if p == 1:
        return sum(abs(x), dim, keepdim)
    if p == 2:
        return sqrt(sum(mul(x, x), dim, keepdim))
    return pow(sum(pow(abs(x), float(p)), dim, keepdim), 1.0 / p)


def vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """torch.linalg.vector_norm."""
    return norm(x, ord, dim, keepdim, dtype=dtype)


def count_nonzero(x: Tensor, dim: Any = None) -> Tensor:
    """How many elements are not zero."""
    return sum(ne(x, 0), dim)


def _running(kernel: Callable[[Any, int], Any]) -> Callable[..., Tensor]:
    """cumsum and cumprod: 0-d inputs end the process in OneFlow's own."""

    def function(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        place = axis(dim, x.ndim)
        x = convert(x, _sum_type(x, dtype))
        return store(kernel(widened(x), place), x.dtype) if x.ndim and x.numel() else x

    return function


cumsum = _running(lambda v, d: flow.cumsum(v, d))
cumprod = _running(lambda v, d: flow.cumprod(v, d))


def cummax(x: Tensor, dim: int) -> Sorted:
    """The largest so far and where it was, the last of equal ones."""
    return _running_extremum(x, dim, True)


def cummin(x: Tensor, dim: int) -> Sorted:
    """The smallest so far and where it was, the last of equal ones."""
    return _running_extremum(x, dim, False)


def _running_extremum(x: Tensor, dim: int, largest: bool) -> Sorted:
    """By doubling: after step k each element knows the best of the 2**k before it."""
    if x.ndim == 0:
        return Sorted(x, full((), 0, dtype=dtypes.int64, device=x.device))
    place = axis(dim, x.ndim)
    size = x.shape[place]
    shape = [size if d == place else 1 for d in range(x.ndim)]
    index = reshape(arange(size, device=x.device), shape).value.expand(*x.shape)
    value = widened(convert(x, dtypes.int64) if x.dtype is dtypes.bool_ else x)
    step = 1
    while step < size:
        head, tail = [slice(None)] * x.ndim, [slice(None)] * x.ndim
        head[place], tail[place] = slice(0, size - step), slice(step, size)
        before, here = value[tuple(head)], value[tuple(tail)]
        better = before > here if largest else before < here
        if x.dtype.is_floating_point:
            better = flow.logical_and(flow.logical_or(better, before != before), here == here)
        keep = [slice(None)] * x.ndim
        keep[place] = slice(0, step)
        best = flow.where(better, before, here)
        places = flow.where(better, index[tuple(head)], index[tuple(tail)])
        value = flow.cat([value[tuple(keep)], best], place)
        index = flow.cat([index[tuple(keep)], places], place)
        step *= 2
    return Sorted(store(value, x.dtype), Tensor(index))


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(x))), shifted by the largest element."""
    big = amax(x, dim, True)
    return Tensor(log(cumsum(exp(sub(x, big)), dim)).value + big.value, x.dtype)


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median; with a dim its values and indices."""
    if dim is None:
        return kthvalue(reshape(x, -1), (x.numel() + 1) // 2, 0).values
    return kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def quantile(
    x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The q-quantile, between neighbours by linear interpolation."""
    if interpolation != "linear":
        raise OperatorError(f"quantile with interpolation {interpolation!r}; 'linear' is there.")
    q = q.item() if isinstance(q, Tensor) else q
    flat = reshape(x, -1) if dim is None else x
    place = 0 if dim is None else axis(dim, x.ndim)
    values = sort(flat, place).values
    at = q * (flat.shape[place] - 1)
    low = math.floor(at)
    high = low + 1 if low + 1 < flat.shape[place] else low
    a, b = (narrow(values, place, i, 1) for i in (low, high))
    result = Tensor(a.value + (b.value - a.value) * (at - low), x.dtype)
    return result if keepdim else squeeze(result, place)


def trapz(y: Tensor, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integral by the trapezoidal rule."""
    size = y.shape[dim]
    both = Tensor(narrow(y, dim, 1, size - 1).value + narrow(y, dim, 0, size - 1).value, y.dtype)
    return mul(sum(both, dim), dx / 2)


def diff(x: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    """Differences of neighbours."""
    for _ in range(n):
        size = x.shape[dim]
        x = sub(narrow(x, dim, 1, size - 1), narrow(x, dim, 0, size - 1))
    return x


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether shapes and elements are equal."""
    return x.shape == y.shape and not any(ne(x, y)).item()


def isclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Which elements are equal within atol + rtol * |y|."""
    near = logical_and(le(abs(sub(x, y)), add(mul(abs(y), rtol), atol)), isfinite(y))
    result = logical_or(eq(x, y), near)
    return logical_or(result, logical_and(isnan(x), isnan(y))) if equal_nan else result


def allclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close."""
    return bool(all(isclose(x, y, rtol, atol, equal_nan)).item())
