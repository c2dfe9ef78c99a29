"""torch.nn.functional: pools and their inverses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import abs, pow
from oneflow_bridge.namespace.creation import full, tensor
from oneflow_bridge.namespace.dtypes import flow
from oneflow_bridge.namespace.functional.geometry import for_each_dim, pad_natively
from oneflow_bridge.namespace.indexing import scatter
from oneflow_bridge.namespace.shaping import reshape, squeeze, unsqueeze
from oneflow_bridge.namespace.tensor import Size, Tensor, known, store, widened
from onnx2nn.errors import OperatorError


def _pool_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """The number of windows along a dim; with ceil_mode the last window starts inside the input or its left padding."""
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


def _windows(
    x: Tensor, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Kernel, stride, padding and dilation of a pool for each spatial dim, and the number of windows along each.

    Raises:
        OperatorError: the padding is larger than half of the kernel, or no window fits.
    """
    size = for_each_dim(kernel_size, rank)
    geometry = [size, *(for_each_dim(v, rank) for v in (stride or size, padding, dilation))]
    if any(p > k // 2 for p, k in zip(geometry[2], size, strict=True)):
        raise OperatorError(f"A pool of {size} has padding {geometry[2]}; at most half of the kernel is allowed.")
    counts = [_pool_size(n, k, s, p, d, ceil_mode) for n, k, s, p, d in zip(x.shape[2:], *geometry, strict=True)]
    if min(counts) < 1:
        raise OperatorError(f"A pool of {size} does not fit into {tuple(x.shape[2:])}.")
    return geometry, counts


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
        geometry, counts = _windows(x, rank, kernel_size, stride, padding, dilation, ceil_mode)
        value, spatial = _poolable(x), x.shape[2:]
        extra = _ceil_padding(x, rank, geometry) if ceil_mode else [0] * rank
        if max(extra):
            amounts = [side for e in reversed(extra) for side in (0, e)]
            value = pad_natively(value, amounts, -math.inf)
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


def _unpadded_index(index: Any, spatial: Sequence[int], extra: Sequence[int]) -> Any:
    """Converts flat indices into the padded plane to indices into the plane itself."""
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
        geometry, counts = _windows(x, rank, kernel_size, stride, padding, 1, ceil_mode)
        extra = _ceil_padding(x, rank, geometry) if ceil_mode else [0] * rank
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
        return _ceil_avg_pool(x, kernel, geometry[:3], counts, extra, count_include_pad, divisor_override)

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
    padded = pad_natively(
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
        size = for_each_dim(kernel_size, rank)
        pool = (avg_pool1d, avg_pool2d, avg_pool3d)[rank - 1]
        total = pool(pow(abs(x), float(norm_type)), size, stride, 0, ceil_mode, True, 1)
        return pow(total, 1.0 / norm_type)

    return function


lp_pool1d, lp_pool2d, lp_pool3d = (_lp_pool(rank) for rank in (1, 2, 3))


def _max_unpool(rank: int) -> Callable[..., Tensor]:
    def function(
        x: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
    ) -> Tensor:
        size = for_each_dim(kernel_size, rank)
        geometry = size, for_each_dim(stride or size, rank), for_each_dim(padding, rank)
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
