"""Walks an ONNX graph, looks its nodes up in the op table and records their bodies with a tracer."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from onnx2nn import collector, functional, regions
from onnx2nn.constants import Constant, onnx_type, torch_dtype
from onnx2nn.errors import OperatorError, Problem, UnsupportedModelError
from onnx2nn.host import Host, evaluate
from onnx2nn.inputs import InputSpec, input_dimensions, input_specs
from onnx2nn.layers import Layer
from onnx2nn.naming import identifier
from onnx2nn.nodes import (
    Scope,
    attribute_values,
    call_attributes,
    check_inputs,
    constant_path,
    facts,
    is_generated,
    layer_path,
    node_name,
)
from onnx2nn.plan import UNKNOWN_TYPE, Plan, TypeOf, version_of
from onnx2nn.table import NeedsValues, Row
from onnx2nn.tracing import Dim, NeedsSamples, Opaque, ShapeMismatch, Spec, Tensor, TraceError, Tracer, is_traced

MAX_CONSTANT_BYTES = 8 << 30
"""A constant computed at import may take so much memory (a file of a few bytes can ask for more)."""


class Sizes:
    """Sample values for the dynamic dimensions of a model, by name.

    Args:
        family: which of the sample families to use.
        fixed: dimensions that have turned out to have one value only, or to equal another one, by its name.
        needed: whether there are other dynamic dimensions, those of results that depend on data.
    """

    FAMILIES: Sequence[Any] = (
        lambda k: (5 + 2 * k, 13 + 4 * k, 257 + 6 * k),
        lambda k: (64 * (3 + k), 64 * (5 + 2 * k), 64 * (11 + 3 * k)),
        lambda k: (2 + k, 4 + 2 * k, 7 + 3 * k),
        lambda k: (1009 - 3 * k, 1511 - 5 * k, 2017 - 7 * k),
    )

    def __init__(self, names: Sequence[str], family: int, fixed: Mapping[str, int | str], needed: bool = False):
        equal = {name: other for name, other in fixed.items() if isinstance(other, str)}
        dynamic = [name for name in names if name not in fixed]
        self.points = 3 if dynamic or needed else 1
        self.values: dict[str, tuple[int, ...]] = {}
        for name, size in fixed.items():
            if isinstance(size, int):
                self.values[name] = (size,) * self.points
        self.values |= {name: self.FAMILIES[family](k) for k, name in enumerate(dynamic)}
        for name in equal:
            other = name
            while other in equal:
                other = equal[other]
            self.values[name] = self.values[other]
        self.dynamic = dynamic
        self.sampled = bool(names)


class StuckError(Exception):
    """The sample sizes do not go through the graph.

    Holds the inputs of the node that refuses them, what its failing call got, the sizes, and how far it went.
    """

    def __init__(self, reason: str, inputs: Sequence[Any], call: Sequence[Any], sizes: Sizes, step: tuple[int, int]):
        super().__init__(reason)
        self.inputs, self.call, self.sizes, self.step = inputs, call, sizes, step


def import_graph(
    model: ir.Model, plan: Plan, *, input_shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> fx.GraphModule:
    """Returns `model` as a module in eval mode.

    Args:
        model: as `reader.read` gives it.
        plan: as `check.plan` gives it: every node has a row or a function.
        input_shapes: dimensions by input name that replace those of the file; a str or None is dynamic.

    Raises:
        UnsupportedModelError: nodes whose operator refuses what they ask for, all of them.
    """
    inputs = input_dimensions(model, input_shapes or {})
    names = list(dict.fromkeys(d for dims in inputs.values() if dims for d in dims if isinstance(d, str)))
    constants = {v.name or "": _initializer(v) for v in model.graph.initializers.values()}

    needed = False

    def attempt(fixed: Mapping[str, int | str]) -> fx.GraphModule:
        """Imports; once more where sizes turn out to depend on data in a model of fixed shapes."""
        nonlocal needed
        try:
            return families(fixed)
        except NeedsSamples:
            needed = True
            return families(fixed)

    def families(fixed: Mapping[str, int | str]) -> fx.GraphModule:
        """Imports with the first family of sample sizes that goes through."""
        stuck: StuckError | None = None
        for family in range(len(Sizes.FAMILIES)):
            sizes = Sizes(names, family, fixed, needed)
            try:
                return _Import(model, plan, inputs, sizes, constants, strict=True).run(fixed)
            except StuckError as error:
                stuck = error if stuck is None or error.step > stuck.step else stuck
            if not sizes.dynamic:
                break
        assert stuck is not None
        raise stuck

    fixed: dict[str, int | str] = {}
    while True:
        try:
            return attempt(fixed)
        except StuckError as error:
            stuck = error
        for name, size in dict.fromkeys(_candidates(stuck)):
            trial = {**fixed, name: size}
            try:
                return attempt(trial)
            except StuckError as error:
                if error.step > stuck.step:
                    fixed = trial
                    break
        else:
            # Give up on the node's shapes, not on the model: it runs as one call, what comes of it is read at run time.
            return _Import(model, plan, inputs, Sizes(names, 0, {}, True), constants, strict=False).run({})


def _candidates(stuck: StuckError) -> Iterable[tuple[str, int | str]]:
    """Yields what a dynamic dimension may really be, by what surrounds the node that fails.

    Two names may stand for one dimension: exporters give every unknown dimension a name of its own.
    An exporter may have baked the traced size into a constant: then a dimension, or the number of elements, of one
    input is that constant divided by what the dynamic dimension is multiplied with.
    """
    varying: list[tuple[float, ...]] = []
    static: list[int] = []
    given: set[int] = set()
    for position, value in enumerate((*stuck.inputs, *stuck.call)):
        if isinstance(value, Tensor) and value.spec.shapes is not None:
            columns = list(zip(*value.spec.shapes, strict=True))
            varying += [column for column in columns if len(set(column)) > 1]
            varying.append(tuple(math.prod(shape) for shape in value.spec.shapes))
            static += [column[0] for column in columns if len(set(column)) == 1]
        elif isinstance(value, (Constant, Host)) and math.prod(getattr(value, "shape", (1,))) < 64:
            array = value.array if isinstance(value, Host) else value.numpy()
            varying += [n.values for n in np.ravel(array).tolist() if isinstance(n, Dim)]
            numbers = [n for n in np.ravel(array).tolist() if isinstance(n, int) and n > 0]
            static += numbers
            static.append(math.prod(numbers))
        if isinstance(value, (Constant, torch.Tensor)):
            static += list(value.shape)
        if position == len(stuck.inputs) - 1:
            given = set(static)  # what the body made of it has ones of its own
    present = [n for n in stuck.sizes.dynamic if stuck.sizes.values[n] in varying]
    yield from ((b, a) for i, a in enumerate(present) for b in present[i + 1 :])
    ones = []
    for name in stuck.sizes.dynamic:
        ratios = {_ratio(column, stuck.sizes.values[name]) for column in varying} - {0}
        whole = {int(n / ratio) for ratio in ratios for n in static if n > max(ratio, 1) and n % ratio == 0}
        yield from ((name, n) for n in sorted(whole, reverse=True))  # a dimension of 1 fits everything, by broadcasting
        ones += [name] * any(ratio in given for ratio in ratios)
    yield from ((name, 1) for name in ones)


def _ratio(column: Sequence[float], sizes: Sequence[int]) -> float:
    """Returns what `sizes` are multiplied with, or as a whole number divided by, to give `column`; 0 for nothing."""
    ratios = {w / v for w, v in zip(column, sizes, strict=True)}
    if len(ratios) == 1:
        return ratios.pop()
    divisors = {v // w for w, v in zip(column, sizes, strict=True) if w > 0}
    divisor = divisors.pop() if len(divisors) == 1 else 0
    same = divisor > 1 and all(w == v // divisor for w, v in zip(column, sizes, strict=True))
    return 1 / divisor if same else 0


def _initializer(value: ir.Value) -> Constant:
    tensor = value.const_value
    assert tensor is not None
    return Constant(value.name or "", ir.DataType(tensor.dtype), tensor, weight=True)


SCOPES, CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
"""Metadata in which torch's exporter lists the modules around a node, the outermost first, and their classes."""

_RESERVED = frozenset({"self", "torch", "device", "inf", "nan", "pytree", "fx_pytree", "operator", "math", "onnx2nn"})
"""Names that the generated forward uses itself, so that no argument may have them."""


class _Import:
    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        inputs: Mapping[str, list[int | str] | None],
        sizes: Sizes,
        constants: Mapping[str, Constant],
        strict: bool,
    ):
        self.model, self.plan, self.inputs, self.sizes = model, plan, inputs, sizes
        self.constants, self.strict = constants, strict
        self.steps = 0
        self.problems: dict[tuple[str, str, int, str], Problem] = {}

    def run(self, fixed: Mapping[str, int | str]) -> fx.GraphModule:
        with collector.paused():
            return self._run(fixed)

    def _run(self, fixed: Mapping[str, int | str]) -> fx.GraphModule:
        graph = self.model.graph
        tracer = Tracer(self.sizes.points)
        scope = Scope()
        renamed: dict[str, str] = {}
        for value in graph.inputs:
            name = identifier(value.name or "input")
            while name in renamed or name in _RESERVED:
                name += "_"
            renamed[name] = value.name or ""
            scope[value] = tracer.placeholder(name, self._input_spec(value))
        for value in graph.inputs:
            self._guard(tracer, scope[value], self.inputs[value.name or ""], fixed)
        walk = Walk(self, tracer, scope, graph, dict(self.model.graph.opset_imports))
        outputs = walk.run()
        if self.problems:
            raise UnsupportedModelError(list(self.problems.values()))
        module = tracer.finish(outputs[0] if len(outputs) == 1 else tuple(outputs), identifier(graph.name or "Model"))
        different = {original: name for name, original in renamed.items() if original != name}
        if different:
            module.register_forward_pre_hook(regions.RenameInputs(different), with_kwargs=True)
        module.meta["onnx2nn"] = {
            "inputs": [value.name for value in graph.inputs],
            "outputs": [value.name for value in graph.outputs],
            "fixed": dict(fixed),
            "signature": [self._signature(spec, fixed) for spec in input_specs(self.model)],
        }
        return module.eval()

    def _signature(self, spec: InputSpec, fixed: Mapping[str, int | str]) -> dict[str, Any]:
        """Returns an input as the module takes it, in plain Python values, which pickle anywhere."""
        dims = self.inputs[spec.name]
        shape = None if dims is None else tuple(fixed.get(d, d) if isinstance(d, str) else d for d in dims)
        return {**dataclasses.asdict(spec), "dtype": spec.dtype and spec.dtype.name, "shape": shape}

    def _guard(
        self, tracer: Tracer, tensor: Any, dims: Sequence[int | str] | None, fixed: Mapping[str, int | str]
    ) -> None:
        """Lets a size fail at run time that the file declares as dynamic but fixes in a constant."""
        for axis, dim in enumerate(dims or ()):
            if isinstance(dim, str) and isinstance(fixed.get(dim), int):
                size = tracer.record("call_method", "size", (tensor, axis))
                same = tracer.graph.call_function(operator.eq, (size, fixed[dim]))
                tracer.graph.call_function(torch._check, (same,))

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
        self.by_memory: dict[int, Constant] = {}
        self.node: ir.Node | None = None
        self.step = 0
        self.serve(tracer)

    def serve(self, tracer: Tracer) -> None:
        """Lets `tracer` ask this walk what constants and layers are called."""
        tracer.constant_name = self._constant_name
        tracer.layer_name = self._layer_name
        tracer.inline = self._inline

    def run(self) -> list[Any]:
        """Imports every node; returns the values of the graph's outputs."""
        if isinstance(self.graph, ir.Graph):
            for value in self.graph.initializers.values():
                known = self.owner.constants.get(value.name or "") if self.graph is self.owner.model.graph else None
                self.scope[value] = known or _initializer(value)
        remaining = Counter(value for node in self.graph for value in node.inputs if value is not None)
        keep = set(self.graph.outputs)
        for node in self.graph:
            self.node = node
            results = self.run_node(node)
            for value, result in zip(node.outputs, results, strict=False):
                self.scope[value] = result
                self._mark(value, result)
            for used in node.inputs:
                if used is not None and used not in keep:
                    remaining[used] -= 1
                    if not remaining[used] and not _used_inside(used, self.graph):
                        self.scope.discard(used)
        return [self.as_output(self.scope[value]) for value in self.graph.outputs]

    def _mark(self, value: ir.Value, result: Any) -> None:
        """Notes on the fx node that computes `result` which value of the file it is; one node may be several values."""
        if isinstance(result, (Tensor, Opaque)) and result.tracer is self.tracer and value.name:
            result.node.meta["onnx_outputs"] = (*result.node.meta.get("onnx_outputs", ()), value.name)

    def as_output(self, value: Any) -> Any:
        """Returns a value in the form in which a graph gives it out."""
        if isinstance(value, Constant):
            self._remember(value)
            return value.value
        if isinstance(value, list):
            return [self.as_output(item) for item in value]
        return self.tensor(value) if isinstance(value, Host) else value

    def run_node(self, node: ir.Node) -> Sequence[Any]:
        """Imports one node; returns its outputs, `UNKNOWN` ones where it cannot be imported (a problem is noted)."""
        inputs = [None if value is None else self.tracer.own(self.scope[value]) for value in node.inputs]
        if any(value is UNKNOWN for value in inputs):
            return [UNKNOWN] * len(node.outputs)
        version = version_of(node, self.opsets)
        try:
            types = functools.partial(self._types, node.inputs, inputs)
            entry = self.owner.plan.find(node, version, types, self.attributes)
            if not isinstance(entry, Row):
                return self.call_function(node, entry, inputs)
            result = self.run_row(node, entry, inputs)
        except OperatorError as error:
            self.owner.report(node, version, str(error))
            return [UNKNOWN] * len(node.outputs)
        results = result if isinstance(result, tuple) else (result,)  # a list is one sequence
        return [self._settle(item) for item in results]

    def run_row(self, node: ir.Node, row: Row, inputs: list[Any]) -> Any:
        """Returns what `row` gives for `inputs`: folded, as host numbers, recorded, or as one call at run time."""
        self.step += 1
        self.owner.steps += 1
        recorded = len(self.tracer.graph.nodes)
        self.tracer.meta = {"onnx": (node.domain, node.op_type, node_name(node))}
        if SCOPES in node.metadata_props:
            self.tracer.meta |= {"scopes": node.metadata_props[SCOPES], "classes": node.metadata_props.get(CLASSES)}
        if row.region:
            return regions.run(self, node, row, inputs)
        attributes = attribute_values(node, row, self.attributes, self._tensor_attribute)
        if row.facts:
            attributes |= facts(self.owner.plan, node, row)
        check_inputs(row, inputs)
        if row.reads_shape and isinstance(inputs[0], Tensor) and inputs[0].spec.shapes is not None:
            assert row.host is not None
            return Host(np.asarray(row.host(inputs[0], **attributes), dtype=object), np.dtype(np.int64))
        known = all(_is_known(value) for value in inputs)
        if known and inputs and any(isinstance(value, Host) for value in inputs) and row.host is not None:
            try:
                return self._host(row, inputs, attributes)
            except NeedsValues:
                pass
        if known and not row.random and not any(isinstance(value, Host) for value in inputs):
            return self._fold(row, inputs, attributes)
        if not row.opaque and not any(isinstance(value, Opaque) for value in inputs):
            try:
                if row.whole:
                    return self._whole(row, inputs, attributes)
                return row.body(self.tracer.F, *self.arguments(row, inputs), **attributes)
            except ShapeMismatch as error:
                if self.owner.strict and self.owner.sizes.sampled:
                    step = (self.owner.steps, len(self.tracer.graph.nodes) - recorded)
                    raise StuckError(str(error), inputs, error.values, self.owner.sizes, step) from None
                if self.owner.strict:
                    raise OperatorError(f"its inputs' shapes do not fit: {error}.") from None
            except NeedsValues:
                pass
        return self._opaque(node, row, inputs, attributes)

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
            else:
                raise TraceError(f"input {name} is computed from data")
        if (row.static or row.numbers) and is_traced([value for value in result if not isinstance(value, Tensor)]):
            # A method of a real tensor takes no symbolic number: the constants become values of the traced program.
            return [self.tracer.attribute(v) if isinstance(v, torch.Tensor) else v for v in result]
        return result

    def tensor(self, value: Any) -> Any:
        """Returns a value as a tensor argument: constants as real tensors, host numbers as a tensor made of them."""
        if isinstance(value, Constant):
            self._remember(value)
            return value.value
        if isinstance(value, Host):
            dtype = torch.from_numpy(np.empty(0, value.dtype)).dtype
            return self.tracer.F.tensor(value.array.tolist(), dtype=dtype)
        return [self.tensor(item) for item in value] if isinstance(value, list) else value

    def _tensor_attribute(self, tensor: ir.TensorProtocol) -> Any:
        return Constant("", ir.DataType(tensor.dtype), tensor).value

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
                self.by_memory.setdefault(item.untyped_storage().data_ptr(), weights[0])
        return result

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
        specs = [self._spec_of(node, row, index, value, inputs) for index, value in enumerate(node.outputs)]
        function = getattr(functional, functional.name_of(row))
        return self.tracer.call_opaque(
            function, tuple(arguments), attributes, specs[0] if len(specs) == 1 else tuple(specs)
        )

    def _spec_of(self, node: ir.Node, row: Row, index: int, value: ir.Value, inputs: Sequence[Any]) -> Spec | None:
        """Returns what the file, or the operator's schema, says of an output: its dtype, perhaps its rank."""
        kind, container, rank = self.owner.plan.output_type(node, index, version_of(node, self.opsets), inputs)
        if container or kind == ir.DataType.STRING:
            return None
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

    def _remember(self, constant: Constant) -> None:
        value = constant.value
        if isinstance(value, torch.Tensor):
            self.by_memory.setdefault(value.untyped_storage().data_ptr(), constant)

    def _origin(self, tensor: Any) -> Constant | None:
        return self.by_memory.get(tensor.untyped_storage().data_ptr()) if isinstance(tensor, torch.Tensor) else None

    def _inline(self, tensor: torch.Tensor) -> bool:
        origin = self._origin(tensor)
        return origin is None or not origin.weight or is_generated(origin.name)

    def _constant_name(self, tensor: torch.Tensor, hint: str) -> tuple[list[str], bool, bool]:
        assert self.node is not None
        origin = self._origin(tensor)
        name, weight = (origin.name, origin.weight) if origin is not None else ("", False)
        steps, trainable = constant_path(self.node, name, weight, tensor.numel())
        return steps, trainable, origin is not None

    def _layer_name(self, layer: Layer) -> list[str]:
        assert self.node is not None
        weight = layer.state.get("weight")
        origin = self._origin(weight) if weight is not None else None
        return layer_path(self.node, self.step, origin.name if origin is not None else "")


def _is_known(value: Any) -> bool:
    """Returns whether nothing of a value is left to run time but, perhaps, sizes."""
    if isinstance(value, list):
        return all(_is_known(item) for item in value)
    return value is None or isinstance(value, (Constant, Host))


def _shape_of(value: Constant | Host) -> tuple[int, ...]:
    return value.array.shape if isinstance(value, Host) else value.shape


def _used_inside(value: ir.Value, graph: ir.Graph | ir.Function) -> bool:
    """Returns whether a subgraph inside `graph` uses `value`."""
    return any(use.node.graph is not graph for use in value.uses())


__all__ = ["Opaque", "Walk", "import_graph"]
