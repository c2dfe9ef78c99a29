"""Sample values of symbols: they propose what may hold, or show that something does not; they decide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx2nn.sizes.conditions import Condition
from onnx2nn.sizes.expression import Number, Symbol, of_symbol
from onnx2nn.sizes.intervals import Interval
from onnx2nn.sizes.solving import fulfilled, solutions
from onnx2nn.sizes.substitution import replaced

Point = dict[Symbol, int]

_FAMILIES = (
    lambda k: (5 + 2 * k, 13 + 4 * k, 257 + 6 * k),
    lambda k: (64 * (3 + k), 64 * (5 + 2 * k), 64 * (11 + 3 * k)),
    lambda k: (2 + k, 4 + 2 * k, 7 + 3 * k),
    lambda k: (1009 - 3 * k, 1511 - 5 * k, 2017 - 7 * k),
)
"""Three values of the k-th symbol that differ from those of all others: odd ones, multiples of 64, small and large."""


def families(
    symbols: Iterable[Symbol], bounds: Sequence[Interval], conditions: Iterable[Condition]
) -> Iterator[list[Point]]:
    """Yields triples of points that fulfil the conditions as far as one symbol at a time can be moved.

    Args:
        symbols: the symbols.
        bounds: the bounds of each symbol.
        conditions: what should hold.
    """
    symbols, needed = list(symbols), list(conditions)
    within = dict(zip(symbols, bounds, strict=True))
    for family in _FAMILIES:
        columns = [family(k) for k in range(len(symbols))]
        points = []
        for index in range(3):
            point = {s: _inside(column[index], within[s]) for s, column in zip(symbols, columns, strict=True)}
            points.append(moved(point, within, needed))
        yield points


def _inside(value: int, interval: Interval) -> int:
    least, most = interval
    value = value if least is None else max(value, least)
    if most is not None and value > most:  # samples between the bounds differ from each other where they can
        value = most if least is None or least == most else least + value % (most - least + 1)
    return value


def moved(point: Point, within: dict[Symbol, Interval], conditions: Iterable[Condition]) -> Point:
    """Returns a point at which a condition holds if moving one symbol, or all its symbols to one value, does it."""
    for condition in conditions:
        known = sorted((symbol for symbol in condition.symbols if symbol in point), key=lambda item: -item.number)
        if len(known) < len(condition.symbols) or fulfilled(condition, point):
            continue
        for symbol in known:
            others = {other: of_symbol(other) if other is symbol else value for other, value in point.items()}
            found = _value(condition, others, symbol, within[symbol])
            if found is not None:
                point = {**point, symbol: found}
                break
        else:
            common = Symbol("", *_shared(within[symbol] for symbol in known))
            found = _value(condition, {s: of_symbol(common) for s in known}, common, common.interval)
            if found is not None:
                point = {**point, **dict.fromkeys(known, found)}
    return point


def _shared(intervals: Iterable[Interval]) -> Interval:
    """Returns the bounds of what lies in all intervals; the first is above the last where nothing does."""
    lows, highs = zip(*intervals, strict=True)
    return max((low for low in lows if low is not None), default=None), min(
        (high for high in highs if high is not None), default=None
    )


def _value(condition: Condition, others: Mapping[Symbol, Number], symbol: Symbol, within: Interval) -> int | None:
    """Returns the first value of a symbol for which a condition on it and `others` holds, None where none is found."""
    if within[0] is not None and within[1] is not None and within[0] > within[1]:
        return None
    try:
        left = replaced(condition, others)
    except ZeroDivisionError:
        return None
    found = solutions(left, symbol, within) if isinstance(left, Condition) else None
    if found is None or (found[1] is not None and found[0] is not None and found[0] > found[1]):
        return None
    return found[0]
