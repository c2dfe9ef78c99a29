"""Symbolic numbers in row bodies during an import: dynamic dimensions, and numbers and truths computed from them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from oneflow_bridge.namespace.tensor import Deferred
from onnx2nn.errors import OperatorError
from onnx2nn.optable.row import NeedsValues
from onnx2nn.sizes import conditions, expression, selection
from onnx2nn.sizes.conditions import Condition, Truth
from onnx2nn.sizes.expression import MAX_DIMENSION, Number, Size, Symbol, of_symbol
from onnx2nn.sizes.facts import Facts


class Sizes:
    """What is known of the sizes of one import.

    Attributes:
        facts: what is proven of the symbols.
        recorder: records the body that runs now.
        demands: conditions that the node demands of sizes and that are not proven: it must check them at run time.
    """

    def __init__(self) -> None:
        self.facts: Facts = Facts()
        self.recorder: Any = None
        self.demands: list[str] = []

    @contextmanager
    def node(self, recorder: Any) -> Iterator[None]:
        """Collects the demands of the body of one node; what it demands holds in it only."""
        outer = self.facts, self.recorder, self.demands
        self.facts, self.recorder, self.demands = Facts(outer[0]), recorder, []
        try:
            yield
        finally:
            self.facts, self.recorder, self.demands = outer

    def number(self, expr: Any) -> Any:
        """Returns a number or condition for a body: an int or a bool where it is known, else a `Dim`."""
        if isinstance(expr, Condition):
            truth = self.facts.decide(expr)
            return Dim(self, expr) if truth is None else truth
        expr = self.facts.settled(expr)
        return Dim(self, expr) if isinstance(expr, Size) else expr

    def demand(self, condition: Truth, reason: str) -> None:
        """Notes that the node fails where a condition is false.

        Raises:
            OperatorError: it is false for all sizes.
        """
        truth = self.facts.decide(condition)
        if truth:
            return
        if truth is False or not self.facts.assume(condition):
            raise OperatorError(f"{reason}.")
        self.demands.append(reason)


def unknown_size() -> Number:
    """Returns a size of which nothing is known."""
    return of_symbol(Symbol("?", by_data=True))


def expression_of(value: Any) -> Any:
    """Returns a Python number or `Dim` as a size expression or condition.

    Raises:
        NeedsValues: it is a float.
    """
    if isinstance(value, Dim):
        return value.expr
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    raise NeedsValues(f"a {type(value).__name__} beside a size")


def _integer(value: Any) -> Number:
    """Returns a number as an integer expression: 1 or 0 for a truth."""
    expr = expression_of(value)
    return (
        selection.choose(expr, 1, 0) if isinstance(expr, Condition) else int(expr) if isinstance(expr, bool) else expr
    )


class Dim(Deferred):
    """A symbolic integer or truth. A comparison that is proven is a bool.

    It raises `NeedsValues` where its value is needed: as a fixed number, or where a branch depends on it. The node then
    becomes one call at run time.

    Attributes:
        sizes: what is known of sizes.
        expr: what it is, in terms of the dimensions of inputs.
    """

    __slots__ = ("expr", "sizes")
    __hash__ = object.__hash__
    data_dependent = False

    def __init__(self, sizes: Sizes, expr: Size | Condition):
        self.sizes, self.expr = sizes, expr

    @property
    def recorder(self) -> Any:  # type: ignore[override]  # of the body that runs now
        """The recorder of the body that runs now, for a call with a tensor and this number."""
        return self.sizes.recorder

    @property
    def is_truth(self) -> bool:
        """Whether it is True or False."""
        return isinstance(self.expr, Condition)

    @property
    def _condition(self) -> Truth:
        return self.expr if isinstance(self.expr, Condition) else conditions.is_not_zero(self.expr)

    def __bool__(self) -> bool:
        truth = self.sizes.facts.decide(self._condition)
        if truth is None:
            raise NeedsValues(f"a branch depends on {self.expr!r}")
        return truth

    def __index__(self) -> int:
        raise NeedsValues(f"{self.expr!r} is needed as a fixed number")

    __int__ = __float__ = __index__

    def __repr__(self) -> str:
        return repr(self.expr)

    def demand(self, reason: str) -> None:
        """Requires a truth; the node checks it at run time, unless it is proven."""
        self.sizes.demand(self._condition, reason)

    def _made(self, law: Callable[..., Any], *operands: Any) -> Any:
        try:
            return self.sizes.number(law(*map(_integer, operands)))
        except ZeroDivisionError:
            raise NeedsValues("a division by 0") from None

    def least(self, other: Any) -> Any:
        """Returns the smaller of two numbers."""
        if isinstance(other, int) and other >= MAX_DIMENSION:
            return self
        return self._made(selection.minimum, self, other)

    def most(self, other: Any) -> Any:
        """Returns the larger of two numbers."""
        return self._made(selection.maximum, self, other)

    def choose(self, one: Any, other: Any) -> Any:
        """Returns `one` where this is true, else `other`."""
        if isinstance(one, bool) or isinstance(other, bool) or getattr(one, "is_truth", False):
            return (self & one) | (self.negated() & other)
        return self.sizes.number(selection.choose(self._condition, _integer(one), _integer(other)))

    def negated(self) -> Any:
        """Returns the negation of a truth."""
        return self.sizes.number(conditions.negation(self._condition))

    def to_integer(self) -> Any:
        """Returns a number unchanged, 1 or 0 for a truth."""
        return self.sizes.number(_integer(self)) if self.is_truth else self

    def truncated(self, divisor: Any) -> Any:
        """Returns the quotient by `divisor`, rounded towards zero."""
        return self._made(expression.truncated_divide, self, divisor)

    def truncating(self, dividend: Any) -> Any:
        """Returns the quotient of `dividend` by this number, rounded towards zero."""
        return self._made(expression.truncated_divide, dividend, self)

    def __neg__(self) -> Any:
        return self._made(lambda a: expression.multiply(a, -1), self)

    def __abs__(self) -> Any:
        return self._made(selection.absolute, self)

    def __floor__(self) -> Any:
        return self

    __ceil__ = __trunc__ = __round__ = __floor__

    def __pow__(self, exponent: Any) -> Any:
        if not isinstance(exponent, int) or not 0 <= exponent <= 4:
            raise NeedsValues("a power of a size")
        return self._made(lambda a: expression.product([a] * exponent), self)

    def __truediv__(self, other: Any) -> Any:
        raise NeedsValues("a float computed from a size")

    __rtruediv__ = __rpow__ = __truediv__

    def __and__(self, other: Any) -> Any:
        return self.sizes.number(conditions.conjunction((self._condition, _truth(other))))

    def __or__(self, other: Any) -> Any:
        return self.sizes.number(conditions.disjunction((self._condition, _truth(other))))

    __rand__, __ror__ = __and__, __or__


def _truth(value: Any) -> Truth:
    expr = expression_of(value)
    return expr if isinstance(expr, (bool, Condition)) else conditions.is_not_zero(expr)


def _attach(name: str, law: Callable[[Number, Number], Any], reflected: str = "") -> None:
    def forward(self: Dim, other: Any) -> Any:
        return self._made(law, self, other) if _is_number(other) else NotImplemented

    def backward(self: Dim, other: Any) -> Any:
        return self._made(law, other, self) if _is_number(other) else NotImplemented

    setattr(Dim, f"__{name}__", forward)
    if reflected:
        setattr(Dim, f"__{reflected}__", backward)


def _is_number(value: Any) -> bool:
    return isinstance(value, (Dim, int, float, np.number, np.bool_))


for _name, _law in {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": expression.floor_divide,
    "mod": expression.floor_remainder,
}.items():
    _attach(_name, _law, f"r{_name}")
for _name, _law in {
    "eq": conditions.equal,
    "ne": conditions.unequal,
    "lt": conditions.less,
    "le": conditions.at_most,
    "gt": lambda a, b: conditions.less(b, a),
    "ge": lambda a, b: conditions.at_most(b, a),
}.items():
    _attach(_name, _law)
