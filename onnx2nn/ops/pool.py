"""Pooling over windows, over everything, and over regions of interest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.conv import is_zero, pad_spatial, resolve_pads
from onnx2nn.table import NeedsValues, op


class Windows:
    """Where the windows of a pool lie.

    Attributes:
        kernel, strides, dilations: one number a spatial dimension.
        begins, ends: pads as the node asks for them.
        ceil: whether a last window may reach beyond the padded input.
    """

    def __init__(
        self,
        X: Any,
        kernel_shape: Sequence[int],
        strides: Sequence[int] | None,
        pads: Sequence[int] | None,
        dilations: Sequence[int] | None,
        auto_pad: str,
        ceil_mode: int,
    ):
        rank = X.ndim - 2
        if len(kernel_shape) != rank:
            raise OperatorError(f"kernel_shape={list(kernel_shape)} does not fit an input of {X.ndim} dimensions.")
        self.sizes = X.shape[2:]
        self.kernel = tuple(kernel_shape)
        self.strides = tuple(strides or [1] * rank)
        self.dilations = tuple(dilations or [1] * rank)
        resolved = resolve_pads(auto_pad, pads, self.sizes, self.kernel, self.strides, self.dilations)
        self.begins, self.ends = resolved[:rank], resolved[rank:]
        # With SAME_* and VALID no window is left over that rounding up could add.
        self.ceil = bool(ceil_mode) and auto_pad == "NOTSET"

    @property
    def plain(self) -> bool:
        """Whether torch's own `padding` can say it: the same on both sides, at most half the kernel."""
        return self.begins == self.ends and all(
            isinstance(p, int) and 0 <= p <= k // 2 for p, k in zip(self.begins, self.kernel, strict=True)
        )

    def reach(self) -> list[Any]:
        """Returns the pads at the ends that make the last window end exactly at the padded input's end.

        A window that would start beyond the input and its beginning pad is left out, as in torch and ONNX Runtime.
        """
        if not self.ceil:
            return list(self.ends)
        result = []
        for i, size in enumerate(self.sizes):
            span, stride = (self.kernel[i] - 1) * self.dilations[i] + 1, self.strides[i]
            last = (size + self.begins[i] + self.ends[i] - span + stride - 1) // stride
            if self.ends[i] + stride > span:
                if not isinstance(size, int):
                    raise NeedsValues("whether a last window is left out over a dynamic size")
                last = min(last, (size + self.begins[i] - 1) // stride)
            result.append(last * stride + span - size - self.begins[i])
        return result

    def view(self, X: Any) -> Any:
        """Returns a padded input as (N, C, *outputs, *kernel): every window's elements."""
        for i, (k, stride, dilation) in enumerate(zip(self.kernel, self.strides, self.dilations, strict=True)):
            X = X.unfold(2 + i, (k - 1) * dilation + 1, stride)
        steps = tuple(slice(None, None, dilation) for dilation in self.dilations)
        return X if max(self.dilations) == 1 else X[(..., *steps)]

    @property
    def trailing(self) -> tuple[int, ...]:
        """The dimensions of `view` that run over a window."""
        return tuple(range(-len(self.kernel), 0))


def _lowest(F: Any, dtype: Any) -> float | int:
    return -math.inf if dtype.is_floating_point else F.iinfo(dtype).min


@op("MaxPool", 8)
def max_pool(
    F: Any,
    X: Any,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    _outputs: int = 1,
) -> Any:
    """Pads hold the type's lowest value. Indices run over the whole unpadded input, batch and channels included."""
    windows = Windows(X, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    rank = len(windows.kernel)
    if rank > 3:
        if _outputs > 1:
            raise OperatorError("the Indices of a pool over more than three spatial dimensions.")
        X = pad_spatial(F, X, [*windows.begins, *windows.reach()], _lowest(F, X.dtype))
        return windows.view(X).amax(windows.trailing)
    function = [F.nn.functional.max_pool1d, F.nn.functional.max_pool2d, F.nn.functional.max_pool3d][rank - 1]
    sizes, offsets, padding, ceil = X.shape, [0] * rank, tuple(windows.begins), windows.ceil
    padded = X
    if not windows.plain:
        padded = pad_spatial(F, X, [*windows.begins, *windows.reach()], _lowest(F, X.dtype))
        offsets, padding, ceil = windows.begins, (0,) * rank, False
    options = dict(padding=padding, dilation=windows.dilations, ceil_mode=ceil)
    if _outputs == 1:
        return function(padded, windows.kernel, windows.strides, **options)
    Y, indices = function(padded, windows.kernel, windows.strides, **options, return_indices=True)
    return Y, _flat_indices(F, indices, sizes, padded.shape[2:], offsets, storage_order)


def _flat_indices(
    F: Any, indices: Any, sizes: Sequence[Any], padded: Sequence[Any], offsets: Sequence[Any], storage_order: int
) -> Any:
    """Turns torch's indices, which count within a padded plane, into ONNX's."""
    plane = math.prod(sizes[2:])
    if storage_order or not all(map(is_zero, offsets)):
        coordinates = []
        for size, offset in zip(reversed(padded), reversed(offsets), strict=True):
            coordinates.insert(0, indices % size - offset)
            indices = indices // size
        order = list(zip(coordinates, sizes[2:], strict=True))
        indices = 0
        for coordinate, size in reversed(order) if storage_order else order:
            indices = indices * size + coordinate
    batch = F.arange(sizes[0] * sizes[1]).reshape([sizes[0], sizes[1]] + [1] * (len(sizes) - 2))
    return indices + batch * plane


@op("MaxPool", 1)
def max_pool_1(
    F: Any,
    X: Any,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    return max_pool(F, X, auto_pad=auto_pad, kernel_shape=kernel_shape, pads=pads, strides=strides)


@op("AveragePool", 7)
def average_pool(
    F: Any,
    X: Any,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """What a window holds beyond the input is not counted; pads are, with `count_include_pad`, but never what
    `ceil_mode` adds. `auto_pad` respects dilations as the standard says (ONNX Runtime ignores them there)."""
    windows = Windows(X, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    rank = len(windows.kernel)
    dense = max(windows.dilations) == 1 and rank <= 3
    if dense and windows.plain:
        function = [F.nn.functional.avg_pool1d, F.nn.functional.avg_pool2d, F.nn.functional.avg_pool3d][rank - 1]
        options = dict(ceil_mode=windows.ceil, count_include_pad=bool(count_include_pad) or not any(windows.begins))
        return function(X, windows.kernel, windows.strides, tuple(windows.begins), **options)
    pads = [*windows.begins, *windows.reach()]
    means = _window_means(F, pad_spatial(F, X, pads), windows, dense)
    inside = F.ones([1, 1, *windows.sizes], dtype=X.dtype)
    if count_include_pad:
        if not windows.ceil:
            return means
        inside = pad_spatial(F, inside, [*windows.begins, *windows.ends], 1.0)
        pads = [0] * rank + [a - b for a, b in zip(windows.reach(), windows.ends, strict=True)]
    if all(map(is_zero, pads)):
        return means
    return means / _window_means(F, pad_spatial(F, inside, pads), windows, dense)


def _window_means(F: Any, X: Any, windows: Windows, dense: bool) -> Any:
    if not dense:
        return windows.view(X).mean(windows.trailing)
    function = [F.nn.functional.avg_pool1d, F.nn.functional.avg_pool2d, F.nn.functional.avg_pool3d]
    return function[len(windows.kernel) - 1](X, windows.kernel, windows.strides)


@op("AveragePool", 1)
def average_pool_1(
    F: Any,
    X: Any,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    return average_pool(F, X, auto_pad=auto_pad, kernel_shape=kernel_shape, pads=pads, strides=strides)


def _spatial(X: Any) -> tuple[int, ...]:
    return tuple(range(2, X.ndim))


@op("GlobalAveragePool", 1)
def global_average_pool(F: Any, X: Any) -> Any:
    if X.ndim == 4:
        return F.nn.functional.adaptive_avg_pool2d(X, 1)
    return X.mean(_spatial(X), keepdim=True)


@op("GlobalMaxPool", 1)
def global_max_pool(F: Any, X: Any) -> Any:
    return X.amax(_spatial(X), keepdim=True)
