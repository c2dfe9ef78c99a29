"""The import of nodes with graphs: Loop, Scan and SequenceMap here, If in `branches`, Gradient in `gradients`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from onnx2nn.control_flow import BatchedScan, Loop, Scan, SequenceMap
from onnx2nn.errors import OperatorError
from onnx2nn.fx.builder import TorchBuilder, TorchWalk
from onnx2nn.fx.constants import Constant, torch_dtype
from onnx2nn.fx.subgraphs.branches import import_if
from onnx2nn.fx.subgraphs.gradients import import_gradient
from onnx2nn.fx.subgraphs.region_specs import empty, outside, size_along, sliced, spec_of, stacked, unify
from onnx2nn.fx.subgraphs.searches import import_beam_search, import_greedy_search, import_sampling
from onnx2nn.fx.subgraphs.windows import window_views
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Opaque, Tensor
from onnx2nn.importing.builder import Region
from onnx2nn.importing.control_flow import LoopForm, batched_scan_form, loop_form, mapped_body, scan_form
from onnx2nn.importing.trip_counts import trip_count
from onnx2nn.optable.shape_values import ShapeValues
from onnx2nn.sizes.expression import Number
from onnx2nn.sizes.selection import choose, maximum


def _import_loop(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    form, tracer = loop_form(node, inputs), walk.builder.tracer
    limit, start, count = _number(form.trips), _number(form.condition), None
    if not isinstance(limit, Tensor):
        initial = [_known(value) for value in form.initial]
        count = trip_count(form.body, limit, initial, partial(_known_to, walk, form.body))
    length = None if count is None else _iterations(tracer, count, True if start is None else start)
    if isinstance(length, int) and _makes_known_sequences(walk, form, length):
        return _iterated(walk, form, length)
    values = [walk.builder.tensor(value) for value in form.initial]
    fixed = [Spec((), dtype) for dtype in (torch.int64, torch.bool)]
    carried = [spec_of(value) for value in values]
    child, outputs = _trace_body(walk, form.body, fixed, carried, first=1)
    if count is not None:
        limit, outputs = count, [True, *outputs[1:]]
    scans = _scan_outputs(tracer, outputs[1 + len(carried) :])
    body = child.program(outputs, "Body")
    module = Loop(body, len(carried), [empty(spec) for spec in scans], by_data=length is None)
    specs = (*carried, *(stacked(tracer, spec, 0, length) for spec in scans))
    return _call(walk, node, module, (limit, start, *values), child, specs)


def _iterations(tracer: Tracer, count: Any, condition: Any) -> Number | None:
    """Returns the number of a loop's iterations, None where its start is data-dependent."""
    if isinstance(condition, Tensor):
        return None
    return choose(tracer.expr_of(condition), maximum(tracer.expr_of(count), 0), 0)


def _makes_known_sequences(walk: TorchWalk, form: LoopForm, iterations: int) -> bool:
    """Returns whether a loop of so many iterations is better its iterations: it carries a sequence of known elements.

    torch's older exporter writes `tensor_split` and lists that a scripted function fills so. A module returns a
    sequence of which not even the length is known. Scan outputs have no form here.
    """
    sequences = any(isinstance(value, list) for value in form.initial)
    stacks = len(form.body.outputs) != 1 + len(form.initial)
    return sequences and not stacks and _has_room(walk, form.body, iterations)


def _has_room(walk: TorchWalk, graph: ir.Graph, times: int) -> bool:
    """Returns whether a graph may be imported so often."""
    return walk.state.account.has_room(times * sum(1 for _ in graph.all_nodes()))


def _iterated(walk: TorchWalk, form: LoopForm, iterations: int) -> list[Any]:
    """Imports a loop's body once for each iteration; returns the carried values."""
    values = list(form.initial)
    for number in range(iterations):
        counter, condition = (
            Constant.of(scalar.reshape(1) if _is_vector(value) else scalar)
            for value, scalar in zip(form.body.inputs, (torch.tensor(number), torch.tensor(True)), strict=False)
        )
        _, *values = walk.inside(form.body, dict(zip(form.body.inputs, (counter, condition, *values), strict=True)))
    return values


def _is_vector(value: ir.Value) -> bool:
    """Returns whether a body declares its iteration number or condition as a vector of one element, no scalar."""
    return value.shape is not None and value.shape.rank() == 1


def _import_scan(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    tracer = walk.builder.tracer
    form = scan_form(node, [walk.builder.tensor(value) for value in inputs], walk.attributes)
    if any(spec_of(value) is None for value in form.scanned):
        raise OperatorError("a scan input is no tensor of numbers, and others have no slices.")
    scanned = zip(form.axes_in, form.scanned, strict=False)
    axes_in = [a % v.ndim if isinstance(v, Tensor) and v.spec.shape else a for a, v in scanned]
    slices = [sliced(spec_of(v), a) for v, a in zip(form.scanned, axes_in, strict=True)]
    carried = [spec_of(value) for value in form.states]
    windows = window_views(tracer, form, axes_in)
    if windows is not None:
        return windows
    child, outputs = _trace_body(walk, form.body, slices, carried, first=0)
    scans = _scan_outputs(tracer, outputs[len(carried) :])
    length = size_along(spec_of(form.scanned[0]), axes_in[0])
    module = Scan(
        child.program(outputs, "Body"),
        len(carried),
        list(zip(axes_in, form.directions_in, strict=True)),
        list(zip(form.axes_out, form.directions_out, strict=True)),
        [empty(spec) for spec in scans],
        length if isinstance(length, int) else None,
    )
    outer = [stacked(tracer, spec, axis, length) for spec, axis in zip(scans, form.axes_out, strict=True)]
    return _call(walk, node, module, (*form.states, *form.scanned), child, (*carried, *outer))


def _import_scan_8(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    tracer = walk.builder.tracer
    lengths, *values = [walk.builder.tensor(value) for value in inputs]
    form = batched_scan_form(node, [lengths, *values], walk.attributes)
    slices = [sliced(sliced(spec_of(value), 0), 0) for value in form.scanned]
    carried = [sliced(spec_of(value), 0) for value in form.states]
    child, outputs = _trace_body(walk, form.body, slices, carried, first=0)
    scans = _scan_outputs(tracer, outputs[len(carried) :])
    scan = Scan(
        child.program(outputs, "Body"),
        len(carried),
        list(zip(form.axes_in, form.directions_in, strict=True)),
        list(zip(form.axes_out, form.directions_out, strict=True)),
        [empty(spec) for spec in scans],
    )
    first = spec_of(form.scanned[0]) if form.scanned else None
    batch, length = size_along(first, 0), size_along(first, 1)
    inner = [*carried, *(stacked(tracer, spec, 0, length) for spec in scans)]
    specs = tuple(stacked(tracer, spec, 0, batch) for spec in inner)
    return _call(walk, node, BatchedScan(scan), (lengths, *values), child, specs)


def _import_sequence_map(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Imports the body once for each element where the elements are known, else once, as a module."""
    graph = mapped_body(node, inputs)
    first, *others = inputs
    if not isinstance(first, (list, Opaque)):
        raise OperatorError("its first input is no sequence.")
    known = not any(isinstance(value, Opaque) for value in others)
    if isinstance(first, list) and known and _has_room(walk, graph, len(first)):
        columns = [value if isinstance(value, list) else [value] * len(first) for value in inputs]
        steps = [dict(zip(graph.inputs, items, strict=True)) for items in zip(*columns, strict=True)]
        results = [walk.inside(graph, bindings) for bindings in steps]
        return [[items[index] for items in results] for index in range(len(graph.outputs))]
    child = walk.builder.region()
    specs = [_element_spec(walk, *pair) for pair in zip(node.inputs, inputs, strict=True)]
    bindings = _arguments(child, graph, specs)
    outputs = walk.inside(graph, bindings, child)
    module = SequenceMap(child.program(outputs, "Body"), len(inputs), len(outputs))
    values = tuple(walk.builder.tensor(value) for value in inputs)
    return _call(walk, node, module, values, child, (None,) * len(outputs))


def _element_spec(walk: TorchWalk, value: ir.Value | None, known: Any) -> Spec | None:
    """Returns the common spec of the elements of a sequence, or the spec of a tensor."""
    tracer = walk.builder.tracer
    if isinstance(known, list):
        specs = [spec_of(item) for item in known]
        return reduce(partial(unify, tracer), specs) if specs else None
    if not isinstance(known, Opaque):
        return spec_of(known)
    kind, container = walk.type_of(value, known)
    if container != "seq" or kind == ir.DataType.STRING:
        return None
    return Spec(None, None if kind is None else torch_dtype(kind))


def _scan_outputs(tracer: Tracer, outputs: Sequence[Any]) -> list[Spec]:
    """Returns the specs of what an iteration gives to the scan outputs, which are stacked."""
    found = [outside(tracer, spec_of(value)) for value in outputs]
    for index, spec in enumerate(found):
        if spec is None:
            raise OperatorError(f"scan output {index} is no tensor of numbers, and others are not stacked.")
    return [spec for spec in found if spec is not None]


def _trace_body(
    walk: TorchWalk, graph: ir.Graph, others: Sequence[Spec | None], carried: list[Spec | None], first: int
) -> tuple[TorchBuilder, list[Any]]:
    """Imports a loop's body repeatedly until the specs of the carried values are stable.

    Args:
        walk: the surrounding graph's.
        graph: the body.
        others: specs of the other inputs: iteration number and condition before the carried values, slices behind.
        carried: specs of the initial carried values; replaced in place by the stable specs.
        first: position of the first carried output; 1 for Loop, whose inputs begin with `others`.
    """
    for _ in range(4):
        child = walk.builder.region()
        bindings = _arguments(child, graph, [*others, *carried] if first else [*carried, *others])
        for value in graph.inputs[:2] if first else ():
            given = bindings[value]
            if isinstance(given, Tensor) and _is_vector(value):
                bindings[value] = given.reshape(1)
        outputs = walk.inside(graph, bindings, child)
        results = [spec_of(value) for value in outputs[first : first + len(carried)]]
        unified = [unify(walk.builder.tracer, a, b) for a, b in zip(carried, results, strict=True)]
        if unified == carried:
            return child, outputs
        carried[:] = unified
    carried[:] = [spec and Spec(None, spec.dtype) for spec in carried]
    return _trace_body(walk, graph, others, carried, first)


def _arguments(child: TorchBuilder, graph: ir.Graph, specs: Sequence[Spec | None]) -> dict[ir.Value, Any]:
    """Returns the inputs of an inner graph as arguments of its module, with `specs`."""
    pairs = enumerate(zip(graph.inputs, specs, strict=True))
    return {value: child.tracer.placeholder(f"value_{index}", spec) for index, (value, spec) in pairs}


def _call(
    walk: TorchWalk,
    node: ir.Node,
    module: nn.Module,
    values: Sequence[Any],
    child: TorchBuilder,
    specs: Sequence[Spec | None],
) -> Sequence[Any]:
    """Records the call of a module whose body `child` has built; returns the outputs, with `specs`."""
    arguments = (*values, *child.tracer.captured)
    outcome: Sequence[Any] = walk.builder.tracer.call_module(
        walk.builder.placement.of_graphs(node), module, arguments, tuple(specs)
    )
    return outcome


def _number(value: Any) -> Any:
    """Returns a trip count or condition as a Python number where it is known, else as a tensor."""
    if isinstance(value, Constant):
        return value.numpy().reshape(-1)[0].item()
    if isinstance(value, ShapeValues):
        return value.array.reshape(-1)[0]
    return value


def _known(value: Any) -> Any:
    """Returns the number in a value of one element that is known at import, None for any other value."""
    if isinstance(value, Constant):
        return value.numpy().item() if math.prod(value.shape) == 1 else None
    if isinstance(value, ShapeValues):
        return value.array.item() if value.array.size == 1 else None
    return value if isinstance(value, Dim) else None


def _known_to(walk: TorchWalk, body: ir.Graph, value: ir.Value) -> Any:
    """Returns the number in a constant of a loop's body, or in a known value from outside the loop; else None."""
    constant = ir.convenience.get_const_tensor(value)
    if constant is not None:
        return constant.numpy().item() if constant.size == 1 else None
    maker = value.producer()
    inside = value in body.inputs if maker is None else maker.graph is body
    return None if inside else _known(walk.scope[value])


REGIONS: Mapping[tuple[str, int], Region] = {
    ("BeamSearch", 1): import_beam_search,
    ("Gradient", 1): import_gradient,
    ("GreedySearch", 1): import_greedy_search,
    ("If", 1): import_if,
    ("Loop", 1): _import_loop,
    ("Sampling", 1): import_sampling,
    ("Scan", 8): _import_scan_8,
    ("Scan", 9): _import_scan,
    ("SequenceMap", 17): _import_sequence_map,
}
