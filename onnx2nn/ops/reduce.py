"""Reductions over axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.arithmetic import larger, ordered, smaller, sortable, truncated_quotient, widened
from onnx2nn.ops.axes import from_front, once
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import NeedsValues
from onnx2nn.optable.traits import Trait

Function = Callable[[Any, Any, list[int], bool], Any]


def _sum(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
    return x.sum(axes, keepdim=keepdim) if x.is_floating_point() else x.sum(axes, keepdim=keepdim, dtype=x.dtype)


def _mean(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
    """The mean of integers is truncated; of none it is 0, as in ONNX Runtime."""
    if x.is_floating_point():
        return x.mean(axes, keepdim=keepdim)
    count = larger(math.prod(x.shape[axis] for axis in axes), 1)
    return F.div(x.sum(axes, keepdim=keepdim), count, rounding_mode="trunc").to(x.dtype)


def _prod(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keepdim, dtype=x.dtype)
    return x


def _extreme(name: str, empty: float) -> Function:
    def reduce(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
        if any(isinstance(x.shape[axis], int) and x.shape[axis] == 0 for axis in axes):
            shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keepdim or i not in axes]
            return F.full(shape, _limit(F, x.dtype, empty), dtype=x.dtype)
        for axis in axes:
            if getattr(x.shape[axis], "data_dependent", False):  # data-dependent: torch refuses an empty axis
                shape = [1 if i == axis else d for i, d in enumerate(x.shape)]
                x = F.cat([x, F.full(shape, _limit(F, x.dtype, empty), dtype=x.dtype)], axis)
        return ordered(lambda F, x: getattr(x, name)(axes, keepdim=keepdim))(F, x)

    return reduce


def _limit(F: Any, dtype: Any, empty: float) -> Any:
    if dtype == F.bool:
        return empty > 0
    if dtype.is_floating_point:
        return empty
    return F.iinfo(dtype).max if empty > 0 else F.iinfo(dtype).min


def _in_float(function: Function) -> Function:
    """Returns a reduction that computes integers in float64 and truncates the result to their type."""

    def reduce(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
        if x.is_floating_point():
            return function(F, x, axes, keepdim)
        return function(F, x.to(F.float64), axes, keepdim).to(x.dtype)

    return reduce


def _l1(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
    return _sum(F, F.abs(x), axes, keepdim)


def _sum_square(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
    return _sum(F, x * x, axes, keepdim)


def _l2(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
    """The norm's own function has the gradient 0 of a vector of zeros, where that of a square root is NaN."""
    return F.linalg.vector_norm(x, 2, axes, keepdim=keepdim)


def _log_sum(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
    return F.log(_sum(F, x, axes, keepdim))


def _log_sum_exp(F: Any, x: Any, axes: list[int], keepdim: bool) -> Any:
    return F.logsumexp(x, axes, keepdim=keepdim)


FUNCTIONS: dict[str, Function] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceProd": _prod,
    "ReduceMax": _extreme("amax", -math.inf),
    "ReduceMin": _extreme("amin", math.inf),
    "ReduceL1": _l1,
    "ReduceL2": _in_float(_l2),
    "ReduceSumSquare": _sum_square,
    "ReduceLogSum": _in_float(_log_sum),
    "ReduceLogSumExp": _in_float(_log_sum_exp),
}


def _evaluation(operator: str) -> Callable[..., Any] | None:
    """Returns the operator on shape values, None where it has none."""
    functions: dict[str, Callable[[Sequence[Any]], Any]] = {
        "ReduceSum": sum,
        "ReduceProd": math.prod,
        "ReduceMax": lambda items: functools.reduce(larger, items),
        "ReduceMin": lambda items: functools.reduce(smaller, items),
        "ReduceMean": lambda items: truncated_quotient(sum(items), len(items)),
    }
    function = functions.get(operator)
    if function is None:
        return None

    def evaluate(data: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        if data.ndim != 1 or (axes is not None and np.size(axes) != 1):
            raise NeedsValues("a reduction of shape values over several axes")
        if axes is not None:
            once([int(axis) for axis in axes], data.ndim)
        result = function(data.tolist())
        return np.array([result] if keepdims else result, dtype=object)

    return evaluate


def reduce_with(F: Any, function: Function, data: Any, axes: Any, keepdims: int, noop: int) -> Any:
    """Reduces `data` over `axes`; without axes over all, or over none with `noop`."""
    if isinstance(axes, int):
        raise OperatorError(f"axes={axes} is a number where a vector is needed.")
    if axes:
        axes = once(axes, max(data.ndim, 1))  # a scalar has one axis, as in torch
    else:
        axes = [] if noop else list(range(data.ndim))
    if data.ndim == 0 or not axes:
        return function(F, data.unsqueeze(0), [0], False)
    return widened(lambda F, x: function(F, x, axes, bool(keepdims)))(F, data)


def _add_rows(operator: str, function: Function) -> None:
    moved = 13 if operator == "ReduceSum" else 18

    traits: list[Trait] = ["reduction", "value_preserving"] if operator in _CHOOSING else ["reduction"]
    traits += ["magnitude"] if operator not in ("ReduceSum", "ReduceProd") else []

    @op(operator, moved, static=["axes"], on_shape_values=_evaluation(operator), traits=traits)
    def newest(F: Any, data: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        return reduce_with(F, function, data, axes, keepdims, noop_with_empty_axes)

    revision(newest, 1, without=["noop_with_empty_axes"], as_attributes=["axes"])


_CHOOSING = ("ReduceMax", "ReduceMin")

for _operator, _function in FUNCTIONS.items():
    _add_rows(_operator, _function)


@op("ArgMax", 12, traits=["leading_ones"])
def argmax(F: Any, data: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return _arg_extreme(F, F.argmax, data, axis, keepdims, select_last_index)


@op("ArgMin", 12, traits=["leading_ones"])
def argmin(F: Any, data: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return _arg_extreme(F, F.argmin, data, axis, keepdims, select_last_index)


def _arg_extreme(F: Any, function: Any, data: Any, axis: int, keepdims: int, last: int) -> Any:
    """Returns the index of an extreme, of equal values the first, which torch's CPU kernels give too."""
    data, axis = sortable(F, data), from_front(axis, max(data.ndim, 1))
    if last:
        return data.shape[axis] - 1 - function(data.flip([axis]), axis, keepdim=bool(keepdims))
    return function(data, axis, keepdim=bool(keepdims))


revision(argmax, 1, without=["select_last_index"])
revision(argmin, 1, without=["select_last_index"])
