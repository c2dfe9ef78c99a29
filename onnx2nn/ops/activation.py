"""Activations and other elementwise functions of one input."""

from __future__ import annotations

from typing import Any

from onnx2nn.table import op


@op("Relu", 1)
def relu(F: Any, X: Any) -> Any:
    return F.relu(X)


@op("LeakyRelu", 1)
def leaky_relu(F: Any, X: Any, *, alpha: float = 0.01) -> Any:
    return F.nn.functional.leaky_relu(X, alpha)


@op("Sigmoid", 1)
def sigmoid(F: Any, X: Any) -> Any:
    return F.sigmoid(X)


@op("Tanh", 1)
def tanh(F: Any, input: Any) -> Any:
    return F.tanh(input)


@op("HardSigmoid", 1)
def hard_sigmoid(F: Any, X: Any, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    if alpha in (1 / 6, 0.16666667) and beta == 0.5:
        return F.nn.functional.hardsigmoid(X)
    return (X * alpha + beta).clamp(0, 1)


@op("Softmax", 13)
def softmax(F: Any, input: Any, *, axis: int = -1) -> Any:
    return F.softmax(input, axis)


@op("Softmax", 1)
def softmax_1(F: Any, input: Any, *, axis: int = 1) -> Any:
    """Flattens to two dimensions at `axis` and normalises over the second."""
    axis %= max(input.ndim, 1)
    if axis == input.ndim - 1:
        return softmax(F, input, axis=-1)
    return softmax(F, input.flatten(axis), axis=-1).reshape(input.shape)
