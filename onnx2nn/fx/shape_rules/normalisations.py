"""Shape rules of normalisations: the result has the input's shape, parameters fit the channels or the last axes."""

from __future__ import annotations

from typing import Any

from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import axes_of, common_float, equal_shapes, is_number
from onnx2nn.fx.shape_rules.rule import Result, Sizes, rule
from onnx2nn.fx.spec import Spec
from onnx2nn.sizes.conditions import equal, less, unequal
from onnx2nn.sizes.expression import Number, product


def _fit_channels(sizes: Sizes, channels: Number, *parameters: Spec | None) -> bool:
    """Requires one element for each channel; returns whether every given parameter has one dimension."""
    given = [parameter for parameter in parameters if parameter is not None]
    if any(parameter.shape is None or len(parameter.shape) != 1 for parameter in given):
        return False
    for parameter in given:
        sizes.equal(parameter.shape[0], channels, "the channels of a normalisation")  # type: ignore[index]  # has one
    return True


@rule(F.batch_norm)
def _batch_norm(
    sizes: Sizes,
    input: Spec,
    running_mean: Spec | None,
    running_var: Spec | None,
    weight: Spec | None = None,
    bias: Spec | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Result:
    x, states = input.shape, (running_mean, running_var)
    if x is None or len(x) < 2 or common_float(input, *states, weight, bias) is None:
        return None
    if not training and None in states:
        return None
    if not _fit_channels(sizes, x[1], *states, weight, bias):
        return None
    if training:
        sizes.require(unequal(product((x[0], *x[2:])), 1), "more than one value for each channel of a normalisation")
    return Spec(x, input.dtype)


@rule(F.instance_norm)
def _instance_norm(
    sizes: Sizes,
    input: Spec,
    running_mean: Spec | None = None,
    running_var: Spec | None = None,
    weight: Spec | None = None,
    bias: Spec | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Result:
    x = input.shape
    if x is None or len(x) < 3 or running_mean is not None or running_var is not None or not use_input_stats:
        return None
    if common_float(input, weight, bias) is None or not _fit_channels(sizes, x[1], weight, bias):
        return None
    sizes.require(unequal(product(x[2:]), 1), "more than one value for each channel of an instance")
    return Spec(x, input.dtype)


@rule(F.group_norm)
def _group_norm(
    sizes: Sizes,
    input: Spec,
    num_groups: int,
    weight: Spec | None = None,
    bias: Spec | None = None,
    eps: float = 1e-5,
) -> Result:
    x = input.shape
    if x is None or len(x) < 2 or common_float(input, weight, bias) is None:
        return None
    if type(num_groups) is not int or num_groups < 1 or not _fit_channels(sizes, x[1], weight, bias):
        return None
    sizes.require(equal(x[1] % num_groups, 0), "the groups of a normalisation")
    values = product((x[0] * x[1] // num_groups, *x[2:]))
    sizes.require(unequal(values, 1), "more than one value for each group of a normalisation")
    return Spec(x, input.dtype)


def _of_last_axes(sizes: Sizes, input: Spec, normalized_shape: Any, *parameters: Spec | None) -> Result:
    x, given = input.shape, [parameter for parameter in parameters if parameter is not None]
    if not isinstance(normalized_shape, (list, tuple)) or not all(map(is_number, normalized_shape)):
        return None
    if x is None or common_float(input, *given) is None or not 0 < len(normalized_shape) <= len(x):
        return None
    if any(parameter.shape is None or len(parameter.shape) != len(normalized_shape) for parameter in given):
        return None
    last = equal_shapes(sizes, x[-len(normalized_shape) :], normalized_shape, "the last axes of a normalisation")
    for parameter in given:
        equal_shapes(sizes, parameter.shape or (), last, "the parameters of a normalisation")
    return Spec(x, input.dtype)


@rule(F.layer_norm)
def _layer_norm(
    sizes: Sizes,
    input: Spec,
    normalized_shape: Any,
    weight: Spec | None = None,
    bias: Spec | None = None,
    eps: float = 1e-5,
) -> Result:
    return _of_last_axes(sizes, input, normalized_shape, weight, bias)


@rule(F.rms_norm)
def _rms_norm(
    sizes: Sizes, input: Spec, normalized_shape: Any, weight: Spec | None = None, eps: float | None = None
) -> Result:
    return _of_last_axes(sizes, input, normalized_shape, weight)


@rule(F.normalize)
def _normalize(sizes: Sizes, input: Spec, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Result:
    x = input.shape
    if x is None or out is not None or common_float(input) is None or not isinstance(p, (int, float)):
        return None
    axes = axes_of(dim, len(x))
    if axes is None:
        return None
    if p < 0 or p == float("inf"):
        for axis in axes:
            sizes.require(less(0, x[axis]) if x else True, "an axis with an extreme")
    return Spec(x, input.dtype)


@rule(F.local_response_norm)
def _local_response_norm(
    sizes: Sizes, input: Spec, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Result:
    fits = input.shape is not None and len(input.shape) > 2 and common_float(input) is not None
    return Spec(input.shape, input.dtype) if fits and type(size) is int and size > 0 else None
