"""Shape rules of images that are resized or sampled."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import common_float, is_number, per_axis, positive
from onnx2nn.fx.shape_rules.rule import RULES, Result, Sizes, rule
from onnx2nn.fx.spec import Shape, Spec
from onnx2nn.sizes.expression import MAX_DIMENSION, Number

_MODES = {
    3: ("nearest", "nearest-exact", "linear"),
    4: ("nearest", "nearest-exact", "bilinear", "bicubic"),
    5: ("nearest", "nearest-exact", "trilinear"),
}
_MANTISSA = 1 << 53
"""Products below it are exact in float64."""


def _scaled(size: Number, factor: Any) -> Number | None:
    """Returns `int(size * factor)`, computed in float64; None where rounding decides over a size that is not known."""
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 0 < factor < _MANTISSA:
        return None
    if isinstance(size, int):
        return int(float(size) * factor)
    exact = Fraction(factor)
    if exact.numerator * MAX_DIMENSION >= _MANTISSA:
        return None
    return size * exact.numerator // exact.denominator


def _scaled_sizes(spatial: Shape, factors: Any) -> Shape | None:
    given = factors if isinstance(factors, (list, tuple)) else [factors] * len(spatial)
    if len(given) != len(spatial):
        return None
    outputs = [_scaled(size, factor) for size, factor in zip(spatial, given, strict=True)]
    found = tuple(output for output in outputs if output is not None)
    return found if len(found) == len(outputs) else None


@rule(F.interpolate)
def _interpolate(
    sizes: Sizes,
    input: Spec,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Result:
    x, dtype = input.shape, common_float(input)
    if x is None or dtype is None or len(x) not in _MODES or (size is None) == (scale_factor is None):
        return None
    if antialias and mode not in ("bilinear", "bicubic"):
        return None
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        return None
    spatial = x[2:]
    if size is None:
        outputs = _scaled_sizes(spatial, scale_factor)
    elif isinstance(size, (list, tuple)) and len(size) != len(spatial):
        return None
    else:
        outputs = per_axis(size, len(spatial))
    if outputs is None:
        return None
    if mode == "area":
        pools = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
        return RULES[pools[len(spatial) - 1]](sizes, input, outputs)
    if mode not in _MODES[len(x)]:
        return None
    positive(sizes, x[1:], "an image that is not empty")
    positive(sizes, outputs, "a resized image that is not empty")
    return Spec((*x[:2], *outputs), dtype)


@rule(F.grid_sample)
def _grid_sample(
    sizes: Sizes,
    input: Spec,
    grid: Spec,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Result:
    x, points, dtype = input.shape, grid.shape, common_float(input, grid)
    if x is None or points is None or dtype is None or len(x) not in (4, 5) or len(points) != len(x):
        return None
    if mode not in ("bilinear", "nearest", "bicubic") or padding_mode not in ("zeros", "border", "reflection"):
        return None
    if mode == "bicubic" and len(x) == 5:
        return None
    batch = sizes.equal(x[0], points[0], "the batch of an image and its grid")
    sizes.equal(points[-1], len(x) - 2, "the coordinates of a grid")
    positive(sizes, x[2:], "an image that is not empty")
    return Spec((batch, x[1], *points[1:-1]), dtype)


@rule(F.affine_grid)
def _affine_grid(sizes: Sizes, theta: Spec, size: Any, align_corners: bool | None = None) -> Result:
    matrices, dtype = theta.shape, common_float(theta)
    if matrices is None or dtype is None or len(matrices) != 3 or not isinstance(size, (list, tuple)):
        return None
    if len(size) not in (4, 5) or not all(map(is_number, size)):
        return None
    axes = len(size) - 2
    batch = sizes.equal(matrices[0], size[0], "the batch of affine matrices")
    sizes.equal(matrices[1], axes, "the rows of an affine matrix")
    sizes.equal(matrices[2], axes + 1, "the columns of an affine matrix")
    positive(sizes, size, "a grid that is not empty")
    return Spec((batch, *size[2:], axes), dtype)
