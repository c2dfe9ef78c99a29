"""Images: resizing, sampling, decoding, and the selection of boxes."""

from __future__ import annotations

import functools
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onnx2nn.errors import OperatorError, first_line
from onnx2nn.ground.extras import require
from onnx2nn.ground.limits import Limits
from onnx2nn.ops import whole_pixels
from onnx2nn.ops.axes import distinct
from onnx2nn.ops.shape import demand, demand_equal, partly_known
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import NeedsValues


@dataclass(frozen=True)
class Axis:
    """How one axis is resized.

    Attributes:
        index: the axis.
        size, output: its size before and after, an int or a dynamic size.
        factor: the scale that the node gives, or the policy on the aspect ratio; None where it is output / size.
        start, end: the region of interest along the axis, as fractions.
    """

    index: int
    size: Any
    output: Any
    factor: Any
    start: float
    end: float

    @property
    def given(self) -> bool:
        """Whether the scale is not computed from the sizes."""
        return self.factor is not None

    @functools.cached_property
    def scale(self) -> Any:
        """The factor between the sizes; a quotient of dynamic sizes limits them, so that it is computed at its use."""
        if self.factor is not None:
            return self.factor
        demand(self.size > 0, "at least one element along a resized axis")
        return self.output / self.size

    @property
    def static(self) -> bool:
        """Whether both sizes are known at import."""
        return isinstance(self.size, int) and isinstance(self.output, int)

    @property
    def kept(self) -> bool:
        """Whether every coordinate transformation without a region of interest leaves the axis unchanged."""
        if not self.given:
            return (self.size == self.output) is True
        return isinstance(self.scale, (int, float)) and self.scale == 1


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
    return float(str(np.float32(value))) if isinstance(value, float) else value


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
        ratios = [_single(output / size) for output, size in zip(given, inputs, strict=True)]
        factors = [min(ratios) if policy == "not_larger" else max(ratios)] * len(indices)
        outputs = [math.floor(_single(size * factor) + 0.5) for size, factor in zip(inputs, factors, strict=True)]
    else:
        raise OperatorError(f"keep_aspect_ratio_policy={policy!r} is none of stretch, not_larger, not_smaller.")
    columns = zip(indices, inputs, outputs, factors, roi[: len(indices)], roi[len(indices) :], strict=True)
    return [Axis(*column) for column in columns]


_CORNERS_OF_OUTPUT = "align_corners, of the output's whole size"


_TIE = 1e-6
"""A float32 coordinate no further from the middle of two elements than this counts as the middle, as in ONNX Runtime
from 1.27 on: the rounding of index / scale does not decide."""


def _coordinates(F: Any, axis: Axis, transformation: str) -> Any:
    """Returns the input coordinate of each output element, float32."""
    if transformation == "half_pixel_symmetric":
        return _symmetric_coordinates(F, axis)
    return _coordinates_of(F, F.arange(axis.output, dtype=F.float32), axis, transformation)


def _coordinates_of(F: Any, x: Any, axis: Axis, transformation: str) -> Any:
    """Returns the input coordinates of the output indices `x`, float32.

    Every step is rounded to float32, in ONNX Runtime's order. A Python number beside a float32 tensor is rounded to
    float32 first. It may be the product or the quotient of two float32 numbers: as float64 has more than twice their
    digits, rounding twice gives what rounding once gives. `F` may be numpy.
    """
    if transformation == "half_pixel":
        return (x + 0.5) / axis.scale - 0.5
    if transformation == "pytorch_half_pixel":
        return _unless_alone(F, axis, (x + 0.5) / axis.scale - 0.5, 0.0)
    if transformation in ("align_corners", _CORNERS_OF_OUTPUT):
        partly = transformation == "align_corners" and axis.given and not _is_whole(axis)
        length = axis.size * axis.scale if partly else axis.output
        return _unless_alone(F, axis, x * (axis.size - 1) / _steps(length), 0.0)
    if transformation == "asymmetric":
        return x / axis.scale
    if transformation == "tf_half_pixel_for_nn":
        moved = (x + 0.5) / axis.scale
        if axis.given or axis.static:
            return moved
        kept = F.zeros(1, dtype=F.float32) + axis.output == axis.size  # a scale of 1 moves nothing
        return F.where(kept, x, moved)
    if transformation == "tf_crop_and_resize":
        start, end, last = _single(axis.start), _single(axis.end), axis.size - 1
        alone = 0.5 * _single(start + end) * last
        return _unless_alone(F, axis, x * _single(end - start) * last / _steps(axis.output) + start * last, alone)
    raise OperatorError(f"coordinate_transformation_mode={transformation!r} is none of {', '.join(_TRANSFORMATIONS)}.")


def _steps(length: Any) -> Any:
    """Returns the steps from the first to the last element; 1 where there is one element only, if that is known."""
    return (length - 1 or 1) if isinstance(length, (int, float)) else length - 1


def _unless_alone(F: Any, axis: Axis, x: Any, alone: Any) -> Any:
    """Returns the coordinates `x`, or `alone` for an output of one element."""
    if (axis.output > 1) is True:
        return x
    if isinstance(axis.output, int):
        return F.zeros_like(x) + alone
    return F.where(F.zeros(1, dtype=F.float32) + axis.output == 1, alone, x)


def _symmetric_coordinates(F: Any, axis: Axis) -> Any:
    """Returns the coordinates of half_pixel_symmetric: half_pixel's, shifted so that both images have the same centre.

    As in ONNX Runtime the shift is float32, the sum float64, and the result rounded to float32.
    """
    one = F.ones(1, dtype=F.float32)
    size, output = one * axis.size, one * axis.output
    scale = one * axis.scale if axis.given else output / size
    shift = size / 2 * (1 - output / (scale * size))
    x = F.arange(axis.output, dtype=F.float64)
    return (shift.to(F.float64) + (x + 0.5) / scale.to(F.float64) - 0.5).to(F.float32)


def _single(number: Any) -> Any:
    """Returns a number rounded to float32."""
    return float(np.float32(number)) if isinstance(number, (int, float)) else number


def _nearest(F: Any, x: Any, axis: Axis, mode: str) -> Any:
    """Returns the index of the input element nearest to each coordinate."""
    return _rounded(F, x, axis, mode).to(F.int64).clamp(0, axis.size - 1)


def _rounded(F: Any, x: Any, axis: Axis, mode: str) -> Any:
    """Returns float32 coordinates rounded to whole numbers; `F` may be numpy."""
    if mode in ("round_prefer_floor", "round_prefer_ceil"):
        floor = F.floor(x)
        beyond = x - floor - 0.5  # exact
        return F.where(beyond > _TIE if mode == "round_prefer_floor" else beyond >= -_TIE, F.ceil(x), floor)
    if mode == "floor":
        return F.floor(x)
    if mode == "ceil":
        return F.ceil(x)
    if mode == "truncated":
        down = isinstance(axis.scale, (int, float)) and axis.scale < 1
        return F.ceil(x) if down else F.floor(x)
    raise OperatorError(f"nearest_mode={mode!r} is none of the standard's modes.")


def _taps(F: Any, x: Any, axis: Axis, method: Method) -> tuple[Any, Any]:
    """Returns the input indices and weights of each output element's terms, both (taps, outputs)."""
    reach = 1 if method.mode == "linear" else 2
    scale = min(axis.scale, 1.0) if method.antialias else 1.0
    if not isinstance(scale, (int, float)):
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
    """Returns `_coordinates`; with `copied`, True in a tensor, those at which the elements stay."""
    x = _coordinates(F, axis, transformation)
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
        x = _coordinates(F, axis, "tf_crop_and_resize")
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
    whole = all(not axis.given or _is_whole(axis) for axis in spatial)
    exact = {
        "align_corners": whole,
        _CORNERS_OF_OUTPUT: True,
        "half_pixel": True,
        "half_pixel_symmetric": whole,
        "pytorch_half_pixel": method.transformation == "pytorch_half_pixel" and all(a.output > 1 for a in spatial),
    }
    if not exact.get(method.transformation, False):
        return None
    align = method.transformation in ("align_corners", _CORNERS_OF_OUTPUT)
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


def _is_whole(axis: Axis) -> bool:
    """Whether size times scale is known to be a whole number."""
    return axis.scale == int(axis.scale) or (axis.static and _single(axis.size * axis.scale) == axis.output)


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
    ours = _rounded(np, _coordinates_of(np, x, axis, transformation), axis, nearest)
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
    F: Any, X: Any, roi: Any = None, scales: Any = None, sizes: Any = None, *, axes: Any = None, **_: Any
) -> Any:
    given = sizes if sizes is not None and not (isinstance(sizes, list) and not sizes) else scales
    result = [*X.shape]
    for axis, number in zip(axes or range(X.ndim), partly_known(given), strict=True):
        if given is sizes and isinstance(number, int):
            result[axis] = number
        elif not (given is scales and isinstance(number, (int, float)) and number == 1):
            result[axis] = f"size_{axis % X.ndim}"
    return [(result, X.dtype)]


_TRANSFORMATIONS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)


@op(
    "Resize",
    18,
    choices={
        "coordinate_transformation_mode": _TRANSFORMATIONS,
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
        _CORNERS_OF_OUTPUT if of_output else coordinate_transformation_mode,
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
