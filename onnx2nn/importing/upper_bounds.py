"""Upper bounds of what a call on known values can take, for the many calls that take next to nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

SMALL = 1 << 18
"""An upper bound of a call's elements and multiplications below which it is run without an estimate."""


def reach(shape: Iterable[int]) -> int:
    """Returns the elements of a tensor, or of one without elements those of a sum over it and of a sort's memory."""
    sizes = tuple(shape)
    return math.prod(sizes) or math.prod(size or 1 for size in sizes)


def bound_of_steps(values: Sequence[Any], attributes: Iterable[Any]) -> float:
    """Returns an upper bound as `upper_bound` does, for an operator that goes `step_by_step` over the first value.

    Law: a step multiplies its input and its state by each weight once, and a state has no more elements than the step's
    input has times a weight's. An attribute may be a number of layers.
    """
    first, *others = (reach(getattr(value, "shape", ())) for value in values)
    return float(first * sum(others) * math.prod(max(1, value) for value in attributes if isinstance(value, int)))


def upper_bound(values: Iterable[Any], depth: int = 2) -> float:
    """Returns an upper bound of the elements that a call on `values` can make, and of those that it multiplies."""
    bound = 1.0
    for value in values:
        kind = type(value)
        if kind is int or kind is float:
            bound *= 1 + (abs(value) if abs(value) >= 1 else 1 / abs(value) if value else 0)
        elif kind is list or kind is tuple:
            bound *= upper_bound(value, depth - 1) if depth and len(value) <= 64 else math.inf
        elif kind is ir.TypeAndShape:  # of Optional: its dimensions may have names
            continue
        elif (shape := getattr(value, "shape", None)) is not None:
            count = reach(shape)
            bound *= 1 + count
            if (
                count == 1
                and 0 not in shape
                and bound <= SMALL
                and hasattr(value, "item")
                and not getattr(value, "is_meta", False)
            ):
                number = value.item()  # it may be a number of elements
                bound *= 1 + abs(number) if isinstance(number, (int, float)) else 1
        if not bound <= SMALL:
            return math.inf
    return bound
