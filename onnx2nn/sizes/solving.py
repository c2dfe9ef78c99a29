"""The sizes of one symbol for which a condition holds, where the condition is monotonic in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx2nn.sizes.conditions import Condition
from onnx2nn.sizes.expression import Atom, Interval, Number, Size, Symbol
from onnx2nn.sizes.substitution import evaluated
from onnx2nn.sizes.traversal import ordered_atoms

_FARTHEST = 1 << 31
"""The largest size that is tried for a symbol without an upper bound."""


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
    condition is not monotonic, and where it changes beyond all sizes that are tried.

    Args:
        condition: the condition.
        symbol: the symbol.
        within: the bounds of the symbol.
    """
    if condition.kind not in (">=", "==") or condition.symbols != {symbol}:
        return None
    (size,) = condition.operands
    way = direction(size, symbol)
    if not way or within[0] is None:
        return None
    low, high = within[0], _FARTHEST if within[1] is None else within[1]
    try:
        first, last = low, high
        if way > 0:  # it holds from the first size that is at least 0 on
            first = _first(size, symbol, low, high, lambda value: value >= 0)
        else:
            last = _first(size, symbol, low, high, lambda value: value < 0) - 1
        if condition.kind == "==" and way > 0:
            last = _first(size, symbol, low, high, lambda value: value > 0) - 1
        elif condition.kind == "==":
            first = _first(size, symbol, low, high, lambda value: value <= 0)
    except ZeroDivisionError:
        return None
    if within[1] is not None or last < high:
        return first, last
    return (first, None) if way > 0 and condition.kind == ">=" and first <= high else None


def _first(size: Size, symbol: Symbol, low: int, high: int, holds: Any) -> int:
    """Returns the first value of `symbol` from `low` on for which `holds` is true, `high + 1` where there is none."""
    if not holds(evaluated(size, {symbol: high})):
        return high + 1
    while low < high:
        middle = (low + high) // 2
        if holds(evaluated(size, {symbol: middle})):
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
