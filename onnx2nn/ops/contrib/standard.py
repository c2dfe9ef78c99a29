"""Operators of ONNX Runtime's domain (com.microsoft) that are the same as, or close to, operators of ai.onnx."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops import image, indexing, pad, shape
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.pool import Windows
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import Counted


@op("Pad", 1, domain=MICROSOFT, static=["pads"], numbers=["value"])
def pad_ms(F: Any, data: Any, pads: Any, value: Any = None, *, mode: str = "constant") -> Any:
    """`pads` may be `(1, 2 * rank)`."""
    pads = pads[0] if isinstance(pads[0], list) else pads
    return pad.pad(F, data, pads, value, mode=mode)


def _results_of_unique(F: Any, x: Any) -> Any:
    length = math.prod(x.shape)
    kept = Counted("kept", length)
    return [([kept], x.dtype), ([length], F.int64), ([kept], F.int64)]


@op("Unique", 1, domain=MICROSOFT, call="opaque", results=_results_of_unique)
def unique_ms(F: Any, x: Any) -> tuple[Any, ...]:
    """In the order of first appearance."""
    values, _, inverse, counts = indexing.unique(F, x, sorted=0)
    return values, inverse, counts


@op("Range", 1, domain=MICROSOFT, static=["start", "limit", "delta"])
def range_ms(F: Any, start: Any, limit: Any, delta: Any = None, *, _types: Sequence[Any] = ()) -> Any:
    """Without `delta` the step is 1."""
    return shape.range_(F, start, limit, 1 if delta is None else delta, _types=_types)


revision(shape.trilu, 1, domain=MICROSOFT, renamed={"input": "X"})
revision(indexing.gather_nd, 1, domain=MICROSOFT, without=["batch_dims"])
revision(image.grid_sample, 1, domain=MICROSOFT, defaults={"mode": "bilinear"}, renamed={"grid": "Grid"})


@op("Inverse", 1, domain=MICROSOFT)
def inverse(F: Any, X: Any) -> Any:
    return F.linalg.inv(X)


def _sampled(F: Any, first: Any, last: Any, size: Any, count: Any) -> Any:
    """Returns the coordinates of `count` samples from `first` to `last`, fractions of an axis: (R, count).

    A single sample lies in the middle, the last of several at `last`. The operations and their order are ONNX
    Runtime's, as a last bit decides which element is the nearest.
    """
    steps = size - 1
    if count == 1:
        return (0.5 * (first + last) * steps).unsqueeze(1)
    index = F.arange(count, dtype=first.dtype)
    between = (first * steps).unsqueeze(1) + index * ((last - first) * steps / (count - 1)).unsqueeze(1)
    return F.where(index == count - 1, (last * steps).unsqueeze(1), between)


@op("CropAndResize", 1, domain=MICROSOFT, static=["crop_size"])
def crop_and_resize(
    F: Any,
    X: Any,
    rois: Any,
    batch_indices: Any,
    crop_size: Any,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Any:
    """X: (N, C, H, W); rois: (R, 4) of y1, x1, y2, x2, 1 being the last row or column; batch_indices: (R,)."""
    if mode not in ("bilinear", "nearest"):
        raise OperatorError(f"mode={mode!r} is none of bilinear, nearest.")
    height, width = X.shape[2], X.shape[3]
    y = _sampled(F, rois[:, 0], rois[:, 2], height, crop_size[0])
    x = _sampled(F, rois[:, 1], rois[:, 3], width, crop_size[1])
    inside = ((y >= 0) & (y <= height - 1)).unsqueeze(2) & ((x >= 0) & (x <= width - 1)).unsqueeze(1)
    y, x = y.clamp(0, height - 1).unsqueeze(2), x.clamp(0, width - 1).unsqueeze(1)
    batch = batch_indices.to(F.int64).reshape(-1, 1, 1)
    top, left = y.floor(), x.floor()

    def taken(row: Any, column: Any) -> Any:
        return X[batch, :, row.to(F.int64), column.to(F.int64)]  # (R, height, width, C)

    if mode == "nearest":  # halves are rounded up
        crop = taken(F.where(y - top < 0.5, top, y.ceil()), F.where(x - left < 0.5, left, x.ceil()))
    else:
        down, across = (y - top).unsqueeze(3), (x - left).unsqueeze(3)
        upper, lower = (F.lerp(taken(row, left), taken(row, x.ceil()), across) for row in (top, y.ceil()))
        crop = F.lerp(upper, lower, down)
    return F.where(inside.unsqueeze(1), crop.permute(0, 3, 1, 2), extrapolation_value)


@op("ExpandDims", 1, domain=MICROSOFT, static=["axis"])
def expand_dims(F: Any, X: Any, axis: Any) -> Any:
    return X.unsqueeze(shape.scalar(axis))


@op("SampleOp", 1, domain=MICROSOFT)
def sample_op(F: Any, X: Any) -> Any:
    """The identity: an example of an operator."""
    return X.clone()


@op("UnfoldTensor", 1, domain=MICROSOFT)
def unfold_tensor(F: Any, input: Any, *, dim: int = -1, size: int, step: int = 1) -> Any:
    """Windows of `size` elements along `dim`, which are the last dimension of the result."""
    return input.unfold(dim, size, step)


def _product(F: Any, A: Any, B: Any, sign: int) -> Any:
    real, imaginary, others = A[..., 0], A[..., 1], (B[..., 0], B[..., 1] * sign)
    return F.stack([real * others[0] - imaginary * others[1], real * others[1] + imaginary * others[0]], -1)


@op("ComplexMul", 1, domain=MICROSOFT)
def complex_mul(F: Any, A: Any, B: Any) -> Any:
    """The last dimension holds the real and the imaginary part."""
    return _product(F, A, B, 1)


@op("ComplexMulConj", 1, domain=MICROSOFT)
def complex_mul_conj(F: Any, A: Any, B: Any) -> Any:
    """A times the conjugate of B."""
    return _product(F, A, B, -1)


def _signal_axes(signal_ndim: int, normalized: int, onesided: int) -> list[int]:
    if normalized or not onesided:
        raise OperatorError(f"normalized={normalized}, onesided={onesided} is not defined. Give it 0 and 1.")
    return list(range(-signal_ndim, 0))


@op("Rfft", 1, domain=MICROSOFT)
def rfft(F: Any, X: Any, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Any:
    """The spectrum of the last `signal_ndim` dimensions, whose real and imaginary parts are the last dimension."""
    spectrum = F.fft.rfftn(X.to(F.float64), dim=_signal_axes(signal_ndim, normalized, onesided))
    return F.view_as_real(spectrum).to(X.dtype)


@op("Irfft", 1, domain=MICROSOFT)
def irfft(F: Any, X: Any, *, normalized: int = 0, onesided: int = 1, signal_ndim: int) -> Any:
    """The signal of a spectrum, of an even size along the last dimension; divided by its number of elements."""
    spectrum = F.complex(X[..., 0].to(F.float64), X[..., 1].to(F.float64))
    return F.fft.irfftn(spectrum, dim=_signal_axes(signal_ndim, normalized, onesided)).to(X.dtype)


@op("MaxpoolWithMask", 1, domain=MICROSOFT)
def maxpool_with_mask(
    F: Any,
    X: Any,
    M: Any,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Any:
    """MaxPool of each row of a window up to the first element whose mask is 0; the lowest number for none.

    As in ONNX Runtime, every channel reads the mask of the first channel, and over several spatial dimensions the mask
    of the first element is not read. Masks of several channels are refused: where ONNX Runtime reads them is no rule.
    """
    if kernel_shape is None:
        raise OperatorError("kernel_shape is missing.")
    if M.shape[0] != 1 or M.shape[1] != 1:
        raise OperatorError(f"a mask of the shape {list(M.shape)} is not supported. Give it one channel of one image.")
    windows = Windows(X, kernel_shape, strides, pads, None, auto_pad, 0)
    kept = M != 0
    if X.ndim > 3:
        first = F.zeros_like(kept).flatten()
        first = F.cat([F.ones_like(first[:1]), first[1:]]).reshape(kept.shape)
        kept = kept | first
    lowest = F.finfo(X.dtype).min
    around = [pad for pair in zip(reversed(windows.begins), reversed(windows.ends), strict=True) for pad in pair]
    x = windows.view(F.nn.functional.pad(X, around, value=lowest))
    until = windows.view(F.nn.functional.pad(kept.to(F.int32), around, value=1)).cumprod(-1) > 0
    return F.where(until, x, lowest).flatten(X.ndim).amax(-1)


def _results_of_warping(F: Any, input: Any) -> Any:
    longest = input.shape[-2] + input.shape[-1] - 1
    return [([2, Counted("steps", longest)], F.int32)]


@op("DynamicTimeWarping", 1, domain=MICROSOFT, call="opaque", results=_results_of_warping)
def dynamic_time_warping(F: Any, input: Any) -> Any:
    """The rows and columns, `(2, steps)`, of the cheapest path from the first to the last element of the costs.

    Of equally cheap ways to an element the path takes the one from the left unless both others are cheaper, as in ONNX
    Runtime. Costs are added in float32.
    """
    costs = (input.squeeze(0) if input.ndim == 3 else input).to(F.float32).cpu().numpy()
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    steps = np.empty((rows + 1, columns + 1), np.int8)
    steps[0], steps[:, 0] = 2, 1
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            diagonal, above, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            step = 0 if diagonal < above and diagonal < left else 1 if above < diagonal and above < left else 2
            steps[i, j] = step
            total[i, j] = costs[i - 1, j - 1] + (diagonal, above, left)[step]
    i, j, path = rows, columns, []
    while i or j:
        path.append((i - 1, j - 1))
        step = steps[i, j]
        i, j = i - (step != 2), j - (step != 1)
    return F.tensor(path[::-1], dtype=F.int32).t()
