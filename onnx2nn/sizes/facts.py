"""What is known of sizes: proofs of conditions from bounds, from the normal form and from assumed conditions.

A proof is sound and incomplete: `decide` answers True or False only for what holds for all sizes within the bounds that
fulfil the assumptions, else None. It uses intervals, the linear bounds of a quotient (`p - c + 1 <= c * (p // c) <= p`)
and splits into the cases of a few minima, maxima, choices and truncating divisions. What is assumed to be a multiple of
a number (`multiples`) has one form in all that it is part of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx2nn.sizes.cases import cases_of
from onnx2nn.sizes.conditions import Condition, Truth, at_least_zero, equal, negation
from onnx2nn.sizes.expression import (
    MAX_DIMENSION,
    Atom,
    Number,
    Quotient,
    Size,
    Symbol,
    Truncated,
    add,
    bounds,
    floor_divide,
    multiply,
    of_terms,
    subtract,
)
from onnx2nn.sizes.intervals import Interval
from onnx2nn.sizes.multiples import divisors_by
from onnx2nn.sizes.selection import Choice, Extreme
from onnx2nn.sizes.solving import solutions
from onnx2nn.sizes.substitution import operation, replaced, with_multiples
from onnx2nn.sizes.sums import interval_of
from onnx2nn.sizes.traversal import ordered_atoms

_STEPS = 120
"""The most sums that one proof looks at; a long one counts as several."""

_ALL_STEPS = 20_000
"""The most sums that all proofs of an import look at, after which a number's own bounds have to prove what is asked.

Most networks take up to 500, those that take images apart into windows at dynamic sizes 8,000 (MaxViT) and more; a file
may be made to take any number.
"""


class _Steps:
    """Counts the steps of the proofs of a program and of those inside it."""

    def __init__(self) -> None:
        self.taken = 0


class Facts:
    """What is known of the sizes of one program.

    Args:
        outer: the facts of the enclosing program, which hold here too.

    Attributes:
        values: symbols that are a known number or another symbol.
        intervals: bounds of symbols, narrower than their own.
        assumed: conditions that a guard checks.
        asked: symbols of conditions that were asked for and not proven, also in inner programs.
        steps: what the proofs have taken.
    """

    def __init__(self, outer: Facts | None = None):
        self.values: dict[Symbol, Number] = dict(outer.values) if outer is not None else {}
        self.intervals: dict[Symbol, Interval] = dict(outer.intervals) if outer is not None else {}
        self.assumed: dict[Condition, None] = dict(outer.assumed) if outer is not None else {}
        self._decided: dict[Condition, bool | None] = {}
        self._spans: dict[Atom, Interval] = {}
        self._settled: dict[Size | Condition, Any] = {}
        self._multiples: dict[Atom, int] | None = None
        self._givens: list[Size] | None = None
        self.asked: set[Symbol] = set() if outer is None else outer.asked
        self.steps: _Steps = _Steps() if outer is None else outer.steps

    def settled(self, value: Any) -> Any:
        """Returns a number or condition with what is known replaced, an int where one value is left.

        Known are symbols, choices whose condition is decided (those of shapes that a guard restricted later), minima
        and maxima, and multiples. Otherwise they pile up from node to node, and with them the time of each proof.
        """
        if not isinstance(value, (Size, Condition)):
            return value
        found = self._settled.get(value)
        if found is None:
            found = self._settled[value] = self._settle(value)
        return found

    def _settle(self, value: Size | Condition) -> Any:
        value = self.with_values(value)
        if not isinstance(value, (Size, Condition)) or not (self.intervals or self.assumed):
            return value
        return self._without_decided(self._with_multiples(value))

    def _with_multiples(self, value: Size | Condition) -> Any:
        multiples = self.multiples
        if not multiples:
            return value
        try:
            return with_multiples(value, multiples)
        except ZeroDivisionError:  # as in `with_values`
            return value

    @property
    def multiples(self) -> Mapping[Atom, int]:
        """Atoms that are multiples of a number greater than 1, by what is assumed, with this number."""
        if self._multiples is None:
            self._multiples = {}
            for condition in self.assumed:
                for atom, divisor in divisors_by(condition, self.bounds).items():
                    self._multiples[atom] = math.lcm(divisor, self._multiples.get(atom, 1))
        return self._multiples

    def _without_decided(self, value: Size | Condition) -> Any:
        given: dict[Atom, Number] = {}
        for atom in ordered_atoms(value, lambda atom: bool(atom.symbols)):
            if isinstance(atom, Choice):
                _, condition, one, other = atom.key
                truth = self.decide(condition)
                if truth is not None:
                    given[atom] = replaced(one if truth else other, given)
            elif isinstance(atom, Truncated) and _is_floored(*map(self.bounds, atom.key[1:])):
                given[atom] = replaced(floor_divide(*atom.key[1:]), given)
            elif isinstance(atom, Extreme) and not atom.symbols.isdisjoint(self.intervals):
                kind, *numbers = atom.key
                kept = _unbeaten(kind, numbers, self.bounds)
                if len(kept) < len(numbers):
                    given[atom] = replaced(operation(kind)(*kept), given)
        try:
            return replaced(value, given)
        except ZeroDivisionError:  # as in `with_values`
            return value

    def with_values(self, value: Any) -> Any:
        """Returns a number or condition with the symbols of known value replaced, an int where one value is left.

        It is returned as it is where it then divides by 0: the model computes it for no sizes that are left.
        """
        known = self._with_symbols(value)
        if self.intervals and isinstance(known, Size) and not known.symbols.isdisjoint(self.intervals):
            least, most = self.bounds(known)
            if least is not None and least == most:
                return least
        return value if known is None else known

    def _with_symbols(self, value: Any) -> Any:
        """Returns a number or condition with the symbols of known value replaced, None where it then divides by 0."""
        symbols = getattr(value, "symbols", None)
        if not symbols or not self.values or symbols.isdisjoint(self.values):
            return value
        try:
            return replaced(value, self.values)
        except ZeroDivisionError:  # in the branch of an If that runs at no sizes, or whose nodes then fail
            return None

    def bounds(self, number: Number) -> Interval:
        """Returns least and greatest value, None where no bound is known."""
        if isinstance(number, int):
            return number, number
        if not self.intervals or number.symbols.isdisjoint(self.intervals):
            return number.interval
        if any(self._is_narrowed(atom) for monomial, _ in number.terms for atom in monomial):
            for atom in ordered_atoms(number, self._is_narrowed):
                self._spans[atom] = self._atom_bounds(atom)
        return self._shallow_bounds(number)

    def _is_narrowed(self, atom: Atom) -> bool:
        return atom not in self._spans and not atom.symbols.isdisjoint(self.intervals)

    def _shallow_bounds(self, number: Number) -> Interval:
        """Returns the bounds of a number from those that are known of its atoms."""
        if isinstance(number, int):
            return number, number
        return interval_of(number.terms, lambda atom: self._spans.get(atom, atom.interval))

    def _atom_bounds(self, atom: Atom) -> Interval:
        if isinstance(atom, Symbol):
            return self.intervals[atom]
        kind, *operands = atom.key
        if kind == "where":
            operands = operands[1:]
        spans = [self._shallow_bounds(operand) for operand in operands]
        # The operation is built anew on symbols with these bounds; its interval is the answer.
        fresh = {}
        for operand, span in zip(operands, spans, strict=True):
            if isinstance(operand, Size):
                fresh[operand] = Symbol("", *span)
        return _interval_with(atom, fresh)

    def assume(self, condition: Truth) -> bool:
        """Notes a condition that a guard checks, and what follows from it.

        Returns:
            False where no size fulfils it; nothing is noted then.
        """
        before = self.values, dict(self.intervals), dict(self.assumed)  # the values are never changed in place
        if self._follows(condition):
            return True
        self.values, self.intervals, self.assumed = before
        self._forget()
        return False

    def _follows(self, condition: Truth) -> bool:
        """Notes a condition and what follows from it; returns False where no size fulfils it, in the middle of it."""
        condition = self.with_values(condition)
        if isinstance(condition, bool):
            return condition
        if condition.kind == "and":
            return all([self._follows(part) for part in condition.operands])
        self._forget()
        if len(condition.symbols) == 1:
            (symbol,) = condition.symbols
            found = solutions(condition, symbol, self.intervals.get(symbol, symbol.interval))
            if found is not None:
                if found[0] is not None and found[1] is not None and found[0] > found[1]:
                    return False
                return self.narrow(symbol, found)
        equal_to = _solved(condition)
        if equal_to is not None:
            return self._replace(*equal_to)
        self.assumed[condition] = None
        return True

    def _forget(self) -> None:
        """Drops what was proven from less, as more is known now."""
        self._decided.clear()
        self._spans.clear()
        self._settled.clear()
        self._multiples = self._givens = None

    def narrow(self, symbol: Symbol, interval: Interval) -> bool:
        """Notes narrower bounds of a symbol, one of which is its value; False where no size fulfils what is known."""
        self._forget()
        least, most = interval
        if least is not None and least == most:
            return self._replace(symbol, least)
        self.intervals[symbol] = interval
        return True

    def _replace(self, symbol: Symbol, number: Number) -> bool:
        """Notes what a symbol is, and what is known of it of the number; returns False where no size fulfils it."""
        self._forget()
        least, most = self.intervals.pop(symbol, symbol.interval)
        ends: list[Truth] = [True if least is None else at_least_zero(subtract(number, least))]
        if most is not None and most != MAX_DIMENSION:  # that one is no restriction of the model's
            ends.append(at_least_zero(subtract(most, number)))
        dependent = [condition for condition in self.assumed if symbol in condition.symbols]
        values = {other: replaced(value, {symbol: number}) for other, value in self.values.items()}
        self.values = {**values, symbol: number}
        return all([self._follows(condition) for condition in (*ends, *dependent)])

    def decide(self, condition: Truth, *, required: bool = False) -> bool | None:
        """Returns the truth of a condition for all sizes, None where it is not proven.

        No choice of the program depends on one that is `required` otherwise.
        """
        condition = self.settled(condition)
        if isinstance(condition, bool):
            return condition
        if condition not in self._decided:
            self._decided[condition] = self._decide(condition)
        truth = self._decided[condition]
        if truth is None and not required:
            self.asked.update(condition.symbols)
        return truth

    def _decide(self, condition: Condition) -> bool | None:
        if condition in self.assumed:
            return True
        opposite = negation(condition)
        if isinstance(opposite, bool) or opposite in self.assumed:
            return False
        if condition.kind in ("and", "or"):
            return _joined(condition, self)
        (size,) = condition.operands
        proof = _Proof(self)
        if condition.kind == ">=":
            if proof.not_negative(size):
                return True
            return False if _Proof(self).not_negative(subtract(multiply(size, -1), 1)) else None
        if proof.is_zero(size):
            return condition.kind == "=="
        apart = any(_Proof(self).not_negative(subtract(multiply(size, sign), 1)) for sign in (1, -1))
        return condition.kind == "!=" if apart else None

    def same(self, a: Number, b: Number) -> bool:
        """Returns whether two numbers are proven to be equal."""
        if a is b or (isinstance(a, int) and isinstance(b, int)):
            return a is b or a == b
        return self.decide(equal(a, b)) is True

    @property
    def givens(self) -> Sequence[Size]:
        """Sizes that the assumptions say are not negative."""
        if self._givens is None:
            self._givens = [size for condition in self.assumed for size in _not_negative_by(condition)]
        return self._givens


def _joined(condition: Condition, facts: Facts) -> bool | None:
    """Returns the truth of conditions that are joined by `and` or `or`."""
    truths = [facts.decide(part, required=True) for part in condition.operands]
    absorbing = condition.kind == "or"
    if absorbing in truths:
        return absorbing
    if None not in truths:
        return not absorbing
    return True if absorbing and _covers(condition.operands, facts) else None


def _covers(conditions: Sequence[Condition], facts: Facts) -> bool:
    """Returns whether one of two conditions is proven to hold wherever the other one does not."""
    if len(conditions) == 2:
        for one, other in (conditions, conditions[::-1]):
            if one.kind == ">=":
                proof = _Proof(facts)
                if proof.not_negative(one.operands[0], proof.not_negative_where([negation(other)])):
                    return True
    return False


def _interval_with(atom: Atom, fresh: Mapping[Size, Symbol]) -> Interval:
    kind, *operands = atom.key
    made: list[Any] = []
    for operand in operands:
        symbol = fresh.get(operand) if isinstance(operand, Size) else None
        made.append(of_terms({(symbol,): 1}) if symbol is not None else operand)
    try:
        return bounds(operation(kind)(*made))
    except ZeroDivisionError:
        return atom.interval


def _is_floored(dividend: Interval, divisor: Interval) -> bool:
    """Returns whether a quotient that is rounded towards zero is one that is rounded down, by bounds alone."""
    (least, _), (smallest, _) = dividend, divisor
    return least is not None and least >= 0 and smallest is not None and smallest > 0


def _unbeaten(kind: str, numbers: Sequence[Number], bounds: Callable[[Number], Interval]) -> list[Number]:
    """Returns the numbers of a minimum or maximum but those that by their bounds are not it, or not it alone."""
    kept = list(numbers)

    def beats(other: Number, number: Number) -> bool:
        least, most = bounds(subtract(other, number))
        return (least is not None and least >= 0) if kind == "max" else (most is not None and most <= 0)

    for number in numbers:
        if any(beats(other, number) for other in kept if other is not number):
            kept.remove(number)
    return kept


def _not_negative_by(condition: Condition) -> Iterator[Size]:
    if condition.kind == ">=":
        yield condition.operands[0]
    elif condition.kind == "==":
        for sign in (1, -1):
            size = multiply(condition.operands[0], sign)
            if isinstance(size, Size):
                yield size
    elif condition.kind == "and":
        for part in condition.operands:
            yield from _not_negative_by(part)


def _known_by(condition: Condition) -> Iterator[tuple[Symbol, Number]]:
    """Yields each symbol of which a condition says the number, and that number: of `n == 3`, alone or in an `and`."""
    if condition.kind == "and":
        for part in condition.operands:
            yield from _known_by(part)
    elif condition.kind == "==" and len(condition.symbols) == 1:
        (symbol,), (size,) = condition.symbols, condition.operands
        for sign in (1, -1):
            rest = subtract(of_terms({(symbol,): 1}), multiply(size, sign))
            if isinstance(rest, int):
                yield symbol, rest


def _solved(condition: Condition) -> tuple[Symbol, Number] | None:
    """Returns a symbol and the number that an equation says it is: another symbol and a constant; else None."""
    if condition.kind != "==":
        return None
    (size,) = condition.operands
    terms = {monomial: coefficient for monomial, coefficient in size.terms if monomial}
    symbols = [monomial[0] for monomial in terms if len(monomial) == 1 and isinstance(monomial[0], Symbol)]
    if len(symbols) < 2 or len(symbols) != len(terms) or sorted(terms.values()) != [-1, 1]:
        return None
    symbol = max(symbols, key=lambda item: (item.by_data, item.number))  # the younger one gives way
    return symbol, subtract(of_terms({(symbol,): 1}), multiply(size, terms[(symbol,)]))


class _Proof:
    """One proof that a size is never negative."""

    def __init__(self, facts: Facts):
        self._facts, self._steps = facts, 0

    def is_zero(self, size: Number) -> bool:
        """Returns whether a size is 0 in every case."""
        return self.not_negative(size) and self.not_negative(multiply(size, -1))

    def not_negative(self, size: Number, given: Sequence[Size] = (), splits: int = 3) -> bool:
        """Returns whether a size is proven to be at least 0.

        Args:
            size: the size.
            given: sizes that are at least 0 in the case at hand.
            splits: the most case distinctions within each other.
        """
        known = self._facts._with_symbols(size)
        size = size if known is None else known
        least, most = self._facts.bounds(size)
        if least is not None and (least >= 0 or least == most):
            return least >= 0
        if isinstance(size, int) or self._steps >= _STEPS or self._facts.steps.taken >= _ALL_STEPS:
            return False
        count = 1 + len(size.terms) // 8
        self._steps += count
        self._facts.steps.taken += count
        for fact in _comparable(size, (*given, *self._facts.givens)):
            rest = self._facts.bounds(subtract(size, fact))[0]
            if rest is not None and rest >= 0:
                return True
        if (bounded := self._without_quotient(size)) is not None and self.not_negative(bounded, given, splits):
            return True
        if splits:
            cases = cases_of(size)
            if cases is not None:
                return all(self._case(*case, size, given, splits - 1) for case in cases)
        return False

    def _case(
        self, atom: Atom, value: Number, holds: Iterable[Truth], size: Size, given: Sequence[Size], splits: int
    ) -> bool:
        facts = [fact for fact in holds if not (isinstance(fact, bool) and fact)]
        if any(fact is False for fact in facts):
            return True  # the case does not occur
        conditions = [fact for fact in facts if isinstance(fact, Condition)]
        found = self.not_negative_where(conditions)
        for fact in found:  # the case does not occur either
            most = self._facts.bounds(fact)[1]
            if most is not None and most < 0:
                return True
        known = dict(number for fact in conditions for number in _known_by(fact))
        try:
            there = replaced(replaced(size, {atom: value}), known)
        except ZeroDivisionError:  # the case may not occur, which is not proven
            return False
        return self.not_negative(there, [*given, *found], splits)

    def not_negative_where(self, conditions: Iterable[Truth]) -> list[Size]:
        """Returns sizes that are not negative where all conditions hold."""
        facts = [fact for fact in conditions if isinstance(fact, Condition)]
        return [number for fact in facts for number in (*_not_negative_by(fact), *self._apart_from_zero(fact))]

    def _apart_from_zero(self, condition: Condition) -> Iterator[Size]:
        """Yields a number that is not negative as another, which never crosses 0, is not 0: `n - 1` for a size `n`."""
        if condition.kind == "!=":
            least, most = self._facts.bounds(condition.operands[0])
            number = subtract(multiply(condition.operands[0], 1 if least == 0 else -1), 1)
            if (least == 0 or most == 0) and isinstance(number, Size):
                yield number

    def _without_quotient(self, size: Size) -> Number | None:
        """Returns a number that is negative where `size` is: of its multiple, with one quotient's linear bound."""
        for monomial, coefficient in size.terms:
            for position, atom in enumerate(monomial):
                if not isinstance(atom, Quotient):
                    continue
                _, dividend, divisor = atom.key
                others = of_terms({monomial[:position] + monomial[position + 1 :]: 1})
                least = self._facts.bounds(others)[0]
                if not isinstance(divisor, int) or divisor < 1 or least is None or least < 0:
                    continue
                rest = subtract(size, of_terms({monomial: coefficient}))
                bound = dividend if coefficient < 0 else subtract(dividend, divisor - 1)
                lower = add(multiply(rest, divisor), multiply(multiply(bound, coefficient), others))
                return add(lower, divisor - 1)  # an integer above -1 is not negative
        return None


def _comparable(size: Size, facts: Iterable[Size]) -> Iterator[Size]:
    """Yields those of `facts` that may show more of `size` than its own bounds do, when they are subtracted from it.

    The bounds of a sum are the sums of its products' bounds. They are others only where a product is in both, with
    the same sign.
    """
    terms = dict(size.terms)
    for fact in facts:
        if any(terms.get(monomial, 0) * coefficient > 0 for monomial, coefficient in fact.terms if monomial):
            yield fact
