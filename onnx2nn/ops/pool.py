"""Pooling over windows, over whole images, and over regions of interest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.arithmetic import halves_in_float32
from onnx2nn.ops.conv import check_window, is_zero, pad_spatial, resolve_pads
from onnx2nn.ops.shape import demand_equal, fixed, same_shape
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import NeedsValues


class Windows:
    """The windows of a pool.

    Attributes:
        kernel, strides, dilations: one number per spatial dimension.
        begins, ends: the node's pads, resolved by `auto_pad`.
        ceil: whether the last window may reach beyond the padded input.
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
        check_window(kernel_shape, kernel_shape=kernel_shape, strides=strides, pads=pads, dilations=dilations)
        if pads and auto_pad == "NOTSET" and min(pads) < 0:
            raise OperatorError(f"pads={list(pads)} has a number below 0.")
        self.sizes = X.shape[2:]
        self.kernel = tuple(kernel_shape)
        self.strides = tuple(strides or [1] * rank)
        self.dilations = tuple(dilations or [1] * rank)
        resolved = resolve_pads(auto_pad, pads, self.sizes, self.kernel, self.strides, self.dilations)
        self.begins, self.ends = resolved[:rank], resolved[rank:]
        # With SAME_*, rounding up adds no window. With VALID it does, in ONNX Runtime and in the standard's shape
        # inference; the text of the standard says otherwise.
        self.ceil = bool(ceil_mode) and auto_pad in ("NOTSET", "VALID")

    @property
    def plain(self) -> bool:
        """Whether torch's `padding` takes the pads: the same on both sides, at most half the kernel."""
        return (
            all(map(fixed, (*self.begins, *self.ends)))
            and self.begins == self.ends
            and all(isinstance(p, int) and 0 <= p <= k // 2 for p, k in zip(self.begins, self.kernel, strict=True))
        )

    def reach(self) -> list[Any]:
        """Returns the pads at the ends with which the last window ends exactly at the padded input's end.

        A window that would start in the pads at the end is dropped, as in torch and ONNX Runtime.
        """
        if not self.ceil:
            return list(self.ends)
        result = []
        for i, size in enumerate(self.sizes):
            span, stride = (self.kernel[i] - 1) * self.dilations[i] + 1, self.strides[i]
            last = (size + self.begins[i] + self.ends[i] - span + stride - 1) // stride
            if self.ends[i] + stride > span:
                if not isinstance(size, int):
                    raise NeedsValues("a last window over a dynamic size that may be dropped")
                last = min(last, (size + self.begins[i] - 1) // stride)
            result.append(last * stride + span - size - self.begins[i])
        return result

    def view(self, X: Any) -> Any:
        """Returns the elements of all windows of a padded input, (N, C, *outputs, *kernel)."""
        for i, (k, stride, dilation) in enumerate(zip(self.kernel, self.strides, self.dilations, strict=True)):
            X = X.unfold(2 + i, (k - 1) * dilation + 1, stride)
        steps = (..., *(slice(None, None, dilation) for dilation in self.dilations))
        return X if max(self.dilations) == 1 else X[steps]

    @property
    def trailing(self) -> tuple[int, ...]:
        """The dimensions of `view` that run over a window."""
        return tuple(range(-len(self.kernel), 0))


def _lowest(F: Any, dtype: Any) -> float | int:
    return -math.inf if dtype.is_floating_point else F.iinfo(dtype).min


@op("MaxPool", 8, traits=["channels_first", "keeps_rank", "value_preserving"])
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
    rank, dtype, lowest = len(windows.kernel), X.dtype, _lowest(F, X.dtype)
    if rank > 3:
        if _outputs > 1:
            raise OperatorError(f"Indices over {rank} spatial dimensions are not possible; 1 to 3 dimensions are.")
        X = pad_spatial(F, X, [*windows.begins, *windows.reach()], lowest)
        return windows.view(X).amax(windows.trailing)
    bytes_ = dtype in (F.int8, F.uint8)
    if bytes_:  # torch has few kernels for bytes, one of which counts indices in a byte; of floats, -inf is no byte
        X, lowest = X.to(F.float32), -math.inf
    function = [F.nn.functional.max_pool1d, F.nn.functional.max_pool2d, F.nn.functional.max_pool3d][rank - 1]
    sizes, offsets, padding, ceil = X.shape, [0] * rank, tuple(windows.begins), windows.ceil
    padded = X
    if not windows.plain:
        padded = pad_spatial(F, X, [*windows.begins, *windows.reach()], lowest)
        offsets, padding, ceil = windows.begins, (0,) * rank, False
    options = dict(padding=padding, dilation=windows.dilations, ceil_mode=ceil)
    if _outputs == 1:
        Y = function(padded, windows.kernel, windows.strides, **options)
        return Y.to(dtype) if bytes_ else Y
    Y, indices = function(padded, windows.kernel, windows.strides, **options, return_indices=True)
    return Y.to(dtype) if bytes_ else Y, _flat_indices(F, indices, sizes, padded.shape[2:], offsets, storage_order)


def _flat_indices(
    F: Any, indices: Any, sizes: Sequence[Any], padded: Sequence[Any], offsets: Sequence[Any], storage_order: int
) -> Any:
    """Returns ONNX's indices for torch's, which count within a padded plane."""
    plane = math.prod(sizes[2:])
    if storage_order or not all(map(is_zero, offsets)) or not same_shape(padded, sizes[2:]):
        coordinates: list[Any] = []
        for size, offset in zip(reversed(padded), reversed(offsets), strict=True):
            coordinates.insert(0, indices % size - offset)
            indices = indices // size
        order = list(zip(coordinates, sizes[2:], strict=True))
        indices = 0
        for coordinate, size in reversed(order) if storage_order else order:
            indices = indices * size + coordinate
    batch = F.arange(sizes[0] * sizes[1]).reshape([sizes[0], sizes[1]] + [1] * (len(sizes) - 2))
    return indices + batch * plane


revision(max_pool, 1, without=["ceil_mode", "dilations", "storage_order", "_outputs"])


@op("AveragePool", 7, traits=["channels_first", "keeps_rank"])
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
    """The mean over the elements of the input in a window; with `count_include_pad` over its pads too.

    Elements that `ceil_mode` adds never count. `auto_pad` respects dilations, as the standard says; ONNX Runtime does
    not.
    """
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


revision(average_pool, 1, without=["ceil_mode", "count_include_pad", "dilations"])


def _spatial(X: Any) -> tuple[int, ...]:
    """Returns the spatial dimensions; torch takes none for all.

    Raises:
        OperatorError: there are none.
    """
    if X.ndim < 3:
        raise OperatorError(f"an input of {X.ndim} dimensions has no spatial dimension.")
    return tuple(range(2, X.ndim))


@op("GlobalAveragePool", 1, traits=["channels_first", "keeps_rank"])
def global_average_pool(F: Any, X: Any) -> Any:
    functional = F.nn.functional
    functions = [functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d]
    spatial = _spatial(X)
    return functions[len(spatial) - 1](X, 1) if 1 <= len(spatial) <= 3 else X.mean(spatial, keepdim=True)


@op("GlobalMaxPool", 1, traits=["channels_first", "keeps_rank", "value_preserving"])
def global_max_pool(F: Any, X: Any) -> Any:
    return X.amax(_spatial(X), keepdim=True)


@op("GlobalLpPool", 2, traits=["channels_first", "keeps_rank"])
def global_lp_pool(F: Any, X: Any, *, p: int = 2) -> Any:
    return F.linalg.vector_norm(X, p, _spatial(X), keepdim=True)


revision(global_lp_pool, 1, defaults={"p": 2.0})


@op("LpPool", 18, traits=["channels_first", "keeps_rank"])
def lp_pool(
    F: Any,
    X: Any,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """The p-norm of each window; pads are 0. torch's lp_pool has no pads and no absolute value before an odd power."""
    if p < 1:
        raise OperatorError(f"p={p} is no norm, which has a p from 1 on.")
    windows = Windows(X, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    X = pad_spatial(F, X, [*windows.begins, *windows.reach()])
    return F.linalg.vector_norm(windows.view(X), p, windows.trailing)


revision(lp_pool, 2, without=["ceil_mode", "dilations"])


@op("LpPool", 1, traits=["channels_first", "keeps_rank"])
def lp_pool_1(
    F: Any,
    X: Any,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int] | None = None,
    p: float = 2.0,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    if not kernel_shape:
        raise OperatorError("attribute kernel_shape is missing.")
    return lp_pool(F, X, auto_pad=auto_pad, kernel_shape=kernel_shape, p=p, pads=pads, strides=strides)  # type: ignore[arg-type]


@op("MaxUnpool", 9, static=["output_shape"], traits=["channels_first", "keeps_rank"])
def max_unpool(
    F: Any,
    X: Any,
    I: Any,  # noqa: E741
    output_shape: Sequence[Any] | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """Indices refer to the size that inverts the pool; a larger `output_shape` adds zeros at the ends."""
    rank = len(kernel_shape)
    check_window(X.shape[2:], strides=strides, pads=pads)
    demand_equal(X.shape, I.shape, "the shapes of values and their indices")
    pads, strides = list(pads or [0] * (2 * rank)), list(strides or [1] * rank)
    sizes = [(X.shape[2 + i] - 1) * strides[i] + kernel_shape[i] - pads[i] - pads[i + rank] for i in range(rank)]
    shape = [X.shape[0], X.shape[1], *sizes]
    flat = F.zeros([math.prod(shape)], dtype=X.dtype).scatter(0, I.flatten(), X.flatten())
    Y = flat.reshape(shape)
    if not output_shape:
        return Y
    return pad_spatial(F, Y, [0] * rank + [a - b for a, b in zip(list(output_shape)[2:], sizes, strict=True)])


def _results_of_roi_pool(F: Any, X: Any, rois: Any, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Any:
    return [([rois.shape[0], X.shape[1], *pooled_shape], X.dtype)]


@op("MaxRoiPool", 1, call="opaque", results=_results_of_roi_pool, custom_op=True)
def max_roi_pool(F: Any, X: Any, rois: Any, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Any:
    """The largest element of each bin; corners are rounded and included, an empty bin is 0, as in ONNX Runtime.

    Halves are rounded away from 0, and the size of a bin is a float32.

    X: (N, C, H, W); rois: (R, 5) of batch index, x1, y1, x2, y2. Returns (R, C, *pooled_shape).
    """
    results = []
    for batch, x1, y1, x2, y2 in rois.tolist():
        plane = X[int(batch)]
        for axis, begin, end, bins in ((2, x1, x2, pooled_shape[1]), (1, y1, y2, pooled_shape[0])):
            begin, end = _away_from_zero(begin * spatial_scale), _away_from_zero(end * spatial_scale)
            size, limit = np.float32(max(end - begin + 1, 1)) / np.float32(bins), plane.shape[axis]
            parts = []
            for bin in range(bins):
                low = min(max(math.floor(np.float32(bin) * size) + begin, 0), limit)
                high = min(max(math.ceil(np.float32(bin + 1) * size) + begin, 0), limit)
                part = plane.narrow(axis, low, max(high - low, 0))
                empty = F.zeros_like(plane.narrow(axis, 0, 1))
                parts.append(part.amax(axis, keepdim=True) if high > low else empty)
            plane = F.cat(parts, axis)
        results.append(plane)
    if not results:
        return F.zeros([0, X.shape[1], *pooled_shape], dtype=X.dtype)
    return F.stack(results)


def _away_from_zero(number: float) -> int:
    """Returns the next integer, of two the one away from 0, as C's `round`."""
    return int(math.copysign(math.floor(abs(number) + 0.5), number))


def _results_of_roi_align(
    F: Any, X: Any, rois: Any, batch_indices: Any, *, output_height: int = 1, output_width: int = 1, **others: Any
) -> Any:
    return [([rois.shape[0], X.shape[1], output_height, output_width], X.dtype)]


@op(
    "RoiAlign",
    16,
    choices={"coordinate_transformation_mode": ("half_pixel", "output_half_pixel"), "mode": ("avg", "max")},
    call="opaque",
    results=_results_of_roi_align,
    custom_op=True,
)
@halves_in_float32
def roi_align(
    F: Any,
    X: Any,
    rois: Any,
    batch_indices: Any,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    """The mean or maximum of bilinear samples of each bin.

    The maximum is over the samples' four weighted corners, as in ONNX Runtime. With `sampling_ratio=0` a bin has as
    many samples as elements. X: (N, C, H, W); rois: (R, 4) of x1, y1, x2, y2; batch_indices: (R,).
    """
    if mode not in ("avg", "max"):
        raise OperatorError(f"mode={mode!r} is none of avg, max.")
    half = coordinate_transformation_mode == "half_pixel"
    corners = rois * spatial_scale - (0.5 if half else 0.0)
    start, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    size = size if half else size.clamp(min=1)
    bins = size / F.tensor([output_width, output_height], dtype=size.dtype)
    counts = F.ceil(bins).to(F.int64).tolist()
    result = F.zeros([rois.shape[0], X.shape[1], output_height, output_width], dtype=X.dtype)
    groups: dict[tuple[int, int], list[int]] = {}
    for index, (across, down) in enumerate(counts):
        key = (sampling_ratio, sampling_ratio) if sampling_ratio > 0 else (down, across)
        groups.setdefault(key, []).append(index)
    for (down, across), members in groups.items():
        if down <= 0 or across <= 0:
            continue
        step = max(1, (1 << 24) // max(1, X.shape[1] * output_height * output_width * down * across))
        for first in range(0, len(members), step):
            chosen = F.tensor(members[first : first + step])
            y = _samples(F, start[chosen, 1], bins[chosen, 1], output_height, down)
            x = _samples(F, start[chosen, 0], bins[chosen, 0], output_width, across)
            values = _bilinear_corners(F, X, batch_indices[chosen], y, x)
            shape = [len(chosen), output_height, down, output_width, across, X.shape[1]]
            if mode == "avg":
                pooled = sum(values).reshape(shape).mean((2, 4))
            else:
                pooled = F.stack([value.reshape(shape).amax((2, 4)) for value in values]).amax(0)
            result[chosen] = pooled.permute(0, 3, 1, 2)
    return result


def _samples(F: Any, start: Any, bin: Any, bins: int, count: int) -> Any:
    """Returns the sample coordinates along one axis, (R, bins * count).

    The operations and their order are ONNX Runtime's, as a last bit decides whether a sample is outside.
    """
    bin = bin.reshape(-1, 1, 1)
    of_bins = start.reshape(-1, 1, 1) + F.arange(bins).reshape(-1, 1) * bin
    return (of_bins + (F.arange(count) + 0.5) * bin / count).flatten(1)


def _bilinear_corners(F: Any, X: Any, batch: Any, y: Any, x: Any) -> list[Any]:
    """Returns the four weighted corners of each sample, each (R, Y, X, C); a sample more than 1 outside of X is 0."""
    sides = []
    for coordinate, size in ((y, X.shape[2]), (x, X.shape[3])):
        inside = ((coordinate >= -1) & (coordinate <= size)).to(coordinate.dtype)
        coordinate = coordinate.clamp(0, size - 1)
        low = F.floor(coordinate)
        rest = coordinate - low
        indices = low.to(F.int64)
        sides.append(((indices, (1 - rest) * inside), ((indices + 1).clamp(max=size - 1), rest * inside)))
    batch = batch.to(F.int64).reshape(-1, 1, 1)
    return [
        X[batch, :, i.unsqueeze(2), j.unsqueeze(1)] * (v.unsqueeze(2) * w.unsqueeze(1)).unsqueeze(3)
        for i, v in sides[0]
        for j, w in sides[1]
    ]


revision(roi_align, 10, fixed={"coordinate_transformation_mode": "output_half_pixel"})
