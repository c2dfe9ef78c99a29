"""Random expressions of sizes, as trees: built by the room's constructors, and computed with Python's ints beside it.

A tree is a tuple: `("symbol", k)`, `("int", value)`, or an operation and its operands; so are conditions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from onnx2nn.sizes.conditions import (
    at_most,
    conjunction,
    disjunction,
    equal,
    less,
    negation,
    unequal,
)
from onnx2nn.sizes.expression import (
    Symbol,
    add,
    floor_divide,
    floor_remainder,
    multiply,
    of_symbol,
    subtract,
    truncated_divide,
)
from onnx2nn.sizes.selection import absolute, broadcast, choose, maximum, minimum

Tree = tuple[Any, ...]

INTERVALS = ((0, None), (0, (1 << 31) - 1), (1, (1 << 31) - 1), (0, 12), (-5, 9), (3, 7), (2, 1000), (None, 6))
"""Bounds of symbols; dimensions are not negative, but what data decide may be."""

VALUES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 39, 40, 1000, -1, -5)


class Undefined(Exception):
    """A divisor is 0, or sizes that are broadcast do not fit: the model fails there, and nothing is claimed."""


def truncated(a: int, b: int) -> int:
    """Returns the quotient, rounded towards zero, of exact fractions."""
    return -(-a // b) if (a < 0) != (b < 0) else a // b


def broadcast_size(*sizes: int) -> int:
    """Returns the size of dimensions that are broadcast together, as numpy does."""
    others = {size for size in sizes if size != 1}
    if len(others) > 1 or min(sizes) < 0:
        raise Undefined
    return others.pop() if others else 1


def _by(divide: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def checked(a: int, b: int) -> int:
        if b == 0:
            raise Undefined
        return divide(a, b)

    return checked


OPERATIONS: Mapping[str, tuple[int, Callable[..., Any], Callable[..., Any]]] = {
    "+": (2, add, lambda a, b: a + b),
    "-": (2, subtract, lambda a, b: a - b),
    "*": (2, multiply, lambda a, b: a * b),
    "//": (2, floor_divide, _by(lambda a, b: a // b)),
    "%": (2, floor_remainder, _by(lambda a, b: a % b)),
    "trunc": (2, truncated_divide, _by(truncated)),
    "fmod": (2, lambda a, b: subtract(a, multiply(b, truncated_divide(a, b))), _by(lambda a, b: int(math.fmod(a, b)))),
    "min": (2, minimum, min),
    "max": (2, maximum, max),
    "min3": (3, minimum, min),
    "max3": (3, maximum, max),
    "abs": (1, absolute, abs),
    "broadcast": (2, broadcast, broadcast_size),
}
COMPARISONS: Mapping[str, tuple[int, Callable[..., Any], Callable[..., Any]]] = {
    "<": (2, less, lambda a, b: a < b),
    "<=": (2, at_most, lambda a, b: a <= b),
    "==": (2, equal, lambda a, b: a == b),
    "!=": (2, unequal, lambda a, b: a != b),
}
JUNCTIONS: Mapping[str, tuple[int, Callable[..., Any], Callable[..., Any]]] = {
    "and": (2, lambda a, b: conjunction((a, b)), lambda a, b: a and b),
    "or": (2, lambda a, b: disjunction((a, b)), lambda a, b: a or b),
    "not": (1, negation, lambda a: not a),
}
_ALL = {**OPERATIONS, **COMPARISONS, **JUNCTIONS, "where": (3, choose, lambda c, a, b: a if c else b)}


def built(tree: Tree, symbols: Sequence[Symbol]) -> Any:
    """Returns the number or condition of a tree, in normal form.

    Raises:
        ZeroDivisionError: a divisor is the int 0.
    """
    kind, *operands = tree
    if kind == "symbol":
        return of_symbol(symbols[operands[0]])
    if kind == "int":
        return operands[0]
    return _ALL[kind][1](*(built(operand, symbols) for operand in operands))


def computed(tree: Tree, point: Sequence[int]) -> Any:
    """Returns the int or bool of a tree, from the symbols' values. Both numbers of a choice are computed.

    Raises:
        Undefined: the model fails there.
    """
    kind, *operands = tree
    if kind == "symbol":
        return point[operands[0]]
    if kind == "int":
        return operands[0]
    return _ALL[kind][2](*[computed(operand, point) for operand in operands])


def defined(tree: Tree, points: Iterator[Sequence[int]]) -> Iterator[tuple[Sequence[int], Any]]:
    """Yields the points at which a tree is defined, and its value there."""
    for point in points:
        try:
            yield point, computed(tree, point)
        except Undefined:
            continue


def numbers(count: int, leaves: int = 7, without: Sequence[str] = ()) -> st.SearchStrategy[Tree]:
    """Returns a strategy of trees of numbers over so many symbols.

    Args:
        count: the number of symbols.
        leaves: the most leaves of a tree.
        without: operations that are left out.
    """
    leaf = st.one_of(
        st.integers(0, count - 1).map(lambda k: ("symbol", k)),
        st.integers(0, count - 1).map(lambda k: ("symbol", k)),
        st.integers(-6, 9).map(lambda value: ("int", value)),
    )

    def larger(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        made = [
            st.tuples(st.just(kind), *[inner] * arity)
            for kind, (arity, *_) in OPERATIONS.items()
            if kind not in without
        ]
        by_constant = [
            st.tuples(st.just(kind), inner, st.sampled_from([-4, -1, 1, 2, 3, 6]).map(lambda value: ("int", value)))
            for kind in ("//", "%", "trunc", "fmod")
            if kind not in without
        ]
        return st.one_of(*made, *by_constant, st.tuples(st.just("where"), _conditions(inner), inner, inner))

    return st.recursive(leaf, larger, max_leaves=leaves)


def conditions(count: int, leaves: int = 4, without: Sequence[str] = ()) -> st.SearchStrategy[Tree]:
    """Returns a strategy of trees of conditions over so many symbols."""
    return _conditions(numbers(count, leaves, without))


def _conditions(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    simple = st.one_of(*(st.tuples(st.just(kind), inner, inner) for kind in COMPARISONS))
    joined = [st.tuples(st.just(kind), *[simple] * arity) for kind, (arity, *_) in JUNCTIONS.items()]
    return st.one_of(simple, simple, *joined)


def made_symbols(intervals: Sequence[tuple[int | None, int | None]]) -> list[Symbol]:
    """Returns symbols with these bounds."""
    return [Symbol(f"n{k}", least, most) for k, (least, most) in enumerate(intervals)]


def inside(value: int, interval: tuple[int | None, int | None]) -> int:
    """Returns the number of the interval that is nearest to a value."""
    least, most = interval
    value = value if least is None else max(value, least)
    return value if most is None else min(value, most)


def grid(intervals: Sequence[tuple[int | None, int | None]], values: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields all points with these values of each symbol, as far as they lie in its bounds."""
    return itertools.product(*(sorted({inside(value, interval) for value in values}) for interval in intervals))


def as_given(symbols: Sequence[Symbol], point: Sequence[int]) -> dict[Symbol, int]:
    """Returns a point as the values of symbols."""
    return dict(zip(symbols, point, strict=True))
