"""torch.nn.functional: activations, convolutions, pools, normalization, padding, resizing, losses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.creation import full, tensor
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.elementwise import (
    abs,
    add,
    clamp,
    div,
    eq,
    exp,
    floor,
    gt,
    le,
    log,
    log1p,
    logical_not,
    lt,
    maximum,
    mul,
    neg,
    pow,
    relu,
    remainder,
    round,
    rsqrt,
    rsub,
    sigmoid,
    sqrt,
    square,
    sub,
    tanh,
    where,
)
from oneflow_bridge.namespace.indexing import embedding, index_select, one_hot, scatter, take_along_dim
from oneflow_bridge.namespace.linalg import bilinear as exact_bilinear
from oneflow_bridge.namespace.linalg import einsum, matmul
from oneflow_bridge.namespace.reduction import amax, mean, norm, sum, var
from oneflow_bridge.namespace.shaping import (
    cat,
    chunk,
    expand,
    flatten,
    flip,
    narrow,
    permute,
    reshape,
    squeeze,
    stack,
    transpose,
    tril,
    unbind,
    unsqueeze,
)
from oneflow_bridge.namespace.tensor import (
    Size,
    Tensor,
    axis,
    convert,
    known,
    moved,
    operand,
    result_type,
    store,
    widened,
)
from onnx2nn.errors import OperatorError

__all__ = ["embedding", "one_hot", "relu", "sigmoid", "tanh"]


def _inplace_ignored(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Accept `inplace=`, which changes no result."""

    def accepting(*arguments: Any, inplace: bool = False, **options: Any) -> Tensor:
        return function(*arguments, **options)

    accepting.__doc__ = function.__doc__
    return accepting


def _wide(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute half-precision tensors in float32, as torch's kernels do: the steps between may not fit a half."""

    @functools.wraps(function)
    def widening(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        values = [x, *arguments, *options.values()]
        if not any(_half(v) for v in values):
            return function(x, *arguments, **options)
        first, *rest = (convert(v, dtypes.float32) if _half(v) else v for v in values)
        split = len(arguments)
        return convert(function(first, *rest[:split], **dict(zip(options, rest[split:], strict=True))), x.dtype)

    return widening


def _half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype.is_floating_point and value.dtype.bits == 16


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


@_wide
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function, or its tanh approximation."""
    if approximate == "tanh":
        inner = mul(add(x, mul(mul(square(x), x), 0.044715)), math.sqrt(2 / math.pi))
        return mul(mul(x, 0.5), add(tanh(inner), 1.0))
    return store(flow._C.gelu(widened(x)), x.dtype)


@_inplace_ignored
@_wide
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return mul(x, sigmoid(x))


@_inplace_ignored
@_wide
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


@_wide
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, x itself where beta x is above the threshold."""
    scaled = mul(x, float(beta))
    soft = div(log1p(exp(clamp(scaled, max=float(threshold)))), float(beta))
    return where(gt(scaled, float(threshold)), x, soft)


@_wide
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return div(x, add(abs(x), 1.0))


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, 0 within."""
    return where(gt(x, lambd), sub(x, lambd), where(lt(x, -lambd), add(x, lambd), mul(x, 0.0)))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, 0 where |x| <= lambd."""
    return where(le(abs(x), lambd), 0.0, x)


@_wide
def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return sub(x, tanh(x))


@_inplace_ignored
def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x, a number where x is not above the threshold."""
    return where(le(x, threshold), convert(tensor(value, device=x.device), x.dtype), x)


@_wide
def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)), without overflow."""
    return sub(clamp(x, max=0.0), log1p(exp(neg(abs(x)))))


@_wide
def glu(x: Tensor, dim: int = -1) -> Tensor:
    """The first half times the sigmoid of the second."""
    first, second = chunk(x, 2, dim)
    return mul(first, sigmoid(second))


def _along(kernel: Callable[[Any, int], Any]) -> Callable[..., Tensor]:
    def function(x: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
        x = x if dtype is None else convert(x, dtypes.as_dtype(dtype))
        if not x.dtype.is_floating_point:
            raise OperatorError(f"softmax of {x.dtype}; a float type is needed.")
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


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias."""
    product = matmul(x, transpose(weight, 0, 1) if weight.ndim == 2 else weight)
    return product if bias is None else add(product, bias)


def bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight @ y for each output feature."""
    product = einsum("...i,oij,...j->...o", x, weight, y)
    return product if bias is None else add(product, bias)


def _tuple(value: Any, count: int) -> tuple[int, ...]:
    """One number for each spatial dim."""
    values = [value] * count if isinstance(value, (int, np.integer)) else list(value)
    values = values * count if len(values) == 1 else values
    if len(values) != count:
        raise OperatorError(f"{len(values)} numbers for {count} spatial dims.")
    return tuple(int(v) for v in values)


def _convolution(rank: int) -> Callable[..., Tensor]:
    kernel = getattr(flow._C, f"conv{rank}d")

    def function(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if x.ndim == rank + 1:
            return squeeze(function(unsqueeze(x, 0), weight, bias, stride, padding, dilation, groups), 0)
        dilation = _tuple(dilation, rank)
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
            x, padding = pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)]), 0
        padding = 0 if padding == "valid" else padding
        _check_convolution(x, weight, rank, groups, weight.shape[1] * groups)
        geometry = _tuple(stride, rank), _tuple(padding, rank), dilation
        sizes = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(x.shape[2:], weight.shape[2:], *geometry, strict=True)
        ]
        if min(sizes) < 1 and x.numel():
            raise OperatorError(f"A kernel of {tuple(weight.shape[2:])} does not fit into {tuple(x.shape[2:])}.")
        dtype = result_type(x, weight)
        if not x.numel() or not weight.numel():
            return full((x.shape[0], weight.shape[0], *(max(s, 0) for s in sizes)), 0, dtype=dtype, device=x.device)
        result = exact_bilinear(
            lambda a, b: kernel(a, b, None, *geometry, groups),
            operand(x, dtype),
            operand(weight, dtype),
            Size(weight.shape[1:]).numel(),
            dtype,
        )
        return result if bias is None else add(result, reshape(bias, [-1] + [1] * rank))

    return function


def _check_convolution(x: Tensor, weight: Tensor, rank: int, groups: int, channels: int) -> None:
    if x.ndim != rank + 2 or weight.ndim != rank + 2:
        raise OperatorError(f"A {rank}-d convolution of {tuple(x.shape)} with {tuple(weight.shape)}.")
    if x.shape[1] != channels or weight.shape[0] % groups:
        raise OperatorError(
            f"A convolution of {x.shape[1]} channels with weights {tuple(weight.shape)}, {groups} groups."
        )


conv1d, conv2d, conv3d = (_convolution(rank) for rank in (1, 2, 3))


def _transposed_convolution(rank: int) -> Callable[..., Tensor]:
    kernel = getattr(flow._C, f"deconv{rank}d")

    def function(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        if x.ndim == rank + 1:
            return squeeze(
                function(unsqueeze(x, 0), weight, bias, stride, padding, output_padding, groups, dilation), 0
            )
        _check_convolution(x, weight, rank, groups, weight.shape[0])
        dtype = result_type(x, weight)
        geometry = [_tuple(v, rank) for v in (stride, padding, output_padding, dilation)]
        result = exact_bilinear(
            lambda a, b: kernel(a, b, None, *geometry[:3], groups, geometry[3]),
            operand(x, dtype),
            operand(weight, dtype),
            Size(weight.shape[2:]).numel() * weight.shape[0],
            dtype,
        )
        return result if bias is None else add(result, reshape(bias, [-1] + [1] * rank))

    return function


conv_transpose1d, conv_transpose2d, conv_transpose3d = (_transposed_convolution(rank) for rank in (1, 2, 3))


def _pool_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Windows along a dim; with ceil_mode the last must start inside the input or the padding before it."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    return count - (ceil_mode and (count - 1) * stride >= size + padding)


def _ceil_padding(x: Tensor, rank: int, geometry: Sequence[Sequence[int]]) -> list[int]:
    """How far the windows of ceil_mode reach beyond the padded input, for each spatial dim."""
    extra = []
    for size, k, s, p, d in zip(x.shape[-rank:], *geometry, strict=True):
        count = _pool_size(size, k, s, p, d, True)
        extra.append(max((count - 1) * s + d * (k - 1) + 1 - size - 2 * p, 0))
    return extra


def _max_pool(rank: int) -> Callable[..., Any]:
    kernel = getattr(flow._C, f"max_pool{rank}d")

    def function(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if x.ndim == rank + 1:
            both = function(unsqueeze(x, 0), kernel_size, stride, padding, dilation, ceil_mode, True)
            both = tuple(squeeze(v, 0) for v in both)
            return both if return_indices else both[0]
        size = _tuple(kernel_size, rank)
        geometry = [size, _tuple(stride or size, rank), _tuple(padding, rank), _tuple(dilation, rank)]
        if any(p > k // 2 for p, k in zip(geometry[2], size, strict=True)):
            raise OperatorError(f"Padding {geometry[2]} of a pool of {size}; at most half of the kernel.")
        counts = [_pool_size(n, k, s, p, d, ceil_mode) for n, k, s, p, d in zip(x.shape[2:], *geometry, strict=True)]
        if min(counts) < 1:
            raise OperatorError(f"A pool of {size} does not fit into {tuple(x.shape[2:])}.")
        value, spatial = _poolable(x), x.shape[2:]
        extra = _ceil_padding(x, rank, geometry) if ceil_mode else [0] * rank
        if max(extra):
            amounts = [side for e in reversed(extra) for side in (0, e)]
            value = _padded(value, amounts, -math.inf)
        result = kernel(
            value,
            kernel_size=geometry[0],
            stride=geometry[1],
            padding=geometry[2],
            dilation=geometry[3],
            return_indices=True,
            ceil_mode=False,
            data_format="channels_first",
        )
        values, indices = result[0], result[1]
        for d, count in enumerate(counts):
            if values.shape[d + 2] != count:
                place = (slice(None),) * (d + 2) + (slice(0, count),)
                values, indices = values[place], indices[place]
        pooled = store(values, x.dtype)
        return (pooled, Tensor(_unpadded_index(indices, spatial, extra))) if return_indices else pooled

    return function


def _poolable(x: Tensor) -> Any:
    """A float tensor that holds every value of x exactly: OneFlow pools few integer types."""
    if x.dtype.is_floating_point:
        return widened(x)
    array = known(x.value)
    if x.dtype.bits > 32 and (array is None or (np.abs(array) >= 2**53).any()):
        raise OperatorError(f"OneFlow 0.9 has no max pool of {x.dtype} from 2**53 on.")
    return widened(x).to(flow.float64)


def _padded(value: Any, amounts: Sequence[int], number: float) -> Any:
    return flow.nn.functional.pad(value, list(amounts), mode="constant", value=number)


def _unpadded_index(index: Any, spatial: Sequence[int], extra: Sequence[int]) -> Any:
    """Flat indices into the plane padded at its ends as indices into the plane itself."""
    if not max(extra):
        return index.to(flow.int64)
    index, result, unit = index.to(flow.int64), None, 1
    for size, more in zip(reversed(spatial), reversed(extra), strict=True):
        rest = index - index // (size + more) * (size + more)
        result = rest * unit if result is None else result + rest * unit
        index, unit = index // (size + more), unit * size
    return result


max_pool1d, max_pool2d, max_pool3d = (_max_pool(rank) for rank in (1, 2, 3))


def _avg_pool(rank: int) -> Callable[..., Tensor]:
    kernel = getattr(flow._C, f"avg_pool{rank}d")

    def function(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        if x.ndim == rank + 1:
            wide = unsqueeze(x, 0)
            return squeeze(
                function(wide, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override), 0
            )
        size = _tuple(kernel_size, rank)
        geometry = [size, _tuple(stride or size, rank), _tuple(padding, rank)]
        if any(p > k // 2 for p, k in zip(geometry[2], size, strict=True)):
            raise OperatorError(f"Padding {geometry[2]} of a pool of {size}; at most half of the kernel.")
        ones = (1,) * rank
        counts = [
            _pool_size(n, k, s, p, d, ceil_mode) for n, k, s, p, d in zip(x.shape[2:], *geometry, ones, strict=True)
        ]
        if min(counts) < 1:
            raise OperatorError(f"A pool of {size} does not fit into {tuple(x.shape[2:])}.")
        extra = _ceil_padding(x, rank, [*geometry, ones]) if ceil_mode else [0] * rank
        if not max(extra):
            return store(
                kernel(
                    widened(x),
                    kernel_size=geometry[0],
                    stride=geometry[1],
                    padding=geometry[2],
                    ceil_mode=False,
                    count_include_pad=count_include_pad,
                    divisor_override=divisor_override or 0,
                    data_format="channels_first",
                ),
                x.dtype,
            )
        return _ceil_avg_pool(x, kernel, geometry, counts, extra, count_include_pad, divisor_override)

    return function


def _ceil_avg_pool(
    x: Tensor,
    kernel: Callable[..., Any],
    geometry: Sequence[Sequence[int]],
    counts: Sequence[int],
    extra: Sequence[int],
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Windows that reach beyond the padding: the sum of each window over the elements torch counts in it."""
    rank = len(counts)
    value = widened(x)
    padded = _padded(
        value, [side for e, p in zip(reversed(extra), reversed(geometry[2]), strict=True) for side in (p, p + e)], 0.0
    )
    options = {"kernel_size": geometry[0], "stride": geometry[1], "padding": (0,) * rank, "ceil_mode": False}
    options |= {"count_include_pad": True, "divisor_override": 1, "data_format": "channels_first"}
    total = kernel(padded, **options)
    place = (slice(None), slice(None), *(slice(0, c) for c in counts))
    total = total[place]
    if divisor_override:
        return store(total / float(divisor_override), x.dtype)
    lengths = []
    for d, (count, k, s, p) in enumerate(zip(counts, *geometry, strict=True)):
        low, high = (-p, x.shape[d + 2] + p) if count_include_pad else (0, x.shape[d + 2])
        starts = np.arange(count) * s - p
        length = np.minimum(starts + k, high) - np.maximum(starts, low)
        lengths.append(length.reshape([-1 if i == d else 1 for i in range(rank)]))
    area = np.ones(())
    for length in lengths:
        area = area * length
    return store(
        total / tensor(area.astype(np.float64), dtype=dtypes.NATIVE[total.dtype], device=x.device).value, x.dtype
    )


avg_pool1d, avg_pool2d, avg_pool3d = (_avg_pool(rank) for rank in (1, 2, 3))


def _adaptive(kind: str, rank: int) -> Callable[..., Any]:
    kernel = getattr(flow.nn.functional, f"adaptive_{kind}_pool{rank}d")

    def function(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        sizes = [output_size] * rank if output_size is None or isinstance(output_size, int) else list(output_size)
        sizes = [n if size is None else int(size) for size, n in zip(sizes, x.shape[-rank:], strict=True)]
        if x.ndim == rank + 1:
            return squeeze(function(unsqueeze(x, 0), sizes), 0)
        if kind == "avg":
            return store(kernel(widened(x), sizes), x.dtype)
        values, indices = getattr(flow._C, f"adaptive_max_pool{rank}d")(_poolable(x), output_size=sizes)
        return (store(values, x.dtype), Tensor(indices.to(flow.int64))) if return_indices else store(values, x.dtype)

    return function


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive("avg", rank) for rank in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive("max", rank) for rank in (1, 2, 3))


def _lp_pool(rank: int) -> Callable[..., Tensor]:
    def function(x: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
        size = _tuple(kernel_size, rank)
        pool = (avg_pool1d, avg_pool2d, avg_pool3d)[rank - 1]
        total = pool(pow(abs(x), float(norm_type)), size, stride, 0, ceil_mode, True, 1)
        return pow(total, 1.0 / norm_type)

    return function


lp_pool1d, lp_pool2d, lp_pool3d = (_lp_pool(rank) for rank in (1, 2, 3))


def _max_unpool(rank: int) -> Callable[..., Tensor]:
    def function(
        x: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
    ) -> Tensor:
        size = _tuple(kernel_size, rank)
        geometry = size, _tuple(stride or size, rank), _tuple(padding, rank)
        if output_size is None:
            sizes = [(n - 1) * s - 2 * p + k for n, k, s, p in zip(x.shape[-rank:], *geometry, strict=True)]
        else:
            sizes = [int(n) for n in output_size][-rank:]
        lead = x.shape[:-rank]
        flat = full((*lead, Size(sizes).numel()), 0, dtype=x.dtype, device=x.device)
        written = scatter(flat, len(lead), reshape(indices, *lead, -1), reshape(x, *lead, -1))
        return reshape(written, *lead, *sizes)

    return function


max_unpool1d, max_unpool2d, max_unpool3d = (_max_unpool(rank) for rank in (1, 2, 3))


def unfold(x: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Windows of (N, C, H, W) as columns: (N, C * kernel, windows)."""
    size, spread, edge, step = (_tuple(v, 2) for v in (kernel_size, dilation, padding, stride))
    return moved(lambda v: flow.nn.functional.unfold(v, size, spread, edge, step), x)


def fold(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Columns (N, C * kernel, windows) added up to (N, C, H, W)."""
    sizes, size, spread, edge, step = (_tuple(v, 2) for v in (output_size, kernel_size, dilation, padding, stride))
    return store(flow.nn.functional.fold(widened(x), sizes, size, spread, edge, step), x.dtype)


def pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Dims made longer, the last first: `pad` holds (before, after) for each; negative numbers cut.

    Every mode works on any dims and types: OneFlow's own refuse circular, 3-d replicate and long lists.
    """
    amounts = [int(p) for p in pad]
    if len(amounts) % 2 or len(amounts) > 2 * x.ndim:
        raise OperatorError(f"{len(amounts)} pads for a tensor of rank {x.ndim}.")
    pairs = {x.ndim - 1 - i: (amounts[2 * i], amounts[2 * i + 1]) for i in range(len(amounts) // 2)}
    if mode == "constant":
        return _pad_constant(x, pairs, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise OperatorError(f"Padding mode {mode!r}; there are constant, reflect, replicate and circular.")
    for dim, (before, after) in pairs.items():
        if before or after:
            x = _pad_from_inside(x, dim, before, after, mode)
    return x


def _pad_constant(x: Tensor, pairs: dict[int, tuple[int, int]], value: Any) -> Tensor:
    for dim, (before, after) in pairs.items():
        start, stop = max(-before, 0), x.shape[dim] - max(-after, 0)
        if stop < start:
            raise OperatorError(f"Pads {before} and {after} of a dim of size {x.shape[dim]}.")
        x = narrow(x, dim, start, stop - start)
    added = {dim: (max(b, 0), max(a, 0)) for dim, (b, a) in pairs.items() if b > 0 or a > 0}
    if not added:
        return x
    if x.numel() and x.dtype.is_floating_point and isinstance(value, (int, float)) and x.ndim > 1:
        outermost = min(added)
        flat = [side for dim in range(x.ndim - 1, outermost - 1, -1) for side in added.get(dim, (0, 0))]
        if len(flat) < 2 * x.ndim:
            return store(_padded(widened(x), flat, float(value)), x.dtype)
    for dim, sides in added.items():
        edges = [[*x.shape[:dim], size, *x.shape[dim + 1 :]] for size in sides]
        first, last = (full(shape, value, dtype=x.dtype, device=x.device) for shape in edges)
        x = cat([first, x, last], dim)
    return x


def _pad_from_inside(x: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    """One dim made longer with its own elements."""
    size = x.shape[dim]
    limit = {"reflect": size - 1, "circular": size}.get(mode)
    if size == 0 or (limit is not None and max(before, after) > limit):
        raise OperatorError(f"{mode} padding by {max(before, after)} of a dim of size {size}.")
    if mode == "replicate":
        parts = [_edge(x, dim, 0, before), x, _edge(x, dim, size - 1, after)]
    elif mode == "reflect":
        parts = [flip(narrow(x, dim, 1, max(before, 0)), dim), x]
        parts.append(flip(narrow(x, dim, size - 1 - max(after, 0), max(after, 0)), dim))
    else:
        parts = [narrow(x, dim, size - max(before, 0), max(before, 0)), x, narrow(x, dim, 0, max(after, 0))]
    x = cat([part for part in parts if part.shape[dim]], dim)
    start = max(-before, 0)
    return narrow(x, dim, start, x.shape[dim] - start - max(-after, 0))


def _edge(x: Tensor, dim: int, index: int, count: int) -> Tensor:
    part = narrow(x, dim, index, 1)
    return expand(part, [max(count, 0) if d == dim else size for d, size in enumerate(x.shape)])


def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """(N, C, *spatial) resized as torch.nn.functional.interpolate does.

    Nearest, nearest-exact and the linear modes are separable and gather by index, in torch's own arithmetic.
    """
    rank = x.ndim - 2
    if (size is None) == (scale_factor is None):
        raise OperatorError("interpolate takes either size or scale_factor.")
    given: list[float | None] = [None] * rank
    if scale_factor is not None:
        factors = (
            [float(scale_factor)] * rank if isinstance(scale_factor, (int, float)) else [float(f) for f in scale_factor]
        )
        sizes = [math.floor(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
        given = [None] * rank if recompute_scale_factor else list(factors)
    else:
        sizes = list(_tuple(size, rank))
    if antialias or mode in ("bicubic", "area"):
        return _resized_in_planes(x, sizes, given, mode, bool(align_corners), antialias)
    if mode in ("nearest", "nearest-exact"):
        return _nearest(x, sizes, given, mode)
    if mode not in ("linear", "bilinear", "trilinear"):
        raise OperatorError(f"interpolate with mode {mode!r}.")
    inner = convert(x, dtypes.NATIVE[x.dtype.compute])
    for d, (n, out, factor) in enumerate(zip(x.shape[2:], sizes, given, strict=True)):
        low, high, weight = _linear_places(n, out, factor, bool(align_corners))
        if n == out and not weight.any():
            continue
        shape = [-1 if i == d + 2 else 1 for i in range(x.ndim)]
        part = tensor(weight.reshape(shape), dtype=inner.dtype, device=x.device)
        a, b = (index_select(inner, d + 2, tensor(i, device=x.device)) for i in (low, high))
        inner = add(mul(a, rsub(part, 1.0)), mul(b, part))
    return convert(inner, x.dtype)


def _resized_in_planes(
    x: Tensor, sizes: Sequence[int], given: Sequence[float | None], mode: str, align_corners: bool, antialias: bool
) -> Tensor:
    if antialias or (mode == "bicubic" and x.ndim != 4):
        raise OperatorError(
            f"OneFlow 0.9 has no interpolate with mode {mode!r}{' and antialias' if antialias else ''} here."
        )
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[x.ndim - 3](x, list(sizes))
    inner = convert(x, dtypes.NATIVE[x.dtype.compute])
    for d, (n, out, factor) in enumerate(zip(x.shape[2:], sizes, given, strict=True)):
        start, weights = _cubic_places(n, out, factor, align_corners)
        total: Tensor | None = None
        for tap in range(4):
            index = np.clip(start + tap, 0, n - 1)
            shape = [-1 if i == d + 2 else 1 for i in range(x.ndim)]
            part = tensor(weights[tap].reshape(shape), dtype=inner.dtype, device=x.device)
            term = mul(index_select(inner, d + 2, tensor(index, device=x.device)), part)
            total = term if total is None else add(total, term)
        inner = total if total is not None else inner
    return convert(inner, x.dtype)


def _source(n: int, out: int, factor: float | None, align_corners: bool) -> np.ndarray:
    """Where each output element lies among the inputs, float32 as in torch."""
    index = np.arange(out, dtype=np.float32)
    if align_corners:
        return index * np.float32((n - 1) / (out - 1) if out > 1 else 0.0)
    scale = np.float32(1.0 / factor if factor else n / out)
    return (index + np.float32(0.5)) * scale - np.float32(0.5)


def _linear_places(
    n: int, out: int, factor: float | None, align_corners: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each output element the two inputs around it and the weight of the second."""
    source = np.maximum(_source(n, out, factor, align_corners), 0)
    low = np.minimum(source.astype(np.int64), n - 1)
    return low, np.minimum(low + 1, n - 1), np.clip(source - low, 0, 1).astype(np.float64)


def _cubic_places(n: int, out: int, factor: float | None, align_corners: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """For each output element the first of its four inputs and their weights (a = -0.75)."""
    source = _source(n, out, factor, align_corners)
    low = np.floor(source)
    t = (source - low).astype(np.float64)
    a = -0.75

    def near(d: np.ndarray) -> np.ndarray:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: np.ndarray) -> np.ndarray:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return low.astype(np.int64) - 1, [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _nearest(x: Tensor, sizes: Sequence[int], given: Sequence[float | None], mode: str) -> Tensor:
    """Each output element is the input below its place ("nearest") or next to its centre ("nearest-exact")."""
    for d, (n, out, factor) in enumerate(zip(x.shape[2:], sizes, given, strict=True)):
        scale = np.float32(1.0 / factor if factor else n / out)
        index = np.arange(out, dtype=np.float32) + np.float32(0.5 if mode == "nearest-exact" else 0.0)
        chosen = np.minimum(np.floor(index * scale).astype(np.int64), n - 1)
        if out % n == 0 and (chosen == np.arange(out) // (out // n)).all():
            wide = expand(unsqueeze(x, d + 3), [*x.shape[: d + 3], out // n, *x.shape[d + 3 :]])
            x = flatten(wide, d + 2, d + 3)
        else:
            x = index_select(x, d + 2, tensor(chosen, device=x.device))
    return x


upsample = interpolate


def grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """Values of (N, C, *spatial) at the places of a grid (N, *out, rank), of -1 to 1."""
    kernel = flow.nn.functional.grid_sample
    if mode == "nearest":
        grid, padding_mode = _nearest_places(convert(grid, x.dtype), x.shape[2:], padding_mode, bool(align_corners))
    value, places = widened(x), grid.value.to(x.dtype.compute)
    return store(kernel(value, places, mode, padding_mode, bool(align_corners)), x.dtype)


def _nearest_places(grid: Tensor, sizes: Sequence[int], padding: str, corners: bool) -> tuple[Tensor, str]:
    """A grid moved to the nearest elements, ties to the even one: OneFlow's kernel rounds ties away from zero."""
    axes = []
    for place, size in zip(unbind(grid, -1), reversed(sizes), strict=True):
        if corners:
            position = mul(div(add(place, 1.0), 2.0), float(size - 1))
        else:
            position = div(sub(mul(add(place, 1.0), float(size)), 1.0), 2.0)
        if padding == "reflection":
            low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
            away = abs(sub(position, low))
            rest = sub(away, mul(floor(div(away, span or 1.0)), span)) if span else mul(away, 0.0)
            odd = gt(remainder(floor(div(away, span or 1.0)), 2.0), 0.5)
            position = clamp(add(where(odd, rsub(rest, span), rest), low), 0.0, float(size - 1))
        position = round(position)
        if corners:
            axes.append(sub(mul(position, 2.0 / max(size - 1, 1)), 1.0))
        else:
            axes.append(sub(div(add(mul(position, 2.0), 1.0), float(size)), 1.0))
    return stack(axes, -1), "border" if padding == "reflection" else padding


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid of an affine map (N, rank, rank + 1)."""
    kernel = flow.nn.functional.affine_grid
    return store(
        kernel(widened(theta), flow.Size([int(s) for s in size]), align_corners=bool(align_corners)), theta.dtype
    )


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """(*, C r r, H, W) to (*, C, H r, W r)."""
    r = upscale_factor
    *lead, channels, height, width = x.shape
    apart = reshape(x, *lead, channels // (r * r), r, r, height, width)
    n = len(lead)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return reshape(permute(apart, order), *lead, channels // (r * r), height * r, width * r)


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """(*, C, H r, W r) to (*, C r r, H, W)."""
    r = downscale_factor
    *lead, channels, height, width = x.shape
    apart = reshape(x, *lead, channels, height // r, r, width // r, r)
    n = len(lead)
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return reshape(permute(apart, order), *lead, channels * r * r, height // r, width // r)


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Channels dealt out to groups."""
    apart = reshape(x, x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return reshape(transpose(apart, 1, 2), x.shape)


@_wide
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


@_wide
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


@_wide
def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x over its root mean square in the last dims."""
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    eps = dtypes.FInfo(x.dtype).eps if eps is None else eps
    scaled = mul(x, rsqrt(add(mean(square(x), dims, True), eps)))
    return _affine(scaled, weight, None, list(normalized_shape), x.dtype)


@_wide
def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Standardized over groups of channels, scaled by channel."""
    if x.shape[1] % num_groups:
        raise OperatorError(f"{x.shape[1]} channels in {num_groups} groups.")
    inner = _standardized(reshape(x, x.shape[0], num_groups, -1), [2], eps)
    return _affine(reshape(inner, x.shape), weight, bias, [1, -1] + [1] * (x.ndim - 2), x.dtype)


@_wide
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


@_wide
def local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha * mean of squares over `size` channels) ** beta; the window has size // 2 channels before."""
    squares = square(x)
    padded = pad(squares, [0, 0] * (x.ndim - 2) + [size // 2, (size - 1) // 2])
    total = narrow(padded, 1, 0, x.shape[1])
    for i in range(1, size):
        total = add(total, narrow(padded, 1, i, x.shape[1]))
    return div(x, pow(add(mul(total, alpha / size), k), beta))


@_wide
def normalize(x: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """x over its p-norm."""
    return div(x, clamp(norm(x, p, dim, True), min=eps))


@_wide
def cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors."""
    product = sum(mul(x, y), dim)
    lengths = maximum(mul(sum(square(x), dim), sum(square(y), dim)), eps * eps)
    return div(product, sqrt(lengths))


@_wide
def pairwise_distance(x: Tensor, y: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x - y + eps."""
    return norm(add(sub(x, y), eps), p, -1, keepdim)


@_wide
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value; a query that a mask lets attend nothing finds zeros."""
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (
            flatten(expand(unsqueeze(v, -3), *v.shape[:-2], times, *v.shape[-2:]), -4, -3) for v in (key, value)
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = mul(matmul(query, transpose(key, -2, -1)), scale)
    if is_causal:
        size = full((query.shape[-2], key.shape[-2]), True, dtype=dtypes.bool_, device=query.device)
        attn_mask = tril(size)
    if attn_mask is not None:
        scores = where(attn_mask, scores, -math.inf) if attn_mask.dtype is dtypes.bool_ else add(scores, attn_mask)
    weights = softmax(scores, -1)
    if attn_mask is not None and not is_causal:
        weights = where(eq(amax(scores, -1, True), -math.inf), 0.0, weights)
    return matmul(dropout(weights, dropout_p, dropout_p > 0), value)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor,
    in_proj_bias: Tensor | None,
    bias_k: None,
    bias_v: None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Attention of queries (L, N, E) to keys and values (S, N, E) by packed weights; there is no dropout.

    `attn_mask` is (L, S) or (N * num_heads, L, S), `key_padding_mask` (N, S): added, or bool and True where nothing is
    attended.
    """
    if any(v is not None for v in (bias_k, bias_v)) or add_zero_attn or need_weights:
        raise OperatorError("attention with added keys or its weights is not made here.")
    if training and dropout_p:
        raise OperatorError("attention with dropout is not made here.")
    size = embed_dim_to_check // num_heads

    def heads(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return transpose(reshape(linear(x, weight, bias), (x.shape[0], x.shape[1] * num_heads, size)), 0, 1)

    biases = [None] * 3 if in_proj_bias is None else chunk(in_proj_bias, 3, 0)
    packed = zip((query, key, value), chunk(in_proj_weight, 3, 0), biases, strict=True)
    q, k, v = (heads(x, weight, bias) for x, weight, bias in packed)
    mask = None if attn_mask is None else _added(attn_mask, q)
    if key_padding_mask is not None:
        every = expand(unsqueeze(_added(key_padding_mask, q), 1), -1, num_heads, -1)
        padding = unsqueeze(flatten(every, 0, 1), 1)
        mask = padding if mask is None else add(mask, padding)
    attended = scaled_dot_product_attention(q, k, v, mask)
    joined = reshape(transpose(attended, 0, 1), query.shape)
    return linear(joined, out_proj_weight, out_proj_bias), None


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """Returns a mask to be added to scores: a bool one is True where nothing is attended."""
    if mask.dtype is not dtypes.bool_:
        return mask
    return where(mask, full(mask.shape, -math.inf, dtype=like.dtype, device=like.device), 0.0)


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise OperatorError(f"reduction {reduction!r}; there are none, mean and sum.")
    return loss if reduction == "none" else mean(loss) if reduction == "mean" else sum(loss)


@_wide
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """The negative of x (N, C, *) at the target (N, *), weighted by class; ignored targets count nothing."""
    dim = 1 if x.ndim > 1 else 0
    kept = logical_not(eq(target, ignore_index))
    safe = where(kept, target, convert(tensor(0, device=target.device), target.dtype))
    picked = neg(squeeze(take_along_dim(x, unsqueeze(convert(safe, dtypes.int64), dim), dim), dim))
    counts = convert(kept, x.dtype)
    if weight is not None:
        chosen = reshape(index_select(weight, 0, convert(reshape(safe, -1), dtypes.int64)), safe.shape)
        counts = mul(counts, chosen)
    loss = where(kept, mul(picked, counts), 0.0)
    return div(sum(loss), sum(counts)) if reduction == "mean" else _reduced(loss, reduction)


@_wide
def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`nll_loss` of log_softmax."""
    if label_smoothing or target.dtype.is_floating_point:
        raise OperatorError("cross_entropy of probabilities or with label smoothing.")
    return nll_loss(log_softmax(x, 1 if x.ndim > 1 else 0), target, weight, ignore_index, reduction)


@_wide
def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Squared differences."""
    return _reduced(square(sub(x, target)), reduction)


@_wide
def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Absolute differences."""
    return _reduced(abs(sub(x, target)), reduction)


@_wide
def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """-(t log x + (1 - t) log(1 - x)), logarithms at least -100."""
    first, second = clamp(log(x), min=-100.0), clamp(log(rsub(x, 1.0)), min=-100.0)
    loss = neg(add(mul(target, first), mul(rsub(target, 1.0), second)))
    return _reduced(loss if weight is None else mul(loss, weight), reduction)


@_wide
def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None
) -> Tensor:
    """`binary_cross_entropy` of sigmoid(x)."""
    soft = add(log1p(exp(neg(abs(x)))), clamp(neg(x), min=0.0))
    factor = soft if pos_weight is None else mul(soft, add(mul(sub(pos_weight, 1.0), target), 1.0))
    loss = add(mul(rsub(target, 1.0), x), factor)
    return _reduced(loss if weight is None else mul(loss, weight), reduction)
