"""Bounds of sums of products."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import reduce
from typing import TYPE_CHECKING

from onnx2nn.sizes.intervals import Bound, Interval, of_int, scaled, times

if TYPE_CHECKING:  # which imports this module
    from onnx2nn.sizes.expression import Atom, Monomial

_MOST_REMAINDERS = 4
"""The most remainders of a sum that are looked for."""


def interval_of(terms: Collection[tuple[Monomial, int]], of_atom: Callable[[Atom], Interval]) -> Interval:
    """Returns bounds of a sum of products, from those of the atoms.

    Law: `c * (p // c)` is `p - r` with `0 <= r < c`. It counts where `p` shares products with the sum that cancel: the
    bounds of `n - 3 * (n // 3)` are 0 and 2.

    Args:
        terms: products and their coefficients.
        of_atom: returns the bounds of an atom.
    """
    least, most = _plain(terms, of_atom)
    found = _remainder(terms) if len(terms) > 1 else None
    if found is None:
        return least, most
    left, low, high, taken = dict(terms), 0, 0, 0  # what is left of the sum, and the bounds of the remainders beside it
    while found is not None and taken < _MOST_REMAINDERS:
        atom, count = found
        _, dividend, divisor = atom.key
        del left[(atom,)]
        for monomial, number in dividend.terms:
            left[monomial] = left.get(monomial, 0) + count * number
        if count > 0:
            low -= count * (divisor - 1)
        else:
            high -= count * (divisor - 1)
        found, taken = _remainder(left.items()), taken + 1
    a, b = _plain([term for term in left.items() if term[1]], of_atom)
    least = a + low if a is not None and (least is None or a + low > least) else least
    most = b + high if b is not None and (most is None or b + high < most) else most
    return least, most


def _plain(terms: Iterable[tuple[Monomial, int]], of_atom: Callable[[Atom], Interval]) -> Interval:
    """Returns the sum of the products' own bounds."""
    least: Bound = 0
    most: Bound = 0
    for monomial, coefficient in terms:
        if len(monomial) == 1:
            a, b = scaled(of_atom(monomial[0]), coefficient)
        else:
            a, b = reduce(times, map(of_atom, monomial), of_int(coefficient))
        if len(monomial) > 1 and len(monomial) % 2 == 0 and len(set(monomial)) == 1:  # an even power
            a, b = (0 if a is None or a < 0 else a, b) if coefficient > 0 else (a, 0 if b is None or b > 0 else b)
        least = None if least is None or a is None else least + a
        most = None if most is None or b is None else most + b
    return least, most


def _remainder(terms: Collection[tuple[Monomial, int]]) -> tuple[Atom, int] | None:
    """Returns the youngest quotient whose multiple of its divisor cancels products of the sum, and how many times."""
    found: tuple[Atom, int] | None = None
    factors: dict[Monomial, int] | None = None
    for monomial, coefficient in terms:
        if len(monomial) != 1 or monomial[0].key[0] != "//":
            continue
        (atom,) = monomial
        _, dividend, divisor = atom.key
        if not isinstance(divisor, int) or coefficient % divisor or isinstance(dividend, int) or not coefficient:
            continue
        factors = dict(terms) if factors is None else factors
        if (found is None or found[0].number < atom.number) and any(
            part and factors.get(part, 0) * number * coefficient < 0 for part, number in dividend.terms
        ):
            found = atom, coefficient // divisor
    return found
