"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.emit.conv import channels_back, channels_first
from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


@emit("max_pool_1d", "max_pool_2d", "max_pool_3d", ignore="return_indices")
def max_pool(
    g: Builder,
    x: ir.Value,
    *,
    padding: Sequence[int],
    data_format: str,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> dict[str, ir.Value]:
    """Largest of each window; indices count within one plane, ONNX counts over the batch and channels too."""
    attributes: dict[str, Any] = {"kernel_shape": list(kernel_size), "strides": list(stride)}
    pads = [*padding, *padding]
    if g.opset >= 10:
        attributes.update(dilations=list(dilation), ceil_mode=int(ceil_mode))
    elif any(d != 1 for d in dilation):
        g.needs("MaxPool with dilations", 10)
    elif ceil_mode:
        pads = [*padding, *_ends(g, x, padding, kernel_size, stride)]
    x = channels_first(g, x, data_format)
    if not g.used("indice"):
        y = g.MaxPool(x, pads=pads, **attributes)
        return {"y": channels_back(g, y, data_format, g.rank(x))}
    if data_format != "channels_first":
        g.refuse("has indices of a channels_last image.")
    y, indices = g.MaxPool(x, pads=pads, n_outputs=2, **attributes)
    return {"y": y, "indice": g.Mod(indices, _plane(g, x), fmod=0)}


def _plane(g: Builder, x: ir.Value) -> ir.Value:
    """The number of elements of one plane, int64."""
    sizes = g.sizes(x)[2:]
    if all(isinstance(size, int) for size in sizes):
        return g.const(math.prod(sizes), ir.DataType.INT64)
    return g.reduce("ReduceProd", g.shape(sizes, x), [0], keepdims=False)


def _ends(g: Builder, x: ir.Value, padding: Sequence[int], kernel: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Padding at the end that gives every window of ceil mode its full size."""
    ins, outs = g.sizes(x)[2:], g.sizes(g.result())[2:]
    ends = []
    for i, o, p, k, s in zip(ins, outs, padding, kernel, stride, strict=True):
        i, o = (g.static(size, "the image size under ceil mode") for size in (i, o))
        ends.append(max((o - 1) * s + k - i - p, 0))
    return ends


@emit("avg_pool_1d", "avg_pool_2d", "avg_pool_3d")
def avg_pool(
    g: Builder,
    x: ir.Value,
    *,
    padding: Sequence[int],
    data_format: str,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int,
) -> ir.Value:
    """Mean of each window."""
    attributes: dict[str, Any] = {"kernel_shape": list(kernel_size), "strides": list(stride)}
    x = channels_first(g, x, data_format)
    if divisor_override or (ceil_mode and (g.opset < 10 or (count_include_pad and g.opset < 19))):
        y = _summed(g, x, padding, kernel_size, stride, bool(ceil_mode))
        y = (
            g.Div(y, divisor_override)
            if divisor_override
            else g.Div(y, _divisors(g, x, padding, kernel_size, stride, bool(count_include_pad)))
        )
        return channels_back(g, y, data_format, g.rank(x))
    if ceil_mode:
        attributes["ceil_mode"] = 1
    y = g.AveragePool(x, pads=[*padding, *padding], count_include_pad=int(count_include_pad), **attributes)
    return channels_back(g, y, data_format, g.rank(x))


def _summed(
    g: Builder, x: ir.Value, padding: Sequence[int], kernel: Sequence[int], stride: Sequence[int], ceil_mode: bool
) -> ir.Value:
    """The sum of each window of the zero-padded image."""
    ends = _ends(g, x, padding, kernel, stride) if ceil_mode else list(padding)
    padded = g.Pad(x, [0, 0, *padding, 0, 0, *ends])
    return g.Mul(g.AveragePool(padded, kernel_shape=list(kernel), strides=list(stride)), math.prod(kernel))


def _divisors(
    g: Builder, x: ir.Value, padding: Sequence[int], kernel: Sequence[int], stride: Sequence[int], include: bool
) -> ir.Value:
    """The divisor of each window's sum: its elements inside the image, or inside the padded image."""
    ins, outs = g.sizes(x)[2:], g.sizes(g.result())[2:]
    total = np.ones([1] * (2 + len(ins)))
    for axis, (i, o, p, k, s) in enumerate(zip(ins, outs, padding, kernel, stride, strict=True)):
        i, o = (g.static(size, "the image size under ceil mode") for size in (i, o))
        start = np.arange(o) * s - p
        stop = np.minimum(start + k, i + p)
        count = stop - start if include else np.minimum(stop, i) - np.maximum(start, 0)
        total = total * count.reshape([-1 if a == axis + 2 else 1 for a in range(total.ndim)])
    return g.const(total, x.dtype)


def _tf_pool(operator: str, **constants: int) -> Callable[..., ir.Value]:
    """Pooling whose padding is resolved to both sides; a mean leaves the padding out."""

    def pool(
        g: Builder,
        x: ir.Value,
        *,
        padding_before: Sequence[int],
        padding_after: Sequence[int],
        data_format: str,
        pool_size: Sequence[int],
        strides: Sequence[int],
    ) -> ir.Value:
        y = g.append(
            operator,
            channels_first(g, x, data_format),
            kernel_shape=list(pool_size),
            strides=list(strides),
            pads=[*padding_before, *padding_after],
            **constants,
        )
        return channels_back(g, y, data_format, g.rank(x))

    return pool


for _rank in (1, 2, 3):
    emit(f"tf_max_pool_{_rank}d", ignore="padding ceil_mode")(_tf_pool("MaxPool"))
    emit(f"tf_avg_pool_{_rank}d", ignore="padding ceil_mode")(_tf_pool("AveragePool", count_include_pad=0))


@emit("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", ignore="data_format")
def adaptive_avg_pool(g: Builder, x: ir.Value, *, output_size: Sequence[int]) -> ir.Value:
    """Means of windows that give a fixed output size; windows of unequal size are a product with a constant matrix."""
    if all(size == 1 for size in output_size):
        return g.GlobalAveragePool(x)
    kernel = _equal_windows(g, x, output_size)
    if kernel is not None:
        return g.AveragePool(x, kernel_shape=kernel, strides=kernel) if any(k > 1 for k in kernel) else x
    rank = g.rank(x)
    for axis, (size, out) in enumerate(zip(g.sizes(x)[2:], output_size, strict=True), 2):
        matrix = np.zeros((int(size), out))
        for index, (start, stop) in enumerate(_adaptive_windows(int(size), out)):
            matrix[start:stop, index] = 1 / (stop - start)
        swap = [rank - 1 if a == axis else axis if a == rank - 1 else a for a in range(rank)]
        x = g.Transpose(g.MatMul(g.Transpose(x, swap), g.const(matrix, x.dtype)), swap)
    return x


@emit("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", ignore="data_format")
def adaptive_max_pool(g: Builder, x: ir.Value, *, output_size: Sequence[int]) -> dict[str, ir.Value]:
    """The largest of windows that give a fixed output size."""
    if all(size == 1 for size in output_size) and not g.used("index"):
        return {"y": g.GlobalMaxPool(x)}
    kernel = _equal_windows(g, x, output_size)
    if kernel is not None and g.used("index"):
        y, indices = g.MaxPool(x, kernel_shape=kernel, strides=kernel, n_outputs=2)
        return {"y": y, "index": g.Mod(indices, _plane(g, x), fmod=0)}
    if kernel is not None:
        return {"y": g.MaxPool(x, kernel_shape=kernel, strides=kernel) if any(k > 1 for k in kernel) else x}
    for axis, (size, out) in enumerate(zip(g.sizes(x)[2:], output_size, strict=True), 2):
        parts = [
            g.reduce("ReduceMax", g.Slice(x, [start], [stop], [axis]), [axis], keepdims=True)
            for start, stop in _adaptive_windows(int(size), out)
        ]
        x = parts[0] if len(parts) == 1 else g.Concat(*parts, axis=axis)
    return {"y": x}


def _equal_windows(g: Builder, x: ir.Value, output_size: Sequence[int]) -> list[int] | None:
    """The size of the windows where all are equal, else None."""
    sizes = [g.static(size, "the image size under adaptive pooling") for size in g.sizes(x)[2:]]
    if any(size % out for size, out in zip(sizes, output_size, strict=True)):
        return None
    return [size // out for size, out in zip(sizes, output_size, strict=True)]


def _adaptive_windows(size: int, out: int) -> list[tuple[int, int]]:
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


@emit(
    "max_unpool_1d", "max_unpool_2d", "max_unpool_3d", ignore="kernel_size stride padding has_output_size output_size"
)
def max_unpool(g: Builder, x: ir.Value, indices: ir.Value) -> ir.Value:
    """Values put back where `max_pool` found them, 0 elsewhere."""
    batch, channels, *spatial = g.sizes(g.result())
    plane = math.prod(g.static(size, "the output size of max_unpool") for size in spatial)
    count = math.prod(g.static(size, "the input size of max_unpool") for size in g.sizes(x)[2:])
    zeros = g.Expand(g.const(np.zeros((1, 1, 1)), x.dtype), [batch, channels, plane], x)
    flat = [g.Reshape(value, [batch, channels, count]) for value in (indices, x)]
    return g.Reshape(g.append(scatter_operator(g), zeros, *flat, axis=2), [batch, channels, *spatial])


def scatter_operator(g: Builder) -> str:
    """ScatterElements, which was called Scatter before opset 11."""
    return "ScatterElements" if g.opset >= 11 else "Scatter"
