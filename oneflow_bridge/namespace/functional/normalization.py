"""torch.nn.functional: normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import add, div, mul, pow, square, sub
from oneflow_bridge.namespace.comparison import clamp
from oneflow_bridge.namespace.dtypes import DType
from oneflow_bridge.namespace.functional.half_precision import computed_in_float32
from oneflow_bridge.namespace.functional.padding import pad
from oneflow_bridge.namespace.reduction import mean, norm, var
from oneflow_bridge.namespace.shaping import narrow, reshape
from oneflow_bridge.namespace.tensor import Tensor, convert
from oneflow_bridge.namespace.transcendental import rsqrt
from onnx2nn.errors import OperatorError


@computed_in_float32
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias for each channel; `training` takes the batch's own statistics.

    Running statistics are not updated here.
    """
    shape = [1, -1] + [1] * (x.ndim - 2)
    if training or running_mean is None or running_var is None:
        dims = [d for d in range(x.ndim) if d != 1]
        center, spread = mean(x, dims, True), var(x, dims, False, True)
    else:
        center, spread = reshape(running_mean, shape), reshape(running_var, shape)
    result = mul(sub(x, center), rsqrt(add(spread, eps)))
    result = result if weight is None else mul(result, reshape(weight, shape))
    return convert(result if bias is None else add(result, reshape(bias, shape)), x.dtype)


def _standardized(x: Tensor, dims: Sequence[int], eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) over some dims."""
    centered = sub(x, mean(x, dims, True))
    return mul(centered, rsqrt(add(mean(square(centered), dims, True), eps)))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int], dtype: DType) -> Tensor:
    x = x if weight is None else mul(x, reshape(weight, shape))
    return convert(x if bias is None else add(x, reshape(bias, shape)), dtype)


@computed_in_float32
def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardized over the last dims; OneFlow's own functional form ends the process on the CPU."""
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    if tuple(normalized_shape) != tuple(x.shape[dims[0] :]):
        raise OperatorError(f"layer_norm over {tuple(normalized_shape)} of a tensor of shape {tuple(x.shape)}.")
    return _affine(_standardized(x, dims, eps), weight, bias, list(normalized_shape), x.dtype)


@computed_in_float32
def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x over its root mean square in the last dims."""
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    eps = dtypes.FInfo(x.dtype).eps if eps is None else eps
    scaled = mul(x, rsqrt(add(mean(square(x), dims, True), eps)))
    return _affine(scaled, weight, None, list(normalized_shape), x.dtype)


@computed_in_float32
def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Standardized over groups of channels, scaled by channel."""
    if x.shape[1] % num_groups:
        raise OperatorError(f"{x.shape[1]} channels in {num_groups} groups.")
    inner = _standardized(reshape(x, x.shape[0], num_groups, -1), [2], eps)
    return _affine(reshape(inner, x.shape), weight, bias, [1, -1] + [1] * (x.ndim - 2), x.dtype)


@computed_in_float32
def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Standardized over the spatial dims."""
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    inner = _standardized(x, list(range(2, x.ndim)), eps)
    return _affine(inner, weight, bias, [1, -1] + [1] * (x.ndim - 2), x.dtype)


@computed_in_float32
def local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha * mean of squares over `size` channels) ** beta; the window has size // 2 channels before."""
    squares = square(x)
    padded = pad(squares, [0, 0] * (x.ndim - 2) + [size // 2, (size - 1) // 2])
    total = narrow(padded, 1, 0, x.shape[1])
    for i in range(1, size):
        total = add(total, narrow(padded, 1, i, x.shape[1]))
    return div(x, pow(add(mul(total, alpha / size), k), beta))


@computed_in_float32
def normalize(x: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """x over its p-norm."""
    return div(x, clamp(norm(x, p, dim, True), min=eps))
