"""Shape rules of images that are resized or sampled: `interpolate`, `grid_sample`, `affine_grid`."""

from __future__ import annotations

from typing import Any

from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import common_float, numbers, per_axis, positive, shape_of
from onnx2nn.fx.shape_rules.pools import adaptive_pool
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.sizes.conditions import at_most
from onnx2nn.sizes.expression import MAX_DIMENSION, Number

_MODES = {
    3: ("nearest", "nearest-exact", "linear"),
    4: ("nearest", "nearest-exact", "bilinear", "bicubic"),
    5: ("nearest", "nearest-exact", "trilinear"),
}
_MANTISSA = 1 << 53
"""Products up to it are exact in float64."""

_LONGEST = 1 << 27
"""A length that no axis of an image exceeds; a guard may require that."""


def _scaled(sizes: Sizes, size: Number, factor: Any) -> Number:
    """Returns `int(size * factor)` in float64, as torch computes it; rounding must not decide over a size.

    A factor from a float32 is exact up to sizes far beyond those of images, which is required.
    """
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 0 < factor < _MANTISSA:
        raise Uncovered
    if isinstance(size, int):
        return int(float(size) * factor)
    numerator, denominator = factor.as_integer_ratio()
    limit = _MANTISSA // numerator
    if limit < _LONGEST:
        raise Uncovered
    if limit < MAX_DIMENSION:
        sizes.require(at_most(size, limit), "the size of an image, which its scaling does not round")
    return size * numerator // denominator


def _scaled_sizes(sizes: Sizes, spatial: Shape, factors: Any) -> list[Number]:
    given = factors if isinstance(factors, (list, tuple)) else [factors] * len(spatial)
    if len(given) != len(spatial):
        raise Uncovered
    return [_scaled(sizes, size, factor) for size, factor in zip(spatial, given, strict=True)]


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
    x, dtype = shape_of(input, *_MODES), common_float(input)
    if (size is None) == (scale_factor is None):
        raise Uncovered
    if antialias and mode not in ("bilinear", "bicubic"):
        raise Uncovered
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise Uncovered
    spatial = x[2:]
    if size is None:
        outputs = _scaled_sizes(sizes, spatial, scale_factor)
    elif isinstance(size, (list, tuple)) and len(size) != len(spatial):
        raise Uncovered
    else:
        outputs = per_axis(size, len(spatial))
    if mode == "area":
        return adaptive_pool(len(spatial), is_max=False)(sizes, input, outputs)
    if mode not in _MODES[len(x)]:
        raise Uncovered
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
    x, dtype = shape_of(input, 4, 5), common_float(input, grid)
    points = shape_of(grid, len(x))
    if mode not in ("bilinear", "nearest", "bicubic") or padding_mode not in ("zeros", "border", "reflection"):
        raise Uncovered
    if mode == "bicubic" and len(x) == 5:
        raise Uncovered
    batch = sizes.equal(x[0], points[0], "the batch of an image and its grid")
    sizes.equal(points[-1], len(x) - 2, "the coordinates of a grid")
    positive(sizes, x[2:], "an image that is not empty")
    return Spec((batch, x[1], *points[1:-1]), dtype)


@rule(F.affine_grid)
def _affine_grid(sizes: Sizes, theta: Spec, size: Any, align_corners: bool | None = None) -> Result:
    matrices, dtype, size = shape_of(theta, 3), common_float(theta), numbers(size)
    if len(size) not in (4, 5):
        raise Uncovered
    axes = len(size) - 2
    batch = sizes.equal(matrices[0], size[0], "the batch of affine matrices")
    sizes.equal(matrices[1], axes, "the rows of an affine matrix")
    sizes.equal(matrices[2], axes + 1, "the columns of an affine matrix")
    positive(sizes, size, "a grid that is not empty")
    return Spec((batch, *size[2:], axes), dtype)
