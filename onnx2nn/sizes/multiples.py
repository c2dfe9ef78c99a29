"""Which sizes an equation shows to be multiples of numbers: `h * w == 16 * (h // 4) * (w // 4)` says so of both."""

from __future__ import annotations

import math
from collections.abc import Callable

from onnx2nn.sizes.conditions import Condition
from onnx2nn.sizes.expression import Atom, Monomial, Number, Quotient, of_terms
from onnx2nn.sizes.intervals import Interval


def divisors_by(condition: Condition, bounds: Callable[[Number], Interval]) -> dict[Atom, int]:
    """Returns atoms that are multiples where the condition holds, with the numbers that divide them.

    Law: let `n_1 * ... * n_k == c_1 * (n_1 // c_1) * ... * c_k * (n_k // c_k)` with all `c_i > 0` and, where `k > 1`,
    all `n_i >= 1`. Then each `c_i` divides `n_i`. Proof: `0 <= c_i * (n_i // c_i) <= n_i` for each `i`. If one of them
    were less than `n_i`, then the product on the right, which is at most this one times all other `n_j >= 1`, would be
    less than the product on the left. Factors that both sides share cancel where they are not 0.

    Args:
        condition: what holds.
        bounds: returns the least and greatest value of a number.
    """
    if condition.kind != "==" or len(condition.operands[0].terms) != 2:
        return {}
    for one, other in (condition.operands[0].terms, condition.operands[0].terms[::-1]):
        found = _divisors(one, other, bounds)
        if found is not None:
            return found
    return {}


def _divisors(
    left: tuple[Monomial, int], right: tuple[Monomial, int], bounds: Callable[[Number], Interval]
) -> dict[Atom, int] | None:
    """Returns the divisors of the factors on the left, None where the right has another form than the law's."""
    (wholes, factor), (quotients, total) = left, right
    unmatched, found, product = list(wholes), dict[Atom, int](), -factor
    for atom in quotients:
        whole, divisor = _parts(atom)
        if whole in unmatched:
            unmatched.remove(whole)
            found[whole] = math.lcm(divisor, found.get(whole, 1))
            product *= divisor
        elif atom in unmatched and _is_positive(atom, bounds):
            unmatched.remove(atom)
        else:
            return None
    several = len(wholes) > 1
    if unmatched or product != total or (several and not all(_is_positive(atom, bounds) for atom in found)):
        return None
    return found


def _parts(atom: Atom) -> tuple[Atom | None, int]:
    """Returns dividend and divisor of an atom divided by a positive int; no dividend for all others."""
    if isinstance(atom, Quotient):
        _, dividend, divisor = atom.key
        if isinstance(divisor, int) and divisor > 0 and not isinstance(dividend, int) and len(dividend.terms) == 1:
            ((monomial, factor),) = dividend.terms
            if factor == 1 and len(monomial) == 1:
                return monomial[0], divisor
    return None, 1


def _is_positive(atom: Atom, bounds: Callable[[Number], Interval]) -> bool:
    least = bounds(of_terms({(atom,): 1}))[0]
    return least is not None and least >= 1
