"""Renders sizes and conditions as operations: as text (`printing`) or as nodes of a program."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from onnx2nn.sizes.conditions import Condition, negation
from onnx2nn.sizes.expression import Atom, Monomial, Number, Size, Symbol, multiply, of_terms, terms_of
from onnx2nn.sizes.traversal import ordered_atoms

T = TypeVar("T")

INFIX: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType({
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
    "and": operator.and_, "or": operator.or_,
})  # fmt: skip
"""The operators of `Rendering.infix`."""


class Rendering(ABC, Generic[T]):
    """Makes a `T` of an expression, from its operations."""

    @abstractmethod
    def known(self, number: int) -> T:
        """Returns a known number."""

    @abstractmethod
    def symbol(self, symbol: Symbol) -> T:
        """Returns a symbol."""

    @abstractmethod
    def infix(self, operator: str, a: T, b: T) -> T:
        """Returns the result of one of Python's operators on numbers or truths."""

    @abstractmethod
    def negative(self, a: T) -> T:
        """Returns a number with the other sign."""

    @abstractmethod
    def call(self, kind: str, operands: list[T]) -> T:
        """Returns a minimum, maximum, truncated quotient or broadcast size; `kind` is the atom's."""

    @abstractmethod
    def choice(self, condition: T, a: T, b: T) -> T:
        """Returns `a` where a condition holds, else `b`."""

    def of(self, value: Number | Condition) -> T:
        """Returns the rendered number or condition."""
        done: dict[Atom, T] = {}
        for atom in ordered_atoms(value, lambda atom: True, _remainder):
            done[atom] = self._atom(atom, done)
        return self._of(value, done)

    def _of(self, value: Number | Condition, done: Mapping[Atom, T]) -> T:
        if isinstance(value, Condition):
            return self._condition(value, done)
        return self.known(value) if isinstance(value, int) else self._sum(value, done)

    def _condition(self, condition: Condition, done: Mapping[Atom, T]) -> T:
        kind = condition.kind
        if kind in ("and", "or"):
            parts = [self._of(operand, done) for operand in condition.operands]
            return reduce(lambda a, b: self.infix(kind, a, b), parts)
        (size,) = condition.operands
        if _remainder(size) is not None:
            return self.infix(kind, self._of(size, done), self.known(0))
        left = {m: c for m, c in size.terms if m and c > 0}
        right = {m: -c for m, c in size.terms if m and c < 0}
        constant = dict(size.terms).get((), 0)
        if not left:  # `-n + 5 >= 0` is `n <= 5`
            left, right, constant, kind = right, left, -constant, "<=" if kind == ">=" else kind
        if not right:
            return self.infix(kind, self._of(of_terms(left), done), self.known(-constant))
        left[()], right[()] = max(constant, 0), max(-constant, 0)
        return self.infix(kind, self._of(of_terms(left), done), self._of(of_terms(right), done))

    def _sum(self, size: Size, done: Mapping[Atom, T]) -> T:
        remainder = _remainder(size)
        if remainder is not None:
            a, b = (self._of(number, done) for number in remainder)
            return self.infix("%", a, b)
        total: T | None = None
        for monomial, coefficient in sorted(size.terms, key=lambda term: term[1] < 0):  # a minus does not come first
            part = self._term(monomial, abs(coefficient), done)
            if total is None:
                total = self.negative(part) if coefficient < 0 else part
            else:
                total = self.infix("-" if coefficient < 0 else "+", total, part)
        assert total is not None
        return total

    def _term(self, monomial: Monomial, coefficient: int, done: Mapping[Atom, T]) -> T:
        parts = [self.known(coefficient)] if coefficient != 1 or not monomial else []
        return reduce(lambda a, b: self.infix("*", a, b), [*parts, *(done[atom] for atom in monomial)])

    def _atom(self, atom: Atom, done: Mapping[Atom, T]) -> T:
        if isinstance(atom, Symbol):
            return self.symbol(atom)
        kind, *operands = atom.key
        if kind == "where" and operands[0].kind == "!=":
            condition, a, b = operands
            operands = [negation(condition), b, a]
        made = [self._of(operand, done) for operand in operands]
        if kind == "//":
            return self.infix("//", *made)
        if kind == "where":
            return self.choice(*made)
        return made[0] if kind == "sum" else self.call(kind, made)


def _remainder(size: Size) -> tuple[Number, Number] | None:
    """Returns dividend and divisor of a remainder, `a - b * (a // b)`; None for other sizes."""
    for monomial, coefficient in size.terms:
        for atom in monomial:
            if atom.key[0] == "//" and coefficient < 0:
                _, a, b = atom.key
                others = list(monomial)
                others.remove(atom)
                if terms_of(b).get(tuple(others)) != -coefficient:
                    continue  # this term is none of `b * (a // b)`
                whole = multiply(of_terms({(atom,): 1}), multiply(b, -1))
                rest = dict(size.terms)
                if all(rest.pop(m, 0) == c for m, c in terms_of(whole).items()) and of_terms(rest) is a:
                    return a, b
    return None
