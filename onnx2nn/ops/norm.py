"""Normalisations and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ground.float_decimals import shortest_float32
from onnx2nn.ops.arithmetic import halves_in_float32
from onnx2nn.ops.axes import from_front, once
from onnx2nn.ops.shape import fixed, same_shape
from onnx2nn.optable.registry import op


def _channelwise(X: Any, value: Any) -> Any:
    """Returns a vector over the channels, reshaped so that it broadcasts to `X`."""
    return value.reshape([-1] + [1] * (X.ndim - 2))


@op("BatchNormalization", 14, buffers=["input_mean", "input_var"], traits=["channels_first", "keeps_rank"])
def batch_normalization(
    F: Any,
    X: Any,
    scale: Any,
    B: Any,
    input_mean: Any,
    input_var: Any,
    *,
    epsilon: float = 1e-05,
    momentum: float = 0.9,
    training_mode: int = 0,
    _outputs: int = 1,
) -> Any:
    """ONNX's momentum is the weight of the old running statistics, torch's of the new; ONNX's variance is biased."""
    new = round(1 - momentum, 7)
    if not training_mode:
        if X.dtype == F.float64:
            scale, B = scale.to(X.dtype), B.to(X.dtype)
        if X.dtype == scale.dtype:
            input_mean, input_var = input_mean.to(X.dtype), input_var.to(X.dtype)
        input_mean, input_var = input_mean.detach(), input_var.detach()  # torch has no gradient of statistics
        return F.nn.functional.batch_norm(X, input_mean, input_var, scale, B, False, new, epsilon)
    Y = F.nn.functional.batch_norm(X, None, None, scale.to(X.dtype), B.to(X.dtype), True, 0.0, epsilon)
    if _outputs == 1:
        return Y
    mean, var = _batch_statistics(F, X, input_mean.dtype)
    return Y, input_mean * momentum + mean * (1 - momentum), input_var * momentum + var * (1 - momentum)


def _batch_statistics(F: Any, X: Any, dtype: Any) -> tuple[Any, Any]:
    axes = tuple(i for i in range(X.ndim) if i != 1)
    X = X.to(dtype)
    return X.mean(axes), X.var(axes, correction=0)


@op("BatchNormalization", 9, buffers=["mean", "var"], traits=["channels_first", "keeps_rank"])
def batch_normalization_9(
    F: Any,
    X: Any,
    scale: Any,
    B: Any,
    mean: Any,
    var: Any,
    *,
    epsilon: float = 1e-05,
    momentum: float = 0.9,
    _outputs: int = 1,
) -> Any:
    """More than one output means training."""
    options = dict(epsilon=epsilon, momentum=momentum, training_mode=int(_outputs > 1), _outputs=_outputs)
    results = batch_normalization(F, X, scale, B, mean, var, **options)
    return results if _outputs <= 3 else (*results, *_batch_statistics(F, X, mean.dtype))[:_outputs]


@op("BatchNormalization", 7, buffers=["mean", "var"], traits=["channels_first", "keeps_rank"])
def batch_normalization_7(
    F: Any,
    X: Any,
    scale: Any,
    B: Any,
    mean: Any,
    var: Any,
    *,
    epsilon: float = 1e-05,
    momentum: float = 0.9,
    spatial: int = 1,
    _outputs: int = 1,
) -> Any:
    """With `spatial=0` every feature of a sample has its own statistics: X is flattened to (N, C * D1 * ...)."""
    options = dict(epsilon=epsilon, momentum=momentum, _outputs=_outputs)
    if spatial or X.ndim == 2:
        return batch_normalization_9(F, X, scale, B, mean, var, **options)
    flat = [value.flatten() for value in (scale, B, mean, var)]
    results = batch_normalization_9(F, X.flatten(1), *flat, **options)
    if _outputs == 1:
        return results.reshape(X.shape)
    return (results[0].reshape(X.shape), *(value.reshape(X.shape[1:]) for value in results[1:]))


@op("BatchNormalization", 1, buffers=["mean", "var"], traits=["channels_first", "keeps_rank"])
def batch_normalization_1(
    F: Any,
    X: Any,
    scale: Any,
    B: Any,
    mean: Any,
    var: Any,
    *,
    epsilon: float = 1e-05,
    is_test: int = 0,
    momentum: float = 0.9,
    spatial: int = 1,
    _outputs: int = 1,
) -> Any:
    """One output means inference, even with `is_test=0`: the schema has no training with one output."""
    options = dict(epsilon=epsilon, momentum=momentum, spatial=spatial)
    return batch_normalization_7(F, X, scale, B, mean, var, **options, _outputs=1 if is_test else _outputs)


@op("InstanceNormalization", 1, traits=["channels_first", "keeps_rank"])
def instance_normalization(F: Any, input: Any, scale: Any, B: Any, *, epsilon: float = 1e-05) -> Any:
    return normalised_instances(F, input, scale, B, epsilon)


def normalised_instances(F: Any, X: Any, weight: Any, bias: Any, epsilon: float) -> Any:
    """Returns the InstanceNormalization of X; bias, or both, may be None."""
    if (math.prod(X.shape[2:]) == 1) is True:  # torch refuses a single element; its variance is 0
        Y = (X - X) / math.sqrt(epsilon)
        Y = Y if weight is None else Y * _channelwise(X, weight)
        return Y if bias is None else Y + _channelwise(X, bias)
    if (X.numel() == 0) is True:  # torch fails without samples, channels or places
        return X
    if weight is None:
        return F.nn.functional.instance_norm(X, eps=epsilon)
    return F.nn.functional.instance_norm(X, weight=weight, bias=bias, eps=epsilon)


def _stash_dtype(F: Any, stash_type: int) -> Any:
    return {1: F.float32, 10: F.float16, 11: F.float64, 16: F.bfloat16}[stash_type]


def _stretches(parameter: Any, sizes: Any) -> bool:
    """Whether a parameter of size 1 along a dimension broadcasts over it."""
    pairs = zip(parameter.shape, sizes, strict=True)
    return any((own == 1) is not False and (size == 1) is not True and (own == size) is not True for own, size in pairs)


def _demand_broadcast(X: Any, *parameters: Any) -> None:
    """Requires that parameters broadcast against a tensor without stretching it, as far as their sizes are known."""
    for parameter in (parameter for parameter in parameters if parameter is not None):
        pairs = zip(reversed(parameter.shape), reversed(X.shape), strict=False)
        if parameter.ndim > X.ndim or any(fixed(own) and fixed(size) and own not in (1, size) for own, size in pairs):
            raise OperatorError(f"a scale or bias of shape {[*parameter.shape]} does not broadcast to {[*X.shape]}.")


@op("LayerNormalization", 17, traits=["keeps_rank"])
def layer_normalization(
    F: Any,
    X: Any,
    Scale: Any,
    B: Any = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: int = 1,
    _outputs: int = 1,
) -> Any:
    """float16 and bfloat16 are computed in float32 and rounded once, in torch as in ONNX Runtime."""
    axis = from_front(axis, X.ndim)
    normalized = X.shape[axis:]
    fits = all(v is None or (v.ndim == len(normalized) and not _stretches(v, normalized)) for v in (Scale, B))
    if fits:
        Y = F.nn.functional.layer_norm(X, normalized, Scale, B, epsilon)
    else:
        _demand_broadcast(X, Scale, B)
        Y = F.nn.functional.layer_norm(X, normalized, eps=epsilon) * Scale
        Y = Y if B is None else Y + B
    if _outputs == 1:
        return Y
    axes = tuple(range(axis, X.ndim))
    stash = X.to(_stash_dtype(F, stash_type))
    inverse = (stash.var(axes, correction=0, keepdim=True) + epsilon).rsqrt()
    return (Y, stash.mean(axes, keepdim=True), inverse)[:_outputs]


@op("LRN", 1, traits=["channels_first", "keeps_rank"])
@halves_in_float32
def lrn(F: Any, X: Any, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int) -> Any:
    """A window of even size has one more channel above than below; torch's has one more below."""
    if size % 2 and X.ndim > 2:
        return F.nn.functional.local_response_norm(X, size, alpha, beta, bias)
    squares = F.nn.functional.pad(X.square().flatten(2).unsqueeze(1), (0, 0, (size - 1) // 2, size // 2))
    means = F.nn.functional.avg_pool2d(squares, (size, 1), 1).reshape(X.shape)
    return X / (means * alpha + bias) ** beta


def _drop(F: Any, data: Any, ratio: float, _outputs: int) -> Any:
    if _outputs == 1:
        return F.nn.functional.dropout(data, ratio, True)
    mask = F.rand_like(data) >= ratio
    return F.where(mask, data / (1 - ratio), 0.0), mask


@op("Dropout", 12, static=["ratio", "training_mode"], random=True, traits=["keeps_rank"])
def dropout(
    F: Any, data: Any, ratio: Any = None, training_mode: Any = None, *, seed: int | None = None, _outputs: int = 1
) -> Any:
    """The random mask comes from torch's generator; `seed` is ignored."""
    ratio = 0.5 if ratio is None else shortest_float32(ratio)
    if training_mode:
        return _drop(F, data, ratio, _outputs)
    Y = F.nn.functional.dropout(data, ratio, False)
    return Y if _outputs == 1 else (Y, F.ones_like(data, dtype=F.bool))


@op("Dropout", 10, traits=["keeps_rank"])
def dropout_10(F: Any, data: Any, *, ratio: float = 0.5, _outputs: int = 1) -> Any:
    """The mask is all False, as in ONNX Runtime: no element was dropped."""
    Y = F.nn.functional.dropout(data, ratio, False)
    return Y if _outputs == 1 else (Y, F.zeros_like(data, dtype=F.bool))


@op("Dropout", 7, traits=["keeps_rank"])
def dropout_7(F: Any, data: Any, *, ratio: float = 0.5, _outputs: int = 1) -> Any:
    """The mask has the type of the data."""
    Y = F.nn.functional.dropout(data, ratio, False)
    return Y if _outputs == 1 else (Y, F.zeros_like(data))


@op("Dropout", 1, random=True, traits=["keeps_rank"])
def dropout_1(F: Any, data: Any, *, is_test: int = 0, ratio: float = 0.5, _outputs: int = 1) -> Any:
    if is_test:
        return dropout_7(F, data, ratio=ratio, _outputs=_outputs)
    if _outputs == 1:
        return _drop(F, data, ratio, 1)
    Y, mask = _drop(F, data, ratio, 2)
    return Y, mask.to(data.dtype)


@op("GroupNormalization", 21, traits=["channels_first", "keeps_rank"])
def group_normalization(
    F: Any, X: Any, scale: Any, bias: Any, *, epsilon: float = 1e-05, num_groups: int, stash_type: int = 1
) -> Any:
    """float16 and bfloat16 are computed in float32 and rounded once."""
    return F.nn.functional.group_norm(X, num_groups, scale, bias, epsilon)


@op("GroupNormalization", 18, traits=["channels_first", "keeps_rank"])
def group_normalization_18(F: Any, X: Any, scale: Any, bias: Any, *, epsilon: float = 1e-05, num_groups: int) -> Any:
    """Scale and bias have one number per group."""
    each = X.shape[1] // num_groups
    scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    return group_normalization(F, X, scale, bias, epsilon=epsilon, num_groups=num_groups)


@op("RMSNormalization", 23, traits=["keeps_rank"])
def rms_normalization(
    F: Any, X: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-05, stash_type: int = 1
) -> Any:
    """float16 and bfloat16 are computed in float32."""
    normalized = X.shape[from_front(axis, X.ndim) :]
    if scale.dtype == X.dtype and same_shape(scale.shape, normalized):
        return F.nn.functional.rms_norm(X, normalized, scale, epsilon)
    _demand_broadcast(X, scale)
    return F.nn.functional.rms_norm(X, normalized, eps=epsilon) * scale


@op("LpNormalization", 1, traits=["keeps_rank", "along_axis"])
def lp_normalization(F: Any, input: Any, *, axis: int = -1, p: int = 2) -> Any:
    """A vector of norm 0 stays 0, as in ONNX Runtime."""
    if p not in (1, 2):
        raise OperatorError(f"p={p} is none of 1, 2.")
    norm = F.linalg.vector_norm(input, p, from_front(axis, input.ndim), keepdim=True)
    return input / F.where(norm == 0, 1.0, norm)


@op("MeanVarianceNormalization", 9, traits=["keeps_rank"])
def mean_variance_normalization(F: Any, X: Any, *, axes: Sequence[int] = (0, 2, 3)) -> Any:
    """1e-9 is added to the deviation, as in the operator's function body.

    The default axes are those of images; of fewer dimensions those that are there count, as in ONNX Runtime.
    """
    axes = once((axis for axis in axes if axis < X.ndim), X.ndim)
    if not axes:
        raise OperatorError(f"none of its axes is one of a tensor of {X.ndim} dimensions.")
    return (X - X.mean(axes, keepdim=True)) / (X.std(axes, correction=0, keepdim=True) + 1e-9)


@op("MeanVarianceNormalization", 1, traits=["keeps_rank"])
def mean_variance_normalization_1(F: Any, input: Any, *, across_channels: int = 0, normalize_variance: int = 1) -> Any:
    """Experimental in opset 1. The batch is among the axes, as in ONNX Runtime."""
    axes = (0, *range(1 if across_channels else 2, input.ndim))
    if not normalize_variance:
        return input - input.mean(axes, keepdim=True)
    return mean_variance_normalization(F, input, axes=axes)


@op("LayerNormalization", 1, traits=["keeps_rank"])
def layer_normalization_1(
    F: Any,
    X: Any,
    Scale: Any,
    B: Any = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: int = 1,
    _outputs: int = 1,
) -> Any:
    """ONNX Runtime's optimiser writes it in the domain ai.onnx in files of opsets 1 to 16 too.

    X may have another type than Scale and B. The result has the type of Scale.
    """
    options = dict(axis=axis, epsilon=epsilon, stash_type=stash_type, _outputs=_outputs)
    if X.dtype == Scale.dtype:
        return layer_normalization(F, X, Scale, B, **options)
    wide = F.promote_types(X.dtype, Scale.dtype)
    result = layer_normalization(F, X.to(wide), Scale.to(wide), None if B is None else B.to(wide), **options)
    return result.to(Scale.dtype) if _outputs == 1 else (result[0].to(Scale.dtype), *result[1:])


@op("SimplifiedLayerNormalization", 1)
def simplified_layer_normalization(
    F: Any, X: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-05, stash_type: int = 1, _outputs: int = 1
) -> Any:
    """RMS normalisation, which ONNX Runtime's optimiser writes in the domain ai.onnx.

    float16 and bfloat16 are computed in float32. X may have another type than scale. The result has the type of scale.
    """
    axis = from_front(axis, X.ndim)
    dtype = scale.dtype
    if X.dtype != dtype:
        wide = F.promote_types(X.dtype, dtype)
        X, scale = X.to(wide), scale.to(wide)
    Y = rms_normalization(F, X, scale, axis=axis, epsilon=epsilon)
    Y = Y if Y.dtype == dtype else Y.to(dtype)
    return Y if _outputs == 1 else (Y, inverse_root(F, X, tuple(range(axis, X.ndim)), epsilon))


def inverse_root(F: Any, X: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    """Returns the inverse root of the mean of squares over `axes`, in float32 or float64."""
    X = X if X.dtype == F.float64 else X.to(F.float32)
    return (X.square().mean(axes, keepdim=True) + epsilon).rsqrt()
