"""Integers computed from sizes, which in ONNX wrap around at 64 bits: where a result depends on it, a guard says no.

A program computes with Python's ints. Sums, differences and products of them are those of int64 modulo 2**64, so that
only an operator that compares, divides or orders integers may give another result (the trait `magnitude`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from onnx2nn.optable.row import Row
from onnx2nn.optable.shape_values import ShapeValues
from onnx2nn.sizes.conditions import at_most, conjunction
from onnx2nn.sizes.expression import Number, Size, product

if TYPE_CHECKING:
    from onnx2nn.fx.values.guards import Guards

_BITS = 63
_MEMORY_BITS = 48
"""No tensor has as many elements: processors address fewer bytes."""


class IntegerRange:
    """The numbers of one program that int64 surely holds.

    Args:
        guards: the guards of the program.
        outer: the numbers of the enclosing program, which hold here too.
    """

    def __init__(self, guards: Guards, outer: IntegerRange | None):
        self._guards = guards
        self._sizes: set[Number] = set() if outer is None else set(outer._sizes)
        self._counts: list[Counter[Any]] = [] if outer is None else list(outer._counts)

    def note(self, shape: Iterable[Number]) -> None:
        """Notes the shape of a tensor: no size, and no product of its sizes, is larger than memory."""
        sizes = list(shape)
        self._sizes |= {size for size in sizes if isinstance(size, Size)}
        whole = product(sizes)
        if isinstance(whole, Size) and whole not in self._sizes:
            self._sizes.add(whole)
            if len(whole.terms) == 1:
                self._counts.append(Counter(whole.terms[0][0]))

    def check(self, row: Row, values: Iterable[ShapeValues]) -> None:
        """Makes sure that the integers whose magnitude a row reads fit into int64.

        Raises:
            ShapeMismatch: they do for no sizes.
        """
        for size in self._beyond(row, values):
            limits = at_most(-(1 << _BITS), size), at_most(size, (1 << _BITS) - 1)
            self._guards.demand(conjunction(limits), f"an integer of {row.operator} that int64 holds")

    def hold(self, row: Row, values: Iterable[ShapeValues]) -> bool:
        """Returns whether the integers whose magnitude a row reads surely fit into int64."""
        return next(self._beyond(row, values), None) is None

    def _beyond(self, row: Row, values: Iterable[ShapeValues]) -> Iterator[Size]:
        """Yields the integers whose magnitude a row reads and that int64 may not hold."""
        for value in values if "magnitude" in row.traits else ():
            for number in value.array.flat if value.dtype.kind == "i" else ():
                size = getattr(number, "expr", None)
                if isinstance(size, Size) and not self._holds(size):
                    yield size

    def _holds(self, size: Size) -> bool:
        least, most = self._guards.facts.bounds(size)
        if least is not None and most is not None and least >= -(1 << _BITS) and most < 1 << _BITS:
            return True
        if size in self._sizes:
            return True
        (monomial, coefficient), *others = size.terms
        small = abs(coefficient) < 1 << (_BITS - _MEMORY_BITS)
        return not others and small and any(Counter(monomial) <= count for count in self._counts)
