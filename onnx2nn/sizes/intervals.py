"""Interval arithmetic: the least and the greatest value of an integer, None for no bound."""

from __future__ import annotations

import math

Bound = int | None
Interval = tuple[Bound, Bound]

_LARGEST_BOUND = 1 << 2048
"""From this magnitude on, a number has no bound: a file that squares sizes again and again would fill the memory."""


def of_int(number: int) -> Interval:
    """Returns the interval of one number."""
    return number, number


def scaled(interval: Interval, factor: int) -> Interval:
    """Returns the interval of a multiple."""
    if not factor:
        return 0, 0
    least, most = interval if factor > 0 else reversed(interval)
    return None if least is None else least * factor, None if most is None else most * factor


def times(one: Interval, other: Interval) -> Interval:
    """Returns the interval of a product."""
    (least, most), (other_least, other_most) = one, other
    if least is not None and other_least is not None and least >= 0 and other_least >= 0:  # the usual case
        product = None if most is None or other_most is None else most * other_most
        return least * other_least, None if product is None or product > _LARGEST_BOUND else product
    lows: list[float] = []
    for a in (-math.inf if one[0] is None else one[0], math.inf if one[1] is None else one[1]):
        for b in (-math.inf if other[0] is None else other[0], math.inf if other[1] is None else other[1]):
            if isinstance(a, float) or isinstance(b, float):  # an infinite one; the other may be too large for a float
                lows.append(0 if a == 0 or b == 0 else math.inf if (a > 0) == (b > 0) else -math.inf)
            else:
                lows.append(a * b)
    low, high = min(lows), max(lows)
    return None if low < -_LARGEST_BOUND else int(low), None if high > _LARGEST_BOUND else int(high)
