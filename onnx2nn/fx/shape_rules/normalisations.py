"""Shape rules of normalisations: the result has the input's shape, parameters fit the channels or the last axes."""

from __future__ import annotations

from typing import Any

from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import (
    axes_or_all,
    common_float,
    equal_shapes,
    numbers,
    positive,
    positive_int,
    shape_of,
)
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import equal, unequal
from onnx2nn.sizes.expression import Number, product


def _fit_channels(sizes: Sizes, channels: Number, *parameters: Spec | None) -> None:
    """Requires that every given parameter has one element for each channel."""
    for parameter in parameters:
        if parameter is not None:
            equal_shapes(sizes, shape_of(parameter), (channels,), "the channels of a normalisation")


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
    x, states = shape_of(input), (running_mean, running_var)
    dtype = common_float(input, *states, weight, bias)
    if len(x) < 2 or (not training and None in states):
        raise Uncovered
    _fit_channels(sizes, x[1], *states, weight, bias)
    if training:
        sizes.require(unequal(product((x[0], *x[2:])), 1), "more than one value for each channel of a normalisation")
    return Spec(x, dtype)


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
    x, dtype = shape_of(input), common_float(input, weight, bias)
    if len(x) < 3 or running_mean is not None or running_var is not None or not use_input_stats:
        raise Uncovered
    _fit_channels(sizes, x[1], weight, bias)
    sizes.require(unequal(product(x[2:]), 1), "more than one value for each channel of an instance")
    return Spec(x, dtype)


@rule(F.group_norm)
def _group_norm(
    sizes: Sizes,
    input: Spec,
    num_groups: int,
    weight: Spec | None = None,
    bias: Spec | None = None,
    eps: float = 1e-5,
) -> Result:
    x, dtype, groups = shape_of(input), common_float(input, weight, bias), positive_int(num_groups)
    if len(x) < 2:
        raise Uncovered
    _fit_channels(sizes, x[1], weight, bias)
    sizes.require(equal(x[1] % groups, 0), "the groups of a normalisation")
    values = product((x[0] * x[1] // groups, *x[2:]))
    sizes.require(unequal(values, 1), "more than one value for each group of a normalisation")
    return Spec(x, dtype)


def _of_last_axes(sizes: Sizes, input: Spec, normalized_shape: Any, *parameters: Spec | None) -> Result:
    x, wanted, dtype = shape_of(input), numbers(normalized_shape), common_float(input, *parameters)
    if not isinstance(normalized_shape, (list, tuple)) or not 0 < len(wanted) <= len(x):
        raise Uncovered
    shapes = [shape_of(parameter, len(wanted)) for parameter in parameters if parameter is not None]
    last = equal_shapes(sizes, x[-len(wanted) :], wanted, "the last axes of a normalisation")
    for shape in shapes:
        equal_shapes(sizes, shape, last, "the parameters of a normalisation")
    return Spec(x, dtype)


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
    x, dtype = shape_of(input), common_float(input)
    if out is not None or not isinstance(p, (int, float)):
        raise Uncovered
    axes = axes_or_all(dim, len(x))
    if p < 0 or p == float("inf"):
        positive(sizes, [x[axis] for axis in axes] if x else [], "an axis with an extreme")
    return Spec(x, dtype)


@rule(F.local_response_norm)
def _local_response_norm(
    sizes: Sizes, input: Spec, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Result:
    x, dtype = shape_of(input), common_float(input)
    if len(x) < 3:
        raise Uncovered
    positive_int(size)
    return Spec(x, dtype)
