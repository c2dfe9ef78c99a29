"""Comparisons, logic, choice and bounds, as torch defines them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.operands import accepts_empty, refuse_uint64, tensor_operand, truth
from oneflow_bridge.namespace.tensor import (
    Tensor,
    as_tensor,
    broadcast_shapes,
    constant,
    expanded,
    operand,
    result_type,
    store,
    widened,
)
from onnx2nn.errors import OperatorError


def signbit(x: Tensor) -> Tensor:
    """Whether the sign is negative, that of -0.0 included."""
    if not x.dtype.is_floating_point:
        return lt(x, 0) if x.dtype.is_signed else ne(x, x)
    value = widened(x)
    return Tensor(flow.logical_or(value < 0, flow.logical_and(value == 0, flow.reciprocal(value) < 0)))


def isnan(x: Tensor) -> Tensor:
    """Which elements are NaN."""
    return ne(x, x) if not x.dtype.is_floating_point else Tensor(flow.isnan(widened(x)))


def isinf(x: Tensor) -> Tensor:
    """Which elements are infinite."""
    return ne(x, x) if not x.dtype.is_floating_point else Tensor(flow.isinf(widened(x)))


def isposinf(x: Tensor) -> Tensor:
    """Which elements are +inf."""
    return eq(x, math.inf) if x.dtype.is_floating_point else ne(x, x)


def isneginf(x: Tensor) -> Tensor:
    """Which elements are -inf."""
    return eq(x, -math.inf) if x.dtype.is_floating_point else ne(x, x)


def isfinite(x: Tensor) -> Tensor:
    """Which elements are neither infinite nor NaN."""
    return eq(x, x) if not x.dtype.is_floating_point else Tensor(flow.isfinite(widened(x)))


def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and the infinities replaced by numbers, by default 0 and the limits of the type."""
    if not x.dtype.is_floating_point:
        return x
    limit = dtypes.FInfo(x.dtype)
    result = where(isnan(x), 0.0 if nan is None else nan, x)
    result = where(isposinf(x), limit.max if posinf is None else posinf, result)
    return where(isneginf(x), limit.min if neginf is None else neginf, result)


def _extremum(kernel: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Tensor]:
    """maximum and minimum: OneFlow loses a NaN of the first operand, torch keeps every NaN."""

    @accepts_empty
    def function(x: Any, y: Any) -> Tensor:
        dtype = result_type(x, y)
        refuse_uint64(dtype, "comparison", x, y)
        inside = dtypes.int64 if dtype is dtypes.bool_ else dtype
        like = x if isinstance(x, Tensor) else y
        a, b = tensor_operand(x, inside, like), tensor_operand(y, inside, like)
        result = kernel(a, b)
        if dtype.is_floating_point:
            a = expanded(a, result.shape)
            result = flow.where(a != a, a, result)
        return store(result, dtype)

    return function


maximum = _extremum(flow.maximum)


minimum = _extremum(flow.minimum)


def fmax(x: Any, y: Any) -> Tensor:
    """The larger one; the other one where one is NaN."""
    return _ignoring_nan(maximum, x, y)


def fmin(x: Any, y: Any) -> Tensor:
    """The smaller one; the other one where one is NaN."""
    return _ignoring_nan(minimum, x, y)


def _ignoring_nan(choose: Callable[[Any, Any], Tensor], x: Tensor, y: Tensor) -> Tensor:
    x, y = as_tensor(x, y), as_tensor(y, x)
    return where(isnan(x), y, where(isnan(y), x, choose(x, y)))


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x between `min` and `max`, numbers or tensors; `max` wins where they cross."""
    if min is None and max is None:
        raise OperatorError("clamp needs min or max.")
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        result = x if min is None else maximum(x, min)
        return result if max is None else minimum(result, max)
    bounds = [bound for bound in (min, max) if bound is not None]
    dtype = result_type(x, *bounds)
    refuse_uint64(dtype, "comparison", x)
    inside = dtypes.int64 if dtype is dtypes.bool_ else dtype
    value = operand(x, inside)
    # As two steps: OneFlow's own lets `min` win where the bounds cross.
    if min is not None and max is not None and min <= max:
        return store(flow.clamp(value, _bound(min, inside), _bound(max, inside)), dtype)
    if min is not None:
        value = flow.clamp(value, min=_bound(min, inside))
    if max is not None:
        value = flow.clamp(value, max=_bound(max, inside))
    return store(value, dtype)


clip = clamp


def _bound(bound: Any, dtype: DType) -> Any:
    """A clamp bound: an integer one beyond int64 bounds nothing more than int64 itself does."""
    if dtype.is_floating_point:
        return float(bound)
    limits = dtypes.IInfo(dtypes.int64)
    return int(limits.max if bound > limits.max else limits.min if bound < limits.min else bound)


def clamp_min(x: Tensor, min: Any) -> Tensor:
    """x, at least `min`."""
    return clamp(x, min=min)


def clamp_max(x: Tensor, max: Any) -> Tensor:
    """x, at most `max`."""
    return clamp(x, max=max)


def _comparison(kernel: Callable[[Any, Any], Any], ordered: bool) -> Callable[[Any, Any], Tensor]:
    @accepts_empty
    def function(x: Any, y: Any) -> Tensor:
        dtype = result_type(x, y)
        inside = dtypes.int64 if not dtype.is_floating_point else dtype
        if dtype is dtypes.uint64:
            a, b = (operand(v, dtype) for v in (x, y))
            if ordered:  # flipping the top bit maps the order of uint64 onto that of int64
                a, b = (v + -(2**63) if isinstance(v, flow.Tensor) else _wrap_int64(v - 2**63) for v in (a, b))
            return Tensor(kernel(a, b), dtypes.bool_)
        a, b = (operand(v, inside) if isinstance(v, Tensor) else _plain(v, inside) for v in (x, y))
        return Tensor(kernel(a, b), dtypes.bool_)

    return function


def _wrap_int64(value: int) -> int:
    """A Python int reduced into the range of int64."""
    return (value + 2**63) % 2**64 - 2**63


def _plain(value: Any, dtype: DType) -> Any:
    """A number to compare with, not wrapped into the tensor's range: no int8 is larger than 300."""
    return float(value) if dtype.is_floating_point else _bound(value, dtypes.int64)


eq = _comparison(lambda a, b: a == b, False)


ne = not_equal = _comparison(lambda a, b: a != b, False)


lt = less = _comparison(lambda a, b: a < b, True)


le = less_equal = _comparison(lambda a, b: a <= b, True)


# OneFlow's greater and greater_equal of two float32 tensors say that NaN is greater than a number.
gt = greater = _comparison(lambda a, b: b < a, True)


ge = greater_equal = _comparison(lambda a, b: b <= a, True)


@accepts_empty
def logical_and(x: Any, y: Any) -> Tensor:
    """Both non-zero."""
    return Tensor(flow.logical_and(truth(x, y), truth(y, x)))


@accepts_empty
def logical_or(x: Any, y: Any) -> Tensor:
    """One non-zero."""
    return Tensor(flow.logical_or(truth(x, y), truth(y, x)))


@accepts_empty
def logical_xor(x: Any, y: Any) -> Tensor:
    """Exactly one non-zero."""
    return Tensor(flow.logical_xor(truth(x, y), truth(y, x)))


def logical_not(x: Tensor) -> Tensor:
    """Zero."""
    return Tensor(flow.logical_not(truth(x, x)))


def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    """x where the condition holds, else y; both may be numbers.

    Numbers take the type torch gives them (OneFlow makes the result float64).
    """
    dtype = result_type(x, y)
    chosen = [tensor_operand(v, dtype, condition) for v in (x, y)]
    shape = broadcast_shapes(condition.shape, *(v.shape for v in chosen))
    if 0 in shape:
        return constant(shape, 0, dtype, condition.device)
    return store(flow.where(truth(condition, condition), *chosen), dtype)
