"""Finds the shapes of results for all sizes of the inputs: the importer's shape rules, without a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from onnx2nn.fx.trace_errors import ShapeMismatch, TraceError
from onnx2nn.fx.tracing.inference import Inference
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.guards import Guard, Guards
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.sizes.conditions import Condition, Truth
from onnx2nn.sizes.expression import Number, Size, Symbol, multiply, of_symbol
from onnx2nn.sizes.facts import Facts
from onnx2nn.sizes.points import Point
from onnx2nn.sizes.substitution import replaced

_MULTIPLES = 3
"""A condition that holds at no more multiples of the file's size is taken for the mark of a constant with that size.

Only where constants are searched depends on this number: the module checks any other condition at its entry, or the
call that needs it does. The proof by running goes up to this multiple.
"""


class ShapeTracer(Tracer):
    """Infers the shapes in row bodies; its graph holds nothing but names for results.

    Args:
        freed: the dimensions to make dynamic, with their sizes in the file.
        others: other dynamic dimensions, with sizes that stand for them where a number is needed.

    Attributes:
        point: a size for every dynamic dimension: that of the file, or one that stands for it.
    """

    guards: FreeingGuards

    def __init__(self, freed: Mapping[Symbol, int], others: Mapping[Symbol, int]):
        super().__init__()
        self.freed, self.point = freed, {**others, **freed}
        self.restart()

    def restart(self) -> None:
        """Forgets all facts about sizes, and the nodes, on which nothing depends."""
        self.graph = fx.Graph()
        self._adopt(Facts())

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Forgets the facts that are found inside: nodes that may not run restrict no sizes."""
        guards = self.guards
        self._adopt(Facts(guards.facts))
        try:
            yield
        finally:
            self.guards, self._inference = guards, Inference(self)

    def _adopt(self, facts: Facts) -> None:
        self.guards, self._inference = FreeingGuards(self, facts), Inference(self)

    def tensor(self, spec: Spec) -> Tensor:
        """Returns a tensor of which nothing else is known."""
        return Tensor(self, self.create("placeholder", "x"), spec)

    def number_of(self, size: Any) -> Any:
        """Returns a size expression as a symbolic number; a plain number is unchanged."""
        if not isinstance(size, (Size, Condition)):
            return size
        return Dim(self, size, lambda: self.create("placeholder", "n"))

    def record(self, kind: str, target: Any, args: Any, kwargs: dict[str, Any] | None = None) -> fx.Node:
        """Returns a new node; what it computes does not matter."""
        return self.create(kind, target)

    def call(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the result of a call as traced values.

        Raises:
            ShapeMismatch: the shapes fit at the file's sizes only, or at none.
        """
        return self.wrap(self.create(kind, target), self.infer(kind, target, args, kwargs).specs)

    def attribute(self, tensor: torch.Tensor) -> Tensor:
        """Returns a constant as a traced value."""
        return self.tensor(Spec(tuple(tensor.shape), tensor.dtype))


class FreeingGuards(Guards):
    """The conditions on sizes of the nodes so far, of which none may restrict a freed dimension to the file's size.

    Args:
        tracer: the tracer.
        facts: what is known of sizes.
    """

    _tracer: ShapeTracer

    def __init__(self, tracer: ShapeTracer, facts: Facts):
        super().__init__(tracer, None, {})
        self.facts = facts

    def points(self, symbols: frozenset[Symbol], also: Iterable[Condition] = ()) -> Iterator[list[Point]]:
        """Raises TraceError: what only samples tell is not known."""
        raise TraceError(f"only samples of {', '.join(sorted(symbol.name for symbol in symbols))} tell it")

    def _checked(self, condition: Truth, reason: str) -> Condition | None:
        before = set(self.facts.assumed)
        found = super()._checked(condition, reason)
        if found is not None:
            more = [known for known in self.facts.assumed if known not in before]
            for symbol in found.symbols & self._tracer.freed.keys():
                if not self._leaves_free(symbol, more):
                    raise ShapeMismatch(f"{reason}: {found!r}")
        return found

    def _leaves_free(self, symbol: Symbol, conditions: list[Condition]) -> bool:
        """Returns whether a freed dimension is neither fixed nor tied, and new conditions allow its multiples."""
        most = self.facts.intervals.get(symbol, symbol.interval)[1]
        if symbol in self.facts.values or (most is not None and most < _MULTIPLES * self._tracer.freed[symbol]):
            return False
        own = [condition for condition in conditions if symbol in condition.symbols]
        return all(Facts().decide(_at_multiples(condition, self._tracer.point)) for condition in own)

    def _guard(self, condition: Condition, reason: str) -> None:
        """Checks nothing: there is no program."""

    def _check_now(self, guard: Guard) -> None:
        """Checks nothing: there is no program."""


def _at_multiples(condition: Condition, sizes: Mapping[Symbol, int]) -> Truth:
    """Returns a condition for the first multiples of sizes, another one for each symbol."""
    given: dict[Any, Number] = {
        symbol: multiply(of_symbol(Symbol(symbol.name, 1, _MULTIPLES)), sizes[symbol])
        for symbol in condition.symbols
        if symbol in sizes
    }
    truth: Truth = replaced(condition, given)
    return truth
