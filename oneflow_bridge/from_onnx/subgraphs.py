"""Modules that run imported subgraphs, and the import of their nodes: If, Loop, Scan, SequenceMap.

The modules run as Python control flow on namespace values. Their bodies are not recorded, as sizes may change from one
iteration to the next. `oneflow.nn.Graph` cannot trace data-dependent control flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from oneflow_bridge import namespace
from oneflow_bridge.from_onnx.builder import FlowWalk
from oneflow_bridge.from_onnx.constants import dtype_of
from oneflow_bridge.from_onnx.module import ImportedModule
from oneflow_bridge.from_onnx.operators import as_tensor
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.importing.builder import Region
from onnx2nn.importing.control_flow import (
    ScanForm,
    batched_scan_form,
    branches_of,
    constant_truth,
    loop_form,
    mapped_body,
    scan_form,
)
from onnx2nn.optable.shape_values import ShapeValues

F: Any = namespace


def _number(value: Any) -> Any:
    """Returns the one element of a trip count or condition."""
    if isinstance(value, ShapeValues):
        return value.array.reshape(-1)[0]
    return value.numpy().reshape(-1)[0].item() if isinstance(value, Tensor) else value


class If(flow.nn.Module):  # type: ignore[misc]  # OneFlow has no types
    """ONNX If: runs one of two submodules."""

    def __init__(self, then_branch: ImportedModule, else_branch: ImportedModule, split: int):
        super().__init__()
        self.then_branch, self.else_branch, self.split = then_branch, else_branch, split

    def forward(self, condition: Any, *captured: Any) -> Any:
        """Returns the outputs of the branch that `condition` selects.

        `captured`: the captured values of the then branch, `split` of them, and of the else branch.
        """
        if _number(condition):
            return self.then_branch.run(*captured[: self.split])
        return self.else_branch.run(*captured[self.split :])


class Loop(flow.nn.Module):  # type: ignore[misc]  # OneFlow has no types
    """ONNX Loop: runs its body while the condition holds, up to the trip count, and stacks the scan outputs.

    Args:
        body: takes the iteration number, the condition, the carried values and the captured ones; returns the next
            condition, the carried values and one value for each scan output.
        carried: the number of loop-carried values.
        scans: shape and dtype of an element of each scan output, for a loop of no iterations.
    """

    def __init__(self, body: ImportedModule, carried: int, scans: Sequence[tuple[Sequence[int], str]]):
        super().__init__()
        self.body, self.carried, self.scans = body, carried, list(scans)

    def forward(self, trips: Any, condition: Any, *values: Any) -> Any:
        """Returns the carried values after the last iteration, then the scan outputs."""
        carried, captured = list(values[: self.carried]), values[self.carried :]
        scans: list[list[Any]] = [[] for _ in self.scans]
        limit = None if trips is None else int(_number(trips))
        running = True if condition is None else bool(_number(condition))
        iteration = 0
        while running and (limit is None or iteration < limit):
            following, *results = self.body.run(F.tensor(iteration), F.tensor(running), *carried, *captured)
            running = bool(_number(following))
            carried = results[: self.carried]
            for scan, item in zip(scans, results[self.carried :], strict=True):
                scan.append(as_tensor(item))
            iteration += 1
        return (*carried, *_stacked(scans, self.scans, [0] * len(scans)))


class Scan(flow.nn.Module):  # type: ignore[misc]  # OneFlow has no types
    """ONNX Scan: runs its body once for each slice of the scan inputs.

    Args:
        body: takes the states, one slice of each scan input and the captured values; returns the next states and one
            slice of each scan output.
        states: the number of state variables.
        inputs: axis and direction (1: backwards) of each scan input.
        outputs: axis and direction of each scan output.
        scans: shape and dtype of a slice of each scan output, for inputs of length 0.
    """

    def __init__(
        self,
        body: ImportedModule,
        states: int,
        inputs: Sequence[tuple[int, int]],
        outputs: Sequence[tuple[int, int]],
        scans: Sequence[tuple[Sequence[int], str]],
    ):
        super().__init__()
        self.body, self.states, self.scans = body, states, list(scans)
        self.inputs, self.outputs = list(inputs), list(outputs)

    def forward(self, *values: Any) -> Any:
        """Returns the last states, then the scan outputs."""
        states = list(values[: self.states])
        end = self.states + len(self.inputs)
        scanned = [as_tensor(value) for value in values[self.states : end]]
        slices = [
            list(value.unbind(axis))[:: -1 if backwards else 1]
            for value, (axis, backwards) in zip(scanned, self.inputs, strict=True)
        ]
        collected: list[list[Any]] = [[] for _ in self.outputs]
        for items in zip(*slices, strict=True):
            results = self.body.run(*states, *items, *values[end:])
            states = list(results[: self.states])
            for scan, item in zip(collected, results[self.states :], strict=True):
                scan.append(as_tensor(item))
        ordered = [
            scan[::-1] if backwards else scan for scan, (_, backwards) in zip(collected, self.outputs, strict=True)
        ]
        return (*states, *_stacked(ordered, self.scans, [axis for axis, _ in self.outputs]))


class BatchedScan(flow.nn.Module):  # type: ignore[misc]  # OneFlow has no types
    """ONNX Scan of opset 8: a Scan for each element of a batch, over its own sequence length."""

    def __init__(self, scan: Scan):
        super().__init__()
        self.scan = scan

    def forward(self, lengths: Any, *values: Any) -> Any:
        """Returns the last states and the scan outputs, all with the batch as first dimension."""
        end = self.scan.states + len(self.scan.inputs)
        own, captured = [as_tensor(value) for value in values[:end]], values[end:]
        full = own[self.scan.states].shape[1]
        results = []
        for index in range(own[0].shape[0]):
            length = full if lengths is None else int(as_tensor(lengths)[index])
            states = [item[index] for item in own[: self.scan.states]]
            scanned = [item[index, :length] for item in own[self.scan.states :]]
            outputs = list(self.scan(*states, *scanned, *captured))
            for position in range(self.scan.states, len(outputs)):
                missing = outputs[position].new_zeros((full - length, *outputs[position].shape[1:]))
                outputs[position] = F.cat([outputs[position], missing])
            results.append(outputs)
        return tuple(F.stack(list(items)) for items in zip(*results, strict=True))


class SequenceMap(flow.nn.Module):  # type: ignore[misc]  # OneFlow has no types
    """ONNX SequenceMap: runs its body once for each element of a sequence.

    Args:
        body: takes an element of each sequence, other inputs as they are, and the captured values; returns an element
            of each result.
        inputs: the number of inputs; the first is a sequence, the others may be.
        results: the number of result sequences.
    """

    def __init__(self, body: ImportedModule, inputs: int, results: int):
        super().__init__()
        self.body, self.inputs, self.results = body, inputs, results

    def forward(self, *values: Any) -> Any:
        """Returns the sequences of the body's results.

        `values`: the inputs, then the captured values.
        """
        inputs, captured = values[: self.inputs], values[self.inputs :]
        length = len(inputs[0])
        columns = [value if isinstance(value, list) else [value] * length for value in inputs]
        found = [self.body.run(*items, *captured) for items in zip(*columns, strict=True)]
        return tuple([items[index] for items in found] for index in range(self.results))


def _stacked(scans: Sequence[list[Any]], empty: Sequence[tuple[Sequence[int], str]], axes: Sequence[int]) -> list[Any]:
    results = []
    for items, (shape, dtype), axis in zip(scans, empty, axes, strict=True):
        results.append(F.stack(items, axis) if items else F.zeros((0, *shape), dtype=getattr(F, dtype)))
    return results


def _import_if(walk: FlowWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    branches = branches_of(node)
    (condition,) = inputs
    truth = constant_truth(condition)
    if truth is not None:
        return walk.inside(branches[0 if truth else 1], {})
    (then, used), (otherwise, others) = (_subgraph(walk, graph, []) for graph in branches)
    return walk.builder.writer.module(node, If(then, otherwise, len(used)), [condition, *used, *others])


def _import_loop(walk: FlowWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    form = loop_form(node, inputs)
    body, captured = _subgraph(walk, form.body, form.body.inputs)
    scans = [_element(value) for value in list(form.body.outputs)[1 + len(form.initial) :]]
    module = Loop(body, len(form.initial), scans)
    return walk.builder.writer.module(node, module, [form.trips, form.condition, *form.initial, *captured])


def _scan(walk: FlowWalk, form: ScanForm) -> tuple[Scan, list[Any]]:
    """Returns the module of a Scan, and the values of outer graphs that its body captures."""
    body, captured = _subgraph(walk, form.body, form.body.inputs)
    scans = [_element(value) for value in list(form.body.outputs)[len(form.states) :]]
    ways_in = list(zip(form.axes_in, form.directions_in, strict=True))
    ways_out = list(zip(form.axes_out, form.directions_out, strict=True))
    return Scan(body, len(form.states), ways_in, ways_out, scans), captured


def _import_scan(walk: FlowWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    module, captured = _scan(walk, scan_form(node, inputs, walk.attributes))
    return walk.builder.writer.module(node, module, [*inputs, *captured])


def _import_scan_8(walk: FlowWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    module, captured = _scan(walk, batched_scan_form(node, inputs, walk.attributes))
    return walk.builder.writer.module(node, BatchedScan(module), [*inputs, *captured])


def _import_sequence_map(walk: FlowWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    graph = mapped_body(node, inputs)
    body, captured = _subgraph(walk, graph, graph.inputs)
    module = SequenceMap(body, len(inputs), len(graph.outputs))
    return walk.builder.writer.module(node, module, [*inputs, *captured])


def _subgraph(walk: FlowWalk, graph: ir.Graph, inputs: Sequence[ir.Value]) -> tuple[ImportedModule, list[Any]]:
    """Returns the module of a subgraph, and the values of outer graphs that it captures: arguments behind `inputs`."""
    child = walk.builder.child()
    outputs = walk.inside(graph, {value: child.writer.argument(value) for value in inputs}, child)
    return child.writer.finish(outputs), [walk.builder.writer.own(value) for value in child.writer.captured]


def _element(value: ir.Value) -> tuple[list[int], str]:
    """Returns shape (0: dynamic dimensions) and dtype name that the file declares for an element of a scan output."""
    dtype: DType = F.float32 if value.dtype is None else dtype_of(value.dtype)
    dims = [] if value.shape is None else [dim if isinstance(dim, int) else 0 for dim in value.shape]
    return dims, dtype.name


REGIONS: dict[tuple[str, int], Region] = {
    ("If", 1): _import_if,
    ("Loop", 1): _import_loop,
    ("Scan", 8): _import_scan_8,
    ("Scan", 9): _import_scan,
    ("SequenceMap", 17): _import_sequence_map,
}
