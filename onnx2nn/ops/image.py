"""Images: sampling, decoding, cropping, and the selection of boxes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from onnx2nn.errors import OperatorError, first_line
from onnx2nn.ground.extras import require
from onnx2nn.ground.limits import Limits
from onnx2nn.ops.shape import demand_equal
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision

_GRID_MODES = {
    "linear": "bilinear",
    "bilinear": "bilinear",
    "nearest": "nearest",
    "cubic": "bicubic",
    "bicubic": "bicubic",
}


@op("GridSample", 20, choices={"padding_mode": ("zeros", "border", "reflection")})
def grid_sample(
    F: Any, X: Any, grid: Any, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Any:
    """torch's grid_sample with ONNX's names of the modes.

    Raises:
        OperatorError: the standard does not have the mode, or it is cubic over three spatial dimensions.
    """
    if mode not in _GRID_MODES:
        raise OperatorError(f"mode={mode!r} is none of linear, nearest, cubic.")
    if X.ndim not in (4, 5) or (X.ndim == 5 and _GRID_MODES[mode] == "bicubic"):
        raise OperatorError(f"mode={mode!r} of {X.ndim} dimensions. Use linear or nearest of 4 or 5 dimensions.")
    if not X.is_floating_point():
        return _nearest_of_integers(F, X, grid, mode, padding_mode, align_corners)
    if mode == "nearest" and padding_mode == "reflection" and not align_corners:
        grid = _halves_rounded(F, grid, X.shape[:1:-1])
    options = dict(mode=_GRID_MODES[mode], padding_mode=padding_mode, align_corners=bool(align_corners))
    if X.dtype == grid.dtype and X.dtype in (F.float32, F.float64):
        return F.nn.functional.grid_sample(X, grid, **options)
    wide = F.promote_types(F.promote_types(X.dtype, grid.dtype), F.float32)  # coordinates need float32's precision
    return F.nn.functional.grid_sample(X.to(wide), grid.to(wide), **options).to(X.dtype)


def _halves_rounded(F: Any, grid: Any, sizes: Sequence[Any]) -> Any:
    """Returns a grid whose places in the middle between two elements are those of the even ones.

    ONNX Runtime rounds before it reflects, torch after it: a reflection at the edge of an element makes odd of even.

    Args:
        F: torch, or another namespace.
        grid: (N, ..., rank), the last axis of the image first.
        sizes: of the image, likewise.
    """
    coordinates = []
    for x, size in zip(grid.unbind(-1), sizes, strict=True):
        place = ((x + 1) * size - 1) / 2
        nearest = F.round(place)
        coordinates.append(F.where((place - nearest).abs() == 0.5, (2 * nearest + 1) / size - 1, x))
    return F.stack(coordinates, -1)


def _nearest_of_integers(F: Any, X: Any, grid: Any, mode: str, padding_mode: str, align_corners: int) -> Any:
    """Samples integers of up to 32 bits and bools in float64, which holds them exactly."""
    if mode != "nearest":
        raise OperatorError(f"mode={mode!r} of {X.dtype} has no defined rounding. Cast it to floats first.")
    if X.dtype not in (F.bool, F.int8, F.int16, F.int32, F.uint8, F.uint16, F.uint32):
        raise OperatorError(f"samples of {X.dtype} are not exact in float64. Cast it to floats first.")
    Y = grid_sample(F, X.to(F.float64), grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)
    return Y.to(X.dtype)


revision(grid_sample, 16, defaults={"mode": "bilinear"})


@op("AffineGrid", 20, static=["size"])
def affine_grid(F: Any, theta: Any, size: Sequence[Any], *, align_corners: int = 0) -> Any:
    return F.nn.functional.affine_grid(theta, list(size), align_corners=bool(align_corners))


def _demand_scores(boxes: Any, scores: Any) -> None:
    demand_equal(boxes.shape[:2], scores.shape[::2], "batch and number of boxes and of scores")


def _results_of_suppression(F: Any, boxes: Any, scores: Any, *limits: Any, center_point_box: int = 0) -> Any:
    _demand_scores(boxes, scores)
    return [(["selected", 3], F.int64)]


@op(
    "NonMaxSuppression",
    10,
    call="opaque",
    results=_results_of_suppression,
    custom_op=True,
    traits=["number_by_number"],
)
def non_max_suppression(
    F: Any,
    boxes: Any,
    scores: Any,
    max_output_boxes_per_class: Any = None,
    iou_threshold: Any = None,
    score_threshold: Any = None,
    *,
    center_point_box: int = 0,
) -> Any:
    """Selects boxes class by class, highest score first, lower index first where scores are equal.

    A box needs a score above `score_threshold`; it is dropped where its overlap with a selected box exceeds
    `iou_threshold`. boxes: (N, B, 4) of two opposite corners y1, x1, y2, x2, or of x, y, width, height; scores:
    (N, classes, B). Returns int64 (selected, 3) of batch, class and box index.
    """
    _demand_scores(boxes, scores)
    limit = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.reshape(-1)[0])
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(-1)[0])
    least = None if score_threshold is None else float(score_threshold.reshape(-1)[0])
    found = [np.empty((0, 3), np.int64)]
    corners, marks = ((x if x.dtype == F.float64 else x.float()).detach().cpu().numpy() for x in (boxes, scores))
    for batch in range(marks.shape[0]):
        low, high = _corners(corners[batch].T, bool(center_point_box))
        areas = _product(high - low)
        for label in range(marks.shape[1] if limit > 0 else 0):
            mark = marks[batch, label]
            order = _by_score(mark, np.arange(len(mark)) if least is None else np.flatnonzero(mark > least))
            kept = order[_greedy(_Boxes(low[:, order], high[:, order], areas[order]), overlap, limit)]
            found.append(np.stack([np.full_like(kept, batch), np.full_like(kept, label), kept], 1))
    return F.from_numpy(np.concatenate(found))


class _Boxes(NamedTuple):
    """Boxes by their corners, (2, boxes) of y and x, and their areas, (boxes,)."""

    low: np.ndarray
    high: np.ndarray
    areas: np.ndarray

    def part(self, chosen: Any) -> _Boxes:
        """Returns the boxes at the positions `chosen`."""
        return _Boxes(self.low[:, chosen], self.high[:, chosen], self.areas[chosen])

    def overlapping(self, others: _Boxes, overlap: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs of these boxes and `others` whose intersection over union exceeds `overlap`, in order."""
        near = self.low[0][:, None] < others.high[0]
        near &= self.high[0][:, None] > others.low[0]
        near &= self.low[1][:, None] < others.high[1]
        near &= self.high[1][:, None] > others.low[1]
        a, b = np.divmod(np.flatnonzero(near), near.shape[1])
        shared = _product(np.minimum(self.high[:, a], others.high[:, b]) - np.maximum(self.low[:, a], others.low[:, b]))
        union = self.areas[a] + others.areas[b] - shared
        with np.errstate(divide="ignore", invalid="ignore"):
            over = (shared > 0) & (union > 0) & (shared / union > np.float32(overlap))
        return a[over], b[over]


def _by_score(scores: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns the positions `chosen` of scores, highest score first, lower position first among equals.

    Of float32 it sorts integers, a float's bits above the position: numpy's stable sort takes five times as long.
    """
    if scores.dtype == np.float64:
        order: np.ndarray = chosen[np.argsort(-scores[chosen], kind="stable")]
        return order
    bits = (scores[chosen] + np.float32(0.0)).view(np.int32)  # -0.0 becomes 0.0
    rising = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64)
    rising[np.isnan(scores[chosen])] = -np.iinfo(np.int32).max
    return np.sort((-rising << 32) | chosen) & 0xFFFFFFFF


def _product(sides: np.ndarray) -> np.ndarray:
    return sides[0] * sides[1]


def _corners(boxes: np.ndarray, centered: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the smaller and the larger corner of each box, (2, boxes), of boxes (4, boxes)."""
    if centered:
        half = boxes[2:] / 2
        return boxes[:2] - half, boxes[:2] + half
    return np.minimum(boxes[:2], boxes[2:]), np.maximum(boxes[:2], boxes[2:])


def _greedy(boxes: _Boxes, overlap: float, limit: int) -> np.ndarray:
    """Returns the positions of the selected boxes; `boxes` are in the order of their scores.

    All pairs of a chunk are compared at once; the loop runs over the overlapping pairs only.
    """
    kept = np.empty(0, np.int64)
    chunk = min(max(limit + limit // 4, 32), 256)
    for first in range(0, len(boxes.areas), chunk):
        part = boxes.part(slice(first, first + chunk))
        dropped = np.zeros(len(part.areas), bool)
        if len(kept):
            dropped[boxes.part(kept).overlapping(part, overlap)[1]] = True
        gone = dropped.tolist()
        for better, worse in zip(*(ends.tolist() for ends in part.overlapping(part, overlap)), strict=True):
            if better < worse and not gone[better]:  # final for `better`: pairs come in order
                gone[worse] = True
        kept = np.concatenate([kept, first + np.flatnonzero(~np.array(gone))])
        if len(kept) >= limit:
            break
    return kept[:limit]


_IMAGE_FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
"""Pillow's names of the formats that ONNX ImageDecoder-20 lists.

Pillow opens many others, some of which run programs: EPS is rendered by Ghostscript.
"""


def _decoded(stream: bytes, mode: str, most_pixels: int) -> np.ndarray:
    """Returns the pixels of an encoded image, uint8 (H, W) for the mode `"L"`, (H, W, 3) for `"RGB"`.

    The standard returns an empty matrix for such bytes, but says neither its shape nor why: here they are errors.

    Raises:
        OperatorError: the image has too many pixels, or the bytes are no image.
    """
    pillow = require("PIL.Image", extra="image", purpose="ImageDecoder")
    most = min(most_pixels, pillow.MAX_IMAGE_PIXELS or most_pixels)
    try:
        with pillow.open(io.BytesIO(stream), formats=_IMAGE_FORMATS) as image:  # reads the header alone
            width, height = image.size
            if width * height <= most:
                return np.array(image.convert(mode))
    except pillow.UnidentifiedImageError:
        raise OperatorError(
            f"the {len(stream)} bytes are no image in one of the formats {', '.join(_IMAGE_FORMATS)}."
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise errors of any class on damaged bytes
        raise OperatorError(f"Pillow cannot decode the image of {len(stream)} bytes: {first_line(error)}") from error
    raise OperatorError(
        f"the image has {width} x {height} pixels, above the limit of {most}, the smaller one of "
        "Limits.image_pixels and PIL.Image.MAX_IMAGE_PIXELS. If it is to be trusted, raise them."
    )


def _results_of_decoder(F: Any, encoded_stream: Any, *, pixel_format: str = "RGB", **_: Any) -> Any:
    return [(["height", "width", 1 if pixel_format == "Grayscale" else 3], F.uint8)]


@op(
    "ImageDecoder",
    20,
    choices={"pixel_format": ("RGB", "BGR", "Grayscale")},
    call="opaque",
    results=_results_of_decoder,
    custom_op=True,
)
def image_decoder(
    F: Any, encoded_stream: Any, *, pixel_format: str = "RGB", _image_pixels: int = Limits.image_pixels
) -> Any:
    """Decodes with Pillow. Returns uint8 (H, W, 3), or (H, W, 1) for Grayscale.

    An image of 2**26 pixels takes 500 MB with Pillow's own copy; a PNG of 20 kB can hold 180 million.

    Raises:
        OperatorError: the standard does not have this `pixel_format`, or the bytes are no image of one of its formats
            within the limit on pixels.
    """
    if pixel_format not in ("RGB", "BGR", "Grayscale"):
        raise OperatorError(f"pixel_format={pixel_format!r} is none of RGB, BGR, Grayscale.")
    mode = "L" if pixel_format == "Grayscale" else "RGB"
    pixels = _decoded(encoded_stream.cpu().numpy().tobytes(), mode, _image_pixels)
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    return F.tensor(np.ascontiguousarray(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels))


@op("ImageScaler", 1)
def image_scaler(F: Any, input: Any, *, bias: Sequence[float] | None = None, scale: float = 1.0) -> Any:
    """Experimental in opset 1: scaled, then a bias for each channel."""
    Y = input * scale
    return Y if bias is None else Y + F.tensor(list(bias), dtype=input.dtype).reshape(-1, 1, 1)


@op("Crop", 1)
def crop(F: Any, input: Any, *, border: Sequence[int] | None = None, scale: Sequence[int] | None = None) -> Any:
    """Experimental in opset 1: cuts off `border` (left, top, right, bottom), or keeps `scale` (height, width)."""
    if border is None or len(border) != 4:
        raise OperatorError("border does not have four numbers: left, top, right, bottom.")
    left, top, right, bottom = border
    if scale is None:
        return input[:, :, top : input.shape[2] - bottom, left : input.shape[3] - right]
    height, width = scale
    return input[:, :, top : top + height, left : left + width]
