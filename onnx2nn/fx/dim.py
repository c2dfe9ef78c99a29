"""Symbolic numbers of a recorded program: dynamic dimensions, and numbers computed from them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from onnx2nn import functional
from onnx2nn.fx.trace_errors import TraceError

if TYPE_CHECKING:
    from onnx2nn.fx.tracer import Tracer


class Dim:
    """A symbolic number: a dynamic dimension, or a number computed from dynamic dimensions.

    It behaves like a Python int or float. `bool()` of a comparison is defined where all sample points agree.

    Attributes:
        values: the number at every sample point.
        quotient: dividend and divisor, two ints, where the number is their quotient.
        comparison: operator and operands, where the number is the result of a comparison.
    """

    __slots__ = ("_make", "_node", "comparison", "quotient", "tracer", "values")

    def __init__(self, tracer: Tracer, values: tuple[Any, ...], make: Callable[[], fx.Node]):
        self.tracer, self.values, self._make = tracer, values, make
        self._node: fx.Node | None = None
        self.quotient: tuple[Any, Any] | None = None
        self.comparison: tuple[Any, Dim, Any] | None = None

    @property
    def node(self) -> fx.Node:
        """The fx node that computes it; recorded at its first use."""
        if self._node is None:
            self._node = self._make()
        return self._node

    def __bool__(self) -> bool:
        truths = {bool(value) for value in self.values}
        if len(truths) > 1 or self.data_dependent:
            raise TraceError(f"a branch depends on a dynamic dimension (samples {self.values})")
        return truths.pop()

    @property
    def data_dependent(self) -> bool:
        """Whether the number is data-dependent: it may then be 0 or any other size, and samples decide nothing."""
        return self.tracer.has_data_dependent_sizes and self.tracer.depends_on_data(self.node)

    def least(self, other: Any) -> Any:
        """Returns the smaller of two numbers, for all sizes."""
        if isinstance(other, int) and other >= _UNREACHED:
            return self
        return self.tracer.number(functional.onnx2nn__SizeMin, self, other)

    def most(self, other: Any) -> Any:
        """Returns the larger of two numbers, for all sizes."""
        return self.tracer.number(functional.onnx2nn__SizeMax, self, other)

    def choose(self, one: Any, other: Any) -> Any:
        """Returns `one` where this is true, else `other`; a choice by sizes of the inputs is guarded, see `assume`."""
        if not self.data_dependent:
            return one if self.assume() else other
        return self.tracer.number(functional.onnx2nn__SizeWhere, self, one, other)

    def assume(self) -> bool:
        """Returns the truth of a comparison at all sample points, and records a guard.

        With the guard the forward raises for sizes that would take the other branch.
        """
        truth = bool(self)
        if self.comparison is not None:
            self.tracer.assumed.append((self.comparison, truth))
        message = "For this size the model takes a branch that the import left out. Give the size in input_shapes."
        (self if truth else self.negated()).require(message)
        return truth

    def require(self, message: str) -> None:
        """Records a guard: the forward raises for sizes at which this is false."""
        self.tracer.record("call_function", torch._assert, (self, message))

    def __index__(self) -> int:
        raise TraceError(f"a dynamic dimension (samples {self.values}) is needed as a fixed number")

    __int__ = __float__ = __index__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Dim{self.values}"

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
        """Returns the negation of this comparison."""
        if self.comparison is None:
            return self.tracer.number(torch.sym_not, self)
        function, one, other = self.comparison  # torch.sym_not of a size that is fixed while compiling is refused
        return one._compare(_OPPOSITE[function], other)

    def _compare(self, function: Callable[[Any, Any], bool], other: Any) -> Any:
        if self is other:
            return function(0, 0)
        if isinstance(self.values[0], bool) and not isinstance(other, Dim) and function in (operator.eq, operator.ne):
            # `==` of a torch.SymBool would compare the object.
            return self if function(True, other) and not function(False, other) else self._of_bool(function, other)
        if not isinstance(other, (Dim, int, float, np.number)):
            return NotImplemented
        if not isinstance(other, Dim) and other < 0 and all(value >= 0 for value in self.values):
            return function(0, -1)  # a size is never negative: `shape == -1` is false for all sizes
        result = self.tracer.number(function, self, other)
        if isinstance(result, Dim):
            result.comparison = (function, self, other)
        return result

    def _of_bool(self, function: Callable[[Any, Any], bool], other: Any) -> Any:
        return self.negated() if function(False, other) and not function(True, other) else function(True, other)

    def __neg__(self) -> Any:
        return self.tracer.number(operator.neg, self)

    def __abs__(self) -> Any:
        return self if all(value >= 0 for value in self.values) else self.tracer.number(abs, self)

    def __floor__(self) -> Any:
        if self._is_whole():
            return self
        if self.quotient is not None:
            return self.quotient[0] // self.quotient[1]
        if all(value >= 0 for value in self.values):
            return self.tracer.number(functional.onnx2nn__SizeFloor, self)
        raise TraceError("the whole part of a number that may be negative")

    def __ceil__(self) -> Any:
        if self._is_whole():
            return self
        if self.quotient is None:
            raise TraceError("a number computed from sizes is rounded up")
        return (self.quotient[0] + self.quotient[1] - 1) // self.quotient[1]

    def to_integer(self) -> Any:
        """Returns a whole number unchanged, 1 or 0 for a comparison, and the whole part of a nonnegative number."""
        if isinstance(self.values[0], bool):
            return self.tracer.number(functional.onnx2nn__SizeWhere, self, 1, 0)
        if not self._is_whole() and not self >= 0:
            raise TraceError("the whole part of a number that may be negative")
        return math.floor(self)

    def _is_whole(self) -> bool:
        return all(isinstance(value, int) for value in self.values)


_OPPOSITE = {operator.eq: operator.ne, operator.lt: operator.ge, operator.gt: operator.le}
_OPPOSITE |= {opposite: function for function, opposite in _OPPOSITE.items()}

_UNREACHED = (1 << 31) - 1
"""An upper bound of all sizes; files use it for "to the end"."""


def _arithmetic(name: str) -> None:
    function = getattr(operator, name)

    def forward(self: Dim, other: Any) -> Any:
        return self.tracer.number(function, self, other) if _is_number(other) else NotImplemented

    def reflected(self: Dim, other: Any) -> Any:
        return self.tracer.number(function, other, self) if _is_number(other) else NotImplemented

    setattr(Dim, f"__{name}__", forward)
    setattr(Dim, f"__r{name}__", reflected)


def _fraction(args: tuple[Any, ...]) -> tuple[Dim, int, int] | None:
    """Returns the factors of a product: a whole symbolic number, and numerator and denominator; None for others."""
    for number, factor in (args, args[::-1]):
        if isinstance(number, Dim) and isinstance(factor, float) and isinstance(number.values[0], int):
            numerator, denominator = factor.as_integer_ratio()
            if 1 < denominator <= 1024:
                return number, numerator, denominator
    return None


def _shifted(function: Callable[[Any, Any], Any], args: tuple[Any, ...]) -> tuple[Any, Any] | None:
    """Returns the sum of a quotient and a whole number as one quotient, None for other operands."""
    for number, other in (args, args[::-1]) if function is operator.add else (args,):
        if isinstance(number, Dim) and number.quotient is not None and not isinstance(other, Dim) and other % 1 == 0:
            above, below = number.quotient
            return function(above, below * int(other)), below
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (Dim, int, float, np.number, np.bool_))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _arithmetic(_name)

_NEUTRAL = {(operator.add, 0), (operator.sub, 0), (operator.mul, 1), (operator.floordiv, 1)}
_LEVELLING = {operator.floordiv, functional.onnx2nn__SizeMin, functional.onnx2nn__SizeMax}
"""Functions whose result may be the same at all samples although their arguments vary."""
_SELF_INVERSE = {operator.sub: 0, operator.floordiv: 1, operator.mod: 0}


class Arithmetic:
    """Computes with numbers of one recorded program; equal computations are one `Dim`.

    Attributes:
        hides_variation: whether a quotient, minimum or maximum of varying numbers is the same at all sample points.
    """

    def __init__(self, tracer: Tracer):
        self.hides_variation = False
        self._tracer = tracer
        self._numbers: dict[Any, Any] = {}

    def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns `function(*args)` of numbers, some symbolic: a `Dim`, or a plain number where it is known."""
        args = tuple(arg.item() if isinstance(arg, np.generic) else arg for arg in args)
        if len(args) == 2:
            if not isinstance(args[1], Dim) and (function, args[1]) in _NEUTRAL:
                return args[0]
            if not isinstance(args[0], Dim) and (function, args[0]) in {(operator.add, 0), (operator.mul, 1)}:
                return args[1]
            if args[0] is args[1] and function in _SELF_INVERSE:
                return _SELF_INVERSE[function]
        key = (function, *((id(arg) if isinstance(arg, Dim) else (type(arg), arg)) for arg in args))
        if key not in self._numbers:
            columns = [arg.values if isinstance(arg, Dim) else (arg,) * self._tracer.points for arg in args]
            try:
                values = tuple(function(*column) for column in zip(*columns, strict=True))
            except ArithmeticError as error:
                raise TraceError(str(error)) from None
            self.hides_variation |= function in _LEVELLING and len(set(values)) == 1 < max(len(set(c)) for c in columns)
            number = Dim(self._tracer, values, lambda: self._tracer.record("call_function", function, args))
            whole = all(isinstance(item, int) for column in columns for item in column)
            if function is operator.truediv and whole and all(item > 0 for item in columns[1]):
                number.quotient = (args[0], args[1])
            if function is operator.mul and (fraction := _fraction(args)) is not None:
                factor, numerator, denominator = fraction
                number.quotient = (self.compute(operator.mul, factor, numerator), denominator)
            if function in (operator.add, operator.sub):
                number.quotient = _shifted(function, args)
            self._numbers[key] = number
        return self._numbers[key]
