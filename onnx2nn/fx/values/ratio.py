"""Floats computed from sizes in a recorded program, such as `0.5 * n` on its way to `floor(0.5 * n)`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import fx

from onnx2nn import functional
from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.fx.values.dim import Dim
from onnx2nn.sizes import reals
from onnx2nn.sizes.conditions import at_most
from onnx2nn.sizes.expression import Size, divided

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer

_DIGITS = reals.DIGITS["float32"]
_LARGEST_DENOMINATOR = 1 << 12

_EXTREMES: dict[Callable[..., Any], tuple[Callable[..., int], str]] = {
    functional.onnx2nn__SizeMax: (max, "most"),
    functional.onnx2nn__SizeMin: (min, "least"),
}
"""Functions that give one of two numbers, of integers and as methods of sizes."""

_COMPARISONS = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge})


class Ratio:
    """A float32 computed from sizes: a quotient of integers that is rounded once, or a rounded product with a factor.

    Only what is proven to be exact is computed; a guard limits the sizes where the proof needs it.

    Args:
        tracer: records the program.
        numerator: an int or `Dim`.
        denominator: a positive int or `Dim`.
        factor: the number is `numerator * factor`, rounded; the denominator is 1 then. None for the quotient.
    """

    __slots__ = ("_node", "denominator", "factor", "numerator", "tracer")

    def __init__(self, tracer: Tracer, numerator: Any, denominator: Any, factor: float | None = None):
        self.tracer, self.numerator, self.denominator, self.factor = tracer, numerator, denominator, factor
        self._node: fx.Node | None = None

    @property
    def node(self) -> fx.Node:
        """The fx node that computes it in float64: rounding the result to float32 is rounding the exact number."""
        if self._node is None:
            if self.factor is not None:
                function, other = operator.mul, self.factor
            else:
                function, other = operator.truediv, self.denominator
            self._node = self.tracer.record("call_function", function, (self.numerator, other))
        return self._node

    @property
    def is_exact(self) -> bool:
        """Whether it is not rounded: its denominator is a power of two."""
        return self.factor is None and reals.is_power_of_two(self.denominator)

    @classmethod
    def computed(cls, tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Returns `function(*args)`, of which at least one is a float: a `Ratio`, or an integer or truth.

        Raises:
            TraceError: the result is not proven to be exact.
        """
        if function in (operator.neg, abs):
            (only,) = args
            if only.factor is not None:
                raise TraceError("the sign of a rounded float computed from sizes")
            return cls(tracer, function(only.numerator), only.denominator)
        if len(args) != 2:
            raise TraceError("a choice between floats computed from sizes")
        a, b = (cls._of(tracer, arg) for arg in args)
        for operand in (a, b):
            if operand.is_exact:
                operand._check()
        if function is operator.truediv:
            return a._divided(b)
        if function is operator.mul:
            return a._times(b)
        if not (a.is_exact and b.is_exact):
            raise TraceError("a rounded float computed from sizes")
        common = max(a.denominator, b.denominator)
        one, other = (n.numerator * (common // n.denominator) for n in (a, b))
        if function in _COMPARISONS:
            return function(one, other)
        if function in _EXTREMES:
            return cls._made(tracer, _extreme(function, one, other), common)
        if function in (operator.add, operator.sub):
            return cls._made(tracer, function(one, other), common)
        raise TraceError(f"{function.__name__} of a float computed from sizes")

    @classmethod
    def _of(cls, tracer: Tracer, number: Any) -> Ratio:
        if isinstance(number, Ratio):
            return number
        if isinstance(number, Dim):
            return cls(tracer, number.to_integer(), 1)
        above, below = float(number).as_integer_ratio() if np.isfinite(number) else (0, 0)
        if 0 < below <= _LARGEST_DENOMINATOR:
            return cls(tracer, above, below)
        return cls(tracer, 1, 1, float(np.float32(number)))

    @classmethod
    def _made(cls, tracer: Tracer, numerator: Any, denominator: Any) -> Any:
        """Returns a quotient; an integer where it is one."""
        whole = isinstance(denominator, int) and isinstance(numerator, int) and numerator % denominator == 0
        if whole or (isinstance(denominator, int) and denominator == 1):
            tracer.guards.limit(reals.is_exact(tracer.expr_of(numerator), _DIGITS))
            return numerator // denominator if whole else numerator
        return cls(tracer, numerator, denominator)

    def _check(self) -> None:
        """Makes sure that the number is exact, or that rounding it keeps its whole part."""
        numerator, denominator = self.tracer.expr_of(self.numerator), self.tracer.expr_of(self.denominator)
        if self.is_exact:
            self.tracer.guards.limit(reals.is_exact(numerator, _DIGITS))
        elif self.factor is None:
            self.tracer.guards.limit(reals.keeps_whole_part(numerator, denominator, _DIGITS))

    def _divided(self, other: Ratio) -> Any:
        """Returns the quotient; a guard refuses a divisor of 0, for which it is infinite or no number."""
        powers = reals.is_power_of_two(other.numerator) and other.is_exact
        if other.factor is not None or not (self.is_exact or (self.factor is None and powers)) or not other.is_exact:
            raise TraceError("a quotient of a size, which float32 rounds")
        below = self.denominator * other.numerator
        if isinstance(below, int) and below == 0:  # infinite or no number, which no size is
            raise TraceError("a size is divided by 0")
        if (below >= 0) is not True:
            raise TraceError("a size is divided by a number that may be negative")
        above = self.numerator * other.denominator
        over = (self.tracer.expr_of(above), self.tracer.expr_of(below))
        exact = divided(*over) if isinstance(over[0], Size) and isinstance(over[1], Size) else None
        result = exact if isinstance(exact, int) else self._made(self.tracer, above, below)  # such as 2 * n / n
        self.tracer.guards.demand(at_most(1, over[1]), "a float is divided by a size")
        return result

    def _times(self, other: Ratio) -> Any:
        if self.factor is not None:
            self, other = other, self
        if other.factor is not None:
            alone = isinstance(other.numerator, int) and other.numerator == 1  # it is a constant
            whole = isinstance(self.denominator, int) and self.denominator == 1
            if self.factor is not None or not alone or not whole:
                raise TraceError("a size times a number, which float32 rounds")
            return Ratio(self.tracer, self.numerator, 1, other.factor)
        powers = (n.is_exact and isinstance(n.numerator, int) and n.numerator in (1, -1) for n in (self, other))
        if not (self.is_exact and other.is_exact) and not any(powers):
            raise TraceError("a rounded float computed from sizes times a number")
        return self._made(self.tracer, self.numerator * other.numerator, self.denominator * other.denominator)

    def _whole_part(self, up: bool) -> Any:
        assert self.factor is not None
        found = reals.whole_part(self.factor, "float32", up)
        if found is None:
            raise TraceError(f"a size times {self.factor}, which float32 rounds")
        a, b, limit = found
        self.tracer.guards.limit(reals.within(self.tracer.expr_of(self.numerator), limit))
        return -((-self.numerator * a) // b) if up else self.numerator * a // b

    def most(self, other: Any) -> Any:
        """Returns the larger of two numbers."""
        return Ratio.computed(self.tracer, functional.onnx2nn__SizeMax, (self, other))

    def least(self, other: Any) -> Any:
        """Returns the smaller of two numbers."""
        return Ratio.computed(self.tracer, functional.onnx2nn__SizeMin, (self, other))

    def __floor__(self) -> Any:
        self._check()
        return self._whole_part(False) if self.factor is not None else self.numerator // self.denominator

    def __ceil__(self) -> Any:
        self._check()
        return self._whole_part(True) if self.factor is not None else -((-self.numerator) // self.denominator)

    def __round__(self) -> Any:
        """Returns the nearest integer, of two the even one."""
        if self.factor is not None:
            raise TraceError(f"a size times {self.factor} is rounded")
        above, below = self.numerator * 2, self.denominator
        over = (self.tracer.expr_of(above), self.tracer.expr_of(below))
        self.tracer.guards.limit(reals.keeps_whole_part(*over, _DIGITS))
        nearest = (above + below) // (below * 2)
        tie = (above + below) % (below * 2) == 0
        odd = nearest % 2 == 1
        return _chosen(_both(tie, odd), nearest - 1, nearest)

    def to_integer(self) -> Any:
        """Returns the number rounded towards zero."""
        if (self.numerator >= 0) is True or self.factor is not None:
            return self.__floor__()
        self._check()
        return self.numerator.truncated(self.denominator) if isinstance(self.numerator, Dim) else int(self)

    def __int__(self) -> int:
        raise TraceError("a float computed from a dynamic dimension is needed as a fixed number")

    __bool__ = __index__ = __float__ = __int__  # type: ignore[assignment]  # each raises
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        other = f"* {self.factor}" if self.factor is not None else f"/ {self.denominator!r}"
        return f"Ratio({self.numerator!r} {other})"


def _extreme(function: Callable[..., Any], one: Any, other: Any) -> Any:
    of_integers, method = _EXTREMES[function]
    if isinstance(one, int) and isinstance(other, int):
        return of_integers(one, other)
    size, number = (one, other) if isinstance(one, Dim) else (other, one)
    return getattr(size, method)(number)


def _both(a: Any, b: Any) -> Any:
    if isinstance(a, bool):
        return b if a else False
    return a & b


def _chosen(condition: Any, one: Any, other: Any) -> Any:
    return condition.choose(one, other) if isinstance(condition, Dim) else one if condition else other


def _operators() -> None:
    for name in ("add", "sub", "mul", "truediv"):
        function = getattr(operator, name)

        def forward(self: Ratio, other: Any, function: Any = function) -> Any:
            return Ratio.computed(self.tracer, function, (self, other)) if _is_number(other) else NotImplemented

        def reflected(self: Ratio, other: Any, function: Any = function) -> Any:
            return Ratio.computed(self.tracer, function, (other, self)) if _is_number(other) else NotImplemented

        setattr(Ratio, f"__{name}__", forward)
        setattr(Ratio, f"__r{name}__", reflected)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):

        def compare(self: Ratio, other: Any, function: Any = getattr(operator, name)) -> Any:  # noqa: B008  # the name of this round
            return Ratio.computed(self.tracer, function, (self, other)) if _is_number(other) else NotImplemented

        setattr(Ratio, f"__{name}__", compare)
    for name, unary in (("neg", operator.neg), ("abs", abs)):

        def single(self: Ratio, function: Any = unary) -> Any:
            return Ratio.computed(self.tracer, function, (self,))

        setattr(Ratio, f"__{name}__", single)


def _is_number(value: Any) -> bool:
    return isinstance(value, (Dim, Ratio, int, float, np.number, np.bool_))


_operators()
