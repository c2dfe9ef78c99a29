"""How nodes whose attributes are graphs are imported: If, Loop, Scan, SequenceMap, Gradient."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir
import torch
from torch import nn

from onnx2nn.control_flow import BatchedScan, Gradient, If, Loop, Scan, SequenceMap
from onnx2nn.errors import OperatorError
from onnx2nn.fx.constants import Constant, torch_dtype
from onnx2nn.fx.dim import Dim
from onnx2nn.fx.sample_sizes import Fixed, Inside, MisfitError, Size, Sizes
from onnx2nn.fx.spec import Spec
from onnx2nn.fx.tensor import Opaque, Tensor
from onnx2nn.fx.tracer import Tracer
from onnx2nn.ground.naming import split_path
from onnx2nn.importing.node_facts import Scope, check_inputs
from onnx2nn.importing.trip_counts import trip_count
from onnx2nn.optable.row import REQUIRED, Row
from onnx2nn.optable.shape_values import Host

if TYPE_CHECKING:
    from onnx2nn.fx.importer import Limit, Walk


MAX_UNROLLED = 1 << 16
"""So many nodes may the bodies of SequenceMap become in one import, where the lengths of sequences are known."""


class RenameInputs:
    """Forward pre-hook that lets a module be called with input names that are no Python identifiers."""

    def __init__(self, names: Mapping[str, str]):
        self.names = dict(names)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the call's arguments under the names that the module's forward has."""
        return args, {self.names.get(name, name): value for name, value in kwargs.items()}


def run(walk: Walk, node: ir.Node, row: Row, inputs: list[Any]) -> Any:
    """Imports a node whose attributes are graphs; returns its outputs as a tuple."""
    importer = _IMPORTERS.get((row.operator, row.since))
    if importer is None:
        raise OperatorError("its subgraph cannot be imported.")
    missing = [name for name, default in row.attributes.items() if default is REQUIRED and name not in node.attributes]
    if missing:
        raise OperatorError(f"attribute {missing[0]!r} is missing.")
    check_inputs(row, inputs)
    return tuple(importer(walk, node, inputs))


def trace_graph(
    walk: Walk,
    graph: ir.Graph,
    bindings: Mapping[ir.Value, Any],
    tracer: Tracer,
    prefix: str | None = None,
    branch: Branch | None = None,
) -> list[Any]:
    """Imports `graph` with `tracer`, its inputs bound to `bindings`; returns its outputs.

    Args:
        walk: the surrounding graph's.
        graph: the graph.
        bindings: what its inputs are.
        tracer: the surrounding graph's too, or one of its own.
        prefix: what the author's keys begin with in there, None for what they begin with around it.
        branch: what it is of an If, None for what it is not.
    """
    from onnx2nn.fx.importer import Walk  # a subgraph is walked like the graph around it

    scope = Scope(walk.scope)
    for value, known in bindings.items():
        scope[value] = known
    inner = Walk(walk.owner, tracer, scope, graph, walk.opsets)
    inner.attributes = walk.attributes
    inner.by_memory, inner.initializers = walk.by_memory, walk.initializers
    inner.prefix = walk.prefix if prefix is None else prefix
    inner.branch, inner.sizes = (walk.branch, walk.sizes) if branch is None else (branch.graph, branch.sizes)
    if tracer is walk.tracer:
        inner.outer = walk.outer
    elif walk.owner.author is not None and walk.owner.author.listed:
        inner.outer = prefix is None  # the key of a weight says where its author holds it: not in there
    outputs = inner.run()
    if tracer is walk.tracer:
        walk.serve(tracer)
    if any(value is walk.UNKNOWN for value in outputs):
        raise OperatorError("its subgraph holds nodes that cannot be imported, named on their own.")
    return outputs


class Branch(NamedTuple):
    """What a branch of an If, chosen at run time, sees of dynamic dimensions.

    Attributes:
        graph: the outermost branch that it is in, or is.
        sizes: the sample sizes in there.
        window: which of the sample points around it those are, None: all.
        fixed: dimensions that are less free there than around it.
    """

    graph: ir.Graph
    sizes: Sizes
    window: slice | None
    fixed: Fixed


def _branch(walk: Walk, graph: ir.Graph) -> Branch:
    if walk.branch is not None or not walk.sizes.branches:
        return Branch(walk.branch or graph, walk.sizes, None, {})
    window, sizes = walk.sizes.inside(graph)
    fixed: dict[str | Inside, Size] = {
        key.name: size for key, size in walk.owner.fixed.items() if isinstance(key, Inside) and key.branch is graph
    }
    return Branch(graph, sizes, window, fixed)


def _either(walk: Walk, branches: Sequence[Branch], a: Spec | None, b: Spec | None) -> Spec | None:
    """Returns what holds of a result that one of two branches gives, each at sample points of its own."""
    windows = [branch.window for branch in branches if branch.window is not None]
    if not windows or a is None or b is None or a.shapes is None or b.shapes is None:
        return unify(walk.tracer, a, b)
    if len(a.shapes[0]) != len(b.shapes[0]):
        return Spec(None, a.dtype or b.dtype)
    pairs = zip(zip(*a.shapes, strict=True), zip(*b.shapes, strict=True), strict=True)
    columns = [_everywhere(walk, windows, pair) for pair in pairs]
    return Spec(tuple(zip(*columns, strict=True)) if columns else ((),) * walk.tracer.points, a.dtype or b.dtype)


def _everywhere(walk: Walk, windows: Sequence[slice], parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns a dimension at all sample points, of which it is `parts` at those in `windows`."""
    sizes = set().union(*parts)
    if len(sizes) == 1:
        return (sizes.pop(),) * walk.tracer.points
    whole = (values for values in walk.sizes.values.values() if [values[w] for w in windows] == list(parts))
    return next(whole, None) or walk.tracer.fresh_dimension()


def _served(captured: Sequence[Any], limits: Sequence[Limit]) -> list[tuple[int, int, int, int]]:
    """Returns the sizes that a branch takes: position among what it captures, axis, least and most."""
    places = {id(value): position for position, value in enumerate(captured)}
    return [(places[id(limit.tensor)], *limit[1:]) for limit in limits]


def _import_if(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    branches = [node.attributes[name].as_graph() for name in _BRANCHES]
    (condition,) = inputs
    if isinstance(condition, Host):
        condition = condition.array.item()
    if isinstance(condition, Constant):
        return _inline(walk, branches, bool(condition.numpy().all()))
    if isinstance(condition, Dim) and len(set(map(bool, condition.values))) == 1 and not condition.of_data:
        # The sizes of the samples agree: import that branch alone, and let sizes that choose the other one fail.
        return _inline(walk, branches, condition.assume())
    if isinstance(condition, Dim):
        walk.owner.split[node] = [bool(value) for value in condition.values]
        condition = walk.tracer.F.scalar_tensor(condition.to_integer(), dtype=torch.int64) != 0
    seen = [_branch(walk, graph) for graph in branches]
    traced = [Tracer(branch.sizes.points, walk.tracer, window=branch.window) for branch in seen]
    limits = [walk.owner.guard(child, branch.fixed) for child, branch in zip(traced, seen, strict=True)]
    path = _own_path(walk, dict(zip(_BRANCHES, branches, strict=True)))
    outputs = []
    for slot, graph, tracer, branch in zip(_BRANCHES, branches, traced, seen, strict=True):
        prefix = None if path is None else f"{walk.prefix}{path}.{slot}."
        if prefix is not None:
            tracer.names.reserve(_inside(walk, prefix))
        try:
            outputs.append(trace_graph(walk, graph, {}, tracer, prefix, branch))
        except MisfitError as error:
            return _without(walk, branches, graph, condition, error)
    results = zip(*([output_spec(v, t) for v in o] for o, t in zip(outputs, traced, strict=True)), strict=True)
    specs = tuple(_either(walk, seen, a, b) for a, b in results)
    modules = [t.finish(tuple(o), name) for t, o, name in zip(traced, outputs, ("Then", "Else"), strict=True)]
    captured = (condition, *traced[0].captured, *traced[1].captured)
    serves = [_served(child.captured, limit) for child, limit in zip(traced, limits, strict=True)]
    module = If(modules[0], modules[1], len(traced[0].captured), serves if any(serves) else ())
    name = _name(node) if path is None else path.split(".")
    return walk.tracer.call_module(name, module, captured, specs, own=path is not None)


def _without(
    walk: Walk, branches: Sequence[ir.Graph], misfit: ir.Graph, condition: Any, error: MisfitError
) -> Sequence[Any]:
    """Imports the branch that is not `misfit`, which does not fit the sizes of the inputs and must not be chosen.

    Raises:
        OperatorError: the other one does not fit either.
    """
    truth = misfit is branches[1]
    condition = condition.reshape(())
    message = f"The other branch does not take inputs of these sizes: {error}"
    walk.tracer.record("call_function", torch._assert_async, (condition if truth else ~condition, message))
    return _inline(walk, branches, truth)


def _inline(walk: Walk, branches: Sequence[ir.Graph], truth: bool) -> Sequence[Any]:
    """Imports the first branch or the second into the graph around it."""
    taken, other = branches if truth else reversed(branches)
    outputs = trace_graph(walk, taken, {}, walk.tracer)
    walk.owner.steps += sum(1 for _ in other.all_nodes())  # how far the import is does not depend on which is taken
    return outputs


def _inside(walk: Walk, prefix: str) -> list[str]:
    """Returns the author's keys that begin with `prefix`, without it."""
    author = walk.owner.author
    return [] if author is None else [key.removeprefix(prefix) for key in author.names if key.startswith(prefix)]


def _own_path(walk: Walk, graphs: Mapping[str, ir.Graph]) -> str | None:
    """Returns the path of the module that holds `graphs` in the author's keys, as in a module exported again.

    There the weights of a branch have its path before their names: `If_0.then_branch.conv.weight`. None where the keys
    of the weights that `graphs` use do not all name one such module, or where others use what is in it.
    """
    author = walk.owner.author
    if author is None or walk.outer:
        return None
    paths, found = set(), set()
    for slot, graph in graphs.items():
        uses = Counter(value for node in graph.all_nodes() for value in node.inputs if value is not None)
        for value, count in uses.items():
            if not value.is_initializer() or value.name not in author.names:
                continue
            key = value.name.removeprefix(walk.prefix)
            path, within, _ = key.partition(f".{slot}.")
            if not within or not value.name.startswith(walk.prefix) or len(value.uses()) != count:
                return None
            paths.add(path)
            found.add(key)
    if len(paths) != 1:
        return None
    (path,) = paths
    return path if all(key in found for key in _inside(walk, walk.prefix) if f"{key}.".startswith(f"{path}.")) else None


def _import_loop(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    graph = node.attributes["body"].as_graph()
    trips, condition, *initial = [*inputs, None, None][: max(len(inputs), 2)]
    values = [_as_argument(walk, value) for value in initial]
    fixed = [Spec(((),) * walk.tracer.points, dtype) for dtype in (torch.int64, torch.bool)]
    carried = [_carried_spec(walk, value) for value in values]
    child, outputs = _trace_body(walk, graph, fixed, carried, first=1)
    limit, count = _number(walk, trips), None
    if not isinstance(limit, Tensor):
        count = trip_count(graph, limit, [_known(value) for value in initial], partial(_known_to, walk, graph))
    if count is not None:
        limit, outputs = count, [True, *outputs[1:]]
    scans = [output_spec(value, child) for value in outputs[1 + len(carried) :]]
    module = Loop(child.finish(tuple(outputs), "Body"), len(carried), [_empty(spec) for spec in scans])
    start = _number(walk, condition)
    length = None if count is None else _iterations(count, True if start is None else start, walk.tracer.points)
    stacked = [_stacked(walk.tracer, spec, 0, length) for spec in scans]
    return walk.tracer.call_module(_name(node), module, (limit, start, *values, *child.captured), (*carried, *stacked))


def _iterations(count: Any, condition: Any, points: int) -> tuple[int, ...] | None:
    """Returns how often a loop runs at each sample point that would `count` times, None where data decide the first."""
    if isinstance(condition, Tensor):
        return None
    counts, truths = (getattr(number, "values", (number,) * points) for number in (count, condition))
    return tuple(max(number, 0) if truth else 0 for number, truth in zip(counts, truths, strict=True))


def _import_scan(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    graph = node.attributes["body"].as_graph()
    count = node.attributes["num_scan_inputs"].as_int()
    values = [_as_argument(walk, value) for value in inputs]
    states = len(values) - count
    outputs_count = len(graph.outputs) - states
    axes_in = _ints(node, "scan_input_axes", count)
    scanned = zip(axes_in, values[states:], strict=False)
    axes_in = [a % v.ndim if isinstance(v, Tensor) and v.spec.shapes else a for a, v in scanned]
    directions_in = _ints(node, "scan_input_directions", count)
    axes_out = _ints(node, "scan_output_axes", outputs_count)
    directions_out = _ints(node, "scan_output_directions", outputs_count)
    slices = [_sliced(_carried_spec(walk, v), a) for v, a in zip(values[states:], axes_in, strict=True)]
    carried = [_carried_spec(walk, value) for value in values[:states]]
    child, outputs = _trace_body(walk, graph, slices, carried, first=0)
    scans = [output_spec(value, child) for value in outputs[states:]]
    module = Scan(
        child.finish(tuple(outputs), "Body"),
        states,
        list(zip(axes_in, directions_in, strict=True)),
        list(zip(axes_out, directions_out, strict=True)),
        [_empty(spec) for spec in scans],
    )
    first = _carried_spec(walk, values[states])
    length = None if first is None or first.shapes is None else tuple(shape[axes_in[0]] for shape in first.shapes)
    stacked = [_stacked(walk.tracer, spec, axis, length) for spec, axis in zip(scans, axes_out, strict=True)]
    return walk.tracer.call_module(_name(node), module, (*values, *child.captured), (*carried, *stacked))


def _import_scan_8(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    graph = node.attributes["body"].as_graph()
    count = node.attributes["num_scan_inputs"].as_int()
    lengths, *values = [_as_argument(walk, value) for value in inputs]
    states = len(values) - count
    directions = _ints(node, "directions", count)
    slices = [_sliced(_sliced(_carried_spec(walk, value), 0), 0) for value in values[states:]]
    carried = [_sliced(_carried_spec(walk, value), 0) for value in values[:states]]
    child, outputs = _trace_body(walk, graph, slices, carried, first=0)
    scans = [output_spec(value, child) for value in outputs[states:]]
    scan = Scan(
        child.finish(tuple(outputs), "Body"),
        states,
        [(0, direction) for direction in directions],
        [(0, 0)] * len(scans),
        [_empty(spec) for spec in scans],
    )
    first = _carried_spec(walk, values[states]) if count else None
    shapes = None if first is None else first.shapes
    batch, length = (None if shapes is None else tuple(shape[axis] for shape in shapes) for axis in (0, 1))
    specs = tuple(
        _stacked(walk.tracer, spec if i < states else _stacked(walk.tracer, spec, 0, length), 0, batch)
        for i, spec in enumerate([*carried, *scans])
    )
    return walk.tracer.call_module(_name(node), BatchedScan(scan), (lengths, *values, *child.captured), specs)


def _import_sequence_map(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Imports the body once for each element where these are known, else once, as a module's."""
    graph = node.attributes["body"].as_graph()
    if len(inputs) != len(graph.inputs):
        raise OperatorError(f"it has {len(inputs)} inputs, its body takes {len(graph.inputs)}.")
    first, *others = inputs
    if not isinstance(first, (list, Opaque)):
        raise OperatorError("its first input is no sequence.")
    known = not any(isinstance(value, Opaque) for value in others)
    if isinstance(first, list) and known and _may_unroll(walk, graph, len(first)):
        columns = [value if isinstance(value, list) else [value] * len(first) for value in inputs]
        steps = [dict(zip(graph.inputs, items, strict=True)) for items in zip(*columns, strict=True)]
        results = [trace_graph(walk, graph, bindings, walk.tracer) for bindings in steps]
        return [[items[index] for items in results] for index in range(len(graph.outputs))]
    child = Tracer(walk.tracer.points, walk.tracer)
    specs = [_element_spec(walk, *pair) for pair in zip(node.inputs, inputs, strict=True)]
    bindings = {
        value: child.placeholder(f"value_{index}", spec)
        for index, (value, spec) in enumerate(zip(graph.inputs, specs, strict=True))
    }
    outputs = trace_graph(walk, graph, bindings, child)
    module = SequenceMap(child.finish(tuple(outputs), "Body"), len(inputs), len(outputs))
    arguments = (*(_as_argument(walk, value) for value in inputs), *child.captured)
    return walk.tracer.call_module(_name(node), module, arguments, (None,) * len(outputs))


def _may_unroll(walk: Walk, graph: ir.Graph, times: int) -> bool:
    """Returns whether a body that runs so often may be imported as often: bodies in it multiply what it becomes."""
    nodes = times * sum(1 for _ in graph.all_nodes())
    if walk.owner.unrolled + nodes > MAX_UNROLLED:
        return False
    walk.owner.unrolled += nodes
    return True


def _element_spec(walk: Walk, value: ir.Value | None, known: Any) -> Spec | None:
    """Returns what is known of every element of a sequence, or of what is none."""
    if isinstance(known, list):
        specs = [_carried_spec(walk, item) for item in known]
        return reduce(partial(unify, walk.tracer), specs) if specs else None
    if not isinstance(known, Opaque):
        return _carried_spec(walk, known)
    kind, container = walk.type_of(value, known)
    if container != "seq" or kind == ir.DataType.STRING:
        return None
    return Spec(None, None if kind is None else torch_dtype(kind))


def _import_gradient(walk: Walk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Imports again, as the body of the node, what lies between the values it names and the one it differentiates."""
    named = {value.name: value for value in [*walk.graph.inputs, *_initializers(walk.graph)]}
    made = {value.name: value for other in walk.graph for value in other.outputs}
    named |= made
    xs = list(node.attributes["xs"].as_strings())
    zs = list(node.attributes["zs"].as_strings()) if "zs" in node.attributes else []
    y = node.attributes["y"].as_string()
    missing = [name for name in (*xs, *zs, y) if name not in named]
    if missing:
        raise OperatorError(f"it names the value {missing[0]!r}, which its graph does not have.")
    if len(inputs) != len(xs) + len(zs):
        raise OperatorError(f"it has {len(inputs)} inputs and names {len(xs) + len(zs)} values.")
    child = Tracer(walk.tracer.points, walk.tracer)
    values = [_as_argument(walk, value) for value in inputs]
    bindings = {
        named[name]: child.placeholder(f"value_{i}", _carried_spec(walk, value))
        for i, (name, value) in enumerate(zip([*xs, *zs], values, strict=True))
    }
    module = child.finish((_trace_slice(walk, named[y], bindings, child),), "Body")
    specs = tuple(_carried_spec(walk, value) for value in values[: len(xs)])
    return walk.tracer.call_module(_name(node), Gradient(module, len(xs)), (*values, *child.captured), specs)


def _initializers(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    return list(graph.initializers.values()) if isinstance(graph, ir.Graph) else []


def _trace_slice(walk: Walk, end: ir.Value, bindings: Mapping[ir.Value, Any], tracer: Tracer) -> Any:
    """Imports the nodes that compute `end` from `bindings` with `tracer`; returns the value of `end`."""
    from onnx2nn.fx.importer import Walk

    needed, pending = set(), [end]
    while pending:
        value = pending.pop()
        maker = value.producer()
        if value not in bindings and maker is not None and maker not in needed:
            needed.add(maker)
            pending += [item for item in maker.inputs if item is not None]
    scope = Scope(walk.scope)
    for value in _initializers(walk.graph):
        name = value.name or ""
        if name in walk.owner.constants:  # the walk forgets one after its last use
            scope[value] = walk.owner.constants[name]
    for value, known in bindings.items():
        scope[value] = known
    inner = Walk(walk.owner, tracer, scope, walk.graph, walk.opsets)
    inner.attributes, inner.by_memory = walk.attributes, walk.by_memory
    inner.branch, inner.sizes = walk.branch, walk.sizes
    for node in walk.graph:
        if node in needed:
            inner.node = node
            for value, result in zip(node.outputs, inner.run_node(node), strict=False):
                if value not in bindings:
                    scope[value] = result
    if scope[end] is walk.UNKNOWN:
        raise OperatorError("what it differentiates holds nodes that cannot be imported, named on their own.")
    return inner.as_output(scope[end])


def _trace_body(
    walk: Walk, graph: ir.Graph, others: Sequence[Spec | None], carried: list[Spec | None], first: int
) -> tuple[Tracer, list[Any]]:
    """Imports a loop's body until the carried values keep their shapes; `carried` becomes what holds of them.

    Args:
        walk: the surrounding graph's.
        graph: the body.
        others: specs of the inputs that are not carried: iteration number and condition before, slices behind.
        carried: specs of the carried values at the start.
        first: position of the first carried output; 1 for Loop, whose inputs begin with `others`.
    """
    for _ in range(4):
        child = Tracer(walk.tracer.points, walk.tracer)
        specs = [*others, *carried] if first else [*carried, *others]
        bindings = {}
        for index, (value, spec) in enumerate(zip(graph.inputs, specs, strict=True)):
            given = child.placeholder(f"value_{index}", spec)
            flat = first and index < 2 and value.shape is not None and value.shape.rank() == 1
            # The iteration number and the condition are what the body declares, tensors of one dimension or of none.
            bindings[value] = given.reshape(1) if flat and isinstance(given, Tensor) else given
        outputs = trace_graph(walk, graph, bindings, child)
        results = [output_spec(value, child) for value in outputs[first : first + len(carried)]]
        unified = [unify(walk.tracer, a, b) for a, b in zip(carried, results, strict=True)]
        if unified == carried:
            return child, outputs
        carried[:] = unified
    carried[:] = [spec and Spec(None, spec.dtype) for spec in carried]
    return _trace_body(walk, graph, others, carried, first)


def _name(node: ir.Node) -> list[str]:
    return split_path(node.name or node.outputs[0].name or node.op_type.lower())


def _ints(node: ir.Node, name: str, count: int) -> list[int]:
    attribute = node.attributes.get(name)
    return [0] * count if attribute is None else list(attribute.as_ints())


def _as_argument(walk: Walk, value: Any) -> Any:
    """Returns a value as a submodule takes it: numbers and constants as tensors."""
    return walk.tensor(value)


def _number(walk: Walk, value: Any) -> Any:
    """Returns a trip count or condition: a Python number where it is known, else the tensor."""
    if isinstance(value, Constant):
        return value.numpy().reshape(-1)[0].item()
    if isinstance(value, Host):
        return value.array.reshape(-1)[0]
    return value


def _known(value: Any) -> Any:
    """Returns the one number that a value is which is known at import, None for any other value."""
    if isinstance(value, Constant):
        return value.numpy().item() if math.prod(value.shape) == 1 else None
    if isinstance(value, Host):
        return value.array.item() if value.array.size == 1 else None
    return value if isinstance(value, Dim) else None


def _known_to(walk: Walk, body: ir.Graph, value: ir.Value) -> Any:
    """Returns the number that a value is which the body of a loop has as a constant or takes from around the loop."""
    constant = ir.convenience.get_const_tensor(value)
    if constant is not None:
        return constant.numpy().item() if constant.size == 1 else None
    maker = value.producer()
    inside = value in body.inputs if maker is None else maker.graph is body
    return None if inside else _known(walk.scope[value])


def _carried_spec(walk: Walk, value: Any) -> Spec | None:
    return output_spec(value, walk.tracer)


def _empty(spec: Spec | None) -> tuple[Sequence[int], torch.dtype]:
    """Returns shape and dtype of one slice of a scan output, 0 for dimensions known only at run time."""
    if spec is None or spec.shapes is None:
        return (), (spec and spec.dtype) or torch.float32
    columns = zip(*spec.shapes, strict=True)
    return [column[0] if len(set(column)) == 1 else 0 for column in columns], spec.dtype or torch.float32


def _stacked(tracer: Tracer, spec: Spec | None, axis: int, length: tuple[int, ...] | None) -> Spec | None:
    """Returns the spec of slices stacked along a new `axis`."""
    if spec is None or spec.shapes is None:
        return spec
    lengths = length or tracer.fresh_dimension()
    shapes = []
    for shape, size in zip(spec.shapes, lengths, strict=True):
        at = axis % (len(shape) + 1)
        shapes.append((*shape[:at], size, *shape[at:]))
    return Spec(tuple(shapes), spec.dtype)


def _sliced(spec: Spec | None, axis: int) -> Spec | None:
    """Returns the spec of one slice along `axis`."""
    if spec is None or spec.shapes is None:
        return spec
    return Spec(tuple(shape[:axis] + shape[axis + 1 :] for shape in spec.shapes), spec.dtype)


def output_spec(value: Any, tracer: Tracer) -> Spec | None:
    """Returns what is known of a subgraph's output; None for what is no tensor."""
    if isinstance(value, torch.Tensor):
        return Spec((tuple(value.shape),) * tracer.points, value.dtype)
    return value.spec if isinstance(value, Tensor) else None


def unify(tracer: Tracer, a: Spec | None, b: Spec | None) -> Spec | None:
    """Returns what holds of a value that is either of two: a dimension in which they differ is known at run time."""
    if a is None or b is None:
        return None
    dtype = a.dtype or b.dtype
    if a.shapes is None or b.shapes is None or len(a.shapes[0]) != len(b.shapes[0]):
        return Spec(None, dtype)
    columns = [
        m if m == n or len(set(m)) > 1 else tracer.fresh_dimension()
        for m, n in zip(zip(*a.shapes, strict=True), zip(*b.shapes, strict=True), strict=True)
    ]
    return Spec(tuple(zip(*columns, strict=True)) if columns else a.shapes, dtype)


_IMPORTERS: dict[tuple[str, int], Callable[[Walk, ir.Node, list[Any]], Sequence[Any]]] = {
    ("Gradient", 1): _import_gradient,
    ("If", 1): _import_if,
    ("Loop", 1): _import_loop,
    ("Scan", 8): _import_scan_8,
    ("Scan", 9): _import_scan,
    ("SequenceMap", 17): _import_sequence_map,
}

_BRANCHES = ("then_branch", "else_branch")

__all__ = ["RenameInputs", "run", "trace_graph"]
