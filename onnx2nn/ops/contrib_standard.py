"""Operators of ONNX Runtime's domain (com.microsoft) that are the same as, or close to, operators of ai.onnx."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops import image, indexing, pad, shape
from onnx2nn.ops.contrib_fused import MICROSOFT
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
revision(image.grid_sample, 1, domain=MICROSOFT, defaults={"mode": "bilinear"}, renamed={"grid": "Grid"})


@op("Inverse", 1, domain=MICROSOFT)
def inverse(F: Any, X: Any) -> Any:
    return F.linalg.inv(X)


def _sampled(F: Any, first: Any, last: Any, size: Any, count: Any) -> Any:
    """Returns the coordinates of `count` samples from `first` to `last`, fractions of an axis: (R, count).

    A single sample lies in the middle.
    """
    first, last = first * (size - 1), last * (size - 1)
    if count == 1:
        return (0.5 * (first + last)).unsqueeze(1)
    return first.unsqueeze(1) + F.arange(count, dtype=first.dtype) * ((last - first) / (count - 1)).unsqueeze(1)


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
