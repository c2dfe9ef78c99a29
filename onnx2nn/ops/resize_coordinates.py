"""Coordinates of Resize: where an output element lies in the input, in float32 as ONNX Runtime rounds it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.shape import demand

TRANSFORMATIONS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)


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


CORNERS_OF_OUTPUT = "align_corners, of the output's whole size"


_TIE = 1e-6
"""A float32 coordinate no further from the middle of two elements than this counts as the middle, as in ONNX Runtime
from 1.27 on: the rounding of index / scale does not decide."""


def coordinates(F: Any, axis: Axis, transformation: str) -> Any:
    """Returns the input coordinate of each output element, float32."""
    if transformation == "half_pixel_symmetric":
        return _symmetric_coordinates(F, axis)
    return coordinates_of(F, F.arange(axis.output, dtype=F.float32), axis, transformation)


def coordinates_of(F: Any, x: Any, axis: Axis, transformation: str) -> Any:
    """Returns the input coordinates of the output indices `x`, float32.

    Every step is rounded to float32, in ONNX Runtime's order. A Python number beside a float32 tensor is rounded to
    float32 first. It may be the product or the quotient of two float32 numbers: as float64 has more than twice their
    digits, rounding twice gives what rounding once gives. `F` may be numpy.
    """
    if transformation == "half_pixel":
        return (x + 0.5) / axis.scale - 0.5
    if transformation == "pytorch_half_pixel":
        return _unless_alone(F, axis, (x + 0.5) / axis.scale - 0.5, 0.0)
    if transformation in ("align_corners", CORNERS_OF_OUTPUT):
        partly = transformation == "align_corners" and axis.given and not is_whole(axis)
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
        start, end, last = single(axis.start), single(axis.end), axis.size - 1
        alone = 0.5 * single(start + end) * last
        return _unless_alone(F, axis, x * single(end - start) * last / _steps(axis.output) + start * last, alone)
    raise OperatorError(f"coordinate_transformation_mode={transformation!r} is none of {', '.join(TRANSFORMATIONS)}.")


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


def single(number: Any) -> Any:
    """Returns a number rounded to float32."""
    return float(np.float32(number)) if isinstance(number, (int, float)) else number


def rounded(F: Any, x: Any, axis: Axis, mode: str) -> Any:
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


def is_whole(axis: Axis) -> bool:
    """Whether size times scale is known to be a whole number."""
    return axis.scale == int(axis.scale) or (axis.static and single(axis.size * axis.scale) == axis.output)
