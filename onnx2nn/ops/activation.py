"""Activations: elementwise functions of one tensor with parameters, and the softmax family."""

from __future__ import annotations

import math
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.arithmetic import binary, larger, ordered, smaller
from onnx2nn.ops.axes import from_front
from onnx2nn.ops.shape import fixed, same_shape
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.traits import BINARY, UNARY

_FLOAT32_MAX = 3.4028234663852886e38


@op("Relu", 1, traits=UNARY)
def relu(F: Any, X: Any) -> Any:
    return F.relu(X)


@op("LeakyRelu", 1, traits=UNARY)
def leaky_relu(F: Any, X: Any, *, alpha: float = 0.01) -> Any:
    return F.nn.functional.leaky_relu(X, alpha)


@op("ThresholdedRelu", 10, traits=UNARY)
def thresholded_relu(F: Any, X: Any, *, alpha: float = 1.0) -> Any:
    """0 for NaN, which torch's threshold keeps: it is not above `alpha`."""
    return F.where(alpha < X, X, F.zeros_like(X))


# Experimental in opset 1.
revision(thresholded_relu, 1)


def _is_for_channels(X: Any, count: Any) -> bool:
    last = X.shape[-1]
    return all(map(fixed, (last, X.shape[1], count))) and count not in (1, last) and count == X.shape[1]


@op("PRelu", 7, traits=UNARY | BINARY)
def prelu(F: Any, X: Any, slope: Any) -> Any:
    """A slope of one value per channel is torch's PReLU; any other slope broadcasts to X.

    PyTorch up to 1.1 and MXNet write the slopes of channels as a vector in newer opsets too. A vector that does not
    broadcast to X is therefore taken along the channels.
    """
    if X.dtype in (F.uint16, F.uint32, F.uint64):  # never negative, and torch does not compare them
        return X
    if slope.ndim == 1 and X.ndim > 2 and _is_for_channels(X, slope.shape[0]):
        slope = slope.reshape([-1, *[1] * (X.ndim - 2)])
    if X.is_floating_point() and X.ndim > 1:
        if slope.ndim <= X.ndim and (slope.numel() == 1) is True:
            return F.nn.functional.prelu(X, slope.reshape([1]))
        if X.ndim - 1 <= slope.ndim <= X.ndim and same_shape(
            (slope.numel(), slope.shape[1 - X.ndim]), (slope.shape[1 - X.ndim], X.shape[1])
        ):
            return F.nn.functional.prelu(X, slope.reshape([X.shape[1]]))
    return F.where(X < 0, X * slope, X)


@op("PRelu", 1, traits=UNARY | BINARY)
def prelu_1(F: Any, X: Any, slope: Any) -> Any:
    """A 1-D slope goes along the channels."""
    if slope.ndim == 1 and X.ndim > 1:
        slope = slope.reshape([-1, *[1] * (X.ndim - 2)])
    return prelu(F, X, slope)


@op("Elu", 1, traits=UNARY)
def elu(F: Any, X: Any, *, alpha: float = 1.0) -> Any:
    return F.nn.functional.elu(X, alpha)


@op("Selu", 6, traits=UNARY)
def selu(F: Any, X: Any, *, alpha: float = 1.6732632, gamma: float = 1.050701) -> Any:
    if (alpha, gamma) == (1.6732632, 1.050701):
        return F.nn.functional.selu(X)
    return F.nn.functional.elu(X, alpha) * gamma


revision(selu, 1, defaults={"alpha": 1.6732, "gamma": 1.0507})


@op("Celu", 12, traits=UNARY)
def celu(F: Any, X: Any, *, alpha: float = 1.0) -> Any:
    return F.nn.functional.celu(X, alpha)


@op("Gelu", 20, choices={"approximate": ("none", "tanh")}, traits=UNARY)
def gelu(F: Any, X: Any, *, approximate: str = "none") -> Any:
    return F.nn.functional.gelu(X, approximate=approximate) if approximate != "none" else F.nn.functional.gelu(X)


@op("Swish", 24, traits=UNARY)
def swish(F: Any, X: Any, *, alpha: float = 1.0) -> Any:
    return F.nn.functional.silu(X) if alpha == 1.0 else X * F.sigmoid(X * alpha)


@op("SwiGLU", 28)
def swiglu(F: Any, A: Any, B: Any, *, alpha: float = 1.0) -> Any:
    return swish(F, A, alpha=alpha) * B


@op("Mish", 18, traits=UNARY)
def mish(F: Any, X: Any) -> Any:
    return F.nn.functional.mish(X)


@op("HardSwish", 14, traits=UNARY)
def hard_swish(F: Any, X: Any) -> Any:
    return F.nn.functional.hardswish(X)


@op("HardSigmoid", 1, traits=UNARY)
def hard_sigmoid(F: Any, X: Any, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    if (alpha, beta) == (0.16666667, 0.5):
        return F.nn.functional.hardsigmoid(X)
    return (X * alpha + beta).clamp(0, 1)


@op("Sigmoid", 1, traits=UNARY)
def sigmoid(F: Any, X: Any) -> Any:
    return F.sigmoid(X)


@op("Tanh", 1, traits=UNARY)
def tanh(F: Any, input: Any) -> Any:
    return F.tanh(input)


@op("Softplus", 1, traits=UNARY)
def softplus(F: Any, X: Any) -> Any:
    """torch returns x itself above its threshold of 20: the same in float32, but not in float64, hence 40 there."""
    if X.dtype == F.float64:
        return F.nn.functional.softplus(X, threshold=40)
    return F.nn.functional.softplus(X)


@op("Softsign", 1, traits=UNARY)
def softsign(F: Any, input: Any) -> Any:
    return F.nn.functional.softsign(input)


@op("Shrink", 9, traits=UNARY)
def shrink(F: Any, input: Any, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    zero = F.zeros_like(input)
    below = F.where(input < -lambd, (input + bias).to(input.dtype), zero)
    return F.where(input > lambd, (input - bias).to(input.dtype), below)


def _values_of_clip(input: Any, min: Any = None, max: Any = None) -> Any:
    input = input if min is None else binary(larger)(input, min)
    return input if max is None else binary(smaller)(input, max)


@op("Clip", 11, numbers=("min", "max"), on_shape_values=_values_of_clip, traits=UNARY | {"magnitude"})
def clip(F: Any, input: Any, min: Any = None, max: Any = None) -> Any:
    """Where `min` exceeds `max` every element becomes `max`, in torch too. Without a bound infinity stays.

    The text of the standard has the lowest and the largest finite number as defaults; its function is Identity.
    """
    if input.dtype in (F.uint16, F.uint32, F.uint64):
        min, max = (F.tensor(bound, dtype=input.dtype) if isinstance(bound, int) else bound for bound in (min, max))
        input = input if min is None else ordered(lambda F, a, b: F.maximum(a, b))(F, input, min)
        return input if max is None else ordered(lambda F, a, b: F.minimum(a, b))(F, input, max)
    return _clamp(F, input, min, max)


def _clamp(F: Any, input: Any, min: Any, max: Any) -> Any:
    """Clamps. A bound of NaN bounds nothing, as in the standard's function: no number is below or above it."""
    min, max = _bound(F, min, -math.inf), _bound(F, max, math.inf)
    if any(hasattr(bound, "dtype") for bound in (min, max)):  # torch takes two tensors or two numbers
        min, max = (_as_tensor(F, bound, input.dtype) for bound in (min, max))
    return input if min is None and max is None else F.clamp(input, min, max)


def _as_tensor(F: Any, bound: Any, dtype: Any) -> Any:
    return F.tensor(bound, dtype=dtype) if isinstance(bound, (int, float)) else bound


def _bound(F: Any, bound: Any, none: float) -> Any:
    dtype = getattr(bound, "dtype", None)
    if dtype is not None and dtype.is_floating_point:
        return F.nan_to_num(bound, nan=none, posinf=math.inf, neginf=-math.inf)
    return None if isinstance(bound, float) and math.isnan(bound) else bound


@op("Clip", 6, traits=UNARY | {"magnitude"})
def clip_6(F: Any, input: Any, *, min: float = -_FLOAT32_MAX, max: float = _FLOAT32_MAX) -> Any:
    return _clamp(F, input, min, max)


@op("Clip", 1, traits=UNARY | {"magnitude"})
def clip_1(F: Any, input: Any, *, max: float | None = None, min: float | None = None) -> Any:
    return _clamp(F, input, min, max)


def _axis_form(function: Any) -> Any:
    """Returns a softmax of opsets 1 to 12: flattened to two dimensions at `axis`, normalised over the second."""

    def flattened(F: Any, input: Any, *, axis: int = 1) -> Any:
        axis = from_front(axis, input.ndim) if input.ndim else 0
        if axis == input.ndim - 1 or input.ndim == 0:
            return function(F, input, axis=-1)
        return function(F, input.flatten(axis), axis=-1).reshape(input.shape)

    return flattened


@op("Softmax", 13, traits=["keeps_rank", "along_axis", "leading_ones"])
def softmax(F: Any, input: Any, *, axis: int = -1) -> Any:
    return F.softmax(input, axis)


@op("LogSoftmax", 13, traits=["keeps_rank", "along_axis", "leading_ones"])
def log_softmax(F: Any, input: Any, *, axis: int = -1) -> Any:
    return F.log_softmax(input, axis)


@op("Hardmax", 13, traits=["keeps_rank", "along_axis", "leading_ones"])
def hardmax(F: Any, input: Any, *, axis: int = -1) -> Any:
    """1 at the first of the largest values."""
    if (input.numel() == 0) is True:  # argmax refuses an axis without elements
        return input
    return F.zeros_like(input).scatter(axis, F.argmax(input, axis, keepdim=True), 1.0)


for _name, _function in (("Softmax", softmax), ("LogSoftmax", log_softmax), ("Hardmax", hardmax)):
    op(_name, 1, traits=["keeps_rank", "along_axis", "leading_ones"])(_axis_form(_function))


@op("ParametricSoftplus", 1, traits=UNARY)
def parametric_softplus(F: Any, X: Any, *, alpha: float | None = None, beta: float | None = None) -> Any:
    """Experimental in opset 1: `alpha * softplus(beta * x)`."""
    if alpha is None or beta is None:
        raise OperatorError("attribute alpha or beta is missing, and the operator has no defaults.")
    return F.nn.functional.softplus(X * beta) * alpha


@op("ScaledTanh", 1, traits=UNARY)
def scaled_tanh(F: Any, input: Any, *, alpha: float | None = None, beta: float | None = None) -> Any:
    """Experimental in opset 1: `alpha * tanh(beta * x)`."""
    if alpha is None or beta is None:
        raise OperatorError("attribute alpha or beta is missing, and the operator has no defaults.")
    return F.tanh(input * beta) * alpha


@op("Scale", 1, traits=UNARY)
def scaled(F: Any, input: Any, *, scale: float = 1.0) -> Any:
    """Experimental in opset 1."""
    return input * scale


@op("Affine", 1, traits=UNARY)
def affine(F: Any, X: Any, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """Experimental in opset 1."""
    return X * alpha + beta
