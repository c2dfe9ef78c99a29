"""PyTorch's `Builder`: records nodes as a `torch.fx` graph by a tracer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import OperatorError, UnfulfilledError
from onnx2nn.fx import folding, opaque_calls, weight_folding
from onnx2nn.fx.arguments import Arguments
from onnx2nn.fx.constants import Constant, onnx_type
from onnx2nn.fx.exporting.exportable import ExportableModule
from onnx2nn.fx.import_state import TorchImport
from onnx2nn.fx.origins import Origins
from onnx2nn.fx.trace_errors import BranchConflictError, ShapeConflictError, ShapeMismatch, TraceError
from onnx2nn.fx.tracing.placement import NamedPlacement
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values import size_vectors
from onnx2nn.fx.values.captures import returned
from onnx2nn.fx.values.guards import take_guards
from onnx2nn.fx.values.tensor import Opaque, Tensor, is_traced
from onnx2nn.ground.limits import TooLargeError
from onnx2nn.ground.naming import identifier
from onnx2nn.importing.builder import Builder, Regions
from onnx2nn.importing.constants import is_constant
from onnx2nn.importing.node_facts import lays_out_weight, node_name
from onnx2nn.importing.placement import Position
from onnx2nn.importing.plan import TypeOf
from onnx2nn.importing.walk import Walk
from onnx2nn.importing.watched_calls import watched_where_known
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.optable.shape_values import ShapeValues
from onnx2nn.provenance.exporter_metadata import CALL, CLASSES, SCOPES


class TorchBuilder(Builder):
    """Records the nodes of one graph with one tracer.

    Args:
        state: the state that all graphs of the import share.
        regions: the functions that import nodes whose attributes are graphs.
        tracer: records the nodes.
        placement: the tracer's placement.
        branch: the outermost branch around this graph of an If that is chosen at run time, None where there is none.
    """

    state: TorchImport
    passing = (BranchConflictError, ShapeConflictError)
    passes = staticmethod(size_vectors.has_no_elements)

    def __init__(
        self,
        state: TorchImport,
        regions: Regions,
        tracer: Tracer,
        placement: NamedPlacement,
        branch: ir.Graph | None = None,
    ):
        super().__init__(state, regions)
        self.at = placement.at
        self.tracer, self.placement, self.branch = tracer, placement, branch
        self.origins = placement.origins
        self.arguments = Arguments(tracer, self.origins)
        self._recorded = 0  # calls before the current node

    @classmethod
    def of_model(cls, state: TorchImport, regions: Regions) -> TorchBuilder:
        """Returns the builder of the model's graph."""
        placement = NamedPlacement(state.author, state.constants, Origins(), Position())
        tracer = Tracer(choices=state.choices, placement=placement)
        tracer.limits = state.account.limits
        return cls(state, regions, tracer, placement)

    def child(
        self,
        *,
        prefix: str = "",
        outer: bool = False,
        origins: Origins | None = None,
        branch: ir.Graph | None = None,
    ) -> TorchBuilder:
        """Returns the builder of an inner graph that becomes a module of its own.

        Args:
            prefix, outer: see `NamedPlacement`.
            origins: the origins of its constants; None for this graph's.
            branch: as for the class; None for this graph's.
        """
        state, own = self.state, origins or self.origins
        called_by_torch = origins is None  # a graph of a control flow node, not a function
        placement = NamedPlacement(state.author, state.constants, own, Position(), prefix, outer, called_by_torch)
        tracer = Tracer(self.tracer, state.choices, placement)
        return TorchBuilder(state, self.regions, tracer, placement, branch or self.branch)

    def region(self, prefix: str | None = None, branch: ir.Graph | None = None) -> TorchBuilder:
        """Returns the builder of a node's graph; `prefix` None: the author's keys have this graph's prefix.

        The enclosing module then holds the author's weights, because their keys say so.
        """
        author = self.state.author
        outer = prefix is None and author is not None
        prefix = self.placement.prefix if prefix is None else prefix
        return self.child(prefix=prefix, outer=outer, branch=branch)

    def program(self, outputs: Sequence[Any], name: str) -> ExportableModule:
        """Returns the module of a node's graph; `name`: of its class."""
        module = self.tracer.finish(tuple(outputs), name)
        self.state.programs[module] = self.tracer
        return module

    def tensor(self, value: Any) -> Any:
        """Returns a value as a tensor argument."""
        return self.arguments.tensor(value)

    def initializer(self, graph: ir.Graph, value: ir.Value) -> Constant:
        """Returns an initializer as a constant; the model's are read once for all its imports."""
        own = graph is self.state.model.graph
        return self.state.constants[value.name or ""] if own else self.origins.initializer(value)

    def inputs(self, node: ir.Node, values: Sequence[Any]) -> list[Any]:
        """Returns the inputs of a node as values of this tracer."""
        inputs: list[Any] = self.tracer.own(values)
        if self.tracer.parent is not None:
            inputs = [value.mapped(self.tracer.own) if isinstance(value, ShapeValues) else value for value in inputs]
        return inputs

    def output(self, value: Any) -> Any:
        """Returns a value as a tensor; a value that is no tensor is unchanged."""
        if isinstance(value, list):
            return [self.output(item) for item in value]
        return self.tensor(value) if isinstance(value, (Constant, ShapeValues)) else value

    def type_of(self, value: Any) -> TypeOf:
        """Returns the ONNX type of a recorded tensor."""
        dtype = value.spec.dtype if isinstance(value, Tensor) else None
        return None if dtype is None else onnx_type(dtype), ""

    def begin(self, node: ir.Node) -> None:
        """Counts a node; the fx nodes that are recorded from now on name it in their `meta`."""
        self.at.step += 1
        self.state.steps += 1
        self._recorded = self.tracer.recorded
        self.tracer.meta = {"onnx": (node.domain, node.op_type, node_name(node))}
        if self.state.author is not None and SCOPES in (notes := node.metadata_props):
            self.tracer.meta |= {"scopes": notes[SCOPES], "classes": notes.get(CLASSES), "call": notes.get(CALL)}

    def replay(self, node: ir.Node, version: int, inputs: Sequence[Any]) -> tuple[Hashable, Any]:
        """Records the known call of a node with the same signature, if there is one."""
        key = self.state.repeats.key(node, version, inputs, self.tracer)
        call = self.state.repeats.find(key)
        if call is None:
            return key, None
        self.begin(node)
        recorded = self.tracer.record(call.kind, call.target, [self.tensor(value) for value in inputs])
        return key, self.tracer.wrap(recorded, call.spec)

    def learn(self, key: Hashable, row: Row, inputs: Sequence[Any], run: Callable[[], Any]) -> Any:
        """Returns the result of `run`, and notes the call that it records."""
        if row.facts:  # facts about this node are not part of the signature
            key = None
        return self.state.repeats.run(key, run, self.tracer, lambda: [self.tensor(value) for value in inputs])

    def attribute(self, tensor: ir.TensorProtocol) -> Any:
        """Returns a tensor attribute as a torch tensor."""
        return self.state.tensor_attribute(tensor)

    def numbers(self, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Returns the shape that `row` reads, or its result for shape values; None where it has neither."""
        if row.on_shape_values is None or not inputs:
            return None
        first = inputs[0]
        if row.reads_shape and isinstance(first, Tensor) and first.spec.shape is not None:
            return folding.read_shape(row, first, attributes, self.tracer.guards)
        if ShapeValues not in set(map(type, inputs)):
            return None
        if not all(isinstance(value, ShapeValues) or is_constant(value) for value in inputs):
            return None
        try:
            return folding.evaluate_numbers(row, inputs, attributes, self.tracer.guards)
        except NeedsValues:
            return None

    def fold(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the result of `row` for constants.

        The node is recorded instead where folding would take one of the author's weights out of the state, or where it
        only changes the shape of an integer table.
        """
        arguments = self.arguments.of_body(row, inputs)
        try:
            folded = folding.fold(row, inputs, arguments, attributes, self.origins, self.state.account)
        except TooLargeError as error:
            self.state.left.append(f"{node_name(node)!r} ({node.op_type}): {error}")
            return self._left_to_run_time(node, row, inputs, attributes)
        table = lays_out_weight(row, inputs)
        author = self.state.author
        if row.call == "opaque" or not (table or weight_folding.loses_weight(author, node, row, inputs, folded)):
            return folded
        inputs = weight_folding.read_at_run_time(author, row, inputs, table, self._read)
        return self.compute(node, row, inputs, attributes)

    def _left_to_run_time(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Records a node on constants whose result is too large to compute at import."""
        values = weight_folding.tensors_at_run_time(row, inputs, self._read)
        if any(isinstance(value, Tensor) for value in values) and row.call != "opaque":
            return self.compute(node, row, values, attributes)
        return self.record_opaque(node, row, inputs, attributes)

    def _read(self, constant: Constant) -> Any:
        """Returns a constant as a value of the traced program; strings are unchanged."""
        held = self.origins.remember(constant)
        return constant if isinstance(held, np.ndarray) else self.tracer.attribute(held)

    def record(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Records the calls in the body of `row`."""
        _refuse_others(inputs)
        try:
            arguments = self.arguments.of_body(row, inputs)
            if row.call == "packed":
                return opaque_calls.call_of_shapes(self.tracer, row, arguments, attributes)
            self.tracer.guards.open_rank = bool(attributes.get("_open_rank"))
            with watched_where_known(arguments, self.state.account):
                result = self.tracer.fake_quantizers.run(row, arguments, attributes)
        except (ShapeMismatch, UnfulfilledError) as error:
            if self.state.strict and (self.branch is not None or isinstance(error, ShapeMismatch)):
                self._conflict(node, error, inputs)
            raise
        size_vectors.note_elements(result, row, inputs, attributes, self.tracer.guards)
        return result

    def record_opaque(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Records one opaque call of the operator."""
        arguments = self.arguments.of_operator(row, inputs)
        state = self.state
        try:
            return opaque_calls.call(self.tracer, row, arguments, attributes, node, state.plan.type_of, state.strict)
        except OperatorError as error:  # `row.results` found a shape conflict
            if self.state.strict and next(iter(self.tracer.symbols), None) is not None:
                self._conflict(node, error, inputs)
            raise

    def _conflict(self, node: ir.Node, error: Exception, inputs: Sequence[Any]) -> None:
        """Raises the error for shapes that fit for no sizes; returns where data decide sizes, perhaps never these."""
        sizes = list(self.tracer.symbols)
        if self.branch is not None and isinstance(error, (ShapeMismatch, UnfulfilledError)):
            raise BranchConflictError(f"its inputs' shapes do not fit: {str(error).rstrip('.')}.") from None
        if self.branch is not None or any(not symbol.by_data for symbol in sizes):
            step = (self.state.steps, self.tracer.recorded - self._recorded)
            raise ShapeConflictError(str(error), node, step, self.tracer.guards.chosen) from None
        if not sizes:
            raise OperatorError(f"its inputs' shapes{_listed_shapes(inputs)} do not fit: {error}.") from None

    def settle(self, value: Any) -> Any:
        """Returns a result in the form that the scope holds: constant shape values become a constant."""
        return value if type(value) is Tensor else folding.settle(value, self.origins)

    def keep(self, value: ir.Value, result: Any) -> None:
        """Notes the name of the file's value on the fx node of `result`; one fx node may be several values."""
        if isinstance(result, (Tensor, Opaque)) and result.tracer is self.tracer and (name := value.name):
            meta = result.node.meta
            meta["onnx_outputs"] = (*meta["onnx_outputs"], name) if "onnx_outputs" in meta else (name,)

    def for_function(self, inputs: Mapping[str, Any]) -> TorchBuilder:
        """Returns the builder of the function's module, whose arguments are the tensors among the inputs."""
        body = self.child(origins=Origins())
        body.tracer.captures.name(inputs)
        return body

    def called(self, node: ir.Node, function: ir.Function, body: TorchBuilder, outputs: Sequence[Any]) -> Sequence[Any]:
        """Records a call of the function's module; outputs that are known at import stay constants, and sizes sizes."""
        results = [_returned(value, body, self.tracer) for value in outputs[: len(node.outputs)]]
        take_guards(self.tracer, body.tracer)
        live = {i: getattr(value, "spec", None) for i, value in enumerate(results) if is_traced(value)}
        if live or body.tracer.guards.later:
            name, specs = identifier(function.name), [*live.values()]
            module = body.tracer.finish(_one_or_all([results[i] for i in live]), name)
            values = self.tracer.call_module([name], module, tuple(body.tracer.captured), _one_or_all(specs))
            for i, value in zip(live, [values] if len(live) == 1 else values, strict=True):
                results[i] = value
        return results


def _returned(value: Any, body: TorchBuilder, tracer: Tracer) -> Any:
    """Returns an output of a function: sizes as its caller's where this one reads them, other values as the body's."""
    if isinstance(value, ShapeValues):
        with contextlib.suppress(TraceError):
            return value.mapped(lambda number: returned(tracer, number))
    return body.output(value)


def _one_or_all(values: Sequence[Any]) -> Any:
    """Returns what a module gives: one value itself, others as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def _refuse_others(inputs: Sequence[Any]) -> None:
    """Refuses inputs of a recorded node that are no tensors."""
    for value in inputs:
        if type(value) is Opaque or (type(value) is Constant and value.kind == ir.DataType.STRING):
            raise TraceError("a value that is no tensor")


def _listed_shapes(inputs: Sequence[Any]) -> str:
    """Returns the known shapes of inputs for a message, `""` where there are none."""
    kept = [value for value in inputs if isinstance(value, (Tensor, Constant))]
    shapes = [value.spec.shape if isinstance(value, Tensor) else value.shape for value in kept]
    return "".join(f" {list(shape)}" for shape in shapes if shape is not None)


TorchWalk = Walk[TorchBuilder]
"""The walk of a graph that becomes a `torch.fx` graph."""
