"""Convolutions, folding, resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit
from oneflow_bridge.to_onnx.lowering.schemas import NeedsOpsetError


def channels_first(g: Builder, x: ir.Value, data_format: str) -> ir.Value:
    """(N, *spatial, C) as (N, C, *spatial); x itself where the format says so already."""
    if data_format in ("channels_first", "NCHW", "NCW", "NCDHW", ""):
        return x
    rank = g.rank(x)
    return g.Transpose(x, [0, rank - 1, *range(1, rank - 1)])


def channels_back(g: Builder, y: ir.Value, data_format: str, rank: int) -> ir.Value:
    """The inverse of `channels_first`."""
    if data_format in ("channels_first", "NCHW", "NCW", "NCDHW", ""):
        return y
    return g.Transpose(y, [0, *range(2, rank), 1])


def added(g: Builder, y: ir.Value, other: ir.Value | None) -> ir.Value:
    """y + the tensor that OneFlow fused into the op (`_add_to_output`)."""
    return y if other is None else g.Add(y, other)


@emit("conv1d", "conv2d", "conv3d", "deconv1d", "deconv2d", "deconv3d", ignore="filters")
def conv(
    g: Builder,
    in_: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    _add_to_output: ir.Value | None = None,
    *,
    padding_before: Sequence[int],
    data_format: str,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    groups: int,
    output_padding: Sequence[int] | None = None,
) -> ir.Value:
    """Convolution with equal padding on both sides; a transposed one (deconv) has `output_padding`."""
    y = g.append(
        "Conv" if output_padding is None else "ConvTranspose",
        channels_first(g, in_, data_format),
        channels_first(g, weight, data_format),
        bias,
        kernel_shape=list(kernel_size),
        pads=[*padding_before, *padding_before],
        output_padding=None if output_padding is None else list(output_padding),
        strides=list(strides),
        dilations=list(dilation_rate),
        group=groups,
    )
    return added(g, channels_back(g, y, data_format, g.rank(in_)), _add_to_output)


@emit("deform_conv2d")
def deform_conv2d(
    g: Builder,
    input: ir.Value,
    offset: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    mask: ir.Value | None = None,
    *,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> ir.Value:
    """Deformable convolution (ONNX DeformConv, opset 19)."""
    return g.DeformConv(
        input,
        weight,
        offset,
        bias,
        mask if use_mask else None,
        kernel_shape=[g.static(size, "the kernel") for size in g.sizes(weight)[2:]],
        strides=[stride_h, stride_w],
        pads=[pad_h, pad_w, pad_h, pad_w],
        dilations=[dilation_h, dilation_w],
        group=groups,
        offset_group=offset_groups,
    )


@emit("unfold")
def unfold(
    g: Builder,
    x: ir.Value,
    *,
    data_format: str,
    kernel_size: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
) -> ir.Value:
    """(N, C, H, W) → (N, C * kernel, windows), by gathering the rows and columns of every window."""
    _refuse_channels_last(g, data_format)
    height, width = (g.static(size, "the image size of unfold") for size in g.sizes(x)[2:])
    x = g.Pad(x, [0, 0, *padding, 0, 0, *padding])
    for axis, extent in ((0, height), (1, width)):
        x = g.Gather(
            x,
            _windows(extent + 2 * padding[axis], kernel_size[axis], strides[axis], dilation_rate[axis]),
            axis=2 + 2 * axis,
        )
    return g.Reshape(g.Transpose(x, [0, 1, 2, 4, 3, 5]), g.sizes(g.result()))  # from (N, C, kh, oh, kw, ow)


def _windows(extent: int, kernel: int, stride: int, dilation: int) -> np.ndarray:
    """int64 (kernel, windows): the position of each tap of each window."""
    count = (extent - dilation * (kernel - 1) - 1) // stride + 1
    return np.arange(kernel, dtype=np.int64)[:, None] * dilation + np.arange(count, dtype=np.int64)[None] * stride


@emit("fold")
def fold(
    g: Builder,
    x: ir.Value,
    *,
    data_format: str,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation_rate: Sequence[int],
) -> ir.Value:
    """(N, C * kernel, windows) → (N, C, H, W), overlaps added."""
    _refuse_channels_last(g, data_format)
    output_size = [g.static(size, "the output size of fold") for size in output_size]
    if g.opset >= 18:
        return g.append(
            "Col2Im",
            x,
            g.ints(output_size),
            g.ints(kernel_size),
            dilations=list(dilation_rate),
            pads=[*padding, *padding],
            strides=list(strides),
        )
    channels = int(g.sizes(g.result())[1])
    geometry = list(zip(output_size, kernel_size, strides, padding, dilation_rate, strict=True))
    counts = [(o + 2 * p - d * (k - 1) - 1) // s + 1 for o, k, s, p, d in geometry]
    rest = [o - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for (o, k, s, p, d), n in zip(geometry, counts, strict=True)]
    taps = int(np.prod(kernel_size))
    weight = np.tile(np.eye(taps).reshape(taps, 1, *kernel_size), (channels, 1, 1, 1))
    return g.ConvTranspose(
        g.Reshape(x, [g.sizes(x)[0], channels * taps, *counts]),
        g.const(weight, x.dtype),
        kernel_shape=list(kernel_size),
        strides=list(strides),
        pads=[*padding, *padding],
        dilations=list(dilation_rate),
        output_padding=rest,
        group=channels,
    )


def _refuse_channels_last(g: Builder, data_format: str) -> None:
    if data_format != "channels_first":
        g.refuse(f"has data_format {data_format!r}; only channels_first can be written.")


@emit("unfold_tensor")
def unfold_tensor(g: Builder, x: ir.Value, *, dimension: int, size: int, step: int) -> ir.Value:
    """Sliding windows along one axis; the window becomes the last axis."""
    axis = dimension % g.rank(x)
    extent = g.static(g.sizes(x)[axis], "the axis that unfold cuts into windows")
    gathered = g.Gather(x, _windows(extent, size, step, 1).T, axis=axis)
    rank = g.rank(x) + 1
    return g.Transpose(gathered, [*(a for a in range(rank) if a != axis + 1), axis + 1])


def _upsample(mode: str) -> Callable[..., ir.Value]:
    """Interpolation over all spatial axes; each op has the scales of its own axes."""

    def upsample(
        g: Builder,
        x: ir.Value,
        *,
        output_size: Any,
        data_format: str,
        scale_factor: float | None = None,
        depth_scale: float | None = None,
        height_scale: float | None = None,
        width_scale: float | None = None,
        align_corners: bool = False,
    ) -> ir.Value:
        _refuse_channels_last(g, data_format)
        given = (scale_factor, depth_scale, height_scale, width_scale)
        scales = [scale for scale in given if scale is not None]
        if mode == "nearest":
            return _nearest(g, x, scales, output_size)
        return _resize(g, x, mode, "align_corners" if align_corners else "half_pixel", scales, output_size)

    return upsample


emit("upsample_nearest_1d", "upsample_nearest_2d", "upsample_nearest_3d")(_upsample("nearest"))
emit("upsample_linear_1d", "upsample_bilinear_2d", "upsample_trilinear_3d")(_upsample("linear"))
emit("upsample_bicubic_2d")(_upsample("cubic"))


def _nearest(g: Builder, x: ir.Value, scales: Sequence[float], output_size: Any) -> ir.Value:
    """OneFlow takes floor(i * (1 / scale)) in float32; where ONNX's floor(i / scale) differs, the rows are gathered."""
    ins, outs = g.sizes(x)[2:], g.sizes(g.result())[2:]
    picks = []
    for size, out, scale in zip(ins, outs, scales, strict=True):
        if isinstance(size, str) or isinstance(out, str):
            return _resize(g, x, "nearest", "asymmetric", scales, output_size)
        scale = out / size if len(output_size) else scale
        mine = np.minimum(np.floor(np.arange(out, dtype=np.float32) * np.float32(1 / scale)), size - 1)
        other = np.minimum(np.floor(np.arange(out, dtype=np.float32) / np.float32(scale)), size - 1)
        picks.append((mine.astype(np.int64), bool((mine == other).all())))
    if all(same for _, same in picks):
        return _resize(g, x, "nearest", "asymmetric", scales, output_size)
    for axis, (indices, _) in enumerate(picks):
        x = g.Gather(x, indices, axis=2 + axis)
    return x


def _resize(
    g: Builder, x: ir.Value, mode: str, coordinates: str, scales: Sequence[float], output_size: Any
) -> ir.Value:
    """Resize over the spatial axes: by sizes where OneFlow was given sizes, else by scales."""
    outs = g.sizes(g.result())
    by_scale = not len(output_size)
    if g.opset < 11:
        return _old_resize(g, x, mode, coordinates, scales if by_scale else None)
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, "cubic_coeff_a": -0.75}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    empty = None if g.opset >= 13 else g.const(np.zeros(0, np.float32))
    if by_scale:
        factors = g.const(np.array([1, 1, *scales], dtype=np.float32))
        return g.Resize(x, empty, factors, **attributes)
    spatial = [size for size in outs[2:] if isinstance(size, int)]
    if g.opset >= 18 and len(spatial) == len(outs) - 2:
        axes = list(range(2, len(outs)))
        return g.Resize(x, None, None, g.ints(spatial), axes=axes, **attributes)
    return g.Resize(x, empty, empty, g.shape(outs, x), **attributes)


def _old_resize(g: Builder, x: ir.Value, mode: str, coordinates: str, scales: Sequence[float] | None) -> ir.Value:
    """Before opset 11 there were only scales, and only the asymmetric formula."""
    ins, outs = g.sizes(x)[2:], g.sizes(g.result())[2:]
    if scales is None:
        pairs = zip(ins, outs, strict=True)
        whole = [o // i for i, o in pairs if isinstance(i, int) and isinstance(o, int) and o % i == 0]
        scales = whole if len(whole) == len(outs) else None
    if scales is None or mode != "nearest" or coordinates != "asymmetric":
        raise NeedsOpsetError("Resize with these coordinates", 11)
    factors = g.const(np.array([1, 1, *scales], dtype=np.float32))
    return g.append("Resize" if g.opset >= 10 else "Upsample", x, factors, mode=mode)


@emit("affine_grid")
def affine_grid(g: Builder, theta: ir.Value, *, size: Sequence[int], align_corners: bool) -> ir.Value:
    """theta (N, d, d + 1) → sampling grid (N, *spatial, d): a constant grid of homogeneous coordinates times theta."""
    spatial = [g.static(extent, "the grid size") for extent in size[2:]]
    axes = [_coordinates(extent, bool(align_corners)) for extent in spatial]
    mesh = np.meshgrid(*axes, indexing="ij")[::-1]  # x first
    base = np.stack([*mesh, np.ones(spatial)], axis=-1).reshape(1, -1, len(spatial) + 1)
    grid = g.MatMul(g.const(base, theta.dtype), g.Transpose(theta, [0, 2, 1]))
    return g.Reshape(grid, g.sizes(g.result()))


def _coordinates(extent: int, align_corners: bool) -> np.ndarray:
    if align_corners:
        return np.linspace(-1, 1, extent) if extent > 1 else np.zeros(1)
    return (2 * np.arange(extent) + 1) / extent - 1


@emit("grid_sample")
def grid_sample(
    g: Builder, input: ir.Value, grid: ir.Value, *, interpolation_mode: str, padding_mode: str, align_corners: bool
) -> ir.Value:
    """Sampling at given places (ONNX GridSample, opset 16)."""
    mode = interpolation_mode
    if g.opset >= 20:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return g.GridSample(input, grid, mode=mode, padding_mode=padding_mode, align_corners=int(align_corners))
