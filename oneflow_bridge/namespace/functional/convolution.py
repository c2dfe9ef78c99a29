"""torch.nn.functional: convolutions, and their windows as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oneflow_bridge.namespace.arithmetic import add
from oneflow_bridge.namespace.creation import full
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.functional.geometry import for_each_dim
from oneflow_bridge.namespace.functional.padding import pad
from oneflow_bridge.namespace.linalg import bilinear as exact_bilinear
from oneflow_bridge.namespace.shaping import reshape, squeeze, unsqueeze
from oneflow_bridge.namespace.tensor import Size, Tensor, moved, operand, result_type, store, widened
from onnx2nn.errors import OperatorError


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
        dilation = for_each_dim(dilation, rank)
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
            x, padding = pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)]), 0
        padding = 0 if padding == "valid" else padding
        _check_convolution(x, weight, rank, groups, weight.shape[1] * groups)
        geometry = for_each_dim(stride, rank), for_each_dim(padding, rank), dilation
        sizes = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(x.shape[2:], weight.shape[2:], *geometry, strict=True)
        ]
        if min(sizes) < 1 and x.numel():
            raise OperatorError(f"A kernel of {tuple(weight.shape[2:])} does not fit into {tuple(x.shape[2:])}.")
        dtype = result_type(x, weight)
        if not x.numel() or not weight.numel():
            return full((x.shape[0], weight.shape[0], *(max(s, 0) for s in sizes)), 0, dtype=dtype, device=x.device)
        taps = Size(weight.shape[1:]).numel()
        return _convolved(lambda a, b: kernel(a, b, None, *geometry, groups), x, weight, bias, taps, dtype)

    return function


def _convolved(
    kernel: Callable[[Any, Any], Any], x: Tensor, weight: Tensor, bias: Tensor | None, taps: int, dtype: DType
) -> Tensor:
    """The convolution that the kernel computes, plus the bias; `taps` products are added for each element."""
    result = exact_bilinear(kernel, operand(x, dtype), operand(weight, dtype), taps, dtype)
    return result if bias is None else add(result, reshape(bias, [-1] + [1] * (weight.ndim - 2)))


def _check_convolution(x: Tensor, weight: Tensor, rank: int, groups: int, channels: int) -> None:
    if x.ndim != rank + 2 or weight.ndim != rank + 2:
        raise OperatorError(
            f"A {rank}-d convolution cannot take an input {tuple(x.shape)} and a weight {tuple(weight.shape)}."
        )
    if x.shape[1] != channels or weight.shape[0] % groups:
        raise OperatorError(
            f"A convolution of {x.shape[1]} channels in {groups} groups cannot take a weight {tuple(weight.shape)}."
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
        geometry = [for_each_dim(v, rank) for v in (stride, padding, output_padding, dilation)]
        taps = Size(weight.shape[2:]).numel() * weight.shape[0]
        return _convolved(
            lambda a, b: kernel(a, b, None, *geometry[:3], groups, geometry[3]), x, weight, bias, taps, dtype
        )

    return function


conv_transpose1d, conv_transpose2d, conv_transpose3d = (_transposed_convolution(rank) for rank in (1, 2, 3))


def unfold(x: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Windows of (N, C, H, W) as columns: (N, C * kernel, windows)."""
    size, spread, edge, step = (for_each_dim(v, 2) for v in (kernel_size, dilation, padding, stride))
    return moved(lambda v: flow.nn.functional.unfold(v, size, spread, edge, step), x)


def fold(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Columns (N, C * kernel, windows) added up to (N, C, H, W)."""
    sizes, size, spread, edge, step = (
        for_each_dim(v, 2) for v in (output_size, kernel_size, dilation, padding, stride)
    )
    return store(flow.nn.functional.fold(widened(x), sizes, size, spread, edge, step), x.dtype)
