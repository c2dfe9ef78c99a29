"""Captured values: values of enclosing graphs that become arguments of an inner graph's module; numbers back out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.guards import node_of
from onnx2nn.fx.values.ratio import Ratio
from onnx2nn.fx.values.tensor import PLAIN, TRACED, Reference, Tensor
from onnx2nn.ground.naming import identifier
from onnx2nn.sizes.conditions import Condition
from onnx2nn.sizes.expression import Size

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer


class Captures:
    """The captured values of one graph.

    Args:
        tracer: records the graph.

    Attributes:
        values: the captured values, as values of the enclosing graphs.
    """

    def __init__(self, tracer: Tracer):
        self.values: list[Any] = []
        self._tracer = tracer
        self._own: dict[int, Any] = {}
        self._keep: list[Any] = []  # keeps captured values alive, because the keys of `_own` are ids

    def own(self, value: Any) -> Any:
        """Returns `value` with each value of an enclosing graph replaced by an argument of this graph."""
        if self._tracer.parent is None or type(value) in PLAIN:
            return value
        if isinstance(value, (list, tuple)):
            return (
                type(value)(self.own(item) for item in value)
                if type(value) in (list, tuple)
                else tuple(map(self.own, value))
            )
        if isinstance(value, dict):
            return {name: self.own(item) for name, item in value.items()}
        if isinstance(value, slice):
            return slice(self.own(value.start), self.own(value.stop), self.own(value.step))
        if isinstance(value, Ratio) and value.tracer is not self._tracer:
            return Ratio(self._tracer, self.own(value.numerator), self.own(value.denominator), value.factor)
        if isinstance(value, TRACED) and value.tracer is not self._tracer:
            return self.capture(value)
        return value

    def capture(self, value: Any, name: str = "") -> Any:
        """Returns the argument of this graph for a value of an enclosing graph; a new one of a tensor has the name."""
        if id(value) not in self._own:
            assert self._tracer.parent is not None, "a value of another trace"
            self.values.append(value)
            known = self._tracer.parent.own(value)
            if isinstance(value, Dim):
                node = self._tracer.argument_node(f"size_{len(self.values)}")
                own: Any = Dim(self._tracer, known.expr, lambda: node)
                own.node  # noqa: B018 (the placeholder exists already)
            elif isinstance(value, Reference):
                own = Reference(self._tracer, self._tracer.argument_node(f"value_{len(self.values)}"))
            else:
                own = self._tracer.placeholder(name or f"outer_{len(self.values)}", getattr(known, "spec", None))
            self._own[id(value)] = own
            self._keep.append(value)
        return self._own[id(value)]

    def name(self, values: Mapping[str, Any]) -> None:
        """Makes the tensors among some values arguments, in this order and with these names."""
        for name, value in values.items():
            if type(value) is Tensor:
                self.capture(value, identifier(name))

    def drop_unused(self) -> None:
        """Removes unused arguments."""
        for value in list(self.values):
            node = self._own[id(value)].node
            if not node.users:
                self._tracer.graph.erase_node(node)
                self.values[:] = [other for other in self.values if other is not value]  # == records a comparison


def returned(tracer: Tracer, number: Any) -> Any:
    """Returns a number of a function's program as one of the program that calls it, which computes it itself.

    Args:
        tracer: records the program that calls the function.
        number: a plain number, a `Dim` or a `Ratio`.

    Raises:
        TraceError: only the function reads a size in the number.
    """
    if isinstance(number, Ratio):
        parts = (returned(tracer, number.numerator), returned(tracer, number.denominator))
        return Ratio(tracer, *parts, number.factor)
    if not isinstance(number, Dim):
        return number
    expr = tracer.guards.facts.settled(number.expr)
    if not isinstance(expr, (Size, Condition)):
        return expr
    if not all(map(tracer.symbols.known, expr.symbols)):
        raise TraceError("a size that data decide inside a function")
    return Dim(tracer, expr, lambda: node_of(tracer, expr))
