"""torch.nn.functional: grid sampling and the rearrangement of channels."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow_bridge.namespace.arithmetic import abs, add, div, floor, mul, remainder, round, rsub, sub
from oneflow_bridge.namespace.comparison import clamp, gt, where
from oneflow_bridge.namespace.dtypes import flow
from oneflow_bridge.namespace.shaping import permute, reshape, stack, transpose, unbind
from oneflow_bridge.namespace.tensor import Tensor, convert, store, widened


def grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """Samples (N, C, *spatial) at the coordinates of a grid (N, *out, rank), from -1 to 1."""
    kernel = flow.nn.functional.grid_sample
    if mode == "nearest":
        grid, padding_mode = _nearest_places(convert(grid, x.dtype), x.shape[2:], padding_mode, bool(align_corners))
    value, places = widened(x), grid.value.to(x.dtype.compute)
    return store(kernel(value, places, mode, padding_mode, bool(align_corners)), x.dtype)


def _nearest_places(grid: Tensor, sizes: Sequence[int], padding: str, corners: bool) -> tuple[Tensor, str]:
    """A grid rounded to the nearest elements, ties to even: OneFlow's kernel rounds ties away from zero."""
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
    """Channels interleaved between groups."""
    apart = reshape(x, x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return reshape(transpose(apart, 1, 2), x.shape)
