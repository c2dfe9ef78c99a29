"""Floats that are computed from sizes, rounded as IEEE 754 says: when they are exact, and what their whole parts are.

Files compute sizes in float32 on their way: `floor(0.5 * n)`, `ceil(n / 3)`. An integer expression may take the place
of such a detour only where it is proven to give the same integer:

- An integer below `2 ** digits` is exact, and so is such an integer divided by a power of two.
- Let `a` and `b > 0` be integers with `|a| + b < 2 ** digits`. The quotient rounded to nearest has the floor and the
  ceiling of the exact one: between `a / b` and the next integer that it does not reach lies at least `1 / b`, more than
  the rounding error `|a / b| * 2 ** -digits`.
- `floor(n * factor)` for another factor is compared with `n * a // b` for every `n` up to a limit.
"""

from __future__ import annotations

import functools

import numpy as np

from onnx2nn.sizes.conditions import Truth, conjunction, less
from onnx2nn.sizes.expression import Number, add
from onnx2nn.sizes.selection import absolute

DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""The binary digits of a float's significand, by the name of its type."""

_LIMIT = 1 << 16
_LARGEST_DIVISOR = 1 << 12


def is_exact(number: Number, digits: int) -> Truth:
    """Returns the condition under which an integer is exact in a float of so many binary digits."""
    return less(absolute(number), 1 << digits)


def keeps_whole_part(numerator: Number, denominator: Number, digits: int) -> Truth:
    """Returns a condition under which the floor and the ceiling of a rounded quotient are those of the exact one."""
    return less(add(absolute(numerator), denominator), 1 << digits)


def is_power_of_two(number: Number) -> bool:
    """Returns whether a number is a known power of two."""
    return isinstance(number, int) and number > 0 and number & (number - 1) == 0


@functools.lru_cache(maxsize=1024)
def whole_part(factor: float, dtype: str, up: bool) -> tuple[int, int, int] | None:
    """Returns `a`, `b` and a limit: the rounded product of an integer `n` and `factor` has the whole part `n * a // b`.

    It is compared for every `n` from 0 up to the limit; None where no such fraction is found.

    Args:
        factor: the factor, positive, a value of the type.
        dtype: the float type.
        up: whether the whole part is the ceiling, `-(-n * a // b)`, instead of the floor.
    """
    if dtype not in ("float32", "float64") or not 0 < factor < 1 << 16:
        return None
    n = np.arange(_LIMIT + 1)
    product = n.astype(dtype) * np.dtype(dtype).type(factor)
    wanted = (np.ceil if up else np.floor)(product).astype(np.int64)
    from fractions import Fraction  # few models need it, and its import takes as long as that of all sizes

    exact = Fraction(factor)
    for largest in (10, 100, 1000, _LARGEST_DIVISOR):
        near = exact.limit_denominator(largest)
        a, b = near.numerator, near.denominator
        found = -(-n * a // b) if up else n * a // b
        if a and np.array_equal(found, wanted):
            return a, b, _LIMIT
    return None


def within(number: Number, limit: int) -> Truth:
    """Returns the condition that a number lies between 0 and `limit`."""
    return conjunction((less(-1, number), less(number, limit + 1)))
