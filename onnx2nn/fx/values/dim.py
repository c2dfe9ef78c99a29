"""Symbolic numbers of a recorded program: dynamic dimensions, and integers and truths computed from them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import fx

from onnx2nn import functional
from onnx2nn.fx.shape_rules import operands
from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.sizes import conditions, expression
from onnx2nn.sizes import selection as selections
from onnx2nn.sizes.conditions import Condition
from onnx2nn.sizes.expression import MAX_DIMENSION, Number, Size

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer

Function = Callable[..., Any]


class Dim:
    """A symbolic integer or truth: a dynamic dimension, or a number computed from dynamic dimensions.

    It behaves like a Python int or bool. A comparison that is proven is a bool. `bool()` of another one is settled by a
    guard, which the module checks at its entry.

    Attributes:
        expr: what it is, in terms of the model's dimensions.
        comparison: operator and operands, where it is the result of a comparison.
    """

    __slots__ = ("_make", "_node", "comparison", "expr", "tracer")

    def __init__(self, tracer: Tracer, expr: Size | Condition, make: Callable[[], fx.Node]):
        self.tracer, self.expr, self._make = tracer, expr, make
        self._node: fx.Node | None = None
        self.comparison: tuple[Function, Any, Any] | None = None

    @property
    def node(self) -> fx.Node:
        """The fx node that computes it; recorded at its first use."""
        if self._node is None:
            self._node = self._make()
        return self._node

    @property
    def is_truth(self) -> bool:
        """Whether it is True or False."""
        return isinstance(self.expr, Condition)

    @property
    def data_dependent(self) -> bool:
        """Whether data decide it, beside the sizes of inputs."""
        return self.expr.by_data

    def __bool__(self) -> bool:
        condition = self.expr if isinstance(self.expr, Condition) else conditions.is_not_zero(self.expr)
        return self.tracer.guards.choice(condition)

    def least(self, other: Any) -> Any:
        """Returns the smaller of two numbers, for all sizes."""
        if isinstance(other, int) and other >= MAX_DIMENSION:
            return self
        return self._extreme(functional.onnx2nn__SizeMin, other, conditions.at_most)

    def most(self, other: Any) -> Any:
        """Returns the larger of two numbers, for all sizes."""
        return self._extreme(functional.onnx2nn__SizeMax, other, lambda a, b: conditions.at_most(b, a))

    def _extreme(self, function: Function, other: Any, before: Callable[[Any, Any], conditions.Truth]) -> Any:
        """Returns the one of two numbers that is proven to be the smaller or larger, else both as one call."""
        if isinstance(other, (int, Dim)):
            own, others = self.tracer.expr_of(self), self.tracer.expr_of(other)
            for number, a, b in ((self, own, others), (other, others, own)):
                if self.tracer.guards.decide(before(a, b)):
                    return number
        return self.tracer.number(function, self, other)

    def joined(self, other: Any) -> Number:
        """Returns the size of two dimensions that are broadcast together; a guard requires that they fit."""
        shapes = [[self.tracer.expr_of(size)] for size in (self, other)]
        return operands.broadcast(self.tracer.guards, shapes)[0]

    def choose(self, one: Any, other: Any) -> Any:
        """Returns `one` where this is true, else `other`, for all sizes."""
        if isinstance(one, bool) or isinstance(other, bool) or getattr(one, "is_truth", False):
            return (self & one) | (self.negated() & other)
        return self.tracer.number(self.selection, self, one, other)

    @property
    def selection(self) -> Function:
        """The function that selects one of two numbers by this truth."""
        return functional.onnx2nn__SizeWhere if self.data_dependent else functional.onnx2nn__SizeIf

    def demand(self, reason: str) -> None:
        """Guards a truth: the module refuses sizes at which it is false."""
        condition = self.expr if isinstance(self.expr, Condition) else conditions.is_not_zero(self.expr)
        self.tracer.guards.demand(condition, reason)

    def __index__(self) -> int:
        raise TraceError(f"a dynamic dimension ({self.expr!r}) is needed as a fixed number")

    __int__ = __float__ = __index__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return repr(self.expr)

    def __eq__(self, other: object) -> Any:
        return self._compare(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._compare(operator.ne, other)

    def __lt__(self, other: Any) -> Any:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(operator.ge, other)

    def negated(self) -> Any:
        """Returns the negation of a truth."""
        if self.comparison is None:
            return self.tracer.number(functional.onnx2nn__SizeNot, self)
        function, one, other = self.comparison  # torch.sym_not of a size that is fixed while compiling is refused
        return self.tracer.number(_OPPOSITE[function], one, other)

    def _compare(self, function: Function, other: Any) -> Any:
        if self is other:
            return function(0, 0)
        if self.is_truth and function in (operator.eq, operator.ne):
            # `==` of a torch.SymBool would compare the object.
            other = other != 0 if isinstance(other, (int, float)) else other
            same = self if other is True else self.negated() if other is False else None
            if same is None and getattr(other, "is_truth", False):
                same = (self & other) | (self.negated() & other.negated())
            if same is None:
                return NotImplemented
            return same if function is operator.eq else not same if isinstance(same, bool) else same.negated()
        if not isinstance(other, (Dim, int, float, np.number)):
            return NotImplemented
        return self.tracer.number(function, self, other)

    def __neg__(self) -> Any:
        return self.tracer.number(operator.neg, self)

    def __abs__(self) -> Any:
        return self.tracer.number(abs, self)

    def __floor__(self) -> Any:
        return self

    __ceil__ = __trunc__ = __round__ = __floor__

    def __and__(self, other: Any) -> Any:
        return self.tracer.number(operator.and_, self, other)

    def __or__(self, other: Any) -> Any:
        return self.tracer.number(operator.or_, self, other)

    __rand__, __ror__ = __and__, __or__

    def to_integer(self) -> Any:
        """Returns a number unchanged, 1 or 0 for a truth."""
        return self.tracer.number(self.selection, self, 1, 0) if self.is_truth else self

    def as_divisor(self) -> Dim:
        """Returns this number, which a guard keeps from being 0: ONNX Runtime too refuses to divide integers by it."""
        self.tracer.guards.demand(conditions.is_not_zero(self.tracer.expr_of(self)), "a divisor is not 0")
        return self

    def truncated(self, divisor: Any) -> Any:
        """Returns the quotient by `divisor`, rounded towards zero."""
        return self.tracer.integers.truncated(self, divisor)

    def truncating(self, dividend: Any) -> Any:
        """Returns the quotient of `dividend` by this number, rounded towards zero."""
        return self.tracer.integers.truncated(dividend, self)


_OPPOSITE = {operator.eq: operator.ne, operator.lt: operator.ge, operator.gt: operator.le}
_OPPOSITE |= {opposite: function for function, opposite in _OPPOSITE.items()}


def _arithmetic(name: str) -> None:
    function = getattr(operator, name)

    def forward(self: Dim, other: Any) -> Any:
        return self.tracer.number(function, self, other) if is_number(other) else NotImplemented

    def reflected(self: Dim, other: Any) -> Any:
        return self.tracer.number(function, other, self) if is_number(other) else NotImplemented

    setattr(Dim, f"__{name}__", forward)
    setattr(Dim, f"__r{name}__", reflected)


def is_number(value: Any) -> bool:
    """Returns whether a value is a number that arithmetic with symbolic numbers takes."""
    return isinstance(value, (Dim, int, float, np.number, np.bool_))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _arithmetic(_name)


def _power(a: Any, b: Any) -> Any:
    if not isinstance(b, int) or not 0 <= b <= 4:
        raise TraceError("a power of a size")
    return expression.product([a] * b)


_LAWS: dict[Function, Function] = {
    operator.add: expression.add,
    operator.sub: expression.subtract,
    operator.mul: expression.multiply,
    operator.floordiv: expression.floor_divide,
    operator.mod: expression.floor_remainder,
    operator.pow: _power,
    operator.neg: lambda a: expression.multiply(a, -1),
    abs: selections.absolute,
    functional.onnx2nn__SizeMin: selections.minimum,
    functional.onnx2nn__SizeMax: selections.maximum,
    functional.onnx2nn__SizeWhere: selections.choose,
    functional.onnx2nn__SizeIf: selections.choose,
    operator.eq: conditions.equal,
    operator.ne: conditions.unequal,
    operator.lt: conditions.less,
    operator.le: conditions.at_most,
    operator.gt: lambda a, b: conditions.less(b, a),
    operator.ge: lambda a, b: conditions.at_most(b, a),
    operator.and_: lambda a, b: conditions.conjunction((a, b)),
    operator.or_: lambda a, b: conditions.disjunction((a, b)),
    functional.onnx2nn__SizeNot: conditions.negation,
}
"""What the functions of a program compute, as size expressions."""


_EXTREMES: dict[str, Function] = {"min": functional.onnx2nn__SizeMin, "max": functional.onnx2nn__SizeMax}
"""The functions of a program that compute minima and maxima, which torch's tools know better than choices."""


class Integers:
    """Computes with symbolic numbers of one recorded program; equal expressions are one `Dim`."""

    def __init__(self, tracer: Tracer):
        self._tracer = tracer
        self._known: dict[Any, Dim] = {}

    def compute(self, function: Function, *args: Any) -> Any:
        """Returns `function(*args)` of numbers, some symbolic: a `Dim`, or a plain number where it is known.

        Raises:
            TraceError: the numbers are floats that are not exact, a divisor is 0, or data decide one of the numbers.
        """
        args = tuple(arg.item() if isinstance(arg, np.generic) else arg for arg in args)
        if any(isinstance(arg, float) for arg in args) or function is operator.truediv:
            return self._tracer.real(function, args)
        if not all(map(is_number, args)):
            raise TraceError("a size beside what is no number yet")
        law, facts = _LAWS.get(function), self._tracer.guards.facts
        if law is None:
            raise TraceError(f"{getattr(function, '__name__', function)} of a size")
        if function not in _ON_TRUTHS:  # True counts as 1
            args = tuple(arg.to_integer() if isinstance(arg, Dim) else int(arg) for arg in args)
        known = [facts.settled(arg.expr) if isinstance(arg, Dim) else arg for arg in args]
        if law is selections.choose and (extreme := selections.chosen_extreme(*known)) is not None:
            return self.compute(_EXTREMES[extreme], *args[1:])
        try:
            expr = law(*known)
        except ZeroDivisionError as error:
            raise TraceError(str(error)) from None
        if isinstance(expr, Condition) and (truth := facts.decide(expr)) is not None:
            return truth
        return self._dim(expr, function, args)

    def _dim(self, expr: Any, function: Function, args: tuple[Any, ...]) -> Any:
        expr = self._tracer.guards.facts.settled(expr)
        if isinstance(expr, (bool, int)):
            return expr
        for arg in args:
            if isinstance(arg, Dim) and arg.expr is expr:
                return arg
        if expr not in self._known:
            number = Dim(self._tracer, expr, lambda: self._tracer.record("call_function", function, args))
            if isinstance(expr, Condition) and function in _OPPOSITE:
                number.comparison = (function, *args)
            self._known[expr] = number
        return self._known[expr]

    def truncated(self, a: Any, b: Any) -> Any:
        """Returns the quotient of two integers, rounded towards zero.

        Raises:
            TraceError: the divisor may be negative.
        """
        facts = self._tracer.guards.facts
        x, y = (facts.settled(n.expr) if isinstance(n, Dim) else n for n in (a, b))
        if facts.decide(conditions.at_most(0, y)) is not True:  # both signs are proven in a branch that never runs
            if facts.decide(conditions.at_most(y, 0)):
                return -self.truncated(a, -b)
            raise TraceError("a size is divided by a number that may be negative")
        positive = facts.decide(conditions.at_most(0, x))
        if positive:
            return self.compute(operator.floordiv, a, b)
        if facts.decide(conditions.at_most(x, 0)):
            return -((-a) // b)
        expr = facts.settled(expression.truncated_divide(x, y))
        if isinstance(expr, int):
            return expr
        if expr not in self._known:  # not by a choice: torch.export has no conditions on the result of one
            parts = (a.most(0) // b, (-a).most(0) // b)
            record = self._tracer.record
            self._known[expr] = Dim(self._tracer, expr, lambda: record("call_function", operator.sub, parts))
        return self._known[expr]


_ON_TRUTHS = frozenset(
    {
        functional.onnx2nn__SizeWhere,
        functional.onnx2nn__SizeIf,
        functional.onnx2nn__SizeNot,
        operator.and_,
        operator.or_,
    }
)
"""Functions that take truths as they are."""
