"""Resize of integers: sums that are rounded and saturated, with antialias after each axis, as in Pillow and torch."""

from __future__ import annotations

from typing import Any

import numpy as np

_UNIT = 1 << 22
"""Weights of 8-bit integers are multiples of its inverse."""


def resized(F: Any, X: Any, axis: int, x: Any, scale: float, cubic: float | None, excluded: bool, dtype: Any) -> Any:
    """Returns integers, resized along one axis and rounded.

    The operations and their order are ONNX Runtime's, as a last bit decides about halves. Sums of 8-bit integers are
    exact.

    Args:
        F: torch, or another namespace.
        X: of an integer type.
        axis: which one.
        x: the input coordinate of each output element, float32.
        scale: of output to input.
        cubic: the coefficient of Keys' kernel, or None for the linear one.
        excluded: whether the elements outside of the input have no weight; otherwise they equal the border's.
        dtype: the type of X.
    """
    eight = dtype.itemsize == 1
    behind: list[int] = [1] * (X.ndim - 1 - axis)
    total: Any = None
    X = X.to(F.float64 if eight else F.float32)
    for index, weight in _taps(F, x, X.shape[axis], scale, cubic, excluded):
        if eight:
            weight = _away_from_zero(F, weight * _UNIT).to(F.float64) / _UNIT
        part = X.index_select(axis, index) * weight.reshape([-1, *behind])
        total = part if total is None else total + part
    return saturated(F, F.floor(total + 0.5) if eight else total, dtype)


def saturated(F: Any, x: Any, dtype: Any) -> Any:
    """Returns floats as integers, halves rounded away from 0, the type's limits instead of what is beyond them."""
    limits = F.iinfo(dtype)
    return _away_from_zero(F, x).clamp(limits.min, limits.max).to(dtype)


def _away_from_zero(F: Any, x: Any) -> Any:
    """Returns the next whole numbers, of two the one away from 0."""
    return F.sign(x) * F.floor(x.abs() + 0.5)


def _kernel(F: Any, distance: Any, cubic: float | None) -> Any:
    """Returns the weights at distances, not yet divided by their sum."""
    d = distance.abs()
    if cubic is None:
        return (1 - d).clamp(min=0)
    near = ((cubic + 2) * d - (cubic + 3)) * d * d + 1
    return F.where(d < 1, near, F.where(d < 2, (((d - 5) * d + 8) * d - 4) * cubic, 0.0))


def _taps(F: Any, x: Any, size: Any, scale: float, cubic: float | None, excluded: bool) -> list[tuple[Any, Any]]:
    """Returns the input index and the weight of each term, both for each output element."""
    grown = max(np.float32(1) / np.float32(scale), np.float32(1))
    support, inverse = float(grown * np.float32(1 if cubic is None else 2)), float(np.float32(1) / grown)
    centre = x + 0.5
    first, end = F.floor(centre - support + 0.5), F.floor(centre + support + 0.5)
    taps, total = [], F.zeros_like(x)
    for step in range(2 * int(support) + 3):
        index = first + step
        inside = (index >= 0) & (index < size)
        used = (index < end) & inside if excluded else index < end
        weight = F.where(used, _kernel(F, (index - centre + 0.5) * inverse, cubic), 0.0)
        total = total + weight
        taps.append((index.clamp(0, size - 1).to(F.int64), weight, inside))
    matrix = F.zeros([size, x.shape[0]], dtype=F.float32)
    for within in (True, False):  # first the elements of the input, to which those outside are added
        for index, weight, inside in taps:
            part = F.where(inside if within else ~inside, weight, 0.0)
            matrix = matrix.scatter_add(0, index.unsqueeze(0), part.unsqueeze(0))
    matrix = matrix * (1.0 / F.where(total == 0, 1.0, total))
    return [(index, F.where(inside, matrix.gather(0, index.unsqueeze(0)).squeeze(0), 0.0)) for index, _, inside in taps]
