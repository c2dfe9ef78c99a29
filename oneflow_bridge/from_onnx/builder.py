"""The builder of OneFlow modules: nodes become lines of the source of a module's forward.

The row body of every node runs at import on tensors of known type, whose dimensions are ints and symbolic numbers. The
calls that it makes become lines of the forward, and calls with constant weights become `oneflow.nn` layers. Where the
body needs values, or sizes that are not proven, or computes with sizes, the node becomes one line that evaluates its
row at run time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge import namespace
from oneflow_bridge.from_onnx import operators
from oneflow_bridge.from_onnx.constants import Constant, onnx_type
from oneflow_bridge.from_onnx.dim import Dim, unknown_size
from oneflow_bridge.from_onnx.failed_nodes import comment
from oneflow_bridge.from_onnx.import_state import MAX_ELEMENTS, FlowImport
from oneflow_bridge.from_onnx.live import Live, checks_of, flat, is_known, is_numbers, is_static, known_of
from oneflow_bridge.from_onnx.placement import Placement
from oneflow_bridge.from_onnx.program import Program, literal
from oneflow_bridge.from_onnx.recording import Call, Recorder, Spec, Traced
from oneflow_bridge.from_onnx.trials import is_lacking, leaves, symbols_in
from oneflow_bridge.from_onnx.writer import Writer, variable_name
from oneflow_bridge.namespace.dtypes import as_dtype
from oneflow_bridge.namespace.indexing import IndexRangeError
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.errors import OperatorError
from onnx2nn.ground.limits import TooLargeError
from onnx2nn.importing import bounded
from onnx2nn.importing.builder import Builder, Regions
from onnx2nn.importing.node_facts import body_arguments, lays_out_weight, node_name
from onnx2nn.importing.plan import UNKNOWN_TYPE, TypeOf
from onnx2nn.importing.walk import Walk
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.optable.shape_values import ShapeValues, evaluate


class FlowBuilder(Builder):
    """Writes the nodes of one graph, and of functions it calls, into one program.

    Args:
        state: the state that all graphs of the import share.
        regions: importers of nodes whose attributes are graphs.
        program: receives the lines.
    """

    state: FlowImport

    def __init__(self, state: FlowImport, regions: Regions, program: Program):
        super().__init__(state, regions)
        self.program, self.placement = program, Placement(state, program, self.at)
        self.writer = Writer(program, self.placement)

    def child(self) -> FlowBuilder:
        """Returns the builder of a subgraph, which becomes a module of its own."""
        return FlowBuilder(self.state, self.regions, Program(self.program))

    def initializer(self, graph: ir.Graph, value: ir.Value) -> Constant:
        """Returns an initializer as a constant."""
        return self.state.constant(value)

    def inputs(self, node: ir.Node, values: Sequence[Any]) -> list[Any]:
        """Returns the inputs of a node as values of this program."""
        return [self.writer.own(value) for value in values]

    def output(self, value: Any) -> Any:
        """Returns an output of the graph as a value of this program."""
        return self.writer.own(value)

    def type_of(self, value: Any) -> TypeOf:
        """Returns the ONNX type of a run time value."""
        known = value.known if isinstance(value, Live) else None
        if isinstance(known, ShapeValues):
            return ir.DataType.from_numpy(known.dtype), ""
        return (onnx_type(known.dtype), "") if isinstance(known, Spec) else UNKNOWN_TYPE

    def begin(self, node: ir.Node) -> None:
        """Counts a node; lines that are added from now on have its name as their comment."""
        self.at.step += 1
        self.program.comment, self.program.scope = comment(node.op_type, node_name(node)), self.placement.scope()

    def attribute(self, tensor: ir.TensorProtocol) -> Any:
        """Returns a tensor attribute as a tensor of the namespace."""
        return Constant("", ir.DataType(tensor.dtype), tensor).value

    def stored(self, node: ir.Node, tensor: ir.TensorProtocol) -> Any:
        """Returns the tensor of a Constant node as a constant."""
        self.begin(node)
        return self._settled(self.attribute(tensor), ())

    def for_function(self, inputs: Mapping[str, Any]) -> FlowBuilder:
        """Counts the call and returns this builder: the function's nodes become lines of the same program."""
        self.at.step += 1
        return self

    def called(self, node: ir.Node, function: ir.Function, body: FlowBuilder, outputs: Sequence[Any]) -> Sequence[Any]:
        """Returns the outputs of the function."""
        return outputs[: len(node.outputs)]

    def fold(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the results of `row` on constants; a call at run time where folding would lose an author's weight."""
        _check_size(row, inputs)
        values = body_arguments(row, inputs, lambda value: self._argument(value, None), _refuse_static)
        try:
            result = bounded.run(row, namespace, values, attributes, self.state.account)
        except (OperatorError, TooLargeError):
            raise
        except NeedsValues as error:
            raise OperatorError(f"it needs values that are not known at import: {error}.") from None
        except Exception as error:  # OneFlow has no common class of errors
            raise OperatorError(f"it fails on its constants: {_reason(error)}") from error
        folded = self._settled(result, inputs)
        if not lays_out_weight(row, inputs) and not self.placement.loses_weight(inputs, folded):
            return folded
        table = self.writer.operator(node, row, inputs, attributes, known_of(folded.value))
        table.fixed = True
        return table

    def _settled(self, value: Any, inputs: Sequence[Any]) -> Any:
        """Returns the result of a body on `inputs`, one value, a list or a tuple, as the scope holds it."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._settled(item, inputs) for item in value)
        if isinstance(value, Tensor):
            weights = [item for item in inputs if isinstance(item, Constant) and item.weight]
            return self.placement.constant_of(value, weights)
        return Constant.of(value) if isinstance(value, np.ndarray) else value

    def record(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Adds the calls that the body makes, or one line where the body computes with sizes."""
        _check_size(row, inputs)
        if not all(map(is_known, inputs)):
            raise NeedsValues("an input of which nothing is known")
        numbers = self._shape_values(row, inputs, attributes)
        if numbers is not None:
            return self.writer.operator(node, row, inputs, attributes, numbers)
        sizes = self.state.sizes
        recorder = self._recorder(node, inputs)
        try:
            with sizes.node(recorder):
                arguments = self._arguments(row, inputs, recorder, _refuse_static)
                result = row.body(recorder.F, *arguments, **attributes)
                calls = recorder.needed(result)
                at_run_time = bool(sizes.demands) or any(call.has_sizes for call in calls)
        except (NeedsValues, IndexRangeError):
            raise NeedsValues("the body depends on values") from None
        except OperatorError:
            raise
        except Exception as error:  # OneFlow has no common class of errors
            if is_static(inputs) or is_lacking(error):
                raise OperatorError(_reason(error)) from None
            raise NeedsValues("the body fails on sizes that are not known") from None
        if row.random or row.call == "packed" or any(map(is_numbers, inputs)) or at_run_time:
            return self.writer.operator(node, row, inputs, attributes, known_of(result))
        return self._written(calls, result, inputs)

    def _recorder(self, node: ir.Node, inputs: Sequence[Any]) -> Recorder:
        prefix = self.program.prefix(variable_name(node, 0))
        if any(isinstance(value, Live) and value.fixed for value in inputs):
            return Recorder(prefix, self.state.sizes, self.state.trials, lambda layer: False)
        return Recorder(prefix, self.state.sizes, self.state.trials, lambda layer: self.placement.fits(layer, inputs))

    def _arguments(self, row: Row, inputs: Sequence[Any], recorder: Recorder, static: Any) -> list[Any]:
        """Returns a node's inputs as its body takes them while it is recorded."""
        present = [
            value.known if isinstance(value, Live) and isinstance(value.known, ShapeValues) else value
            for value in inputs
        ]

        def traced(value: Any) -> Any:
            if isinstance(value, ShapeValues):
                return recorder.traced(_spec_of(value))
            return Traced(recorder, value.name, value.known)

        def tensor(value: Any) -> Any:
            return traced(value) if isinstance(value, ShapeValues) else self._argument(value, traced)

        return body_arguments(row, present, tensor, static)

    def _argument(self, value: Any, traced: Any) -> Any:
        if isinstance(value, Constant):
            return self.placement.remember(value)
        if isinstance(value, list):
            return [self._argument(item, traced) for item in value]
        return traced(value) if isinstance(value, Live) else value

    def _shape_values(self, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Returns the results of a row on sizes and numbers computed from them; None where they are not known."""
        if row.on_shape_values is None or not inputs:
            return None
        first = inputs[0]
        with self.state.sizes.node(None):
            if row.reads_shape and isinstance(first, Live) and isinstance(first.known, Spec):
                numbers = row.on_shape_values(Traced(self._shapes, first.name, first.known), **attributes)
                return ShapeValues(np.asarray(numbers, dtype=object), np.dtype(np.int64))
            if not any(map(is_numbers, inputs)):
                return None
            values = [None if value is None else _numbers_of(value) for value in inputs]
            present = [value for value in values if value is not None]
            if len(present) < sum(value is not None for value in inputs):
                return None
            arrays = [None if value is None else value.array for value in values]
            dtypes = [None if value is None else value.dtype for value in values]
            try:
                result = evaluate(row, arrays, dtypes, attributes)
            except Exception:  # a form for other numbers fails in any way: then the node is a line that runs the row
                return None
            rounded = any(map(_is_rounded, result if isinstance(result, tuple) else [result]))
            return None if self.state.sizes.demands or rounded else result

    @functools.cached_property
    def _shapes(self) -> Recorder:
        """A recorder for values of which the shape alone is read."""
        return Recorder("", self.state.sizes, self.state.trials)

    def record_opaque(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Adds the line that evaluates `row` at run time.

        Raises:
            OperatorError: the row needs a function that OneFlow lacks.
        """
        _check_size(row, inputs)
        known = None
        if all(map(is_known, inputs)):
            self._try(row, inputs, attributes)
            known = self._declared(node, row, inputs, attributes)
        return self.writer.operator(node, row, inputs, attributes, known)

    def _try(self, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> None:
        """Runs a row on stand-ins for its inputs.

        Raises:
            OperatorError: OneFlow lacks what it needs.
        """
        arguments = [self._argument(_short(value), _Stand) for value in inputs]
        try:
            self.state.trials.run(
                lambda *values: operators.apply(row, values, attributes),
                arguments,
                {},
                symbols_in(arguments),
                self.state.sizes.facts,
            )
        except OperatorError as error:
            if is_lacking(error):
                raise
        except Exception:  # the stand-ins' values may be the cause, and a real one is raised when the line runs
            pass

    def _declared(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the specs that a row declares for its results, in a tuple; None where it declares none."""
        if row.results is None:
            return None
        recorder = self._recorder(node, inputs)

        def static(name: str, live: Any) -> Traced:
            return Traced(recorder, live.name, live.known)

        try:
            with self.state.sizes.node(recorder):
                arguments = self._arguments(row, inputs, recorder, static)
                declared = list(row.results(recorder.F, *arguments, **attributes))
                named: dict[str, Any] = {}
                return tuple(Spec(tuple(_declared_size(s, named) for s in shape), dtype) for shape, dtype in declared)
        except Exception:  # a row may declare results for some inputs alone: then their shapes are not known
            return None

    def _written(self, calls: Sequence[Call], result: Any, inputs: Sequence[Any]) -> Any:
        """Adds the recorded calls of a body; returns its result as the scope holds it."""
        for call in calls:
            self.writer.call(call, inputs)
        used = {value.name for call in calls for value in leaves(call.inputs) if isinstance(value, Traced)}
        self.program.required |= checks_of(inputs) - used
        return self._recorded(result, inputs)

    def _recorded(self, value: Any, inputs: Sequence[Any]) -> Any:
        """Returns one result of a recorded body as the scope holds it, or a tuple of them."""
        if isinstance(value, Traced):
            live = [i for i in flat(inputs) if isinstance(i, Live)]
            known = [i for i in live if i.name == value.name]
            if known:
                return known[0]
            fixed = bool(live) and all(i.fixed for i in live)
            checks = frozenset() if is_static(inputs) else frozenset({value.name})
            return Live(value.name, self.program, value.spec, fixed=fixed, checks=checks)
        if isinstance(value, (list, tuple)):
            return type(value)(self._recorded(item, inputs) for item in value)
        return self._settled(value, inputs)


class _Stand:
    """Stands for a run time value in a trial: it has its spec."""

    def __init__(self, value: Live):
        known = value.known
        self.spec = _spec_of(known) if isinstance(known, ShapeValues) else known


def _spec_of(numbers: ShapeValues) -> Spec:
    return Spec(numbers.array.shape, as_dtype(numbers.dtype))


FlowWalk = Walk[FlowBuilder]
"""The walk of a graph that becomes a OneFlow module."""


def _refuse_static(name: str, value: Any) -> Any:
    raise NeedsValues(f"input {name} is computed from data")


def _short(value: Any) -> Any:
    """Returns a short constant of numbers as shape values, any other value as it is."""
    short = literal(value) if isinstance(value, Constant) else None
    return value if short is None else short


def _numbers_of(value: Any) -> ShapeValues | None:
    """Returns an input as shape values, None where it is a tensor."""
    known = value.known if isinstance(value, Live) else _short(value)
    return known if isinstance(known, ShapeValues) else None


def _is_rounded(value: ShapeValues) -> bool:
    """Returns whether shape values are floats computed from sizes, which their type may round."""
    return value.dtype.kind == "f" and any(isinstance(number, Dim) for number in value.array.flat)


def _declared_size(size: Any, named: dict[str, Any]) -> Any:
    """Returns a size that a row declares as an expression; equal names are one unknown size."""
    if isinstance(size, str):
        return named.setdefault(size, unknown_size())
    return size.expr if isinstance(size, Dim) else int(size)


def _reason(error: Exception) -> str:
    """Returns an error's text, the class's name where it has none; OneFlow's C++ errors end with their cause."""
    lines = str(error).strip().splitlines()
    return (lines[-1] if lines and isinstance(error, RuntimeError) else str(error).strip()) or type(error).__name__


def _check_size(row: Row, inputs: Sequence[Any]) -> None:
    """Refuses a node whose result exceeds the memory of any machine.

    Raises:
        OperatorError: the result has more than `MAX_ELEMENTS` elements.
    """
    position = row.size_position if row.sized_by in row.counts else None
    if position is None or position >= len(inputs) or not isinstance(inputs[position], Constant):
        return
    sizes = inputs[position].numpy().astype(float)
    if sizes.size <= 64 and sizes.prod() > MAX_ELEMENTS:
        raise OperatorError(f"its result has {sizes.prod():.0f} elements and the limit is {MAX_ELEMENTS}.")
