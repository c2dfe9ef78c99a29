"""Conditions on sizes: comparisons with zero, joined by `and` and `or`; hash-consed like sizes.

A condition is a Python bool where it is known. `a < b` is `b - a - 1 >= 0`, since sizes are integers; the negation of
`p >= 0` is `-p - 1 >= 0`. So there are three comparisons: `p >= 0`, `p == 0` and `p != 0`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union
from weakref import WeakValueDictionary

from onnx2nn.sizes.expression import (
    Broadcast,
    Extreme,
    Number,
    Size,
    Symbol,
    bounds,
    multiply,
    of_terms,
    subtract,
    terms_of,
)

Truth = Union[bool, "Condition"]

_conditions: WeakValueDictionary[tuple[Any, ...], Condition] = WeakValueDictionary()


class Condition:
    """A condition on symbols.

    Attributes:
        kind: `">="`, `"=="`, `"!="`: the size is compared with 0; `"and"`, `"or"` of conditions.
        operands: the size, or the conditions.
        symbols: the symbols in it.
    """

    __slots__ = ("__weakref__", "kind", "operands", "symbols")

    def __init__(self, kind: str, operands: tuple[Any, ...]):
        self.kind, self.operands = kind, operands
        self.symbols: frozenset[Symbol] = frozenset().union(*(operand.symbols for operand in operands))

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self!r} depends on the sizes of inputs")

    @property
    def by_data(self) -> bool:
        """Whether data decide it."""
        return any(symbol.by_data for symbol in self.symbols)


def _made(kind: str, *operands: Any) -> Condition:
    key = (kind, *operands)
    condition = _conditions.get(key)
    if condition is None:
        condition = _conditions[key] = Condition(kind, operands)
    return condition


def at_least_zero(number: Number) -> Truth:
    """Returns `number >= 0`."""
    least, most = bounds(number)
    if least is not None and least >= 0:
        return True
    if most is not None and most < 0:
        return False
    return _made(">=", _reduced(number, exact=False))


def is_zero(number: Number) -> Truth:
    """Returns `number == 0`."""
    return _equality("==", number)


def is_not_zero(number: Number) -> Truth:
    """Returns `number != 0`."""
    return _equality("!=", number)


def _equality(kind: Literal["==", "!="], number: Number) -> Truth:
    least, most = bounds(number)
    if (least is not None and least > 0) or (most is not None and most < 0):
        return kind == "!="
    if isinstance(number, int):
        return (number == 0) == (kind == "==")
    last, constant = number.terms[-1]
    if not last and constant % math.gcd(*[c for m, c in number.terms if m]):
        return kind == "!="
    size = _reduced(number, exact=True)
    parts = _of_parts(size)
    if parts is not None:
        return parts if kind == "==" else negation(parts)
    return _made(kind, size)


def _of_parts(size: Size) -> Truth | None:
    """Returns `size == 0` as conditions on the numbers of a minimum, maximum or broadcast, None where it is none.

    Laws: a number is the minimum of itself and others where none of these is less: `a == min(a, b)` where `a <= b`.
    A constant is the minimum of a larger one and a number where it is this number: `min(a, 64) == 1` where `a == 1`.
    Where sizes fit, one is their broadcast where each other one is 1 or this one.
    """
    for monomial, factor in size.terms:
        if len(monomial) == 1 and isinstance(monomial[0], (Extreme, Broadcast)) and abs(factor) == 1:
            kind, *numbers = monomial[0].key
            if len(size.terms) > 2 and all(len(terms_of(number)) != len(size.terms) - 1 for number in numbers):
                continue  # the rest is none of them, and no constant
            rest = of_terms({other: count for other, count in size.terms if other != monomial})
            one = multiply(rest, -factor)
            if isinstance(one, int) and len(numbers) == 2 and _is_beyond(kind, numbers[0], one):
                return equal(numbers[1], one)
            if one not in numbers:
                continue
            others = [number for number in numbers if number != one]
            if kind == "broadcast":
                return conjunction(disjunction((equal(number, 1), equal(number, one))) for number in others)
            return conjunction(at_most(*((one, number) if kind == "min" else (number, one))) for number in others)
    return None


def _is_beyond(kind: str, number: Number, known: int) -> bool:
    """Returns whether a number is a constant that a minimum or maximum with the value `known` is not."""
    return isinstance(number, int) and ((kind == "min" and number > known) or (kind == "max" and number < known))


def _reduced(number: Number, *, exact: bool) -> Size:
    """Returns the size divided by the common factor of its coefficients: `2n - 3 >= 0` is `n - 2 >= 0`."""
    assert isinstance(number, Size)
    common = math.gcd(*[c for m, c in number.terms if m])
    if exact and number.terms[0][1] < 0:
        common = -common
    if common == 1:
        return number
    # The constant is rounded down, which changes nothing: `p >= 0` for an integer `p` is `p + 1 / 2 >= 0`.
    reduced = of_terms({monomial: coefficient // common for monomial, coefficient in number.terms})
    assert isinstance(reduced, Size)
    return reduced


def less(a: Number, b: Number) -> Truth:
    """Returns `a < b`."""
    if _is_below(a, b, 1):
        return True
    return at_least_zero(subtract(b, a + 1) if isinstance(a, int) else subtract(subtract(b, a), 1))


def at_most(a: Number, b: Number) -> Truth:
    """Returns `a <= b`."""
    return True if _is_below(a, b, 0) else at_least_zero(subtract(b, a))


def _is_below(a: Number, b: Number, gap: int) -> bool:
    """Returns whether `a + gap <= b` by the bounds of one of them alone, where the other is an int."""
    if isinstance(a, int):
        least = bounds(b)[0]
        return least is not None and a + gap <= least
    most = bounds(a)[1]
    return isinstance(b, int) and most is not None and most + gap <= b


def equal(a: Number, b: Number) -> Truth:
    """Returns `a == b`."""
    return is_zero(subtract(a, b))


def unequal(a: Number, b: Number) -> Truth:
    """Returns `a != b`."""
    return is_not_zero(subtract(a, b))


def negation(condition: Truth) -> Truth:
    """Returns the condition that holds where `condition` does not."""
    if isinstance(condition, bool):
        return not condition
    if condition.kind == ">=":
        return at_least_zero(subtract(multiply(condition.operands[0], -1), 1))
    if condition.kind in ("==", "!="):
        return _equality("!=" if condition.kind == "==" else "==", condition.operands[0])
    parts = [negation(part) for part in condition.operands]
    return conjunction(parts) if condition.kind == "or" else disjunction(parts)


def conjunction(conditions: Iterable[Truth]) -> Truth:
    """Returns the condition that holds where all do."""
    return _joined("and", conditions, neutral=True)


def disjunction(conditions: Iterable[Truth]) -> Truth:
    """Returns the condition that holds where one does."""
    return _joined("or", conditions, neutral=False)


def _joined(kind: str, conditions: Iterable[Truth], neutral: bool) -> Truth:
    parts: dict[Condition, None] = {}
    for condition in conditions:
        if isinstance(condition, bool):
            if condition != neutral:
                return condition
        else:
            parts.update(dict.fromkeys(condition.operands if condition.kind == kind else (condition,)))
    if len(parts) < 2:
        return next(iter(parts), neutral)
    if any(_has_negation(parts, part) for part in parts):
        return not neutral
    left = [part for part in parts if not _is_idle(kind, part, parts)]
    return _made(kind, *left) if len(left) > 1 else left[0]


def _is_idle(kind: str, part: Condition, parts: Iterable[Condition]) -> bool:
    """Returns whether one of `parts` is `part` in a weaker form in an `or`, in a stronger form in an `and`."""
    among = [other for other in parts if other is not part and other.symbols == part.symbols]
    return any(_follows(part, other) if kind == "or" else _follows(other, part) for other in among)


def _follows(one: Condition, other: Condition) -> bool:
    """Returns whether `other` holds wherever `one` does, by the bounds of their difference.

    Laws: where `p >= 0`, `p + c >= 0` for a `c` that is not negative; where `p == 0`, also `c + p >= 0` and
    `c - p >= 0`, so that `n <= 64` follows from `n == 1`; and `n != 1` from `n > 64`, as the negations follow.
    """
    if (one.kind, other.kind) == (">=", "!="):
        where, then = negation(other), negation(one)
    else:
        where, then = one, other
    if isinstance(where, bool) or isinstance(then, bool) or then.kind != ">=" or where.kind not in (">=", "=="):
        return False
    (p,), (q,) = where.operands, then.operands
    ends = [bounds(subtract(q, multiply(p, sign)))[0] for sign in ((1, -1) if where.kind == "==" else (1,))]
    return any(end is not None and end >= 0 for end in ends)


_OPPOSITE = {">=": ">=", "==": "!=", "!=": "=="}


def _has_negation(parts: Mapping[Condition, None], part: Condition) -> bool:
    """Returns whether the negation of one of `parts` is another of them; that of a comparison has the same symbols."""
    opposite = _OPPOSITE.get(part.kind)
    if opposite is not None and not any(
        other.kind == opposite and other is not part and other.symbols == part.symbols for other in parts
    ):
        return False
    return negation(part) in parts
