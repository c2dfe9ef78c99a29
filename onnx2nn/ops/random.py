"""Random numbers of torch's generator, which `torch.manual_seed` seeds; ONNX's `seed` is ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.cast import element_of
from onnx2nn.optable.registry import op


def _dtype(F: Any, input: Any, dtype: int | None) -> Any:
    """Returns the dtype of the attribute, by default the input's.

    Raises:
        OperatorError: the attribute is missing and the input is no float tensor.
    """
    if dtype is not None:
        return getattr(F, element_of(dtype).dtype)
    if getattr(input.dtype, "is_floating_point", False):
        return input.dtype
    raise OperatorError("dtype is missing, which an input that is no float tensor needs.")


@op("RandomNormal", 1, random=True)
def random_normal(
    F: Any, *, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None, shape: Sequence[int]
) -> Any:
    return _normal(F, shape, getattr(F, element_of(dtype).dtype), mean, scale)


@op("RandomNormalLike", 1, random=True)
def random_normal_like(
    F: Any,
    input: Any,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Any:
    return _normal(F, input.shape, _dtype(F, input, dtype), mean, scale)


def _normal(F: Any, shape: Sequence[Any], dtype: Any, mean: float, scale: float) -> Any:
    values = F.randn(shape, dtype=dtype)
    values = values if scale == 1.0 else values * scale
    return values if mean == 0.0 else values + mean


@op("RandomUniform", 1, random=True)
def random_uniform(
    F: Any, *, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None, shape: Sequence[int]
) -> Any:
    return _uniform(F, shape, getattr(F, element_of(dtype).dtype), low, high)


@op("RandomUniformLike", 1, random=True)
def random_uniform_like(
    F: Any,
    input: Any,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Any:
    return _uniform(F, input.shape, _dtype(F, input, dtype), low, high)


def _uniform(F: Any, shape: Sequence[Any], dtype: Any, low: float, high: float) -> Any:
    values = F.rand(shape, dtype=dtype)
    return values if (low, high) == (0.0, 1.0) else values * (high - low) + low


@op("Bernoulli", 15, random=True)
def bernoulli(F: Any, input: Any, *, dtype: int | None = None, seed: float | None = None) -> Any:
    return F.bernoulli(input).to(_dtype(F, input, dtype))


@op("Multinomial", 7, random=True)
def multinomial(F: Any, input: Any, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Any:
    """The input holds log-probabilities, which need not be normalised."""
    return F.multinomial(F.softmax(input, -1), sample_size, True).to(getattr(F, element_of(dtype).dtype))
