"""Axes of tensors as the standard counts them: from the front, or from the end where negative."""

from __future__ import annotations

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
