"""torch.nn.functional: resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import add, mul, rsub
from oneflow_bridge.namespace.creation import tensor
from oneflow_bridge.namespace.functional.geometry import for_each_dim
from oneflow_bridge.namespace.functional.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from oneflow_bridge.namespace.indexing import index_select
from oneflow_bridge.namespace.shaping import expand, flatten, unsqueeze
from oneflow_bridge.namespace.tensor import Tensor, convert
from onnx2nn.errors import OperatorError


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
        raise OperatorError("interpolate takes size or scale_factor, not both.")
    given: list[float | None] = [None] * rank
    if scale_factor is not None:
        factors = (
            [float(scale_factor)] * rank if isinstance(scale_factor, (int, float)) else [float(f) for f in scale_factor]
        )
        sizes = [math.floor(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
        given = [None] * rank if recompute_scale_factor else list(factors)
    else:
        sizes = list(for_each_dim(size, rank))
    if antialias or mode in ("bicubic", "area"):
        return _resized_in_planes(x, sizes, given, mode, bool(align_corners), antialias)
    if mode in ("nearest", "nearest-exact"):
        return _nearest(x, sizes, given, mode)
    if mode not in ("linear", "bilinear", "trilinear"):
        raise OperatorError(f"interpolate does not know mode {mode!r}.")
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
