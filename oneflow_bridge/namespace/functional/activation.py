"""torch.nn.functional: activations, softmax and dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import abs, add, div, mul, neg, square, sub
from oneflow_bridge.namespace.comparison import clamp, gt, le, lt, where
from oneflow_bridge.namespace.creation import tensor
from oneflow_bridge.namespace.dtypes import flow
from oneflow_bridge.namespace.functional.half_precision import computed_in_float32
from oneflow_bridge.namespace.shaping import chunk, reshape
from oneflow_bridge.namespace.tensor import Tensor, axis, convert, store, widened
from oneflow_bridge.namespace.transcendental import exp, log1p, sigmoid, tanh
from onnx2nn.errors import OperatorError


def _inplace_ignored(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorates a function to accept `inplace=`, which changes no result."""

    def accepting(*arguments: Any, inplace: bool = False, **options: Any) -> Tensor:
        return function(*arguments, **options)

    accepting.__doc__ = function.__doc__
    return accepting


@_inplace_ignored
def relu6(x: Tensor) -> Tensor:
    """x between 0 and 6."""
    return clamp(x, 0, 6)


@_inplace_ignored
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x, times the slope below 0; the kernel rounds the slope to float32."""
    if x.dtype is dtypes.float64:
        return where(gt(x, 0), x, mul(x, float(negative_slope)))
    return store(flow._C.leaky_relu(widened(x), alpha=float(negative_slope)), x.dtype)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x, times a weight of its channel below 0."""
    shape = [1] * x.ndim
    if weight.numel() > 1:
        shape[1 if x.ndim > 1 else 0] = weight.numel()
    return where(gt(x, 0), x, mul(x, reshape(weight, shape)))


@_inplace_ignored
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x, alpha * (exp(x) - 1) below 0."""
    return store(flow._C.elu(widened(x), alpha=float(alpha)), x.dtype)


@_inplace_ignored
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x, alpha * (exp(x / alpha) - 1) below 0."""
    return store(flow._C.celu(widened(x), alpha=float(alpha)), x.dtype)


@_inplace_ignored
def selu(x: Tensor) -> Tensor:
    """elu with the self-normalizing constants."""
    return store(flow._C.selu(widened(x)), x.dtype)


@computed_in_float32
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function, or its tanh approximation."""
    if approximate == "tanh":
        inner = mul(add(x, mul(mul(square(x), x), 0.044715)), math.sqrt(2 / math.pi))
        return mul(mul(x, 0.5), add(tanh(inner), 1.0))
    return store(flow._C.gelu(widened(x)), x.dtype)


@_inplace_ignored
@computed_in_float32
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return mul(x, sigmoid(x))


@_inplace_ignored
@computed_in_float32
def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x)); OneFlow's own gives NaN for large x."""
    return mul(x, tanh(softplus(x)))


@_inplace_ignored
def hardswish(x: Tensor) -> Tensor:
    """x * relu6(x + 3) / 6."""
    return store(flow._C.hardswish(widened(x)), x.dtype)


@_inplace_ignored
def hardsigmoid(x: Tensor) -> Tensor:
    """relu6(x + 3) / 6."""
    return store(flow._C.hardsigmoid(widened(x)), x.dtype)


@_inplace_ignored
def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x between two numbers."""
    return clamp(x, min_val, max_val)


@computed_in_float32
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, x itself where beta x is above the threshold."""
    scaled = mul(x, float(beta))
    soft = div(log1p(exp(clamp(scaled, max=float(threshold)))), float(beta))
    return where(gt(scaled, float(threshold)), x, soft)


@computed_in_float32
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return div(x, add(abs(x), 1.0))


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, 0 within."""
    return where(gt(x, lambd), sub(x, lambd), where(lt(x, -lambd), add(x, lambd), mul(x, 0.0)))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, 0 where |x| <= lambd."""
    return where(le(abs(x), lambd), 0.0, x)


@computed_in_float32
def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return sub(x, tanh(x))


@_inplace_ignored
def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x, a number where x is not above the threshold."""
    return where(le(x, threshold), convert(tensor(value, device=x.device), x.dtype), x)


@computed_in_float32
def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)), without overflow."""
    return sub(clamp(x, max=0.0), log1p(exp(neg(abs(x)))))


@computed_in_float32
def glu(x: Tensor, dim: int = -1) -> Tensor:
    """The first half times the sigmoid of the second."""
    first, second = chunk(x, 2, dim)
    return mul(first, sigmoid(second))


def _along(kernel: Callable[[Any, int], Any]) -> Callable[..., Tensor]:
    def function(x: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
        x = x if dtype is None else convert(x, dtypes.as_dtype(dtype))
        if not x.dtype.is_floating_point:
            raise OperatorError(f"softmax takes a float type, not {x.dtype}.")
        if dim is None:
            dim = 0 if x.ndim in (0, 1, 3) else 1
        if not x.numel():
            return x
        if x.ndim == 0:
            return reshape(function(reshape(x, 1), 0), ())
        place = axis(dim, x.ndim)
        return store(kernel(widened(x), place), x.dtype)

    return function


softmax = _along(lambda v, d: flow.nn.functional.softmax(v, d))


def _log_softmax(value: Any, dim: int) -> Any:
    """By its definition: OneFlow's kernel is off by 1e-6 where a result is near 0, which is 1e-3 of it."""
    shifted = value - flow._C.reduce_max(value, [dim], True)
    return shifted - flow.log(flow.sum(flow.exp(shifted), [dim], True))


log_softmax = _along(_log_softmax)


def softmin(x: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """softmax of -x."""
    return softmax(neg(x), dim, dtype=dtype)


@_inplace_ignored
def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Elements dropped with probability p in training, the rest scaled up."""
    return x if not training or p == 0 else store(flow._C.dropout(widened(x), p=float(p)), x.dtype)


def alpha_dropout(x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """x outside training."""
    if training and p:
        raise OperatorError("OneFlow 0.9 has no alpha_dropout in training.")
    return x
