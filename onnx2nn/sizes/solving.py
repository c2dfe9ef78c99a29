"""The sizes of one symbol for which a condition holds, where it is monotonic in each case of its choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onnx2nn.sizes.conditions import Condition, negation
from onnx2nn.sizes.expression import Atom, Number, Size, Symbol
from onnx2nn.sizes.intervals import Interval
from onnx2nn.sizes.selection import Choice
from onnx2nn.sizes.substitution import evaluated, evaluator, replaced
from onnx2nn.sizes.traversal import ordered_atoms

_FARTHEST = 1 << 31
"""The largest size that is tried for a symbol without an upper bound."""

_MOST_CHOICES = 8
"""In one condition. Each splits the sizes in two, so that there are few cases, of conditions that may be long."""


def direction(number: Number, symbol: Symbol) -> int | None:
    """Returns 1 for a number that never falls as `symbol` grows, -1 for one that never rises, 0 for one without it.

    None where this is not known. Sums of numbers with one direction, products of numbers that are not negative,
    quotients by positive constants, minima and maxima keep the direction.
    """
    known: dict[Atom, int | None] = {}
    for atom in ordered_atoms(number, lambda atom: symbol in atom.symbols):
        known[atom] = _of_atom(atom, symbol, known)
    return _of_number(number, known)


def _of_number(number: Number, known: Mapping[Atom, int | None]) -> int | None:
    """Returns the direction of a number from those of its atoms; 0 where nothing is known of one."""
    found = set()
    for monomial, coefficient in number.terms if isinstance(number, Size) else ():
        ways = {known.get(atom, 0) for atom in monomial} - {0}
        if not ways:
            continue
        positive = all((low := atom.interval[0]) is not None and low >= 0 for atom in monomial)
        if len(ways) > 1 or None in ways or (len(monomial) > 1 and not positive):
            return None
        (way,) = ways
        assert way is not None
        found.add(way if coefficient > 0 else -way)
    return found.pop() if len(found) == 1 else None if found else 0


def _of_atom(atom: Atom, symbol: Symbol, known: Mapping[Atom, int | None]) -> int | None:
    if atom is symbol:
        return 1
    kind, *operands = atom.key
    if kind in ("//", "trunc"):
        return _of_number(operands[0], known) if isinstance(operands[1], int) and operands[1] > 0 else None
    if kind in ("min", "max", "sum"):
        ways = {_of_number(operand, known) for operand in operands} - {0}
        return ways.pop() if len(ways) == 1 else None
    return None


def solutions(condition: Condition, symbol: Symbol, within: Interval) -> Interval | None:
    """Returns the first and the last value of `symbol`, the only one in the condition, for which it holds.

    All values between fulfil it too. The first is greater than the last where no value fulfils it. None where the
    condition is not monotonic in the cases of its choices, where these or its solutions have gaps, and where it changes
    beyond all sizes that are tried.

    Args:
        condition: the condition.
        symbol: the symbol.
        within: the bounds of the symbol.
    """
    if condition.symbols != {symbol} or within[0] is None:
        return None
    if condition.kind == "!=":
        equal = negation(condition)
        found = solutions(equal, symbol, within) if isinstance(equal, Condition) else None
        return None if found is None else _rest(found, within)
    if condition.kind not in (">=", "=="):
        return None
    choices = [atom for atom in ordered_atoms(condition, bool) if isinstance(atom, Choice)]
    if not choices:
        return _monotonic(condition, symbol, within)
    return _by_cases(condition, choices[0], symbol, within) if len(choices) <= _MOST_CHOICES else None


def _by_cases(condition: Condition, choice: Choice, symbol: Symbol, within: Interval) -> Interval | None:
    """Returns the solutions of a condition with a choice: those of each case where it occurs, if they have no gap."""
    _, chosen, *numbers = choice.key
    where = solutions(chosen, symbol, within)
    if where is None or (elsewhere := _rest(where, within)) is None:
        return None
    found: list[Interval] = []
    for number, case in zip(numbers, (where, elsewhere), strict=True):
        if _is_empty(case):
            continue
        try:
            there = replaced(condition, {choice: number})
        except ZeroDivisionError:
            return None
        holds = case if there is True else solutions(there, symbol, case) if isinstance(there, Condition) else _NONE
        if holds is None:
            return None
        if not _is_empty(holds):
            found.append(holds)
    if len(found) < 2:
        return found[0] if found else _NONE
    (first, end), (start, last) = sorted(found, key=lambda interval: interval[0] or 0)
    return (first, last) if end is not None and start is not None and end + 1 == start else None


_NONE: Interval = (1, 0)
"""No value."""


def _is_empty(interval: Interval) -> bool:
    least, most = interval
    return least is not None and most is not None and least > most


def _rest(part: Interval, within: Interval) -> Interval | None:
    """Returns the values within bounds that are not in a part of them; None where they have a gap."""
    (first, last), (low, high) = part, within
    if _is_empty(part):
        return within
    if first == low:
        return _NONE if last == high else (None if last is None else last + 1, high)
    return (low, None if first is None else first - 1) if last == high else None


def _monotonic(condition: Condition, symbol: Symbol, within: Interval) -> Interval | None:
    """Returns the solutions of a condition without choices."""
    (size,) = condition.operands
    way = direction(size, symbol)
    if not way or within[0] is None:
        return None
    low, high = within[0], _FARTHEST if within[1] is None else within[1]
    at = evaluator(size)

    def value_at(number: int) -> Any:
        return at({symbol: number})

    try:
        first, last = low, high
        if way > 0:  # it holds from the first size that is at least 0 on
            first = _first(value_at, low, high, lambda value: value >= 0)
        else:
            last = _first(value_at, low, high, lambda value: value < 0) - 1
        if condition.kind == "==" and way > 0:
            last = _first(value_at, low, high, lambda value: value > 0) - 1
        elif condition.kind == "==":
            first = _first(value_at, low, high, lambda value: value <= 0)
    except ZeroDivisionError:
        return None
    if within[1] is not None or last < high:
        return first, last
    return (first, None) if way > 0 and condition.kind == ">=" and first <= high else None


def _first(value_at: Callable[[int], int], low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Returns the first number from `low` on at which `holds` is true of the value, `high + 1` where there is none."""
    if not holds(value_at(high)):
        return high + 1
    while low < high:
        middle = (low + high) // 2
        if holds(value_at(middle)):
            high = middle
        else:
            low = middle + 1
    return low


def fulfilled(condition: Any, point: Mapping[Symbol, int]) -> bool:
    """Returns whether a condition holds at a point; division by 0 does not."""
    try:
        return bool(evaluated(condition, point))
    except ZeroDivisionError:
        return False
