"""The builder of OneFlow modules: nodes become lines of the source of a module's forward.

The row body of every node runs at import on samples of the graph's inputs, at two sizes where the model has dynamic
dimensions. Where the body makes the same calls at every size, the calls become lines of the forward, and calls with
constant weights become `oneflow.nn` layers. Otherwise the node becomes one line that evaluates its row at run time.
The samples also find operators that OneFlow lacks at import, not only at run time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge import namespace
from oneflow_bridge.from_onnx import operators
from oneflow_bridge.from_onnx.constants import Constant, onnx_type
from oneflow_bridge.from_onnx.import_state import MAX_ELEMENTS, FlowImport, ShapeConflictError
from oneflow_bridge.from_onnx.live import Live, flat, has_samples, is_numbers, same_results, samples_of
from oneflow_bridge.from_onnx.placement import Placement
from oneflow_bridge.from_onnx.program import Program, literal
from oneflow_bridge.from_onnx.recording import Recorder, Traced
from oneflow_bridge.from_onnx.writer import Writer, variable_name
from oneflow_bridge.namespace import MissingNameError
from oneflow_bridge.namespace.indexing import IndexRangeError
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.errors import OperatorError
from onnx2nn.importing.builder import Builder, Regions
from onnx2nn.importing.node_facts import body_arguments, lays_out_weight, node_name
from onnx2nn.importing.plan import UNKNOWN_TYPE, TypeOf
from onnx2nn.importing.walk import Walk
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.optable.shape_values import ShapeValues


class FlowBuilder(Builder):
    """Writes the nodes of one graph, and of functions it calls, into one program.

    Args:
        state: the state that all graphs of the import share.
        regions: importers of nodes whose attributes are graphs.
        program: receives the lines.
    """

    state: FlowImport
    passing = (ShapeConflictError,)

    def __init__(self, state: FlowImport, regions: Regions, program: Program):
        super().__init__(state, regions)
        self.program, self.placement = program, Placement(state, program, self.at)
        self.writer = Writer(program, self.placement)

    def child(self) -> FlowBuilder:
        """Returns the builder of a subgraph, which becomes a module of its own."""
        return FlowBuilder(self.state, self.regions, Program(self.program))

    def initializer(self, graph: ir.Graph, value: ir.Value) -> Constant:
        """Returns an initializer as a constant."""
        return Constant.initializer(value)

    def inputs(self, node: ir.Node, values: Sequence[Any]) -> list[Any]:
        """Returns the inputs of a node as values of this program.

        Raises:
            OperatorError: the node fails at all sample sizes.
        """
        if self.state.refused and node_name(node) in self.state.refused:
            raise OperatorError(self.state.refused[node_name(node)])
        return [self.writer.own(value) for value in values]

    def output(self, value: Any) -> Any:
        """Returns an output of the graph as a value of this program."""
        return self.writer.own(value)

    def type_of(self, value: Any) -> TypeOf:
        """Returns the ONNX type of a run time value, by its samples."""
        if not isinstance(value, Live) or value.samples is None:
            return UNKNOWN_TYPE
        sample = value.samples[0]
        return (
            ir.DataType.from_numpy(sample.dtype) if isinstance(sample, ShapeValues) else onnx_type(sample.dtype)
        ), ""

    def begin(self, node: ir.Node) -> None:
        """Counts a node; lines that are added from now on have its name as their comment."""
        self.at.step += 1
        self.program.comment = f"{node.op_type} {node_name(node)!r}"

    def attribute(self, tensor: ir.TensorProtocol) -> Any:
        """Returns a tensor attribute as a tensor of the namespace."""
        return Constant("", ir.DataType(tensor.dtype), tensor).value

    def for_function(self) -> FlowBuilder:
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
            result = row.run(namespace, *values, **attributes)
        except OperatorError:
            raise
        except NeedsValues as error:
            raise OperatorError(f"it needs values that are not known at import: {error}.") from None
        except Exception as error:  # OneFlow has no common class of errors
            raise OperatorError(f"it fails on its constants: {_reason(error)}") from error
        folded = self._settled_results(result, inputs)
        if not lays_out_weight(row, inputs) and not self.placement.loses_weight(inputs, folded):
            return folded
        table = self.writer.operator(node, row, inputs, attributes, [folded.value] * self.state.points)
        table.fixed = True
        return table

    def _settled_results(self, result: Any, inputs: Sequence[Any]) -> Any:
        """Returns the result of a body on `inputs`, one value or a tuple, as the scope holds it."""
        weights = [value for value in inputs if isinstance(value, Constant) and value.weight]
        if isinstance(result, tuple):
            return tuple(self._settled(item, weights) for item in result)
        return self._settled(result, weights)

    def _settled(self, value: Any, weights: Sequence[Constant]) -> Any:
        if isinstance(value, list):
            return [self._settled(item, weights) for item in value]
        if isinstance(value, Tensor):
            return self.placement.constant_of(value, weights)
        return Constant.of(value) if isinstance(value, np.ndarray) else value

    def record(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Adds the calls that the body makes on the samples, or one line where the calls differ between sizes."""
        _check_size(row, inputs)
        if not all(map(has_samples, inputs)):
            raise NeedsValues("an input without samples")
        try:
            if row.random or row.call == "packed" or row.reads_shape or any(map(is_numbers, inputs)):
                values = [self._values(inputs, point) for point in range(self.state.points)]
                samples = [operators.apply(row, value, attributes) for value in values]
                return self.writer.operator(node, row, inputs, attributes, samples)
            return self._record(node, row, inputs, attributes)
        except (NeedsValues, IndexRangeError):
            raise NeedsValues("the body depends on values") from None
        except MissingNameError:
            raise
        except Exception as error:  # OneFlow has no common class of errors
            self._refuse(node, error)
            raise NeedsValues("the samples do not fit") from None

    def _refuse(self, node: ir.Node, error: Exception) -> None:
        """Raises for a node that fails on the samples; returns where it may run at run time all the same.

        Raises:
            OperatorError: the node fails on every input, as OneFlow lacks a function or the sizes are fixed.
            ShapeConflictError: the sample sizes may be the cause.
        """
        reason = _reason(error)
        if "OneFlow 0.9 has no" in reason or not self.state.sizes:
            raise OperatorError(reason) from None
        if self.state.strict:
            raise ShapeConflictError(node, reason) from None

    def record_opaque(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Adds the line that evaluates `row` at run time.

        Raises:
            OperatorError: on samples, the row needs a function that OneFlow lacks.
        """
        _check_size(row, inputs)
        if all(map(has_samples, inputs)):
            try:
                operators.apply(row, self._values(inputs, 0), attributes)
            except OperatorError as error:
                if isinstance(error, MissingNameError) or "OneFlow 0.9 has no" in str(error):
                    raise
            except Exception:  # the values of the samples may be the cause
                pass
        return self.writer.operator(node, row, inputs, attributes, None)

    def _values(self, inputs: Sequence[Any], point: int) -> list[Any]:
        """Returns samples of `inputs` at one of the sample sizes."""
        return [_sample(value, point) for value in inputs]

    def _argument(self, value: Any, traced: Any) -> Any:
        if isinstance(value, Constant):
            return self.placement.remember(value)
        if isinstance(value, list):
            return [self._argument(item, traced) for item in value]
        return traced(value) if isinstance(value, Live) else value

    def _record(self, node: ir.Node, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Adds the calls of the body, or one line that evaluates the row where the calls depend on sizes."""
        prefix = self.program.prefix(variable_name(node, 0))
        layers = not any(isinstance(value, Live) and value.fixed for value in inputs)
        runs = []
        for point in range(self.state.points):
            recorder = Recorder(prefix, layers=layers)

            def traced(live: Live, recorder: Recorder = recorder, point: int = point) -> Any:
                assert live.samples is not None
                return Traced(recorder, live.name, live.samples[point])

            arguments = body_arguments(row, inputs, functools.partial(self._argument, traced=traced), _refuse_static)
            result = row.body(recorder.F, *arguments, **attributes)
            runs.append((recorder.calls, result))
        calls, result = runs[0]
        if any(other != calls or not same_results(result, end) for other, end in runs[1:]):
            samples = [samples_of(end) for _, end in runs]
            return self.writer.operator(node, row, inputs, attributes, samples)
        for call in calls:
            self.writer.call(call, inputs)
        if isinstance(result, tuple):
            return tuple(self._recorded(item, [end[i] for _, end in runs], inputs) for i, item in enumerate(result))
        return self._recorded(result, [end for _, end in runs], inputs)

    def _recorded(self, value: Any, ends: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """Returns one result of a recorded body as the scope holds it."""
        if isinstance(value, Traced):
            live = [i for i in flat(inputs) if isinstance(i, Live)]
            known = [i for i in live if i.name == value.name]
            if known:
                return known[0]
            fixed = bool(live) and all(i.fixed for i in live)
            return Live(value.name, self.program, [end.sample for end in ends], fixed=fixed)
        if isinstance(value, list):
            return [self._recorded(item, [end[i] for end in ends], inputs) for i, item in enumerate(value)]
        return self._settled(value, [i for i in inputs if isinstance(i, Constant) and i.weight])


FlowWalk = Walk[FlowBuilder]
"""The walk of a graph that becomes a OneFlow module."""


def _refuse_static(name: str, value: Any) -> Any:
    raise NeedsValues(f"input {name} is computed from data")


def _sample(value: Any, point: int) -> Any:
    """Returns a sample of `value` at one of the sample sizes."""
    if isinstance(value, Constant):
        short = literal(value)
        return value.value if short is None else short
    if isinstance(value, list):
        return [_sample(item, point) for item in value]
    return value.samples[point] if isinstance(value, Live) and value.samples is not None else value


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
