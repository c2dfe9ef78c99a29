"""Axes of tensors as the standard counts them: from the front, or from the end where negative."""

from __future__ import annotations

from collections.abc import Iterable

from onnx2nn.errors import OperatorError

_MOST = 64
"""The most dimensions of a tensor: torch and numpy take no more."""


def from_front(axis: int, rank: int = _MOST) -> int:
    """Returns an axis counted from the front.

    Args:
        axis: between `-rank` and `rank - 1`.
        rank: of the tensor; without it the highest possible one.

    Raises:
        OperatorError: the tensor has no such axis.
    """
    if not -rank <= axis < rank:
        raise OperatorError(f"axis {axis} is none of a tensor of {rank} dimensions.")
    return axis % rank


def once(axes: Iterable[int], rank: int) -> list[int]:
    """Returns axes counted from the front, each of them once, in their order: as reductions and Squeeze take them.

    Raises:
        OperatorError: the tensor has no such axis.
    """
    return list(dict.fromkeys(from_front(axis, rank) for axis in axes))


def distinct(axes: Iterable[int], rank: int = _MOST) -> list[int]:
    """Returns axes counted from the front, of which each has something of its own.

    Raises:
        OperatorError: the tensor has no such axis, or an axis is named twice, which the standard leaves undefined.
    """
    axes = [*axes]
    found = [from_front(axis, rank) for axis in axes]
    if len(set(found)) < len(found):
        raise OperatorError(f"axes={axes} names an axis twice. Name each of them once.")
    return found
