"""Walks a graph once for all sizes of its dynamic dimensions, which are symbols.

The op table's rows give the shape of each value as size expressions, so that a node that works at the file's sizes only
is found here. What cannot be decided for all sizes is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx2nn.errors import OperatorError, first_line
from onnx2nn.fx import folding, opaque_calls
from onnx2nn.fx.arguments import Arguments
from onnx2nn.fx.constants import Constant, torch_dtype
from onnx2nn.fx.origins import Origins
from onnx2nn.fx.trace_errors import ShapeMismatch
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.importing import bounded
from onnx2nn.importing.builder import Builder, Region
from onnx2nn.importing.control_flow import branches_of, constant_truth, loop_form
from onnx2nn.importing.import_state import ImportState
from onnx2nn.importing.node_facts import Scope
from onnx2nn.importing.plan import Plan, TypeOf
from onnx2nn.importing.walk import UNKNOWN, Walk
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.optable.shape_values import ShapeValues
from onnx2nn.sizes.expression import Number, Size
from onnx2nn.unfreeze.shape_tracer import ShapeTracer
from onnx2nn.unfreeze.sized_values import MAX_ELEMENTS, Sized
from onnx2nn.unfreeze.substitutions import Substitution

Substituted = dict[int, Substitution]
"""The substitutions for a node's inputs, by position."""

Values = Mapping["ir.Value", Sized]
"""The known values so far."""

Substitute = Callable[["ir.Node", Sequence["Sized | None"], Values], Substituted]
"""Returns the substitutions for a node's inputs."""


class NodeConflictError(Exception):
    """A node works at the file's sizes only.

    Attributes:
        node: the node.
        inputs: its inputs, None for an absent one.
        step: the number of nodes before it.
        values: the known values before it.
    """

    def __init__(self, node: ir.Node, inputs: Sequence[Sized | None], step: int, values: Values, reason: str):
        super().__init__(reason)
        self.node, self.inputs, self.step, self.values = node, inputs, step, values


class SymbolicGraph:
    """The graph of a model with symbols for dynamic dimensions.

    Args:
        model: the model.
        plan: its plan.
        tracer: has the symbols.
        shapes: the shape of every input of the graph, without inputs that are no tensors of known rank.
    """

    def __init__(self, model: ir.Model, plan: Plan, tracer: ShapeTracer, shapes: Mapping[str, Sequence[Number]]):
        self.model, self.plan, self.tracer = model, plan, tracer
        self.constants: dict[ir.Value, Any] = {}
        self._inputs = {value: self._input(value, shapes.get(value.name or "")) for value in model.graph.inputs}

    def run(self, substitute: Substitute) -> SymbolicBuilder:
        """Walks the graph; returns the builder, which holds the substitutions and the known values.

        Args:
            substitute: called before every node.

        Raises:
            NodeConflictError: a node works at the file's sizes only.
        """
        self.tracer.restart()
        builder = SymbolicBuilder(self, substitute)
        scope = Scope()
        for value, known in self._inputs.items():
            scope[value] = known
            builder.keep(value, known)
        Walk(builder, scope, self.model.graph, dict(self.model.graph.opset_imports)).run()
        return builder

    def _input(self, value: ir.Value, sizes: Sequence[Number] | None) -> Any:
        if sizes is None or value.dtype is None or value.dtype == ir.DataType.STRING:
            return UNKNOWN
        return Sized(self.tracer, self.tracer.tensor(Spec(tuple(sizes), torch_dtype(value.dtype))))


class SymbolicBuilder(Builder):
    """Finds the shapes of the results of nodes; data-dependent results are `UNKNOWN`.

    Attributes:
        values: the known values.
        substitutions: the substitutions by node.
        steps: the number of nodes up to each, the last time that it was reached.
    """

    passing = (NodeConflictError,)

    def __init__(self, graph: SymbolicGraph, substitute: Substitute):
        super().__init__(ImportState(graph.model, graph.plan), lambda: _REGIONS)
        self._graph, self.tracer, self._substitute = graph, graph.tracer, substitute
        self.values: dict[ir.Value, Sized] = {}
        self.substitutions: dict[ir.Node, Substituted] = {}
        self.steps: dict[ir.Node, int] = {}
        self._origins = Origins()
        self._arguments = Arguments(self.tracer, self._origins)
        self._step = 0

    def initializer(self, graph: ir.Graph, value: ir.Value) -> Any:
        """Returns a constant."""
        constants = self._graph.constants
        if value not in constants:
            tensor = value.const_value
            readable = tensor is not None and tensor.dtype != ir.DataType.STRING
            constants[value] = Sized(self.tracer, Constant.initializer(value)) if readable else UNKNOWN
        return constants[value]

    def inputs(self, node: ir.Node, values: Sequence[Any]) -> list[Any]:
        """Returns the inputs of a node, after substitutions: those of the first call, for a node of a function."""
        again = node in self.steps
        self._step += 1
        self.steps[node] = self._step
        if any(value is UNKNOWN for value in values):
            raise OperatorError("an input is not known.")
        found = self.substitutions.get(node, {}) if again else self._substitute(node, values, self.values)
        if not found:
            return list(values)
        self.substitutions[node] = found
        return [found[i].of(value, self._size) if i in found else value for i, value in enumerate(values)]

    def _size(self, dimension: tuple[ir.Value, int]) -> Number:
        value, axis = dimension
        return self.values[value].sizes[axis]

    def output(self, value: Any) -> Any:
        """Returns the value."""
        return value

    def type_of(self, value: Any) -> TypeOf:
        """Returns the ONNX type of a value."""
        return value.kind if isinstance(value, Sized) else None, ""

    def attribute(self, tensor: ir.TensorProtocol) -> Any:
        """Returns a tensor of the file."""
        return Constant("", ir.DataType(tensor.dtype), tensor).value

    def stored(self, node: ir.Node, tensor: ir.TensorProtocol) -> Any:
        """Returns the tensor of a Constant node."""
        self._step += 1
        return self._kept(self.attribute(tensor))

    def numbers(self, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Returns the shape that `row` reads, or its result for numbers computed from sizes; None for neither."""
        values = [None if value is None else value.argument() for value in inputs]
        if row.on_shape_values is None or not values:
            return None
        if row.reads_shape and isinstance(inputs[0], Sized):
            first = self.tracer.tensor(inputs[0].spec)
            return self._kept(folding.read_shape(row, first, attributes, self.tracer.guards))
        kinds = set(map(type, values))
        if ShapeValues not in kinds or not kinds <= {ShapeValues, Constant, type(None)}:
            return None
        try:
            return self._kept(folding.evaluate_numbers(row, values, attributes, self.tracer.guards))
        except NeedsValues:
            return None

    def fold(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the result of a node without inputs."""
        return self._kept(self._run(row, inputs, attributes))

    def record(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the results of the body of `row`.

        Raises:
            NeedsValues: they are data-dependent.
            NodeConflictError: the node works at the file's sizes only.
        """
        values = [None if value is None else value.argument() for value in inputs]
        try:
            arguments = self._arguments.of_body(row, values)
            result = row.body(self.tracer.F, *arguments, **attributes)
        except (ShapeMismatch, OperatorError) as error:
            raise self._conflict(node, inputs, error) from error
        kept = self._kept(result)
        if row.random or not all(value is None or isinstance(value, Constant) for value in values):
            return kept
        if not all(isinstance(item, Sized) and item.count <= MAX_ELEMENTS for item in _listed(kept)):
            return kept
        return self._kept(self._run(row, self._arguments.of_body(row, values), attributes))

    def record_opaque(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the results of an operator as one call.

        Raises:
            OperatorError: they are data-dependent.
            NodeConflictError: the node works at the file's sizes only.
        """
        values = [None if value is None else value.argument() for value in inputs]
        if not row.random and all(value is None or isinstance(value, Constant) for value in values):
            return self._kept(self._run(row, self._arguments.of_operator(row, values), attributes))
        try:
            specs = opaque_calls.specs_of(
                self.tracer, row, self._arguments.of_operator(row, values), attributes, strict=True
            )
        except (ShapeMismatch, OperatorError) as error:
            raise self._conflict(node, inputs, error) from error
        if not specs:
            raise OperatorError("its results depend on data.")
        results = tuple(self._kept(self.tracer.tensor(spec)) for spec in specs)
        return results if len(results) > 1 or row.several else results[0]

    def _run(self, row: Row, arguments: Sequence[Any], attributes: dict[str, Any]) -> Any:
        return bounded.run(row, torch, arguments, attributes, self.state.account)

    def _conflict(self, node: ir.Node, inputs: Sequence[Any], error: Exception) -> NodeConflictError:
        return NodeConflictError(node, inputs, self._step, self.values, first_line(error))

    def _kept(self, result: Any) -> Any:
        """Returns a result in the form that the scope holds: `UNKNOWN` where its shape depends on data."""
        if isinstance(result, (tuple, list)):
            return tuple(map(self._kept, result)) if isinstance(result, tuple) else UNKNOWN
        value = folding.settle(result, self._origins)
        if isinstance(value, Tensor):
            shape, dtype = value.spec
            known = shape is not None and dtype is not None
            if known and not any(isinstance(size, Size) and size.by_data for size in shape or ()):
                return Sized(self.tracer, value)
        elif isinstance(value, (Constant, ShapeValues)) and (
            not isinstance(value, Constant) or value.kind != ir.DataType.STRING
        ):
            return Sized(self.tracer, value)
        return UNKNOWN

    def keep(self, value: ir.Value, result: Any) -> None:
        """Notes a known value."""
        if isinstance(result, Sized):
            self.values[value] = result

    def for_function(self, inputs: Mapping[str, Any]) -> SymbolicBuilder:
        """Returns this builder: a function is walked in place."""
        return self

    def called(
        self, node: ir.Node, function: ir.Function, body: SymbolicBuilder, outputs: Sequence[Any]
    ) -> Sequence[Any]:
        """Returns the outputs of a function's call."""
        return list(outputs)[: len(node.outputs)]


def _listed(results: Any) -> Iterator[Any]:
    yield from results if isinstance(results, tuple) else (results,)


def _if(walk: Walk[SymbolicBuilder], node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Walks the branch that is taken at all sizes, or both branches."""
    branches = branches_of(node)
    truth = constant_truth(inputs[0].value)
    if truth is not None:
        return walk.inside(branches[0 if truth else 1], {})
    found = []
    for branch in branches:
        with walk.builder.tracer.aside():
            found.append(walk.inside(branch, {}))
    return [
        one if isinstance(one, Sized) and one.is_like(other) else UNKNOWN for one, other in zip(*found, strict=True)
    ]


def _loop(walk: Walk[SymbolicBuilder], node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Walks the body once, as in the first iteration; the trip count and the scan outputs are unknown.

    Where a carried value has another shape after it, nothing is known of the values inside in later iterations.
    """
    form = loop_form(node, inputs)
    tracer, before = walk.builder.tracer, set(walk.builder.values)
    counters = [Sized(tracer, tracer.tensor(Spec((), dtype))) for dtype in (torch.int64, torch.bool)]
    carried = [value.unread() for value in form.initial]
    for value, known in (bindings := dict(zip(form.body.inputs, [*counters, *carried], strict=True))).items():
        walk.builder.keep(value, known)
    with tracer.aside():
        results = walk.inside(form.body, bindings)[1 : 1 + len(carried)]
    known_after = [one if one.is_like(other) else UNKNOWN for one, other in zip(carried, results, strict=True)]
    if UNKNOWN in known_after:
        for value in walk.builder.values.keys() - before:
            del walk.builder.values[value]
    return [*known_after, *[UNKNOWN] * (len(node.outputs) - len(carried))]


_REGIONS: dict[tuple[str, int], Region] = {("If", 1): _if, ("Loop", 1): _loop}
