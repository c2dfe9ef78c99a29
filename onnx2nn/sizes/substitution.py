"""Replaces symbols and atoms in sizes and conditions; evaluates them where every symbol has a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from onnx2nn.sizes.conditions import Condition, Truth, at_least_zero, conjunction, disjunction, is_not_zero, is_zero
from onnx2nn.sizes.expression import (
    Atom,
    Monomial,
    Number,
    Size,
    Symbol,
    add,
    floor_divide,
    multiply,
    of_terms,
    product,
    truncated_divide,
)
from onnx2nn.sizes.selection import broadcast, choose, maximum, minimum
from onnx2nn.sizes.traversal import ordered_atoms

_CONDITIONS: Mapping[str, Callable[..., Truth]] = {
    ">=": at_least_zero,
    "==": is_zero,
    "!=": is_not_zero,
    "and": lambda *parts: conjunction(parts),
    "or": lambda *parts: disjunction(parts),
}
_ATOMS: Mapping[str, Callable[..., Number]] = {
    "//": floor_divide,
    "trunc": truncated_divide,
    "min": minimum,
    "max": maximum,
    "where": choose,
    "broadcast": broadcast,
    "sum": lambda number: number,
}


def operation(kind: str) -> Callable[..., Number]:
    """Returns the function of the operands in an atom's key."""
    return _ATOMS[kind]


def replaced(value: Any, given: Mapping[Any, Number]) -> Any:
    """Returns a number or condition with atoms replaced by numbers, in normal form.

    Args:
        value: an int, bool, `Size` or `Condition`.
        given: the numbers, by atom.

    Raises:
        ZeroDivisionError: a divisor becomes 0.
    """
    return _Replacement(given).of(value) if given else value


def evaluated(value: Any, given: Mapping[Symbol, int]) -> Any:
    """Returns the int or bool that a number or condition is for sizes; every symbol in it must have one.

    Raises:
        ZeroDivisionError: a divisor is 0.
    """
    return evaluator(value)(given)


def evaluator(value: Any) -> Callable[[Mapping[Any, int]], Any]:
    """Returns `evaluated` of a number or condition, for many sizes: the atoms are put in order once."""
    atoms = ordered_atoms(value, lambda atom: bool(atom.symbols))
    if isinstance(value, Size) and all(isinstance(atom, Symbol) for atom in atoms):
        return lambda given: sum(factor * math.prod([given[atom] for atom in atoms]) for atoms, factor in value.terms)

    def at(given: Mapping[Any, int]) -> Any:
        known: dict[Atom, int | None] = dict(given)
        for atom in atoms:
            if atom not in known:
                try:
                    known[atom] = _atom_at(atom, known)
                except ZeroDivisionError:  # it does not matter in a choice of another number
                    known[atom] = None
        return _at(value, known)

    return at


def _at(value: Any, known: Mapping[Atom, int | None]) -> Any:
    """Returns the int or bool that a number or condition is, by the ints that its atoms are."""
    if isinstance(value, Condition):
        return _CONDITIONS[value.kind](*[_at(operand, known) for operand in value.operands])
    if not isinstance(value, Size):
        return value
    total = 0
    for monomial, factor in value.terms:
        for atom in monomial:
            number = known[atom]
            if number is None:
                raise ZeroDivisionError("a size is divided by 0")
            factor *= number
        total += factor
    return total


def _atom_at(atom: Atom, known: Mapping[Atom, int | None]) -> int:
    kind, *operands = atom.key
    if kind == "where":  # only the chosen number, as the other one may divide by 0
        number: int = _at(operands[1 if _at(operands[0], known) else 2], known)
        return number
    number = _ATOMS[kind](*[_at(operand, known) for operand in operands])  # type: ignore[assignment]  # of ints
    return number


def with_multiples(value: Any, multiples: Mapping[Atom, int]) -> Any:
    """Returns a number or condition in the one form that its quotients have where some atoms are multiples.

    Law: where `n` is a multiple of `c`, it is `c * (n // c)`, so that `16 * b * (n // 4) // n` is `4 * b`. In the
    result a quotient is joined with its factor again, the older atom first: `4 * (n // 4)` is `n`, and
    `2 * (n // 4)` is `n // 2`.

    Args:
        value: an int, bool, `Size` or `Condition`.
        multiples: a positive divisor of each of these atoms.

    Raises:
        ZeroDivisionError: a divisor becomes 0.
    """
    wholes = {atom: of_terms({(atom,): 1}) for atom in multiples}
    split = {atom: multiply(floor_divide(whole, multiples[atom]), multiples[atom]) for atom, whole in wholes.items()}
    parts = {}
    for atom, number in split.items():
        if isinstance(number, Size) and len(number.terms) == 1:
            ((monomial, _),) = number.terms
            parts[monomial[0]] = wholes[atom], multiples[atom]
    return _Joining(parts).of(replaced(value, split))


class _Replacement:
    """Replaces atoms in one value; None is known of an atom that divides by 0."""

    def __init__(self, given: Mapping[Atom, Number]):
        self._known: dict[Atom, Number | None] = dict(given)
        self._symbols = {symbol for atom in given for symbol in atom.symbols}

    def of(self, value: Any) -> Any:
        """Returns `value` with the atoms replaced."""
        if self._symbols.isdisjoint(getattr(value, "symbols", ())):
            return value
        for atom in ordered_atoms(value, self._is_open):
            try:
                self._known[atom] = self._replaced(atom)
            except ZeroDivisionError:  # it does not matter in a choice of another number
                self._known[atom] = None
        return self._of(value)

    def _is_open(self, atom: Atom) -> bool:
        return atom not in self._known and not self._symbols.isdisjoint(atom.symbols)

    def _of(self, value: Any) -> Any:
        if isinstance(value, Condition):
            if self._symbols.isdisjoint(value.symbols):
                return value
            return _CONDITIONS[value.kind](*map(self._of, value.operands))
        if not isinstance(value, Size) or self._symbols.isdisjoint(value.symbols):
            return value
        total: Number = 0
        for monomial, coefficient in value.terms:
            if all(self._symbols.isdisjoint(atom.symbols) for atom in monomial):
                total = add(total, of_terms({monomial: coefficient}))
            else:
                total = add(total, self._product(monomial, coefficient))
        return total

    def _product(self, monomial: Monomial, coefficient: int) -> Number:
        return multiply(product(map(self._atom, monomial)), coefficient)

    def _atom(self, atom: Atom) -> Number:
        known = self._known[atom] if atom in self._known else of_terms({(atom,): 1})
        if known is None:
            raise ZeroDivisionError("a size is divided by 0")
        return known

    def _replaced(self, atom: Atom) -> Number:
        kind, *operands = atom.key
        if isinstance(atom, Symbol):
            return of_terms({(atom,): 1})
        if kind == "where":  # only the chosen number, as the other one may divide by 0
            condition = self._of(operands[0])
            if isinstance(condition, bool):
                return self._of(operands[1 if condition else 2])
        return _ATOMS[kind](*map(self._of, operands))


class _Joining(_Replacement):
    """Joins quotients of multiples with factors of their divisors; `parts` has dividend and divisor of each of them."""

    def __init__(self, parts: Mapping[Atom, tuple[Number, int]]):
        super().__init__({})
        self._parts = parts
        self._symbols = {symbol for atom in parts for symbol in atom.symbols}

    def _product(self, monomial: Monomial, coefficient: int) -> Number:
        factors = []
        for atom in monomial:
            if atom in self._parts:
                dividend, divisor = self._parts[atom]
                common = math.gcd(coefficient, divisor)
                coefficient //= common
                factors.append(floor_divide(dividend, divisor // common))
            else:
                factors.append(self._atom(atom))
        return multiply(product(factors), coefficient)
