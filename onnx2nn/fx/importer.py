"""Walks an ONNX graph, looks its nodes up in the op table and records their bodies with a tracer."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx_ir as ir
import torch
from torch import fx, nn
from torch.multiprocessing.reductions import StorageWeakRef

from onnx2nn import functional
from onnx2nn.errors import OperatorError, Problem, UnsupportedModelError
from onnx2nn.fx import size_vectors, subgraphs
from onnx2nn.fx.constants import Constant, memory_of, onnx_type, torch_dtype
from onnx2nn.fx.dim import Dim
from onnx2nn.fx.graph_module import ImportedModule
from onnx2nn.fx.held_state import ConstantName
from onnx2nn.fx.layers import Layer
from onnx2nn.fx.module_tree import container
from onnx2nn.fx.repeated_nodes import Call, Repeats
from onnx2nn.fx.sample_sizes import Fixed, Inside, MisfitError, Sizes, StuckError, candidates, fitting
from onnx2nn.fx.spec import Spec
from onnx2nn.fx.state_versions import set_versions
from onnx2nn.fx.tensor import Opaque, Tensor, is_traced
from onnx2nn.fx.trace_errors import NeedsSamples, ShapeMismatch, TraceError
from onnx2nn.fx.tracer import Tracer
from onnx2nn.ground import gc_pause
from onnx2nn.ground.naming import identifier, is_generated, split_path
from onnx2nn.importing.inputs import InputSpec, input_dimensions, input_specs
from onnx2nn.importing.node_facts import (
    Scope,
    attribute_values,
    call_attributes,
    check_inputs,
    constant_path,
    facts,
    inner_graphs,
    layer_path,
    lays_out_weight,
    node_name,
)
from onnx2nn.importing.plan import UNKNOWN_TYPE, Plan, TypeOf, version_of
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.optable.shape_values import Host, evaluate
from onnx2nn.provenance.exporter_metadata import place_of, source_of
from onnx2nn.provenance.naming_reports import naming_of

MAX_CONSTANT_BYTES = 8 << 30
"""A constant computed at import may take so much memory (a file of a few bytes can ask for more)."""


Shapes = dict["ir.Value", "tuple[int, ...]"]


class Thaw(Protocol):
    """What lets constants of the file follow dimensions that are dynamic though the file fixed them."""

    dims: dict[str, Any]
    """Name → the symbolic number of a dynamic dimension of an input; set before the first node."""

    def inputs(self, node: ir.Node, inputs: Sequence[Any]) -> list[Any]:
        """Returns what `node` gets in place of `inputs`."""
        ...


class Attempts:
    """Imports of one model, with whatever sample sizes go through.

    Args:
        model: as `reader.read` gives it.
        plan: as `plan.plan` gives it.
        input_shapes: as for `import_graph`.
    """

    def __init__(self, model: ir.Model, plan: Plan, input_shapes: Mapping[str, Sequence[int | str | None]]):
        self.model, self.plan = model, plan
        self.inputs = input_dimensions(model, input_shapes)
        dims = (d for dims in self.inputs.values() if dims for d in dims)
        self.names = list(dict.fromkeys(d for d in dims if isinstance(d, str)))
        self.constants = {v.name or "": _initializer(v) for v in model.graph.initializers.values()}
        for name, other in plan.author.ties.items() if plan.author is not None else ():
            self.constants[name].tied = self.constants[other]
        self.inferred: dict[Any, Any] = {}
        self.read: dict[tuple[int, int], torch.Tensor | np.ndarray[Any, Any]] = {}
        self.apart = False  # whether what is found out of the sizes of a branch of an If holds in that branch alone
        self._needed = False
        self._family = 0
        self._split: set[ir.Node] = set()

    def run(
        self,
        fixed: Fixed,
        thaw: Thaw | None = None,
        shapes: Shapes | None = None,
        families: Iterable[int] = range(len(Sizes.FAMILIES)),
    ) -> fx.GraphModule:
        """Imports; once more where sizes turn out to depend on data in a model of fixed shapes.

        Args:
            fixed: dimensions that have one value only, or equal another one.
            thaw: replaces inputs of nodes.
            shapes: takes the shape of every value at the first sample point.
            families: which sample sizes to try, by number.

        Raises:
            StuckError: none of the sample sizes goes through; of the furthest try.
        """
        try:
            return self._families(fixed, thaw, shapes, families)
        except NeedsSamples:
            self._needed = True
            return self._families(fixed, thaw, shapes, families)

    def _families(
        self, fixed: Fixed, thaw: Thaw | None, shapes: Shapes | None, families: Iterable[int]
    ) -> fx.GraphModule:
        stuck: list[StuckError] = []
        collapsed: fx.GraphModule | None = None
        pending = [Sizes(self.names, family, fixed, self._needed) for family in families]
        if thaw is not None or not pending[0].dynamic:  # all are alike
            del pending[1:]
        while pending:
            sizes = pending.pop(0)
            attempt = _Import(self, sizes, strict=True, thaw=thaw, shapes=shapes if collapsed is None else None)
            try:
                module = attempt.run(fixed)
            except StuckError as error:
                stuck.append(error)
                gc_pause.collect_young()  # a model may take dozens of tries
            except UnsupportedModelError:
                if collapsed is None:
                    raise
            else:
                if not attempt.collapsed:
                    self._family, self._split = sizes.family, set(attempt.split)
                    return module
                if collapsed is None:  # a number computed from sizes does not vary here: other ones may show it
                    collapsed, self._family, self._split = module, sizes.family, set(attempt.split)
                    pending[:0] = sizes.of_less_data() if attempt.of_data and thaw is None else []
        if collapsed is not None:
            return collapsed
        furthest = max(stuck, key=lambda error: error.step)
        furthest.others = [error for error in stuck if error is not furthest]
        raise furthest

    def repaired(self, fixed: Fixed, stuck: StuckError) -> tuple[Fixed, fx.GraphModule | None]:
        """Returns `fixed` with one or two more dimensions, which gets further than `stuck`; to the end, its module.

        Sample sizes that came as far as that show most of what is wrong: all that may help is tried with them first.
        What comes as far another way, past an If of sizes, is taken where nothing gets further.

        Raises:
            StuckError: `stuck`, where nothing helps.
        """
        furthest = stuck.sizes.family
        others = [family for family in range(len(Sizes.FAMILIES)) if family != furthest]
        turned: Fixed | None = None
        for families in ([furthest], others):
            for sizes in dict.fromkeys(candidates(stuck)):
                place = stuck.branch if self.apart else None
                trial = {**fixed, **{n if place is None else Inside(place, n): size for n, size in sizes}}
                try:
                    return trial, self.run(trial, families=families)
                except StuckError as error:
                    if error.step > stuck.step:
                        return trial, None
                    if turned is None and error.step == stuck.step and error.ways != stuck.ways:
                        turned = trial
                except UnsupportedModelError:  # what is constant at this size does not fit
                    pass
            if turned is not None:
                return turned, None
        raise stuck

    def widened(self, fixed: Fixed, name: str | Inside, bounds: Sequence[int]) -> tuple[int, int, int]:
        """Returns the bounds of a dimension, which go through, as far up and down as others go through the same way."""
        most = self._reach(fixed, name, bounds[0], bounds[-1], 4 * bounds[-1])
        least = self._reach(fixed, name, most, bounds[0], 1)
        return least, (least + most) // 2, most

    def _reach(self, fixed: Fixed, name: str | Inside, start: int, end: int, limit: int) -> int:
        """Returns how far behind `end`, seen from `start`, sizes go through, `limit` at most."""
        sign = 1 if limit > end else -1
        likely = end  # what fails first need not be all that fails
        for _ in range(_ROUNDS):
            if likely == end == limit:
                break
            step = max(-(-abs(limit - likely) // 16), 1)
            points = tuple(dict.fromkeys((start, end, likely, *range(likely, limit + sign, sign * step))))
            attempt = _Import(self, Sizes(self.names, self._family, {**fixed, name: points}), strict=True)
            try:
                attempt.run(fixed)
                count = len(points)
            except StuckError as error:
                count = fitting(error)
            except UnsupportedModelError:  # an operator refuses such sizes, not the model
                count = 0
            count = min(count, attempt.unanimous(len(points), self._split))
            if count == len(points):
                end = likely = points[-1]
            elif likely in points[:count]:
                likely, limit = points[count - 1], points[count] - sign
            elif likely != end:
                likely, limit = end, likely - sign
            else:
                limit = end + sign * (abs(limit - end) // 2)
        return end

    def lenient(self) -> fx.GraphModule:
        """Imports so that a node whose shapes do not fit runs as one call; what comes of it is read at run time."""
        return _Import(self, Sizes(self.names, 0, {}, True), strict=False).run({})


def import_graph(
    model: ir.Model,
    plan: Plan,
    *,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> fx.GraphModule:
    """Returns `model` as a module in eval mode.

    Args:
        model: as `reader.read` gives it.
        plan: as `plan.plan` gives it: every node has a row or a function.
        input_shapes: dimensions by input name that replace those of the file; a str or None is dynamic.

    Raises:
        UnsupportedModelError: nodes whose operator refuses what they ask for, all of them.
    """
    attempts = Attempts(model, plan, input_shapes or {})
    try:
        return _import_strictly(attempts)
    except StuckError as stuck:
        attempts.apart = stuck.branch is not None
    if attempts.apart:
        try:
            return _import_strictly(attempts)
        except (StuckError, UnsupportedModelError):
            pass
    return attempts.lenient()  # give up on the node's shapes, not on the model


def _import_strictly(attempts: Attempts) -> fx.GraphModule:
    """Imports with sizes that go through every node.

    Raises:
        StuckError: there are none.
    """
    fixed: Fixed = {}
    while True:
        try:
            return attempts.run(fixed)
        except StuckError as stuck:
            fixed, module = attempts.repaired(fixed, stuck)
        if module is not None:
            return _widest(attempts, fixed, module)


def _widest(attempts: Attempts, fixed: Fixed, module: fx.GraphModule) -> fx.GraphModule:
    """Returns `module`, imported with `fixed`, with every bounds as wide as the model allows."""
    bounds = {name: size for name, size in fixed.items() if isinstance(size, tuple)}
    reached = {name: attempts.widened(fixed, name, size) for name, size in bounds.items()}
    wider: Fixed = {name: size if size[0] < size[-1] else size[0] for name, size in reached.items()}
    try:
        return attempts.run({**fixed, **wider}) if wider != bounds else module
    except (StuckError, UnsupportedModelError):
        return module


def _initializer(value: ir.Value) -> Constant:
    tensor = value.const_value
    assert tensor is not None
    return Constant(value.name or "", tensor.dtype, tensor, weight=True)


SCOPES, CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
"""Metadata in which torch's exporter lists the modules around a node, the outermost first, and their classes."""

_RESERVED = frozenset({"self", "torch", "device", "inf", "nan", "pytree", "fx_pytree", "operator", "math", "onnx2nn"})
"""Names that the generated forward uses itself, so that no argument may have them."""


_ROUNDS = 8
"""So many imports may show how far a dimension reaches in one direction."""


class Limit(NamedTuple):
    """The sizes, in elements, from `least` to `most`, that one axis of an input may have."""

    tensor: Tensor
    axis: int
    least: int
    most: int


class _Import:
    def __init__(
        self, attempts: Attempts, sizes: Sizes, strict: bool, thaw: Thaw | None = None, shapes: Shapes | None = None
    ):
        self.model, self.plan, self.inputs = attempts.model, attempts.plan, attempts.inputs
        self.author = attempts.plan.author
        self.constants, self.sizes, self.strict = attempts.constants, sizes, strict
        self.inferred, self.read = attempts.inferred, attempts.read
        self.repeats = Repeats()
        self.uses: Counter[int] = Counter()
        self.thaw, self.shapes = thaw, shapes
        self.given: dict[str, Any] = {}  # the model's inputs
        self.fixed: Fixed = {}
        self.split: dict[ir.Node, Sequence[bool]] = {}  # Ifs of sizes that choose another branch at other sample points
        self.steps = 0
        self.unrolled = 0
        self.collapsed = self.of_data = False
        self.problems: dict[tuple[str, str, int, str], Problem] = {}
        self.cause: Exception | None = None

    def run(self, fixed: Fixed) -> fx.GraphModule:
        graph = self.model.graph
        tracer = Tracer(self.sizes.points, inferred=self.inferred, least=self.sizes.least)
        if self.author is not None:
            tracer.names.reserve(self.author.names)
        scope = Scope()
        renamed: dict[str, str] = {}
        for value in graph.inputs:
            name = identifier(value.name or "input")
            while name in renamed or name in _RESERVED:
                name += "_"
            renamed[name] = value.name or ""
            scope[value] = tracer.placeholder(name, self._input_spec(value))
        self.given = {value.name or "": scope[value] for value in graph.inputs}
        self.fixed = fixed
        self.guard(tracer, fixed)
        for value in graph.inputs:
            self.note(value, scope[value])
            if self.thaw is not None:
                dims = zip(self.inputs[value.name or ""] or (), getattr(scope[value], "shape", ()), strict=False)
                self.thaw.dims.update((name, dim) for name, dim in dims if isinstance(name, str))
        walk = Walk(self, tracer, scope, graph, dict(self.model.graph.opset_imports))
        outputs = walk.run()
        if self.problems:
            raise UnsupportedModelError(list(self.problems.values())) from self.cause
        self.collapsed, self.of_data = tracer.collapsed, tracer.has_sizes_of_data
        result = outputs[0] if len(outputs) == 1 else tuple(outputs)
        module = tracer.finish(result, identifier(graph.name or "Model"), ImportedModule)
        self._keep_keys(module)
        different = {original: name for name, original in renamed.items() if original != name}
        if different:
            module.register_forward_pre_hook(subgraphs.RenameInputs(different), with_kwargs=True)
        module.meta["onnx2nn"] = {
            "inputs": [value.name for value in graph.inputs],
            "outputs": [value.name for value in graph.outputs],
            "fixed": {
                name: range(size[0], size[-1] + 1) if isinstance(size, tuple) else size
                for name, size in fixed.items()
                if not isinstance(name, Inside)
            },
            "signature": [self._signature(spec, fixed) for spec in input_specs(self.model)],
            "naming": naming_of(self.author, module.state_dict(keep_vars=True) if self.author is not None else {}),
        }
        if self.author is not None and self.author.listed:
            set_versions(module, graph)
        return module.eval()

    def _keep_keys(self, module: nn.Module) -> None:
        """Holds a tied weight under those of its keys too that no node uses."""
        if self.author is None or not self.author.ties:
            return
        parameters = dict(module.named_parameters(remove_duplicate=False))
        ties = [*self.author.ties.items(), *((other, key) for key, other in self.author.ties.items())]
        while lacking := [(key, other) for key, other in ties if key not in parameters and other in parameters]:
            for key, other in lacking:
                holder, name = container(module, key)
                holder.register_parameter(name, parameters[other])
                parameters[key] = parameters[other]

    def _signature(self, spec: InputSpec, fixed: Fixed) -> dict[str, Any]:
        """Returns an input as the module takes it, in plain Python values, which pickle anywhere."""
        dims = self.inputs[spec.name]
        known = {name: size for name, size in fixed.items() if not isinstance(size, tuple)}
        shape = None if dims is None else tuple(known.get(d, d) if isinstance(d, str) else d for d in dims)
        return {**dataclasses.asdict(spec), "dtype": spec.dtype and spec.dtype.name, "shape": shape}

    def guard(self, tracer: Tracer, fixed: Fixed) -> list[Limit]:
        """Lets sizes of inputs fail at run time that the file declares as dynamic but does not serve; returns those."""
        limits = []
        dims = ((name, axis, dim) for name, dims in self.inputs.items() for axis, dim in enumerate(dims or ()))
        for name, axis, dim in dims:
            if not isinstance(dim, str) or not isinstance(size := fixed.get(dim), (int, tuple)):
                continue
            least, most = (size[0], size[-1]) if isinstance(size, tuple) else (size, size)
            limits.append(Limit(self.given[name], axis, least, most))
            read = tracer.record("call_method", "size", (tracer.own(self.given[name]), axis))
            bounds = [(operator.ge, least), (operator.le, most)] if least < most else [(operator.eq, least)]
            asked = f"from {least} to {most}" if least < most else str(least)
            message = f"Dimension {axis} of input {name!r} must be {asked}: the import holds for no other size."
            for compare, bound in bounds:
                fits = tracer.graph.call_function(compare, (read, bound))
                tracer.graph.call_function(torch._assert, (fits, message))
        return limits

    def unanimous(self, points: int, known: set[ir.Node]) -> int:
        """Returns at how many of so many sample points, from the first on, no If but those `known` chooses anew."""
        choices = [truths for node, truths in self.split.items() if node not in known and len(truths) == points]
        return min((next((i for i, t in enumerate(c) if t != c[0]), points) for c in choices), default=points)

    def _input_spec(self, value: ir.Value) -> Spec | None:
        if not isinstance(value.type, (ir.TensorType, type(None))) or value.dtype == ir.DataType.STRING:
            return None
        dims = self.inputs[value.name or ""]
        dtype = None if value.dtype is None else torch_dtype(value.dtype)
        if dims is None:
            return Spec(None, dtype)
        columns = [self.sizes.values[d] if isinstance(d, str) else (d,) * self.sizes.points for d in dims]
        shapes = tuple(zip(*columns, strict=True)) if columns else ((),) * self.sizes.points
        return Spec(shapes, dtype)

    def note(self, value: ir.Value, known: Any) -> None:
        """Notes the shape of a value for who asked for all of them."""
        if self.shapes is not None and isinstance(known, Constant):
            self.shapes[value] = known.shape
        elif self.shapes is not None and isinstance(known, Tensor) and known.spec.shapes is not None:
            self.shapes[value] = known.spec.shapes[0]

    def report(self, node: ir.Node, version: int, reason: str, advice: str = "") -> None:
        """Notes that `node` cannot be imported; the walk goes on, so that all problems are found."""
        key = (node.domain, node.op_type, version, reason)
        problem = self.problems.setdefault(key, Problem(node.op_type, node.domain, version, reason, advice))
        problem.nodes.append(node_name(node))


class Unknown:
    """Stands for the outputs of a node that could not be imported."""


UNKNOWN = Unknown()


class Walk:
    """The import of one graph or function body with one tracer."""

    UNKNOWN = UNKNOWN

    def __init__(
        self, owner: _Import, tracer: Tracer, scope: Scope, graph: ir.Graph | ir.Function, opsets: Mapping[str, int]
    ):
        self.owner, self.tracer, self.scope, self.graph, self.opsets = owner, tracer, scope, graph, opsets
        self.attributes: Mapping[str, ir.Attr] = {}
        self.prefix = ""  # what the author's keys begin with in this graph, for the path of its module
        self.outer = False  # whether the author's keys of what this graph uses are those of the module around it
        self.branch: ir.Graph | None = None  # of an If that is chosen at run time, the outermost one that this is in
        self.sizes = owner.sizes  # that `tracer` has
        self.by_memory: dict[int, Constant] = {}
        self.initializers: dict[ir.Value, Constant] = {}  # of subgraphs, which may be imported more than once
        self.computed: dict[int, StorageWeakRef] = {}
        self.fixed: dict[fx.Node, bool] = {}
        self.node: ir.Node | None = None
        self.step = 0
        self.serve(tracer)

    def serve(self, tracer: Tracer) -> None:
        """Lets `tracer` ask this walk what constants and layers are called."""
        tracer.constant_name = self._constant_name
        tracer.layer_name = self._layer_name
        tracer.inline = self._inline
        tracer.describe = self._describe
        tracer.fits = self._fits
        if self.owner.author is not None:
            tracer.whole = self._whole_weight

    def run(self) -> list[Any]:
        """Imports every node; returns the values of the graph's outputs."""
        if isinstance(self.graph, ir.Graph):
            constants = self.owner.constants if self.graph is self.owner.model.graph else {}
            for name, value in self.graph.initializers.items():
                self.scope[value] = constants.get(name) or self._own_initializer(value)
                self.owner.note(value, self.scope[value])
        nodes = list(self.graph)
        last = {value: node for node in nodes for value in node.inputs}  # the last that takes it
        for kept in (*self.graph.outputs, *_used_inside(nodes)):
            last.pop(kept, None)
        for node in nodes:
            self.node = node
            results = self.run_node(node)
            for value, result in zip(node.outputs, results, strict=False):
                self.scope[value] = result
                self._mark(value, result)
                if self.owner.shapes is not None:
                    self.owner.note(value, result)
            for used in node.inputs:
                if used is not None and last.get(used) is node:
                    self.scope.pop(used, None)  # its memory goes
        return [self.as_output(self.scope[value]) for value in self.graph.outputs]

    def _own_initializer(self, value: ir.Value) -> Constant:
        """Returns the constant that an initializer of a subgraph is, the same in every import of that."""
        if value not in self.initializers:
            self.initializers[value] = _initializer(value)
        return self.initializers[value]

    def _mark(self, value: ir.Value, result: Any) -> None:
        """Notes on the fx node that computes `result` which value of the file it is; one node may be several values."""
        if isinstance(result, (Tensor, Opaque)) and result.tracer is self.tracer and (name := value.name):
            meta = result.node.meta
            meta["onnx_outputs"] = (*meta["onnx_outputs"], name) if "onnx_outputs" in meta else (name,)

    def as_output(self, value: Any) -> Any:
        """Returns a value in the form in which a graph gives it out."""
        if isinstance(value, Constant):
            return self._remember(value)
        if isinstance(value, list):
            return [self.as_output(item) for item in value]
        return self.tensor(value) if isinstance(value, Host) else value

    def run_node(self, node: ir.Node) -> Sequence[Any]:
        """Imports one node; returns its outputs, `UNKNOWN` ones where it cannot be imported (a problem is noted)."""
        scope = self.scope
        inputs = self.tracer.own([None if value is None else scope[value] for value in node.inputs])
        if self.sizes is not self.owner.sizes:
            inputs = [self._own_numbers(value) if isinstance(value, Host) else value for value in inputs]
        if self.owner.problems and any(value is UNKNOWN for value in inputs):
            return [UNKNOWN] * len(node.outputs)
        version = version_of(node, self.opsets)
        try:
            if self.owner.thaw is not None:
                inputs = self.owner.thaw.inputs(node, inputs)
            alike = self.owner.repeats.key(node, version, inputs, self.tracer)
            call = self.owner.repeats.find(alike)
            if call is not None:
                return (self._repeat(node, call, inputs),)
            types = functools.partial(self._types, node.inputs, inputs)
            entry = self.owner.plan.find(node, version, types, self.attributes)
            if not isinstance(entry, Row):
                return self.call_function(node, entry, inputs)
            if entry.facts:  # about this node, which what decides a call does not hold
                alike = None
            run = functools.partial(self.run_row, node, entry, inputs)
            result = self.owner.repeats.run(alike, run, self.tracer, lambda: [self.tensor(v) for v in inputs])
            if type(result) is Tensor:  # most are
                return (result,)
            results = result if isinstance(result, tuple) else (result,)  # a list is one sequence
            return [self._settle(item) for item in results]
        except OperatorError as error:
            if isinstance(error, MisfitError) and self.branch is not None:
                raise
            self.owner.report(node, version, str(error))
        except (StuckError, NeedsSamples):
            raise
        except Exception as error:  # whatever torch or a body says of inputs and attributes that contradict each other
            self.owner.cause = self.owner.cause or error
            self.owner.report(node, version, f"it cannot be computed: {_told(error)}.")
        return [UNKNOWN] * len(node.outputs)

    def _begin(self, node: ir.Node) -> None:
        """Counts a node, and lets what is recorded from now on say that it belongs to it."""
        self.step += 1
        self.owner.steps += 1
        self.tracer.meta = {"onnx": (node.domain, node.op_type, node_name(node))}
        if self.owner.author is not None and SCOPES in node.metadata_props:
            self.tracer.meta |= {"scopes": node.metadata_props[SCOPES], "classes": node.metadata_props.get(CLASSES)}

    def _repeat(self, node: ir.Node, call: Call, inputs: Sequence[Any]) -> Any:
        """Records the call that nodes alike make."""
        self._begin(node)
        recorded = self.tracer.record(call.kind, call.target, [self.tensor(value) for value in inputs])
        return self.tracer.wrap(recorded, call.spec)

    def run_row(self, node: ir.Node, row: Row, inputs: list[Any]) -> Any:
        """Returns what `row` gives for `inputs`: folded, as host numbers, recorded, or as one call at run time."""
        self._begin(node)
        recorded = self.tracer.recorded
        if row.region:
            return subgraphs.run(self, node, row, inputs)
        attributes = attribute_values(node, row, self.attributes, self._tensor_attribute)
        if row.facts:
            attributes |= facts(self.owner.plan, node, row)
        check_inputs(row, inputs)
        if row.reads_shape and isinstance(inputs[0], Tensor) and inputs[0].spec.shapes is not None:
            assert row.host is not None
            return Host(np.asarray(row.host(inputs[0], **attributes), dtype=object), np.dtype(np.int64))
        kinds = set(map(type, inputs))
        known = Tensor not in kinds and all(map(_is_known, inputs))
        if known and Host in kinds and row.host is not None:
            try:
                return self._host(row, inputs, attributes)
            except NeedsValues:
                pass
        if known and not row.random and Host not in kinds:
            folded = self._fold(row, inputs, attributes)
            if row.opaque or not (self._loses_weight(inputs, folded) or lays_out_weight(row, inputs)):
                return folded
            inputs = self._with_recorded(inputs, lays_out_weight(row, inputs))
        if not row.opaque and Opaque not in kinds:
            try:
                if row.whole:
                    return self._whole(row, inputs, attributes)
                result = row.body(self.tracer.F, *self.arguments(row, inputs), **attributes)
                if row.host is not None and type(result) is Tensor and size_vectors.is_vector(result):
                    result.elements = size_vectors.known_elements(row, inputs, attributes)
                return result
            except ShapeMismatch as error:
                if self.owner.strict and self.sizes.sampled:
                    raise self._stuck(error, node, inputs, error.values, recorded, error.point) from None
                if self.owner.strict and not self.sizes.of_data:
                    raise MisfitError(f"its inputs' shapes do not fit: {error}.") from None
            except NeedsValues:
                pass
        try:
            return self._opaque(node, row, inputs, attributes)
        except OperatorError as error:  # of inputs that do not fit, by what the row says of its results
            if self.owner.strict and self.sizes.sampled:
                raise self._stuck(error, node, inputs, (), recorded) from None
            raise

    def _stuck(
        self,
        error: Exception,
        node: ir.Node,
        inputs: Sequence[Any],
        call: Sequence[Any],
        recorded: int,
        point: int = 0,
    ) -> StuckError:
        """Returns what says that the sample sizes do not fit at `node`, before which there were `recorded` calls."""
        step = (self.owner.steps, self.tracer.recorded - recorded)
        assumed = self.tracer.assumed
        return StuckError(str(error), node, inputs, call, self.sizes, step, self.branch, assumed, point)

    def _own_numbers(self, value: Host) -> Host:
        """Returns numbers computed from shapes around a branch as they are at the sample points of the branch."""
        own = np.empty_like(value.array)
        for index, number in np.ndenumerate(value.array):
            own[index] = self.tracer.own(number)
        return Host(own, value.dtype)

    def _types(self, values: Sequence[ir.Value | None], known: Sequence[Any]) -> list[TypeOf]:
        return [self.type_of(value, item) for value, item in zip(values, known, strict=True)]

    def type_of(self, value: ir.Value | None, known: Any) -> TypeOf:
        """Returns a value's ONNX type: what the file says, else what the import knows."""
        declared = self.owner.plan.type_of(value) if value is not None else UNKNOWN_TYPE
        if declared != UNKNOWN_TYPE:
            return declared
        if isinstance(known, list):
            return self.type_of(None, known[0])[0] if known else None, "seq"
        if isinstance(known, Constant):
            return known.kind, ""
        if isinstance(known, Host):
            return ir.DataType.from_numpy(known.dtype), ""
        dtype = known.spec.dtype if isinstance(known, Tensor) else None
        return None if dtype is None else onnx_type(dtype), ""

    def arguments(self, row: Row, inputs: Sequence[Any]) -> list[Any]:
        """Returns the inputs as a traced body takes them: static ones as Python values, others as tensors."""
        if not row.static and not row.numbers:
            return [self.tensor(value) for value in inputs]
        result: list[Any] = []
        for position, value in enumerate(inputs):
            name = row.input_name(position)
            if name in row.numbers and isinstance(value, (Constant, Host)) and not _shape_of(value):
                result.append(value.array.item() if isinstance(value, Host) else value.numpy().item())
            elif name not in row.static or value is None:
                result.append(self.tensor(value))
            elif isinstance(value, Host):
                result.append(value.array.tolist())
            elif isinstance(value, Constant):
                result.append(value.numpy().tolist())
            elif name in row.counts and isinstance(value, Tensor):
                result.append(self.tracer.elements(value))
            else:
                raise TraceError(f"input {name} is computed from data")
        if (row.static or row.numbers) and is_traced([value for value in result if not isinstance(value, Tensor)]):
            # A method of a real tensor takes no symbolic number: the constants become values of the traced program.
            return [self.tracer.attribute(v) if isinstance(v, torch.Tensor) else v for v in result]
        return result

    def tensor(self, value: Any) -> Any:
        """Returns a value as a tensor argument: constants as real tensors, host numbers as a tensor made of them."""
        if type(value) is Tensor:
            return value
        if isinstance(value, Constant):
            return self._remember(value)
        if isinstance(value, Host):
            return self._made_of(value.array, torch.from_numpy(np.empty(0, value.dtype)).dtype)
        return [self.tensor(item) for item in value] if isinstance(value, list) else value

    def _made_of(self, numbers: np.ndarray[Any, Any], dtype: torch.dtype) -> Any:
        """Returns host numbers as a tensor; of a list of sizes torch.jit.trace would keep those of its example."""
        F = self.tracer.F
        if not numbers.ndim or not is_traced(numbers.tolist()):
            return F.tensor(numbers.tolist(), dtype=dtype)
        if numbers.size == 1:
            return F.full(numbers.shape, numbers.item(), dtype=dtype)
        stacked = F.stack([F.tensor(number, dtype=dtype) for number in numbers.flat])
        return stacked if numbers.ndim == 1 else stacked.reshape(numbers.shape)

    def _tensor_attribute(self, tensor: ir.TensorProtocol) -> Any:
        self.owner.uses[id(tensor)] += 1  # a function's constant is another one in each call of it
        key = (id(tensor), self.owner.uses[id(tensor)])
        if key not in self.owner.read:
            self.owner.read[key] = Constant("", ir.DataType(tensor.dtype), tensor).value
        return self.owner.read[key]

    def _host(self, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Evaluates the row on numbers computed from shapes."""
        arrays: list[Any] = []
        for value in inputs:
            if isinstance(value, Constant):
                if math.prod(value.shape) > 4096:
                    raise TraceError("a large constant among numbers computed from shapes")
                arrays.append(value.numpy().astype(object))
            else:
                arrays.append(None if value is None else value.array)
        dtypes = [None if v is None else v.dtype if isinstance(v, Host) else v.numpy().dtype for v in inputs]
        return evaluate(row, arrays, dtypes, attributes)

    def _settle(self, value: Any) -> Any:
        """Returns a result as the scope holds it: numbers that turned out to be constant become a constant."""
        if type(value) is Tensor:
            return value
        if isinstance(value, Host) and not any(isinstance(item, Dim) for item in value.array.flat):
            return Constant.of(torch.from_numpy(value.array.astype(value.dtype)))
        if isinstance(value, (torch.Tensor, np.ndarray)):
            constant = Constant.of(value)
            origin = self._origin(value)
            if origin is not None:
                constant.name, constant.weight = origin.name, origin.weight
            return constant
        return [self._settle(item) for item in value] if isinstance(value, list) else value

    def _fold(self, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Evaluates a node whose inputs are all known."""
        values = self.arguments(row, inputs)
        if row.static and not row.opaque:
            self._check_size(row, values, attributes)
        with torch.no_grad():
            result = row.run(torch, *values, **attributes)
        weights = [v for v in inputs if isinstance(v, Constant) and v.weight]
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(item, torch.Tensor) and weights and item.is_floating_point():
                memory = memory_of(item)
                if memory not in self.by_memory or self._is_stale(memory):
                    self.by_memory[memory] = weights[0]
                    self.computed[memory] = StorageWeakRef(item.untyped_storage())
        return result

    def _loses_weight(self, inputs: Sequence[Any], folded: Any) -> bool:
        """Returns whether `folded` is computed from a weight of the author's, which is then no weight any more."""
        if self.owner.author is None:
            return False
        names = self.owner.author.names
        weights = [v.value for v in inputs if isinstance(v, Constant) and v.weight and v.name in names]
        parts = folded if isinstance(folded, (tuple, list)) else (folded,)  # nn.MultiheadAttention splits its weight
        return any(_is_made_of(part, weights) for part in parts)

    def _with_recorded(self, inputs: Sequence[Any], table: bool) -> list[Any]:
        """Returns `inputs` with the first of the author's weights as a value of the traced program.

        The others stay constants, which the body needs to tell a matrix of weights from any other.
        """
        recorded = list(inputs)
        for position, value in enumerate(inputs):
            recorded[position] = self._recorded(value, table and not position)
            if recorded[position] is not value:
                break
        return recorded

    def _recorded(self, value: Any, table: bool = False) -> Any:
        """Returns a weight or `table` of the author's as a value of the traced program, which is read at run time."""
        author = self.owner.author
        if not isinstance(value, Constant) or not (table or (author is not None and value.name in author.names)):
            return value
        held = self._remember(value)
        return self.tracer.attribute(held) if isinstance(held, torch.Tensor) else value

    def _check_size(self, row: Row, values: Sequence[Any], attributes: dict[str, Any]) -> None:
        small = all(v.numel() < 1 << 16 for v in values if isinstance(v, torch.Tensor))
        if not small:
            return
        try:
            with torch.device("meta"):
                metas = [v.to("meta") if isinstance(v, torch.Tensor) else v for v in values]
                result = row.body(torch, *metas, **attributes)
        except OperatorError:
            raise
        except Exception:
            return  # the body needs the values; nothing of that kind makes large results
        items = result if isinstance(result, (tuple, list)) else (result,)
        total = sum(item.numel() * item.element_size() for item in items if isinstance(item, torch.Tensor))
        if total > MAX_CONSTANT_BYTES:
            raise OperatorError(
                f"it makes a constant of {total >> 20} MiB, the limit is {MAX_CONSTANT_BYTES >> 20} MiB."
            )

    def _whole(self, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Records the node as one call of its operator; the body on meta tensors tells what comes of it."""
        function = getattr(functional, functional.name_of(row))
        arguments = tuple(self.arguments(row, inputs))
        specs = self.tracer.infer("call_function", function, self.tracer.own(arguments), attributes).specs
        return self.tracer.call_opaque(function, arguments, attributes, specs)

    def _opaque(self, node: ir.Node, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Records the node as one call of its operator on run time values."""
        arguments = []
        for position, value in enumerate(inputs):
            static = row.input_name(position) in row.static
            if isinstance(value, Constant) and static:
                arguments.append(value.numpy().tolist())
            elif isinstance(value, Host) and static:
                arguments.append(value.array.tolist())
            else:
                arguments.append(self.tensor(value))
        known = self._results(row, arguments, attributes)
        specs = [self._spec_of(node, index, inputs, known) for index in range(len(node.outputs))]
        function = getattr(functional, functional.name_of(row))
        result = specs[0] if len(specs) == 1 and not row.several else tuple(specs)
        return self.tracer.call_opaque(function, tuple(arguments), attributes, result, once=bool(known))

    def _results(self, row: Row, arguments: Sequence[Any], attributes: dict[str, Any]) -> Sequence[Spec]:
        """Returns what the operator says of its results, nothing where it cannot: an input's rank is not known."""
        if row.results is None or any(isinstance(value, Opaque) for value in arguments):
            return ()
        try:
            results = row.results(torch, *arguments, **attributes)
        except NeedsValues:
            return ()
        except OperatorError:
            if self.owner.strict:
                raise
            return ()
        of_data = {name: self.tracer.fresh_dimension() for dims, _ in results for name in dims if isinstance(name, str)}
        specs = []
        for dims, dtype in results:
            columns = [
                of_data[d] if isinstance(d, str) else getattr(d, "values", (d,) * self.tracer.points) for d in dims
            ]
            specs.append(Spec(tuple(zip(*columns, strict=True)), dtype))
        return specs

    def _spec_of(self, node: ir.Node, index: int, inputs: Sequence[Any], known: Sequence[Spec]) -> Spec | None:
        """Returns what the operator or the file says of an output: its dtype, perhaps its rank."""
        value = node.outputs[index]
        kind, container, rank = self.owner.plan.output_type(node, index, version_of(node, self.opsets), inputs)
        if container or kind == ir.DataType.STRING:
            return None
        if index < len(known):
            return known[index]
        dtype = None if kind is None else torch_dtype(kind)
        dims = value.shape
        if dims is None and rank is None:
            return Spec(None, dtype)
        columns = []
        for dim in dims if dims is not None else [None] * (rank or 0):
            columns.append((dim,) * self.tracer.points if isinstance(dim, int) else self.tracer.fresh_dimension())
        return Spec(tuple(zip(*columns, strict=True)) if columns else ((),) * self.tracer.points, dtype)

    def call_function(self, node: ir.Node, function: ir.Function, inputs: Sequence[Any]) -> Sequence[Any]:
        """Imports a call of a function as a submodule named after it."""
        child = Tracer(self.tracer.points, self.tracer)
        scope = Scope()
        for value, known in zip(function.inputs, inputs, strict=False):
            scope[value] = known
        for value in list(function.inputs)[len(inputs) :]:
            scope[value] = None
        opsets = {**self.opsets, **function.opset_imports}
        walk = Walk(self.owner, child, scope, function, opsets)
        walk.branch, walk.sizes = self.branch, self.sizes
        walk.attributes = call_attributes(node, function, self.attributes)
        outputs = walk.run()
        return self.call_graph(child, outputs, [identifier(function.name)], len(node.outputs))

    def call_graph(self, child: Tracer, outputs: Sequence[Any], name: list[str], wanted: int) -> Sequence[Any]:
        """Makes the module of a traced inner graph and records a call of it; known outputs stay known."""
        outputs = list(outputs)[:wanted]
        live = [i for i, value in enumerate(outputs) if is_traced(value)]
        results = list(outputs)
        if live:
            specs = tuple(getattr(outputs[i], "spec", None) for i in live)
            module = child.finish(tuple(outputs[i] for i in live), name[-1])
            values = self.tracer.call_module(name, module, tuple(child.captured), specs)
            for i, value in zip(live, values, strict=True):
                results[i] = value
        return results

    # Names and roles of constants, asked for by the tracer.

    def _remember(self, constant: Constant) -> torch.Tensor | np.ndarray[Any, Any]:
        """Returns the values of a constant that the traced program is to hold."""
        value = constant.value
        if isinstance(value, torch.Tensor):  # of several that share their memory the one in use is meant
            memory = memory_of(value)
            self.by_memory[memory] = constant
            self.computed.pop(memory, None)
        return value

    def _is_stale(self, memory: int) -> bool:
        """Returns whether what was computed there is gone, so that another tensor may lie there."""
        return memory in self.computed and self.computed[memory].expired()

    def _origin(self, tensor: Any) -> Constant | None:
        if not isinstance(tensor, torch.Tensor):
            return None
        memory = memory_of(tensor)
        return None if self._is_stale(memory) else self.by_memory.get(memory)

    def _inline(self, tensor: torch.Tensor) -> bool:
        origin = self._origin(tensor)
        return origin is None or not origin.weight or is_generated(origin.name)

    def _constant_name(self, tensor: torch.Tensor) -> ConstantName:
        origin = self._origin(tensor)
        name, weight = (origin.name, origin.weight) if origin is not None else ("", False)
        author = self.owner.author
        if author is not None and name in author.names:
            return ConstantName(self._steps(name), author.trains(name), author.holds(name), True, self.outer)
        steps, trainable = constant_path(self.node, name, weight, tensor.numel())
        if author is None:
            return ConstantName(steps, trainable)
        trainable = trainable and author.may_train(name) and tensor.is_floating_point()
        # What is no weight stays out of state_dict; copying a GraphModule keeps that of its submodules alone.
        steps = ["constants", *steps] if len(steps) == 1 and not trainable else steps
        return ConstantName(steps, trainable, persistent=trainable)

    def _steps(self, key: str) -> list[str]:
        """Returns where one of the author's keys stands in the module of this graph."""
        return key.removeprefix(self.prefix).split(".")

    def _layer_name(self, layer: Layer) -> tuple[list[str], bool]:
        assert self.node is not None
        author = self.owner.author
        names = [origin.name for tensor in layer.state.values() if (origin := self._origin(tensor)) is not None]
        place = place_of(self.node) if author is not None else None
        if author is not None:
            keys = [name for name in names if name in author.names]
            keys += [f"{place.path}.{slot}" for slot in layer.state if place is not None]
            own = next((key for key in keys if key in author.names or key in author.states), None)
            if own is not None:
                return self._steps(own)[:-1], True
        if place is not None and place.path and not names:
            return split_path(place.path), False
        weight = self._origin(layer.state.get("weight"))
        return layer_path(self.node, self.step, weight.name if weight is not None else ""), False

    def _fits(self, layer: Layer) -> bool:
        """Returns whether a layer reads data and holds the author's weights as they are, under their keys."""
        if any(isinstance(value, Tensor) and self._is_fixed(value.node) for value in layer.inputs):
            return False  # a lookup by the model's own index table: no layer of the author's
        if issubclass(layer.kind, nn.RNNBase) and self.tracer.parent is not None and isinstance(self.graph, ir.Graph):
            return False  # its forward writes to the module, which torch.cond and the like refuse in what they call
        author = self.owner.author
        if author is None:
            return True
        if self._is_computed(layer):
            return False
        modules = set()
        for slot, tensor in layer.state.items():
            origin = self._origin(tensor)
            if origin is None or origin.name not in author.names:
                continue
            if self.outer:
                return False
            module = origin.name.removesuffix(f".{slot}")
            if module == origin.name or (tensor is not None and self._whole_weight(tensor) is not tensor):
                return False
            modules.add(module)
        unused = {slot for slot, tensor in layer.state.items() if tensor is None}
        if any(f"{module}.{slot}" in author.names for module in modules for slot in unused):
            return False
        if len(modules) > 1 or not any("." in slot for slot in layer.state):
            return len(modules) < 2 and modules.isdisjoint(author.outer)
        own = {f"{module}.{slot}" for module in modules for slot in layer.state}
        return not any(name.startswith(f"{module}.") for module in modules for name in author.names - own)

    def _is_computed(self, layer: Layer) -> bool:
        """Returns whether a layer would give the author's key to what the exporter computed from that weight.

        A layer stands where its node does, so that `1 + weight` (Gemma's normalisation) would be called `norm.weight`.
        """
        author, place = self.owner.author, place_of(self.node) if self.node is not None else None
        if author is None or self.node is None or issubclass(layer.kind, nn.RNNBase):
            return False  # what is in another order in the file has the author's again in the layer
        origins = {slot: self._origin(tensor) for slot, tensor in layer.state.items() if tensor is not None}
        keys = {slot: origin.name for slot, origin in origins.items() if origin and origin.name in author.names}
        modules = {key.removesuffix(f".{slot}") for slot, key in keys.items()}
        path = min(modules) if modules else place.path if place is not None else ""
        known = author.states if author.listed else author.names
        for slot in (origins.keys() - keys) if path else ():
            if f"{path}.{slot}" in known:
                return True
            numbered = slot == "weight" and getattr(origins[slot], "weight", False) and not author.listed
            if numbered and self.node.op_type not in ("MatMul", "Linear"):
                return True
        return False

    def _is_fixed(self, node: fx.Node) -> bool:
        """Returns whether a value is computed from what the module holds alone; networks are too deep for recursion."""
        pending = [node]
        while pending:
            last = pending[-1]
            inputs = last.all_input_nodes
            if unknown := [value for value in inputs if value not in self.fixed]:
                pending += unknown
            else:
                self.fixed[last] = last.op == "get_attr" or (bool(inputs) and all(map(self.fixed.get, inputs)))
                pending.pop()
        return self.fixed[node]

    def _whole_weight(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the weight of the author's that `tensor` is another view of, `tensor` itself where it is none."""
        author, origin = self.owner.author, self._origin(tensor)
        if author is None or origin is None or origin.name not in author.names:
            return tensor
        constant = self.owner.constants.get(origin.name)
        whole = constant.value if constant is not None else tensor
        if isinstance(whole, torch.Tensor) and origin.name in author.moved:
            whole = whole.T if author.moved[origin.name] == "transposed" else whole.reshape(-1)
        if not isinstance(whole, torch.Tensor) or whole.numel() != tensor.numel() or whole.dtype != tensor.dtype:
            return tensor
        return tensor if whole.shape == tensor.shape and whole.stride() == tensor.stride() else whole

    def _describe(self, module: nn.Module) -> None:
        """Notes on a layer what it was in the file, in plain strings, which every way of saving keeps."""
        assert self.node is not None
        notes = {"onnx_op": self.node.op_type, "onnx_name": node_name(self.node), "onnx_source": source_of(self.node)}
        for name, text in notes.items():
            if text:
                setattr(module, name, text)


def _is_made_of(folded: Any, weights: Sequence[Any]) -> bool:
    """Returns whether `folded` is computed from `weights`, and none of them laid out another way."""
    if not weights or not isinstance(folded, torch.Tensor) or not folded.is_floating_point():
        return False
    memory = memory_of(folded)
    floats = (weight for weight in weights if isinstance(weight, torch.Tensor) and weight.is_floating_point())
    return all(memory_of(weight) != memory or weight.numel() != folded.numel() for weight in floats)


def _told(error: Exception) -> str:
    """Returns what an error of torch or Python says, in one line."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if first.startswith("zip() argument"):  # as of starts and ends
        return "lists that belong together have different lengths"
    return f"{type(error).__name__}: {first}".rstrip(":. ")


def _is_known(value: Any) -> bool:
    """Returns whether nothing of a value is left to run time but, perhaps, sizes."""
    if isinstance(value, list):
        return all(_is_known(item) for item in value)
    return value is None or isinstance(value, (Constant, Host))


def _shape_of(value: Constant | Host) -> tuple[int, ...]:
    return value.array.shape if isinstance(value, Host) else value.shape


def _used_inside(nodes: Iterable[ir.Node]) -> set[ir.Value | None]:
    """Returns the values that nodes in subgraphs of `nodes` use, those of the subgraphs among them."""
    return {value for body in inner_graphs(nodes) for node in body.all_nodes() for value in node.inputs}


__all__ = ["Opaque", "Walk", "import_graph"]
