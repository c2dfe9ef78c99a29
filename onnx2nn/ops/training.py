"""Optimiser steps, and the signature of Gradient, which `fx.subgraphs.gradients` imports (ai.onnx.preview.training)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.optable.registry import op

DOMAIN = "ai.onnx.preview.training"


def _each(step: Callable[..., tuple[Any, ...]], inputs: Sequence[Any], groups: int) -> tuple[Any, ...]:
    """Returns the results of `step` for every optimised tensor.

    The inputs are all tensors, then all gradients, then each of the states of all tensors.
    """
    if not inputs or len(inputs) % groups:
        raise OperatorError(f"it has {len(inputs)} inputs behind R and T, which is no multiple of {groups}.")
    count = len(inputs) // groups
    results = [step(*inputs[index::count]) for index in range(count)]
    return tuple(item for group in zip(*results, strict=True) for item in group)


@op("Adagrad", 1, domain=DOMAIN)
def adagrad(
    F: Any,
    R: Any,
    T: Any,
    *inputs: Any,
    decay_factor: float = 0.0,
    epsilon: float = 9.999999974752427e-07,
    norm_coefficient: float = 0.0,
) -> tuple[Any, ...]:
    rate = R / (T * decay_factor + 1)

    def step(X: Any, G: Any, H: Any) -> tuple[Any, ...]:
        gradient = X * norm_coefficient + G
        squares = H + gradient * gradient
        return X - gradient * rate.to(X.dtype) / (squares.sqrt() + epsilon), squares

    return _each(step, inputs, 3)


@op("Adam", 1, domain=DOMAIN)
def adam(
    F: Any,
    R: Any,
    T: Any,
    *inputs: Any,
    alpha: float = 0.8999999761581421,
    beta: float = 0.9990000128746033,
    epsilon: float = 9.999999974752427e-07,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Any, ...]:
    """The bias correction, where T is positive, is computed in float64, as `1 - beta**T` cancels."""
    count = T.double()
    rate = R * F.where(T > 0, (1 - beta**count).sqrt() / (1 - alpha**count), 1.0)

    def step(X: Any, G: Any, V: Any, H: Any) -> tuple[Any, ...]:
        gradient = X * norm_coefficient + G
        momentum = V * alpha + gradient * (1 - alpha)
        squares = H * beta + gradient * gradient * (1 - beta)
        updated = X - momentum / (squares.sqrt() + epsilon) * rate.to(X.dtype)
        return updated * (1 - norm_coefficient_post), momentum, squares

    return _each(step, inputs, 4)


@op("Momentum", 1, domain=DOMAIN)
def momentum(
    F: Any, R: Any, T: Any, *inputs: Any, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Any, ...]:
    """The first iteration (T is 0) uses 1 in place of `beta`."""
    if mode not in ("standard", "nesterov"):
        raise OperatorError(f"mode={mode!r} is none of standard, nesterov.")
    share = F.where(T > 0, beta, 1.0)

    def step(X: Any, G: Any, V: Any) -> tuple[Any, ...]:
        gradient = X * norm_coefficient + G
        velocity = V * alpha + gradient * share.to(X.dtype)
        change = velocity if mode == "standard" else gradient + velocity * alpha
        return X - change * R.to(X.dtype), velocity

    return _each(step, inputs, 3)


@op("Gradient", 1, domain=DOMAIN, call="subgraph")
def gradient(F: Any, *Inputs: Any, xs: Sequence[str], y: str, zs: Sequence[str] | None = None) -> Any:
    raise OperatorError("a gradient is no function of tensors: the nodes between xs and y are imported with the model.")
