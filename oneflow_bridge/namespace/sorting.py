"""Sorting, searching and counting, as torch defines them.

OneFlow gives int32 indices and its comparison breaks down with NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.comparison import eq, le, logical_not, lt
from oneflow_bridge.namespace.creation import full
from oneflow_bridge.namespace.dtypes import flow
from oneflow_bridge.namespace.indexing import gather
from oneflow_bridge.namespace.operands import refuse_uint64
from oneflow_bridge.namespace.shaping import narrow, ravel, reshape, select, unsqueeze
from oneflow_bridge.namespace.tensor import Tensor, as_tensor, axis, convert, from_array, known, store, widened
from onnx2nn.errors import OperatorError


class Sorted(NamedTuple):
    """Values and where they were."""

    values: Tensor
    indices: Tensor


def argsort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
    """The order that sorts a dim; equal elements keep theirs, NaN counts as the largest."""
    if x.ndim == 0 or not x.numel():
        return full(x.shape, 0, dtype=dtypes.int64, device=x.device)
    refuse_uint64(x.dtype, "sorting", x)
    place = axis(dim, x.ndim)
    value = (x if x.dtype is not dtypes.bool_ else convert(x, dtypes.int64)).value
    value = widened(x) if x.dtype is not dtypes.bool_ else value
    value = value.transpose(place, -1) if place != x.ndim - 1 else value
    order = _argsort(value, descending) if x.dtype.is_floating_point else _plain_argsort(value, descending)
    return Tensor(order.transpose(place, -1) if place != x.ndim - 1 else order)


def _plain_argsort(value: Any, descending: bool) -> Any:
    return flow.argsort(value, dim=-1, descending=descending).to(flow.int64)


def _argsort(value: Any, descending: bool) -> Any:
    """Floats: the kernel's comparison breaks down with NaN, which is sorted as infinity and then put at its end."""
    nan = value != value
    array = known(value)
    if array is not None and not np.isnan(array).any():
        return _plain_argsort(value, descending)
    infinity = flow.where(nan, _constant_like(value, float("inf")), value)
    order = _plain_argsort(infinity, descending)
    behind = flow.gather(nan.to(flow.int64), value.ndim - 1, order)
    return flow.gather(order, value.ndim - 1, _plain_argsort(behind, descending))


def _constant_like(value: Any, number: float) -> Any:
    return flow._C.constant((1,), number, dtype=value.dtype, device=value.device)


def sort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Sorted:
    """A dim sorted: values and int64 indices (OneFlow's are int32); stable, NaN counts as the largest."""
    order = argsort(x, dim, descending)
    return Sorted(gather(x, dim, order) if x.ndim else x, order)


def msort(x: Tensor) -> Tensor:
    """The first dim sorted."""
    return sort(x, 0).values


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Sorted:
    """The k largest (smallest) of a dim, best first, the earlier of equal ones first."""
    if x.ndim == 0:
        part = topk(reshape(x, 1), k, 0, largest)
        return Sorted(reshape(part.values, ()), reshape(part.indices, ())) if k else part
    if not 0 <= int(k) <= x.shape[dim]:
        raise OperatorError(f"The {int(k)} largest of {x.shape[dim]}.")
    order = narrow(argsort(x, dim, largest), dim, 0, int(k))
    return Sorted(gather(x, dim, order), order)


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Sorted:
    """The k-th smallest of a dim, k from 1."""
    values, indices = sort(x, dim)
    parts = (narrow(v, dim, k - 1, 1) if keepdim else select(v, dim, k - 1) for v in (values, indices))
    return Sorted(*parts)


def searchsorted(
    sorted_sequence: Tensor, values: Any, *, right: bool = False, side: str | None = None, out_int32: bool = False
) -> Tensor:
    """How many elements of the last dim are below (or not above, with `right`) each value."""
    values = as_tensor(values, sorted_sequence)
    right = right or side == "right"
    if sorted_sequence.ndim == 1:
        left = reshape(sorted_sequence, [1] * values.ndim + [-1])
    else:
        left = unsqueeze(sorted_sequence, -2)
    below = (le if right else lt)(left, unsqueeze(values, -1))
    count = below.value.to(flow.int64).sum(-1)
    return store(count, dtypes.int32 if out_int32 else dtypes.int64)


def bucketize(x: Any, boundaries: Tensor, *, right: bool = False, out_int32: bool = False) -> Tensor:
    """The bucket of each element."""
    return searchsorted(boundaries, x, right=right, out_int32=out_int32)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Which elements occur among the others."""
    elements, test_elements = as_tensor(elements), as_tensor(test_elements)
    if not test_elements.numel():
        found = full(elements.shape, False, dtype=dtypes.bool_, device=elements.device)
    else:
        found = Tensor(eq(unsqueeze(elements, -1), ravel(test_elements)).value.any(-1))
    return logical_not(found) if invert else found


def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The distinct elements in ascending order, with the index of each element among them and their counts.

    NaNs are unequal, as in torch.
    """
    found = np.unique(x.numpy(), return_inverse=True, return_counts=True, axis=dim, equal_nan=False)
    values, inverse, counts = found
    inverse = inverse.reshape(x.shape if dim is None else (-1,))
    return _results(x, values, inverse, counts, return_inverse, return_counts)


def _results(x: Tensor, values: Any, inverse: Any, counts: Any, with_inverse: bool, with_counts: bool) -> Any:
    results = [convert(from_array(np.ascontiguousarray(values), device=x.device), x.dtype)]
    for wanted, array in ((with_inverse, inverse), (with_counts, counts)):
        if wanted:
            results.append(
                from_array(np.ascontiguousarray(array).astype(np.int64).reshape(array.shape), device=x.device)
            )
    return results[0] if len(results) == 1 else tuple(results)


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements without repetitions of the one before."""
    array = x.numpy().reshape(-1) if dim is None else np.moveaxis(x.numpy(), dim, 0)
    size = array.shape[0]
    changes = np.ones(size, bool)
    changes[1:] = (array[1:] != array[:-1]).reshape(max(size - 1, 0), -1).any(1) if size else changes[1:]
    starts = np.flatnonzero(changes)
    inverse = np.cumsum(changes) - 1
    counts = np.diff(np.append(starts, size))
    values = array[starts] if dim is None else np.moveaxis(array[starts], 0, dim)
    return _results(
        x, values, inverse.reshape(x.shape) if dim is None else inverse, counts, return_inverse, return_counts
    )


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number occurs."""
    counts = np.bincount(x.numpy(), None if weights is None else weights.numpy(), minlength)
    return from_array(counts, device=x.device)
