"""Sizes of which one is computed of the other by a factor, a summand and an exact division."""

from __future__ import annotations

import math

from onnx2nn.sizes.expression import Number, Terms, terms_of


def slope(size: Number) -> Terms:
    """Returns what a size has beside a constant, without a common factor; sizes with the same one differ linearly.

    The first coefficient is positive.
    """
    terms = [(monomial, coefficient) for monomial, coefficient in terms_of(size).items() if monomial]
    common = math.gcd(*(coefficient for _, coefficient in terms))
    common = -common if terms and terms[0][1] < 0 else common
    return tuple((monomial, coefficient // common) for monomial, coefficient in terms)


def linear(size: Number, of: Number) -> tuple[int, int, int]:
    """Returns `a`, `b`, `c` such that `size == (a * of + b) // c` without a remainder, of sizes with the same slope."""
    one, other = terms_of(size), terms_of(of)
    monomial = next(filter(None, one))
    common = math.gcd(one[monomial], other[monomial])
    a, c = one[monomial] // common, other[monomial] // common
    a, c = (a, c) if c > 0 else (-a, -c)
    return a, c * one.get((), 0) - a * other.get((), 0), c
