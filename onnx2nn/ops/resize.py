"""Resize and Upsample: by torch's interpolate where that is exact, else by a gather along each axis."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ground.float_decimals import shortest_float32
from onnx2nn.ops import whole_pixels
from onnx2nn.ops.axes import distinct
from onnx2nn.ops.resize_coordinates import (
    CORNERS_OF_OUTPUT,
    TRANSFORMATIONS,
    Axis,
    coordinates,
    coordinates_of,
    is_whole,
    rounded,
    single,
)
from onnx2nn.ops.shape import demand, partly_known
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import NeedsValues


class Method(NamedTuple):
    """The attributes of Resize that define how values are interpolated."""

    mode: str
    transformation: str
    nearest: str
    antialias: int
    exclude_outside: int
    cubic_coeff_a: float
    extrapolation_value: float


def _number(value: Any) -> Any:
    """Returns a float32 scale as the shortest decimal that rounds to it, an int as it is."""
    return shortest_float32(value) if isinstance(value, float) else value


def _scaled(size: Any, scale: Any) -> Any:
    """Returns floor(size * scale) as ONNX Runtime rounds it: in float32."""
    if isinstance(size, int) and isinstance(scale, (int, float)):
        return int(np.float32(size) * np.float32(scale))
    if isinstance(scale, (int, float)) and scale == int(scale):
        return size * int(scale)
    return math.floor(size * scale)


@functools.lru_cache(maxsize=64)
def _floors_alike(scale: float) -> bool:
    """Whether floor(size * scale) is the same in Python's and in float32 numbers for sizes up to 65536."""
    sizes = np.arange(1 << 16)
    return bool(np.all(np.floor(sizes * scale) == np.floor(sizes.astype(np.float32) * np.float32(scale))))


def _axes_of(
    X: Any,
    roi: Sequence[float] | None,
    scales: Sequence[Any] | None,
    sizes: Sequence[Any] | None,
    axes: Sequence[int] | None,
    policy: str,
) -> list[Axis]:
    """Returns the axes that the node names, with their output sizes.

    Raises:
        OperatorError: scales and sizes do not fit the axes, not exactly one of them is given, or an axis is repeated.
    """
    indices = distinct(axes, X.ndim) if axes else list(range(X.ndim))
    if bool(scales) == bool(sizes):
        raise OperatorError(f"{'both' if scales else 'none'} of scales and sizes are given. Give it one of them.")
    given = list(scales or sizes or [])
    if len(given) != len(indices):
        raise OperatorError(f"it has {len(given)} scales or sizes for {len(indices)} axes.")
    roi = list(roi or [0.0] * len(indices) + [1.0] * len(indices))
    if len(roi) != 2 * len(indices):
        raise OperatorError(f"it has {len(roi)} numbers of the region for {len(indices)} axes.")
    inputs = [X.shape[index] for index in indices]
    factors: list[Any] = [None] * len(indices)
    if scales:
        factors = [_number(scale) for scale in given]
        outputs = [_scaled(size, factor) for size, factor in zip(inputs, factors, strict=True)]
    elif policy == "stretch":
        outputs = given
    elif policy in ("not_larger", "not_smaller"):
        if not all(isinstance(n, int) for n in (*given, *inputs)):
            raise NeedsValues("keep_aspect_ratio_policy over dynamic sizes")
        ratios = [single(output / size) for output, size in zip(given, inputs, strict=True)]
        factors = [min(ratios) if policy == "not_larger" else max(ratios)] * len(indices)
        outputs = [math.floor(single(size * factor) + 0.5) for size, factor in zip(inputs, factors, strict=True)]
    else:
        raise OperatorError(f"keep_aspect_ratio_policy={policy!r} is none of stretch, not_larger, not_smaller.")
    columns = zip(indices, inputs, outputs, factors, roi[: len(indices)], roi[len(indices) :], strict=True)
    return [Axis(*column) for column in columns]


def _nearest(F: Any, x: Any, axis: Axis, mode: str) -> Any:
    """Returns the index of the input element nearest to each coordinate."""
    return rounded(F, x, axis, mode).to(F.int64).clamp(0, axis.size - 1)


def _taps(F: Any, x: Any, axis: Axis, method: Method) -> tuple[Any, Any]:
    """Returns the input indices and weights of each output element's terms, both (taps, outputs)."""
    reach = 1 if method.mode == "linear" else 2
    scale = 1.0 if not method.antialias or (axis.scale >= 1) is True else axis.scale
    if not isinstance(scale, (int, float)):  # no branch is chosen before: the operator's own call takes all sizes
        raise NeedsValues("antialias over dynamic sizes")
    first = math.floor(-reach / scale) + 1
    floor = F.floor(x)
    offsets = F.arange(first, 2 - first, dtype=F.float32).reshape(-1, 1)
    distance = ((offsets - (x - floor)) * scale).abs()
    if method.mode == "linear":
        weights = (1 - distance).clamp(min=0)
    else:
        weights = _cubic(F, distance, method.cubic_coeff_a)
    indices = offsets + floor
    if method.exclude_outside:
        weights = F.where((indices >= 0) & (indices < axis.size), weights, 0.0)
    if method.exclude_outside or method.antialias:
        weights = weights / weights.sum(0, keepdim=True)
    return indices.to(F.int64).clamp(0, axis.size - 1), weights


def _cubic(F: Any, d: Any, a: float) -> Any:
    """Returns Keys' cubic convolution kernel at distances `d`."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return F.where(d <= 1, near, F.where(d < 2, far, 0.0))


def _along(X: Any, axis: Axis, vector: Any) -> Any:
    """Returns a vector over the axis in a shape that broadcasts to `X`."""
    return vector.reshape([-1] + [1] * (X.ndim - 1 - axis.index))


def _coordinates_unless(F: Any, copied: Any, axis: Axis, transformation: str) -> Any:
    """Returns `coordinates`; with `copied`, True in a tensor, those at which the elements stay."""
    x = coordinates(F, axis, transformation)
    return x if copied is False else F.where(copied, F.arange(axis.output, dtype=F.float32), x)


def _bilinear_axes(X: Any, axes: Sequence[Axis], mode: str) -> list[Axis] | None:
    """Returns height and width where ONNX Runtime resizes integers along both at once, else None."""
    if mode != "linear" or X.dtype.is_floating_point or X.ndim not in (2, 4):
        return None
    image = [axis for axis in axes if axis.index >= X.ndim - 2]
    return image if len(image) == 2 and all(axis.kept for axis in axes if axis not in image) else None


def _bilinear_of_integers(F: Any, X: Any, axes: Sequence[Axis], method: Method, copied: Any) -> Any:
    """Returns an image of integers, resized along height and width, as float32.

    The products and sums are in ONNX Runtime's order: the result is truncated, and a last bit decides to which number.
    """

    def ends(axis: Axis) -> list[tuple[Any, Any]]:
        """Returns indices and weights of the elements before and behind each coordinate; the last one counts twice."""
        x = _coordinates_unless(F, copied, axis, method.transformation).clamp(0, axis.size - 1)
        before = F.floor(x)
        behind = (before + 1).clamp(0, axis.size - 1)
        weights = (F.where(before == behind, 0.5, (x - end).abs()) for end in (behind, before))
        return list(zip((before.to(F.int64), behind.to(F.int64)), weights, strict=True))

    height, width = sorted(axes, key=lambda axis: axis.index)
    X, total = X.to(F.float32), None
    for (row, vertical), (column, horizontal) in itertools.product(ends(height), ends(width)):
        part = X.index_select(height.index, row).index_select(width.index, column)
        part = part * (horizontal * vertical.unsqueeze(-1))
        total = part if total is None else total + part
    return total


def _resize_axis(F: Any, X: Any, axis: Axis, method: Method, copied: Any) -> Any:
    """Resizes one axis by gathering; with `copied`, True in a tensor, its elements stay."""
    x = _coordinates_unless(F, copied, axis, method.transformation)
    if method.mode == "nearest":
        return X.index_select(axis.index, _nearest(F, x, axis, method.nearest))
    indices, weights = _taps(F, x, axis, method)
    total = None
    for index, weight in zip(indices.unbind(0), weights.unbind(0), strict=True):
        part = X.index_select(axis.index, index) * _along(X, axis, weight)
        total = part if total is None else total + part
    return total


def _smoothed(F: Any, X: Any, axes: Sequence[Axis], method: Method, copied: Any, dtype: Any) -> Any:
    """Resizes integers with antialias, the last axis first."""
    cubic, excluded = method.cubic_coeff_a if method.mode == "cubic" else None, bool(method.exclude_outside)
    for axis in sorted(axes, key=lambda axis: axis.index, reverse=True):
        if not isinstance(axis.scale, (int, float)):
            raise NeedsValues("antialias over dynamic sizes")
        x = _coordinates_unless(F, copied, axis, method.transformation)
        X = whole_pixels.resized(F, X, axis.index, x, axis.scale, cubic, excluded, dtype)
    return X


def _extrapolate(F: Any, X: Any, axes: Sequence[Axis], value: float) -> Any:
    """Returns `X` with `value` where tf_crop_and_resize samples outside of the input."""
    for axis in axes:
        x = coordinates(F, axis, "tf_crop_and_resize")
        X = F.where(_along(X, axis, (x >= 0) & (x <= axis.size - 1)), X, value)
    return X


def _interpolated(F: Any, X: Any, axes: Sequence[Axis], method: Method) -> Any:
    """Returns the result by torch's interpolate where it computes exactly the same, else None."""
    spatial = [axis for axis in axes if axis.index >= 2]
    if len(spatial) != X.ndim - 2 or not all(axis.kept for axis in axes if axis.index < 2):
        return None
    if X.ndim not in (3, 4, 5) or not X.is_floating_point() or method.exclude_outside:
        return None
    spatial.sort(key=lambda axis: axis.index)
    size = _interpolate_size(spatial)
    if size is None or not _is_image(X, spatial):
        return None
    if method.mode == "nearest":
        for mode in ("nearest", "nearest-exact"):
            if all(_same_nearest(axis, method, mode) for axis in spatial):
                _demand_image(X, spatial)
                return F.nn.functional.interpolate(X, **size, mode=mode)
        return None
    if method.antialias or (method.mode == "cubic" and (X.ndim != 4 or method.cubic_coeff_a != -0.75)):
        return None
    mode = "bicubic" if method.mode == "cubic" else ("linear", "bilinear", "trilinear")[X.ndim - 3]
    whole = all(not axis.given or is_whole(axis) for axis in spatial)
    exact = {
        "align_corners": whole,
        CORNERS_OF_OUTPUT: True,
        "half_pixel": True,
        "half_pixel_symmetric": whole,
        "pytorch_half_pixel": method.transformation == "pytorch_half_pixel" and all(a.output > 1 for a in spatial),
    }
    if not exact.get(method.transformation, False):
        return None
    align = method.transformation in ("align_corners", CORNERS_OF_OUTPUT)
    _demand_image(X, spatial)
    return F.nn.functional.interpolate(X, **size, mode=mode, align_corners=align)


def _lengths(X: Any, axes: Sequence[Axis]) -> list[Any]:
    """Returns the sizes that are at least 1 in an image which torch's interpolate takes; batches may be empty."""
    return [X.shape[1], *(axis.output for axis in axes), *(axis.size for axis in axes)]


def _is_image(X: Any, axes: Sequence[Axis]) -> bool:
    """Whether no size of an image is known to be 0."""
    return not any((length > 0) is False for length in _lengths(X, axes))


def _demand_image(X: Any, axes: Sequence[Axis]) -> None:
    """Requires that torch's interpolate takes the image, as its own error would name no input."""
    for length in _lengths(X, axes):
        demand(length > 0, "an image that is not empty, before and after it is resized")


def _interpolate_size(axes: Sequence[Axis]) -> dict[str, Any] | None:
    """Returns `size` or `scale_factor` for torch's interpolate, None where its output size would differ."""
    if not axes[0].given:
        return {"size": tuple(axis.output for axis in axes)}
    if not all(isinstance(axis.scale, (int, float)) for axis in axes):
        return None
    factors = [float(axis.scale) for axis in axes]
    for axis, factor in zip(axes, factors, strict=True):
        if (axis.static and math.floor(axis.size * factor) != axis.output) or (
            not axis.static and not _floors_alike(factor)
        ):
            return None
    return {"scale_factor": factors[0] if len(set(factors)) == 1 else tuple(factors)}


def _same_nearest(axis: Axis, method: Method, mode: str) -> bool:
    """Whether torch's nearest mode takes the same elements as ONNX Runtime, at all sizes if they are dynamic.

    torch multiplies by the inverse of the scale, ONNX Runtime divides by the scale. Where the scale depends on the
    sizes, one pair of sizes in twenty has an element at which the two differ.
    """
    if not isinstance(axis.scale, (int, float)) or method.transformation == "half_pixel_symmetric":
        return False
    if axis.given and mode == "nearest" and _is_doubled_by_chance(axis):
        return False
    if not axis.static:
        return _same_at_all_indices(float(axis.scale), method.transformation, method.nearest, mode)
    if axis.output > 1 << 24:  # float32 does not hold the indices
        return False
    inverse = np.float32(1 / axis.scale) if axis.given else np.float32(axis.size) / np.float32(axis.output)
    return _same_indices(
        np.arange(axis.output, dtype=np.float32), axis, method.transformation, method.nearest, mode, inverse
    )


def _is_doubled_by_chance(axis: Axis) -> bool:
    """Whether a given scale, neither 1 nor 2, may give the input's size or twice that, by rounding down.

    Some of torch's kernels, for some memory formats, then take the elements of the scales 1 and 2.
    """
    if axis.static:
        return axis.output in (axis.size, 2 * axis.size) and axis.scale not in (1, 2)
    return 1 < axis.scale < 1.5 or 2 < axis.scale < 2.5  # from 1.5 and 2.5 on only at a size of 1


@functools.cache
def _same_at_all_indices(scale: float, transformation: str, nearest: str, mode: str) -> bool:
    """Returns `_same_indices` for any size up to 4194304 = 2**22; False where the size matters.

    Of a longer output a float32 coordinate may have no digit for a half, and every scale but a power of 2 would fail.
    """
    if transformation not in ("asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn"):
        return False
    if transformation == "pytorch_half_pixel" and scale < 1:
        return False  # an output of one element is the first, from any size
    exact = math.frexp(scale)[0] == 0.5  # a power of 2: neither side rounds, and the indices repeat
    step = 1 << 14 if exact else 1 << 20
    axis = Axis(0, 1 << 24, 1 << 24, scale, 0.0, 1.0)
    return all(
        _same_indices(
            np.arange(first, first + step, dtype=np.float32), axis, transformation, nearest, mode, np.float32(1 / scale)
        )
        for first in range(0, step if exact else 1 << 22, step)
    )


def _same_indices(x: np.ndarray, axis: Axis, transformation: str, nearest: str, mode: str, inverse: np.float32) -> bool:
    """Whether torch's nearest mode, with the `inverse` scale, takes the same elements at the output indices `x`."""
    last = np.float32(axis.size - 1)
    theirs = np.floor((x if mode == "nearest" else x + np.float32(0.5)) * inverse)
    ours = rounded(np, coordinates_of(np, x, axis, transformation), axis, nearest)
    return bool((np.clip(ours, 0, last) == np.minimum(theirs, last)).all())


def _copied(F: Any, axes: Sequence[Axis]) -> Any:
    """Returns whether no size changes, so that ONNX Runtime copies the input although scales other than 1 are given.

    Where dynamic sizes decide it is a bool tensor of one element.
    """
    changing = [axis for axis in axes if not axis.kept]
    for axis in changing:
        if not axis.given or not isinstance(axis.scale, (int, float)) or not 1 <= axis.scale < 2:
            return False
        if axis.static and axis.output != axis.size:
            return False
    dynamic = [axis for axis in changing if not axis.static]
    if dynamic and all(axis.scale >= 1.5 for axis in dynamic):
        return False  # only sizes of 1 stay, and one element has one value
    same = [F.zeros(1, dtype=F.float32) + axis.output == axis.size for axis in dynamic]
    return functools.reduce(lambda a, b: a & b, same) if same else True


def _results_of_resize(
    F: Any,
    X: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    axes: Any = None,
    keep_aspect_ratio_policy: str = "stretch",
    **_: Any,
) -> Any:
    given = sizes if sizes is not None and not (isinstance(sizes, list) and not sizes) else scales
    exact, result = given is sizes and keep_aspect_ratio_policy == "stretch", [*X.shape]
    for axis, number in zip(axes or range(X.ndim), partly_known(given), strict=True):
        if exact and number is not None:
            result[axis] = number
        elif not (given is scales and isinstance(number, (int, float)) and number == 1):
            result[axis] = f"size_{axis % X.ndim}"
    return [(result, X.dtype)]


@op(
    "Resize",
    18,
    choices={
        "coordinate_transformation_mode": TRANSFORMATIONS,
        "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
        "mode": ("nearest", "linear", "cubic"),
        "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    },
    static=["roi", "scales", "sizes"],
    counts=["sizes"],
    results=_results_of_resize,
    sized_by="sizes",
    traits=["keeps_rank"],
)
def resize(
    F: Any,
    X: Any,
    roi: Sequence[float] | None = None,
    scales: Sequence[Any] | None = None,
    sizes: Sequence[Any] | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    _producer: str = "",
) -> Any:
    """torch's interpolate where it computes exactly the same, else a gather along each axis (ONNX Resize-19).

    Coordinates are float32, rounded as in ONNX Runtime 1.27 and later, where no size changes the result is the input.
    Only tf_crop_and_resize crops then too, as the standard says. ONNX Runtime differs from the standard's test data in
    align_corners with scales that give no whole size: the data do not round the length of the output, input * scale.
    This follows the data, except in files of PyTorch, where the length is rounded, as in ONNX Runtime and torch. With
    pytorch_half_pixel a dynamic output size is assumed to be more than 1. Integers are interpolated in float32 and
    truncated in linear mode, rounded and saturated in cubic mode; with antialias each axis is rounded and saturated.
    """
    if mode not in ("nearest", "linear", "cubic"):
        raise OperatorError(f"mode={mode!r} is none of nearest, linear, cubic.")
    of_output = coordinate_transformation_mode == "align_corners" and _producer == "pytorch"
    method = Method(
        mode,
        CORNERS_OF_OUTPUT if of_output else coordinate_transformation_mode,
        nearest_mode,
        antialias,
        exclude_outside,
        cubic_coeff_a,
        extrapolation_value,
    )
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    resized = _axes_of(X, roi if crop else None, scales, sizes, axes, keep_aspect_ratio_policy)
    copied = False if crop else _copied(F, resized)
    if copied is True:
        return X
    if not crop and copied is False:
        Y = _interpolated(F, X, resized, method)
        if Y is not None:
            return Y
    changed = [a for a in resized if not a.kept or (crop and (a.start, a.end) != (0, 1))]
    dtype = X.dtype
    if antialias and mode != "nearest" and not dtype.is_floating_point:
        X = _smoothed(F, X, changed, method, copied, dtype)
    elif image := _bilinear_axes(X, resized, mode):
        X = _bilinear_of_integers(F, X, image, method, copied)
    else:
        if mode != "nearest" and dtype not in (F.float32, F.float64):
            X = X.to(F.float64 if mode == "cubic" and dtype.itemsize > 2 else F.float32)
        for axis in changed:
            X = _resize_axis(F, X, axis, method, copied)
        if mode == "cubic" and not dtype.is_floating_point:
            X = whole_pixels.saturated(F, X, dtype)
    if crop:
        X = _extrapolate(F, X, changed, extrapolation_value)
    return X.to(dtype) if X.dtype != dtype else X


resize_13 = revision(resize, 13, without=["antialias", "axes", "keep_aspect_ratio_policy"])
# An empty tensor stands for an input that is not given.
revision(resize_13, 11, required=["roi", "scales"])


@op(
    "Resize",
    10,
    static=["scales"],
    results=lambda F, X, scales, **_: _results_of_resize(F, X, None, scales),
    traits=["keeps_rank"],
)
def resize_10(F: Any, X: Any, scales: Sequence[Any], *, mode: str = "nearest") -> Any:
    """Coordinates are index / scale; the nearest element is the ceiling when shrinking, the floor when growing.

    The standard leaves the rounding open; this is ONNX Runtime's.
    """
    mode = "linear" if mode == "bilinear" else mode
    return resize(F, X, None, scales, coordinate_transformation_mode="asymmetric", mode=mode, nearest_mode="truncated")


upsample = revision(resize_10, 9, operator="Upsample")
revision(upsample, 7, as_attributes=["scales"])


@op("Upsample", 1, traits=["keeps_rank"])
def upsample_1(F: Any, X: Any, *, height_scale: float, mode: str = "nearest", width_scale: float) -> Any:
    return upsample(F, X, [1.0, 1.0, height_scale, width_scale], mode=mode)
