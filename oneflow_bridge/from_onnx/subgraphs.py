"""Modules that hold imported subgraphs, and how the importer makes them: If, Loop, Scan, SequenceMap.

They run as Python control flow on namespace values: their bodies are never recorded, for sizes may change from one
iteration to the next. `oneflow.nn.Graph` cannot trace what depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from oneflow_bridge import namespace
from oneflow_bridge.from_onnx.constants import Constant, dtype_of
from oneflow_bridge.from_onnx.module import ImportedModule
from oneflow_bridge.from_onnx.operators import as_tensor
from oneflow_bridge.from_onnx.program import Program
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.errors import OperatorError
from onnx2nn.ground.naming import split_path
from onnx2nn.importing.node_facts import Scope
from onnx2nn.optable.row import Row
from onnx2nn.optable.shape_values import Host

if TYPE_CHECKING:
    from oneflow_bridge.from_onnx.importer import Walk

F: Any = namespace


def _number(value: Any) -> Any:
    """Returns the one element of a trip count or condition."""
    if isinstance(value, Host):
        return value.array.reshape(-1)[0]
    return value.numpy().reshape(-1)[0].item() if isinstance(value, Tensor) else value


class If(flow.nn.Module):  # type: ignore[misc]  # OneFlow has no types
    """ONNX If: runs one of two submodules."""

    def __init__(self, then_branch: ImportedModule, else_branch: ImportedModule, split: int):
        super().__init__()
        self.then_branch, self.else_branch, self.split = then_branch, else_branch, split

    def forward(self, condition: Any, *captured: Any) -> Any:
        """Returns the outputs of the branch that `condition` chooses, for the captured values of either branch."""
        if _number(condition):
            return self.then_branch.run(*captured[: self.split])
        return self.else_branch.run(*captured[self.split :])


class Loop(flow.nn.Module):  # type: ignore[misc]  # OneFlow has no types
    """ONNX Loop: runs its body while the condition holds, at most so many times; scan outputs are stacked.

    Args:
        body: takes the iteration number, the condition, the carried values and the captured ones; returns the next
            condition, the carried values and one value for each scan output.
        carried: how many values are carried from iteration to iteration.
        scans: shape and dtype of an element of each scan output, for a loop that never runs.
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
        states: how many values are carried.
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
        turned = [
            scan[::-1] if backwards else scan for scan, (_, backwards) in zip(collected, self.outputs, strict=True)
        ]
        return (*states, *_stacked(turned, self.scans, [axis for axis, _ in self.outputs]))


class BatchedScan(flow.nn.Module):  # type: ignore[misc]  # OneFlow has no types
    """ONNX Scan of opset 8: a Scan for each element of the batch, over its own length."""

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
        inputs: how many inputs there are; the first is a sequence, others may be.
        results: how many sequences come of it.
    """

    def __init__(self, body: ImportedModule, inputs: int, results: int):
        super().__init__()
        self.body, self.inputs, self.results = body, inputs, results

    def forward(self, *values: Any) -> Any:
        """Returns the sequences of what the body gives for the elements of the inputs and the captured values."""
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


def run(walk: Walk, node: ir.Node, row: Row, inputs: list[Any]) -> Any:
    """Imports a node whose attributes are graphs; returns its outputs as a tuple.

    Raises:
        OperatorError: its subgraph cannot be imported.
    """
    importer = _IMPORTERS.get((row.operator, row.since))
    if importer is None:
        raise OperatorError("its subgraph cannot be imported.")
    return tuple(importer(walk, node, inputs))


def _import_if(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    (condition,) = inputs
    if isinstance(condition, Constant):
        return walk.inside(branches[0 if bool(condition.numpy().all()) else 1], Scope(walk.scope)).run()
    modules, captured = [], []
    for graph in branches:
        module, used = _subgraph(walk, graph, [])
        modules.append(module)
        captured.append(used)
    return _add(walk, node, If(modules[0], modules[1], len(captured[0])), [condition, *captured[0], *captured[1]])


def _import_loop(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    graph = node.attributes["body"].as_graph()
    trips, condition, *initial = [*inputs, None, None][: max(len(inputs), 2)]
    module, captured = _subgraph(walk, graph, list(graph.inputs))
    scans = [_element(value) for value in list(graph.outputs)[1 + len(initial) :]]
    return _add(walk, node, Loop(module, len(initial), scans), [trips, condition, *initial, *captured])


def _import_scan(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    graph = node.attributes["body"].as_graph()
    count = node.attributes["num_scan_inputs"].as_int()
    states = len(inputs) - count
    module, captured = _subgraph(walk, graph, list(graph.inputs))
    produced = len(graph.outputs) - states
    ways_in = zip(_ints(node, "scan_input_axes", count), _ints(node, "scan_input_directions", count), strict=True)
    ways_out = zip(
        _ints(node, "scan_output_axes", produced), _ints(node, "scan_output_directions", produced), strict=True
    )
    scans = [_element(value) for value in list(graph.outputs)[states:]]
    return _add(walk, node, Scan(module, states, list(ways_in), list(ways_out), scans), [*inputs, *captured])


def _import_scan_8(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    graph = node.attributes["body"].as_graph()
    count = node.attributes["num_scan_inputs"].as_int()
    lengths, *values = inputs
    states = len(values) - count
    module, captured = _subgraph(walk, graph, list(graph.inputs))
    scans = [_element(value) for value in list(graph.outputs)[states:]]
    ways = [(0, direction) for direction in _ints(node, "directions", count)]
    scan = Scan(module, states, ways, [(0, 0)] * len(scans), scans)
    return _add(walk, node, BatchedScan(scan), [lengths, *values, *captured])


def _import_sequence_map(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    graph = node.attributes["body"].as_graph()
    module, captured = _subgraph(walk, graph, list(graph.inputs))
    return _add(walk, node, SequenceMap(module, len(inputs), len(graph.outputs)), [*inputs, *captured])


def _subgraph(walk: Walk, graph: ir.Graph, inputs: Sequence[ir.Value]) -> tuple[ImportedModule, list[Any]]:
    """Returns the module of a subgraph and the values of the graphs around it that it takes behind its own inputs."""
    from oneflow_bridge.from_onnx.importer import UNKNOWN, Live, Walk  # a subgraph is walked like the graph around it

    program = Program(walk.program)
    scope = Scope(walk.scope)
    inner = Walk(walk.owner, program, scope, graph, walk.opsets, walk)
    inner.attributes = walk.attributes
    for value in inputs:
        name = program.name(value.name or "input")
        program.parameters.append(name)
        scope[value] = Live(name, inner, None)
    outputs = inner.run()
    if any(value is UNKNOWN for value in outputs):
        raise OperatorError("its subgraph holds nodes that cannot be imported, named on their own.")
    return inner.finish(outputs), [walk.own(value) for value in inner.captured]


def _add(walk: Walk, node: ir.Node, module: Any, inputs: Sequence[Any]) -> list[Any]:
    """Adds a call of `module` to the walk's program; returns the node's outputs."""
    from oneflow_bridge.from_onnx.importer import Live

    uses: set[str] = set()
    arguments = ", ".join(walk.source(value, uses) for value in inputs)
    names = tuple(walk.program.name(value.name or "output") for value in node.outputs)
    steps = split_path(node.name or node.outputs[0].name or node.op_type.lower())
    walk.program.add_module_call(names, steps, module.eval(), arguments, uses)
    return [Live(name, walk, None) for name in names]


def _ints(node: ir.Node, name: str, count: int) -> list[int]:
    attribute = node.attributes.get(name)
    return [0] * count if attribute is None else list(attribute.as_ints())


def _element(value: ir.Value) -> tuple[list[int], str]:
    """Returns what the file says of a scan output's element: its shape, 0 for dynamic dims, and its dtype's name."""
    dtype: DType = F.float32 if value.dtype is None else dtype_of(value.dtype)
    dims = [] if value.shape is None else [dim if isinstance(dim, int) else 0 for dim in value.shape]
    return dims, dtype.name


_IMPORTERS: dict[tuple[str, int], Callable[[Walk, ir.Node, list[Any]], Sequence[Any]]] = {
    ("If", 1): _import_if,
    ("Loop", 1): _import_loop,
    ("Scan", 8): _import_scan_8,
    ("Scan", 9): _import_scan,
    ("SequenceMap", 17): _import_sequence_map,
}
