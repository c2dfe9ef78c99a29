"""What the rules of layers, products and reductions share: common dtypes, axes, settings of windows, required sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from onnx2nn.fx.shape_rules.rule import Sizes
from onnx2nn.fx.spec import Shape, Spec
from onnx2nn.sizes.conditions import disjunction, equal, less, unequal
from onnx2nn.sizes.expression import Number, Size
from onnx2nn.sizes.selection import broadcast


def is_spec(*values: Any) -> bool:
    """Returns whether all values are specs of known shape and dtype."""
    return all(isinstance(v, Spec) and v.shape is not None and v.dtype is not None for v in values)


def common_float(*specs: Spec | None) -> torch.dtype | None:
    """Returns the floating dtype that all given specs have, None where they have different or other ones."""
    dtypes = {spec.dtype for spec in specs if spec is not None}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return dtype if dtype is not None and dtype.is_floating_point else None


def is_number(value: Any) -> bool:
    """Returns whether a value is an int or a size; bools are none."""
    return isinstance(value, Size) or type(value) is int


def per_axis(value: Any, count: int) -> tuple[Number, ...] | None:
    """Returns a setting of windows as one number for each axis, None where it is no such setting."""
    if is_number(value):
        return (value,) * count
    if not isinstance(value, (list, tuple)) or not all(map(is_number, value)):
        return None
    if len(value) == 1:
        return tuple(value) * count
    return tuple(value) if len(value) == count else None


def known_per_axis(value: Any, count: int) -> tuple[int, ...] | None:
    """Returns a setting of windows as one int for each axis, None where it is no such setting or not known."""
    numbers = per_axis(value, count)
    known = tuple(number for number in numbers or () if isinstance(number, int))
    return known if len(known) == count else None


def axis_of(dim: Any, rank: int) -> int | None:
    """Returns the axis that counts from 0, None where the tensor has no such axis; a scalar has axis 0."""
    if type(dim) is not int or not -max(rank, 1) <= dim < max(rank, 1):
        return None
    return dim % max(rank, 1)


def axes_of(dim: Any, rank: int) -> list[int] | None:
    """Returns axes that count from 0, all of them for None and for an empty list; None where one is not valid."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    axes = [axis_of(item, rank) for item in (dim if isinstance(dim, (list, tuple)) else [dim])]
    found = [axis for axis in axes if axis is not None]
    return found if len(set(found)) == len(axes) else None


def reduced(shape: Shape, axes: Iterable[int], keepdim: bool) -> Shape:
    """Returns the shape without some axes, or with 1 in their place."""
    gone = set(axes)
    if keepdim:
        return tuple(1 if axis in gone else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def replaced_at(shape: Shape, axis: int, size: Number) -> Shape:
    """Returns the shape with another size at one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :]) if shape else shape


def positive(sizes: Sizes, numbers: Iterable[Number], reason: str) -> None:
    """Requires that no number is below 1."""
    for number in numbers:
        sizes.require(less(0, number), reason)


def equal_shapes(sizes: Sizes, a: Sequence[Number], b: Sequence[Number], reason: str) -> Shape:
    """Requires two shapes of one rank to be equal; returns the one of which more is known."""
    return tuple(sizes.equal(m, n, reason) for m, n in zip(a, b, strict=True))


def broadcast_dimensions(sizes: Sizes, a: Sequence[Number], b: Sequence[Number], reason: str) -> Shape:
    """Requires two shapes to be broadcastable; returns the common shape."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
    return tuple(_common(sizes, m, n, reason) for m, n in zip(a, b, strict=True))


def _common(sizes: Sizes, m: Number, n: Number, reason: str) -> Number:
    sizes.require(disjunction([equal(m, n), equal(m, 1), equal(n, 1)]), reason)
    if sizes.decide(equal(m, n)):
        return m if isinstance(m, int) else n
    for size, other in ((m, n), (n, m)):
        if sizes.decide(equal(size, 1)):
            return other
        if sizes.decide(unequal(size, 1)):
            return size
    return broadcast(m, n)
