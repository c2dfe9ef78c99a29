"""Size expressions: hash-consed polynomials over symbols, quotients, minima, maxima, choices and broadcasts.

A number is a Python int where it is known, else a `Size`. Equal expressions in normal form are one object, so that
identity is equality, and an expression that is not identical may still be equal (see `facts`).

The normal form is a sum of products of atoms with integer coefficients. Modulo is no atom: `a mod b = a - b * (a div
b)`, for the floor and for the truncating division alike. The bounds of an expression follow from those of its symbols
by interval arithmetic; None stands for no bound.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, Union
from weakref import WeakValueDictionary

from onnx2nn.sizes.intervals import Bound, Interval
from onnx2nn.sizes.sums import interval_of

Number = Union[int, "Size"]

MAX_DIMENSION = (1 << 31) - 1
"""The largest dimension of a tensor that facts are proven for; files use it for "to the end"."""

_MAX_TERMS = 64
"""The most terms of a product that is multiplied out; a longer one is an atom of its own."""

_MAX_FACTORS = 16
"""The most atoms of a product; of a longer one, its factors are atoms of their own."""

_count = itertools.count()


class Atom:
    """A factor in a size: a symbol, or an operation that is no sum and no product.

    Attributes:
        key: kind and operands.
        interval: least and greatest value.
        symbols: the symbols in it.
    """

    __slots__ = ("__weakref__", "interval", "key", "number", "symbols")

    def __init__(self, key: tuple[Any, ...], interval: Interval, symbols: frozenset[Symbol]):
        self.key, self.interval, self.symbols = key, interval, symbols
        self.number = next(_count)


class Symbol(Atom):
    """A dynamic dimension of an input, or a size that data decide.

    Args:
        name: its name, for messages.
        least: the smallest value.
        most: the largest value, None where there is none.
        by_data: whether data decide it.
    """

    __slots__ = ("by_data", "name")

    def __init__(self, name: str, least: Bound = 0, most: Bound = MAX_DIMENSION, *, by_data: bool = False):
        super().__init__(("symbol", name), (least, most), frozenset())
        self.name, self.by_data = name, by_data
        self.symbols = frozenset((self,))

    def __repr__(self) -> str:
        return self.name


Monomial = tuple[Atom, ...]
Terms = tuple[tuple[Monomial, int], ...]

_atoms: WeakValueDictionary[tuple[Any, ...], Atom] = WeakValueDictionary()
_sizes: WeakValueDictionary[Terms, Size] = WeakValueDictionary()


class Size:
    """An integer that is computed from symbols.

    `+ - * // %` are those of Python's ints: floor division, a remainder with the divisor's sign. `==` is identity.

    Attributes:
        terms: products of atoms, with their coefficients; the constant is the empty product's coefficient.
        interval: least and greatest value.
        symbols: the symbols in it.
    """

    __slots__ = ("__weakref__", "interval", "symbols", "terms")

    def __init__(self, terms: Terms):
        self.terms = terms
        self.symbols = frozenset(s for monomial, _ in terms for atom in monomial for s in atom.symbols)
        self.interval = interval_of(terms, lambda atom: atom.interval)

    def __add__(self, other: Any) -> Any:
        return add(self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return subtract(self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return subtract(other, self) if isinstance(other, int) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return multiply(self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __floordiv__(self, other: Any) -> Any:
        return floor_divide(self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return floor_divide(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return floor_remainder(self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return floor_remainder(other, self) if isinstance(other, int) else NotImplemented

    def __neg__(self) -> Any:
        return multiply(self, -1)

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self!r} is 0 depends on the sizes of inputs")

    def __reduce__(self) -> Any:
        raise TypeError("a size belongs to one import and is not pickled")

    @property
    def by_data(self) -> bool:
        """Whether data decide it."""
        return any(symbol.by_data for symbol in self.symbols)


def of_terms(terms: Mapping[Monomial, int]) -> Number:
    """Returns the sum of `terms`: an int where only one value is left."""
    kept = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return _of_ordered(tuple(sorted(kept.items(), key=term_order) if len(kept) > 1 else kept.items()))


def _of_ordered(terms: Terms) -> Number:
    """Returns the sum of terms in their order, none of them 0 and some with symbols: an int where one value is left."""
    size = _sizes.get(terms)
    if size is None:
        size = _sizes[terms] = Size(terms)
    least, most = size.interval
    return least if least is not None and least == most else size


def term_order(term: tuple[Monomial, int]) -> Any:
    """Returns the key by which terms are sorted: the longest products first."""
    monomial = term[0]
    return -len(monomial), tuple(atom.number for atom in monomial)


def terms_of(number: Number) -> Mapping[Monomial, int]:
    """Returns the terms of a number as a new dict."""
    return dict(number.terms) if isinstance(number, Size) else {(): number} if number else {}


def of_symbol(symbol: Symbol) -> Number:
    """Returns a symbol as a number."""
    return of_terms({(symbol,): 1})


def of_atom(kind: type[Atom], key: tuple[Any, ...], interval: Interval, operands: Iterable[Any]) -> Number:
    """Returns an atom as a number, an int where its interval holds one value."""
    least, most = interval
    if least is not None and least == most:
        return least
    atom = _atoms.get(key)
    if atom is None:
        symbols = frozenset(s for operand in operands for s in getattr(operand, "symbols", ()))
        atom = _atoms[key] = kind(key, interval, symbols)
    return of_terms({(atom,): 1})


def bounds(number: Number) -> Interval:
    """Returns least and greatest value, None where there is no bound."""
    return number.interval if isinstance(number, Size) else (number, number)


def add(a: Number, b: Number) -> Number:
    """Returns the sum."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int):
        return _shifted(b, a)
    if isinstance(b, int):
        return _shifted(a, b)
    terms = dict(a.terms)
    for monomial, coefficient in b.terms:
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return of_terms(terms)


def _shifted(size: Number, number: int) -> Number:
    """Returns the sum of a size and an int; the constant of a size stands behind all its other terms."""
    assert isinstance(size, Size)
    last, constant = size.terms[-1]
    terms, number = (size.terms, number) if last else (size.terms[:-1], number + constant)
    return _of_ordered((*terms, ((), number)) if number else terms)


def subtract(a: Number, b: Number) -> Number:
    """Returns the difference."""
    return 0 if a is b else add(a, -b if isinstance(b, int) else multiply(b, -1))


def multiply(a: Number, b: Number) -> Number:
    """Returns the product, multiplied out."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        assert isinstance(a, Size)
        return b and (a if b == 1 else _of_ordered(tuple((m, c * b) for m, c in a.terms)))
    assert isinstance(a, Size)
    for number, choice in ((a, b), (b, a)):
        factor = _where_not_zero(choice, number)
        if factor is not None:
            return multiply(number, factor)
    if len(a.terms) * len(b.terms) > _MAX_TERMS or _degree(a) + _degree(b) > _MAX_FACTORS:
        a, b = _as_atom(a), _as_atom(b)
    terms: dict[Monomial, int] = {}
    for one, m in terms_of(a).items():
        for other, n in terms_of(b).items():
            product = tuple(sorted((*one, *other), key=lambda atom: atom.number))
            terms[product] = terms.get(product, 0) + m * n
    return of_terms(terms)


def _where_not_zero(choice: Size, number: Size) -> Number | None:
    """Returns what a choice between two numbers is wherever another number is not 0; None where that is open.

    Law: where `p` divides `a`, `a * (u if p == 0 else v)` is `a * v`, as `a` is 0 in the other case.
    """
    monomial, coefficient = choice.terms[0]
    if len(choice.terms) > 1 or len(monomial) > 1 or monomial[0].key[0] != "where":
        return None
    _, condition, there, elsewhere = monomial[0].key
    if condition.kind not in ("==", "!=") or divided(number, condition.operands[0]) is None:
        return None
    return multiply(elsewhere if condition.kind == "==" else there, coefficient)


def _degree(size: Size) -> int:
    return len(size.terms[0][0])  # the longest products come first


class Sum(Atom):
    """A sum, or a product, that is not multiplied out, because the result would be too long; key: the size."""

    __slots__ = ()


def _as_atom(size: Number) -> Number:
    if isinstance(size, int) or (len(size.terms) == 1 and len(size.terms[0][0]) == 1):
        return size
    return of_atom(Sum, ("sum", size), size.interval, (size,))


def product(numbers: Iterable[Number]) -> Number:
    """Returns the product of numbers."""
    result: Number = 1
    for number in numbers:
        result = multiply(result, number)
    return result


class Extreme(Atom):
    """A minimum or maximum; key: `"min"` or `"max"`, then the numbers."""

    __slots__ = ()


class Broadcast(Atom):
    """The common size of dimensions that are broadcast together: the one that is not 1; key: the sizes.

    It says nothing of sizes that do not fit: computing with them fails at run time.
    """

    __slots__ = ()


class Quotient(Atom):
    """A floor division; key: dividend and divisor."""

    __slots__ = ()


class Truncated(Atom):
    """A division that is rounded towards zero, as ONNX's Div of integers; key: dividend and divisor."""

    __slots__ = ()


def floor_divide(a: Number, b: Number) -> Number:
    """Returns the quotient, rounded down. Where the divisor is 0, the model fails; no fact is claimed there.

    Laws: `a // -b = -a // b`, `(b * q + r) // b = q + r // b`, `(a // b + d) // c = (a + b * d) // (b * c)` for
    `b, c > 0`, common factors cancel, and `(b * x - r) // b = x - (r + b - 1) // b`: of the two forms it is the one
    with smaller factors, so that `31 * n // 32`, `n + -n // 32` and `n - (n + 31) // 32` are the same.

    Raises:
        ZeroDivisionError: the divisor is the int 0.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if a is b:
        return 1
    if _is_negative(b):
        a, b = multiply(a, -1), multiply(b, -1)
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError("a size is divided by 0")
        return _divided_by_int(a, b) if b > 1 else a
    exact = divided(a, b)
    return _quotient(a, b) if exact is None else exact


def _is_negative(divisor: Number) -> bool:
    """Returns whether a divisor, which is not 0 where its quotient is asked, is less than 0."""
    most = bounds(divisor)[1]
    return most is not None and most <= 0 and divisor != 0


def _divided_by_int(a: Number, b: int) -> Number:
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in terms_of(a).items():
        whole[monomial], rest[monomial] = divmod(coefficient, b)
    remainder = of_terms(rest)
    least, most = bounds(remainder)
    if least is not None and most is not None and least // b == most // b:
        return add(of_terms(whole), least // b)
    assert isinstance(remainder, Size)
    common = reduce(math.gcd, (c for m, c in remainder.terms if m), b)
    if common > 1:  # (common * p + r) // (common * c) = (p + r // common) // c
        inner = of_terms({m: c // common for m, c in remainder.terms})
        return add(of_terms(whole), floor_divide(inner, b // common))
    atoms, constant = {m: c for m, c in remainder.terms if m}, dict(remainder.terms).get((), 0)
    complement = {m: b - c for m, c in atoms.items()}
    if sum(complement.values()) < sum(atoms.values()):
        rounded_up = floor_divide(add(of_terms(complement), b - 1 - constant), b)
        return subtract(add(of_terms(whole), of_terms(dict.fromkeys(atoms, 1))), rounded_up)
    if len(atoms) == 1:
        (((*others, atom), coefficient),) = atoms.items()
        if not others and coefficient == 1 and isinstance(atom, Quotient) and isinstance(atom.key[2], int):
            _, dividend, divisor = atom.key
            return add(of_terms(whole), floor_divide(add(dividend, constant * divisor), divisor * b))
    return add(of_terms(whole), _quotient(remainder, b))


def divided(a: Number, b: Size) -> Number | None:
    """Returns the quotient of polynomials, None where `b` does not divide `a`."""
    lead, factor = b.terms[0]
    quotient: Number = 0
    rest = a
    for _ in range(_MAX_TERMS):
        found = _multiple(rest, lead, factor)
        if found is None:
            break
        quotient, rest = add(quotient, found), subtract(rest, multiply(found, b))
    return quotient if isinstance(rest, int) and rest == 0 else None


def _multiple(number: Number, lead: Monomial, factor: int) -> Number | None:
    """Returns the quotient of one term of `number` by `factor * lead`; None where no term is divisible."""
    for monomial, coefficient in terms_of(number).items():
        left = list(monomial)
        if coefficient % factor:
            continue
        for atom in lead:
            if atom not in left:
                break
            left.remove(atom)
        else:
            return of_terms({tuple(left): coefficient // factor})
    return None


def _quotient(a: Number, b: Number) -> Number:
    common = _common_factor(a, b)
    if common != 1:
        a, b = _divided_exactly(a, common), _divided_exactly(b, common)
        if isinstance(b, int):
            return floor_divide(a, b)
    return of_atom(Quotient, ("//", a, b), _quotient_bounds(a, b, operator.floordiv), (a, b))


def _common_factor(a: Number, b: Number) -> Number:
    """Returns the greatest product that divides every term of both."""
    groups = [(list(m), abs(c)) for number in (a, b) for m, c in terms_of(number).items()]
    if not groups:
        return 1
    shared, coefficient = list(groups[0][0]), groups[0][1]
    for monomial, other in groups[1:]:
        coefficient, left = math.gcd(coefficient, other), list(monomial)
        kept = []
        for atom in shared:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        shared = kept
    return of_terms({tuple(shared): max(coefficient, 1)})


def factored(number: Number) -> tuple[Number, Number]:
    """Returns all that divides each term of a number, and the rest: of `b * w * h - b * w`, these are `b * w`, `h - 1`.

    A number of one term, and one whose terms share no symbol, is its own rest.
    """
    common = _common_factor(number, 0)
    if isinstance(common, int) or (isinstance(number, Size) and len(number.terms) == 1):
        return 1, number
    return common, _divided_exactly(number, common)


def _divided_exactly(a: Number, factor: Number) -> Number:
    ((lead, coefficient),) = terms_of(factor).items()
    result: dict[Monomial, int] = {}
    for monomial, count in terms_of(a).items():
        left = list(monomial)
        for atom in lead:
            left.remove(atom)
        result[tuple(left)] = count // coefficient
    return of_terms(result)


def _quotient_bounds(a: Number, b: Number, divide: Callable[[int, int], int]) -> Interval:
    """Returns bounds of a quotient with a divisor that is not 0, from its values at the corners."""
    (p, q), (c, d) = bounds(a), bounds(b)
    if c is None or c < 0:
        return None, None
    c = max(c, 1)
    corners: list[float] = []
    for x in (p, q):
        for y in (c, d):
            if x is None:
                continue
            corners.append((0 if x >= 0 or divide(-1, 2) == 0 else -1) if y is None else divide(x, y))
    low = None if p is None else min(corners)
    high = None if q is None else max(corners)
    return low, high  # type: ignore[return-value]  # the corners are ints


def truncated_divide(a: Number, b: Number) -> Number:
    """Returns the quotient, rounded towards zero, as ONNX's Div of integers.

    Laws: for `a >= 0` and `b > 0` it is the floor division, and another divisor's sign is the quotient's.
    """
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    if _is_negative(b):
        return multiply(truncated_divide(a, multiply(b, -1)), -1)
    if isinstance(b, int) and b == 0:
        raise ZeroDivisionError("a size is divided by 0")
    if isinstance(b, int) and b == 1:
        return a
    (p, q), (c, _) = bounds(a), bounds(b)
    if c is not None and c >= 0:
        if p is not None and p >= 0:
            return floor_divide(a, b)
        if q is not None and q <= 0:
            return multiply(floor_divide(multiply(a, -1), b), -1)
    if isinstance(b, int) and all(coefficient % b == 0 for coefficient in terms_of(a).values()):
        return floor_divide(a, b)
    exact = divided(a, b) if isinstance(b, Size) else None
    if exact is not None:
        return exact
    interval = _quotient_bounds(a, b, lambda x, y: int(truncated_divide(x, y)))  # type: ignore[arg-type]  # of ints
    return of_atom(Truncated, ("trunc", a, b), interval, (a, b))


def floor_remainder(a: Number, b: Number) -> Number:
    """Returns the remainder with the divisor's sign, as ONNX's Mod: `a - b * (a // b)`."""
    return subtract(a, multiply(b, floor_divide(a, b)))
