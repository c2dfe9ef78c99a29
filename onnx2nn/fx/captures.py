"""What a graph uses of those around it, which become its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx2nn.fx.dim import Dim
from onnx2nn.fx.spec import Spec
from onnx2nn.fx.tensor import TRACED, Reference

if TYPE_CHECKING:
    from onnx2nn.fx.tracer import Tracer


class Captures:
    """The values of enclosing graphs that one graph uses.

    Args:
        tracer: what records the graph.
        window: which of the enclosing graph's sample points this graph has, all if None.

    Attributes:
        values: those values, as the enclosing graphs have them.
    """

    def __init__(self, tracer: Tracer, window: slice | None):
        self.values: list[Any] = []
        self._tracer, self._window = tracer, window
        self._own: dict[int, Any] = {}
        self._keep: list[Any] = []  # an id is that of what lives

    def own(self, value: Any) -> Any:
        """Returns `value` with everything that belongs to an enclosing graph replaced by an argument of this one."""
        if self._tracer.parent is None:
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
        if isinstance(value, TRACED) and value.tracer is not self._tracer:
            return self.capture(value)
        return value

    def capture(self, value: Any) -> Any:
        """Returns the argument that a value of an enclosing graph is in this one."""
        if id(value) not in self._own:
            assert self._tracer.parent is not None, "a value of another trace"
            self.values.append(value)
            known = self._tracer.parent.own(value)
            if isinstance(value, Dim):
                node = self._tracer.argument_node(f"size_{len(self.values)}")
                own: Any = Dim(self._tracer, self._seen(known.values), lambda: node)
                own.node  # noqa: B018 (the placeholder exists already)
            elif isinstance(value, Reference):
                own = Reference(self._tracer, self._tracer.argument_node(f"value_{len(self.values)}"))
            else:
                spec = self._seen_spec(getattr(known, "spec", None))
                own = self._tracer.placeholder(f"outer_{len(self.values)}", spec)
            self._own[id(value)] = own
            self._keep.append(value)
        return self._own[id(value)]

    def _seen(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns what is known at every sample point of the enclosing graph as it is at this one's."""
        return values if self._window is None else values[self._window]

    def _seen_spec(self, spec: Spec | None) -> Spec | None:
        return spec if spec is None or spec.shapes is None else Spec(self._seen(spec.shapes), spec.dtype)

    def drop_unused(self) -> None:
        """Removes the arguments that nothing reads."""
        for value in list(self.values):
            node = self._own[id(value)].node
            if not node.users:
                self._tracer.graph.erase_node(node)
                self.values[:] = [other for other in self.values if other is not value]  # == records a comparison
