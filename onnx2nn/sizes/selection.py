"""Minima, maxima, choices and broadcasts of sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from onnx2nn.sizes.conditions import Condition, Truth, at_least_zero, is_not_zero
from onnx2nn.sizes.expression import (
    Atom,
    Broadcast,
    Extreme,
    Number,
    Size,
    add,
    bounds,
    divided,
    multiply,
    of_atom,
    of_terms,
    subtract,
    term_order,
    terms_of,
)
from onnx2nn.sizes.intervals import Bound

MOST_ALIKE = 24
"""The most numbers of a minimum or maximum that are compared with each other; with more it is one inside of another."""


def minimum(*numbers: Number) -> Number:
    """Returns the smallest number."""
    return _extreme("min", numbers)


def maximum(*numbers: Number) -> Number:
    """Returns the largest number."""
    return _extreme("max", numbers)


def absolute(a: Number) -> Number:
    """Returns the absolute value, `max(a, -a)`."""
    return maximum(a, multiply(a, -1))


def _extreme(kind: str, numbers: Iterable[Number]) -> Number:
    """Returns a minimum or maximum. Laws: it is associative, and `min(a + c, b + c) = min(a, b) + c`.

    Of a minimum of several numbers in itself and a constant, `min(min(a, b) + c, d) = min(a + c, b + c, d)`. Of
    `max(-a, -b)` and `-min(a, b)`, which are the same, it is the one whose factors are not negative on the whole.
    """
    sign = 1 if kind == "max" else -1
    items = dict[Number, None]()
    for item in numbers:
        constant = _constant(item)
        alone = subtract(item, constant)
        lead, factor = alone.terms[0] if isinstance(alone, Size) and len(alone.terms) == 1 else ((), 1)
        same = kind if factor == 1 else _OPPOSITE[kind]
        inner = len(lead) == 1 and isinstance(lead[0], Extreme) and lead[0].key[0] == same
        if abs(factor) == 1 and inner and len(items) + len(lead[0].key) <= MOST_ALIKE:
            items.update((add(multiply(part, factor), constant), None) for part in lead[0].key[1:])
        else:
            items[item] = None
    kept = list(items)
    for item in list(kept):  # one that another is never behind
        if any(other is not item and _ahead(other, item, sign) for other in kept):
            kept.remove(item)
    if len(kept) == 1:
        return kept[0]
    constant = max((_constant(item) for item in kept), default=0)
    if constant:
        kept = [subtract(item, constant) for item in kept]
    if sum(factor for item in kept for monomial, factor in terms_of(item).items() if monomial) < 0:
        opposite = _extreme(_OPPOSITE[kind], [multiply(item, -1) for item in kept])
        return add(multiply(opposite, -1), constant)
    kept.sort(key=_rank)
    intervals = [bounds(item) for item in kept]
    pick = max if kind == "max" else min
    strong, weak = (0, 1) if kind == "max" else (1, 0)
    ends: list[Bound] = [None, None]
    ends[strong] = pick((end for i in intervals if (end := i[strong]) is not None), default=None)
    ends[weak] = (
        None
        if any(i[weak] is None for i in intervals)
        else pick(end for i in intervals if (end := i[weak]) is not None)
    )
    atom_size = of_atom(Extreme, (kind, *kept), (ends[0], ends[1]), kept)
    return add(atom_size, constant) if constant else atom_size


_OPPOSITE = {"min": "max", "max": "min"}


def _constant(number: Number) -> int:
    """Returns the constant term of a number with symbols, 0 for an int."""
    return dict(number.terms).get((), 0) if isinstance(number, Size) else 0


def _rank(number: Number) -> Any:
    if isinstance(number, int):
        return 0, number
    return 1, tuple(map(term_order, number.terms)), tuple(coefficient for _, coefficient in number.terms)


def _ahead(a: Number, b: Number, sign: int) -> bool:
    """Returns whether `a >= b` for all sizes (`a <= b` for the sign -1) by the bounds of the difference."""
    least, most = bounds(subtract(a, b))
    return (least is not None and least >= 0) if sign > 0 else (most is not None and most <= 0)


class Choice(Atom):
    """A number where a condition holds, else another; key: condition and both numbers."""

    __slots__ = ()


def choose(condition: Truth, a: Number, b: Number) -> Number:
    """Returns `a` where the condition holds, else `b`.

    Laws: where `p == 0`, numbers whose difference is a multiple of `p` are equal, and so are `n` and `min(n, m)` where
    `n = c` and `m >= c`. The one that a comparison of both says is the smaller or larger is `chosen_extreme`.
    """
    if isinstance(condition, bool):
        return a if condition else b
    if a is b or (isinstance(a, int) and isinstance(b, int) and a == b):
        return a
    extreme = chosen_extreme(condition, a, b)
    if extreme is not None:
        return _extreme(extreme, (a, b))
    if condition.kind in ("==", "!=") and _equal_at_zero(condition.operands[0], a, b):
        return b if condition.kind == "==" else a
    (p, q), (r, s) = bounds(a), bounds(b)
    interval = (
        None if p is None or r is None else min(p, r),
        None if q is None or s is None else max(q, s),
    )
    return of_atom(Choice, ("where", condition, a, b), interval, (condition, a, b))


def parted(number: Number) -> tuple[Condition, Number, Number] | None:
    """Returns `c`, `a` and `b` of a number that is `choose(c, a, b)`; None where it has no choice, or several.

    Law: where `p == 0`, multiples of `p` are 0, so that `p + (7 if p == 0 else 1)` is 7 there and `p + 1` elsewhere.
    """
    if isinstance(number, int):
        return None
    choices = [(monomial, k) for monomial, k in number.terms if len(monomial) == 1 and isinstance(monomial[0], Choice)]
    if len(choices) != 1:
        return None
    ((monomial, k),) = choices
    _, condition, a, b = monomial[0].key
    rest = subtract(number, of_terms({monomial: k}))
    rests = [rest, rest]
    if condition.kind in ("==", "!=") and divided(subtract(rest, _constant(rest)), condition.operands[0]) is not None:
        rests[condition.kind == "!="] = _constant(rest)
    return condition, add(rests[0], multiply(a, k)), add(rests[1], multiply(b, k))


def chosen_extreme(condition: Truth, a: Number, b: Number) -> str | None:
    """Returns `"min"` or `"max"` where `choose(condition, a, b)` is that, else None. `1 if n > 1 else n` is one."""
    if isinstance(condition, bool) or condition.kind != ">=":
        return None
    (size,) = condition.operands
    difference = subtract(a, b)
    return "max" if _has_sign(difference, size) else "min" if _has_sign(multiply(difference, -1), size) else None


def _has_sign(difference: Number, size: Size) -> bool:
    """Returns whether a difference is at least 0 where `size >= 0`, else at most 0: `k * size + r`, `0 <= r <= k`."""
    lead, coefficient = next((monomial, factor) for monomial, factor in size.terms if monomial)
    factor = terms_of(difference).get(lead, 0) // coefficient
    rest = subtract(difference, multiply(size, factor))
    return isinstance(rest, int) and 0 <= rest <= factor


def without_choice(condition: Truth) -> Truth:
    """Returns the negation of `p == 0` for an equation that holds there and nowhere else.

    It is one with a choice: `n == (2 if n == 0 else n)` is `n != 0`. Any other condition is returned as it is.
    """
    if isinstance(condition, bool) or condition.kind != "==":
        return condition
    (size,) = condition.operands
    for monomial, coefficient in size.terms:
        if len(monomial) != 1 or not isinstance(monomial[0], Choice):
            continue
        _, case, a, b = monomial[0].key
        rest = subtract(size, of_terms({monomial: coefficient}))
        there, elsewhere = (add(rest, multiply(number, coefficient)) for number in (a, b))
        if case.kind == "==" and _is(elsewhere, 0) and _is_never_zero(there, case.operands[0]):
            (p,) = case.operands
            return at_least_zero(subtract(p, 1)) if bounds(p)[0] == 0 else is_not_zero(p)
    return condition


def _is(number: Number, value: int) -> bool:
    return isinstance(number, int) and number == value


def _is_never_zero(number: Number, p: Size) -> bool:
    """Returns whether a number differs from 0 wherever `p == 0`, by a constant difference."""
    values = [subtract(number, multiply(p, factor)) for factor in (0, 1, -1)]
    return any(isinstance(value, int) and value != 0 for value in values)


def _equal_at_zero(p: Size, a: Number, b: Number) -> bool:
    """Returns whether two numbers are equal where `p == 0`."""
    if divided(subtract(a, b), p) is not None:
        return True
    for one, other in ((a, b), (b, a)):
        for sign in (1, -1):
            value = subtract(one, multiply(p, sign))  # of `one`, there
            if isinstance(value, int) and _is_among(one, other, value):
                return True
    return False


def _is_among(number: Number, other: Number, value: int) -> bool:
    """Returns whether `other` is a minimum or maximum that `number` decides where it has this value."""
    atom = _only_atom(other)
    if not isinstance(atom, Extreme) or not any(part is number for part in atom.key[1:]):
        return False
    sign = 1 if atom.key[0] == "max" else -1
    return all(part is number or _ahead(value, part, sign) for part in atom.key[1:])


def _only_atom(number: Number) -> Atom | None:
    """Returns the atom that a number is, None for any other number."""
    if isinstance(number, int) or len(number.terms) > 1:
        return None
    ((monomial, coefficient),) = number.terms
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else None


def broadcast(*sizes: Number) -> Number:
    """Returns the size of a dimension of tensors that are broadcast together.

    Laws: sizes other than 1 are equal, or broadcasting fails; so a known size other than 1 is the result. A size that
    is 1 where another one is 1 does not matter: `n` and `min(n, 40)` give `n`.
    """
    pending, items = list(sizes), dict[Number, None]()
    while pending:
        item = pending.pop(0)
        if isinstance(item, int):
            if item != 1:
                return item
            continue
        atom = _only_atom(item)
        if isinstance(atom, Broadcast):
            pending = [*atom.key[1:], *pending]
        else:
            items[item] = None
    kept = [item for item in items if not any(_is_among(other, item, 1) for other in items if other is not item)]
    kept.sort(key=_rank)
    if len(kept) < 2:
        return kept[0] if kept else 1
    sure = next((item for item in kept if (low := bounds(item)[0]) is not None and low > 1), None)
    if sure is not None:
        return sure
    intervals = [bounds(item) for item in kept]
    least = min((i[0] for i in intervals), key=lambda low: -math.inf if low is None else low)
    most = max((i[1] for i in intervals), key=lambda high: math.inf if high is None else high)
    return of_atom(Broadcast, ("broadcast", *kept), (least, most), kept)
