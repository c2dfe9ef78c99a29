"""ONNX to OneFlow: walks a graph, records its nodes' bodies on sample values and builds one module.

The body of every node runs at import on samples of the graph's inputs (two sizes where the model has dynamic
dimensions). Where it makes the same calls at every size, those calls become lines of the module's forward and calls
with constant weights become `oneflow.nn` layers; otherwise the node is one line that evaluates its row at run time.
What OneFlow lacks shows at import for that reason too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge import namespace
from oneflow_bridge.from_onnx import operators, subgraphs
from oneflow_bridge.from_onnx.constants import Constant, dtype_of, onnx_type
from oneflow_bridge.from_onnx.layers import Layer
from oneflow_bridge.from_onnx.module import ImportedModule
from oneflow_bridge.from_onnx.program import Program, literal
from oneflow_bridge.from_onnx.recording import Call, Recorder, Traced
from oneflow_bridge.namespace import MissingNameError
from oneflow_bridge.namespace.dtypes import flow, numpy_dtype
from oneflow_bridge.namespace.indexing import IndexRangeError
from oneflow_bridge.namespace.tensor import Tensor, from_array
from onnx2nn.errors import OperatorError, Problem, UnsupportedModelError
from onnx2nn.ground.naming import identifier, split_path
from onnx2nn.importing.inputs import input_dimensions, input_specs
from onnx2nn.importing.node_facts import (
    Scope,
    attribute_values,
    call_attributes,
    check_inputs,
    constant_path,
    facts,
    layer_path,
    lays_out_weight,
    node_name,
)
from onnx2nn.importing.plan import UNKNOWN_TYPE, Plan, TypeOf, version_of
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.optable.shape_values import Host
from onnx2nn.provenance.exporter_metadata import exported_place

MAX_ELEMENTS = 1 << 31
"""A node with known sizes may not make a tensor of more elements (a file of a few bytes can ask for more)."""


@dataclass(eq=False)
class Live:
    """A value known at run time.

    Attributes:
        name: its variable in the forward's source.
        walk: the walk whose variable it is.
        samples: its value at each of the sample sizes, a tensor or a `Host`; None where samples do not tell its shape.
        numbers: whether it is a `Host`.
        fixed: whether it is computed from what the module holds alone.
    """

    name: str
    walk: Walk
    samples: list[Any] | None
    numbers: bool = False
    fixed: bool = False


class Unknown:
    """Stands for the outputs of a node that could not be imported."""


UNKNOWN = Unknown()


class StuckError(Exception):
    """A node refuses the sample sizes."""

    def __init__(self, node: ir.Node, reason: str):
        super().__init__(reason)
        self.node, self.reason = node, reason


FAMILIES = (
    lambda k, first: (2 + k, 3 + k) if first else (5 + 2 * k, 8 + 3 * k),
    lambda k, first: (2, 3) if first else (64 + 32 * k, 128 + 64 * k),
    lambda k, first: (2, 3) if first else (224 + 32 * k, 320 + 64 * k),
    lambda k, first: (2, 3) if first else (224, 320),
    lambda k, first: (2, 3) if first else (6, 8),
    lambda k, first: (1, 2),
    lambda k, first: (1, 1),
)
"""Samples of the k-th dynamic dimension; `first`: it is the first of an input, which seldom decides anything."""


def import_graph(
    model: ir.Model, plan: Plan, *, input_shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> ImportedModule:
    """Returns `model` as a module in eval mode.

    Args:
        model: as `reader.read` gives it.
        plan: the rows and functions its nodes are imported with.
        input_shapes: dimensions by input name that replace those of the file; a str or None is dynamic.

    Raises:
        UnsupportedModelError: nodes whose operator refuses what they ask for or that OneFlow cannot do, all of them.
    """
    inputs = input_dimensions(model, input_shapes or {})
    first = {dims[0] for dims in inputs.values() if dims and isinstance(dims[0], str)}
    names = list(dict.fromkeys(d for dims in inputs.values() if dims for d in dims if isinstance(d, str)))
    if not names:
        return _Import(model, plan, inputs, {}, strict=True).run()
    refused: dict[str, set[str]] = {}
    for family in FAMILIES:
        sizes = {name: family(k, name in first) for k, name in enumerate(names)}
        try:
            return _Import(model, plan, inputs, sizes, strict=True).run()
        except StuckError as error:
            refused.setdefault(node_name(error.node), set()).add(error.reason)
    # Where a node refuses every size alike, in the same words, the sizes are not why.
    always = {name: reasons.pop() for name, reasons in refused.items() if len(refused) == 1 and len(reasons) == 1}
    sizes = {name: FAMILIES[0](k, name in first) for k, name in enumerate(names)}
    return _Import(model, plan, inputs, sizes, strict=False, refused=always).run()


class _Import:
    """One import at one choice of sample sizes.

    Args:
        model: the model.
        plan: its plan.
        inputs: dimensions of the inputs.
        sizes: the samples of each dynamic dimension.
        strict: whether a node that refuses the samples ends the import (`StuckError`), else it runs unrecorded.
        refused: nodes that refused all samples, with the reason.
    """

    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        inputs: Mapping[str, list[int | str] | None],
        sizes: Mapping[str, tuple[int, ...]],
        strict: bool,
        refused: Mapping[str, str] | None = None,
    ):
        self.model, self.plan, self.inputs, self.sizes, self.strict = model, plan, inputs, sizes, strict
        self.refused = refused or {}
        self.points = max((len(set(values)) for values in sizes.values()), default=1)
        self.problems: dict[tuple[str, str, int, str], Problem] = {}
        self.weights: dict[tuple[str, tuple[int, ...], str], Tensor] = {}

    def run(self) -> ImportedModule:
        graph = self.model.graph
        program = Program()
        scope = Scope()
        walk = Walk(self, program, scope, graph, dict(graph.opset_imports))
        specs = {spec.name: spec for spec in input_specs(self.model)}
        for value in graph.inputs:
            name = program.name(value.name or "input")
            program.parameters.append(name)
            try:
                samples = self._samples(value, specs[value.name or ""].limit if value.name in specs else None)
            except OperatorError as error:
                problem = Problem("graph input", "", 0, str(error), "", [value.name or "?"])
                self.problems["", "input", 0, value.name or ""] = problem
                samples = None
            scope[value] = Live(name, walk, samples)
        with flow.no_grad():
            outputs = walk.run()
        if self.problems:
            raise UnsupportedModelError(list(self.problems.values()))
        module = walk.finish(outputs)
        module.meta["onnx2nn"] = {
            "inputs": [value.name for value in graph.inputs],
            "outputs": [value.name for value in graph.outputs],
            "signature": [
                {**dataclasses.asdict(spec), "dtype": spec.dtype and spec.dtype.name, "shape": self._shape(spec.name)}
                for spec in specs.values()
            ],
        }
        return module

    def _shape(self, name: str) -> tuple[int | str, ...] | None:
        dims = self.inputs[name]
        return None if dims is None else tuple(dims)

    def _samples(self, value: ir.Value, limit: int | None) -> list[Any] | None:
        """Returns an input at each of the sample sizes."""
        if not isinstance(value.type, (ir.TensorType, type(None))) or value.dtype == ir.DataType.STRING:
            return None
        dtype = dtype_of(value.dtype) if value.dtype is not None else None
        dims = self.inputs[value.name or ""]
        if dims is None or dtype is None:
            return None
        samples = []
        for point in range(self.points):
            shape = [self.sizes[d][min(point, len(self.sizes[d]) - 1)] if isinstance(d, str) else d for d in dims]
            if np.prod(shape, dtype=float) > MAX_ELEMENTS:
                raise OperatorError(f"it has {shape} elements, the limit is {MAX_ELEMENTS}.")
            if dtype.is_floating_point:
                array = np.random.default_rng(point).random(shape, dtype=np.float32).astype(numpy_dtype(dtype))
            else:
                array = np.full(shape, 0 if limit is not None and limit < 2 else 1, dtype=numpy_dtype(dtype))
            samples.append(from_array(array, dtype))
        return samples

    def report(self, node: ir.Node, version: int, reason: str) -> None:
        """Notes that `node` cannot be imported; the walk goes on, so that all problems are found."""
        key = (node.domain, node.op_type, version, reason)
        problem = self.problems.setdefault(key, Problem(node.op_type, node.domain, version, reason, ""))
        problem.nodes.append(node_name(node))


class Walk:
    """The import of one graph or function body into one program.

    Args:
        owner: the import.
        program: where lines go.
        scope: the graph's values.
        graph: the graph or function.
        opsets: opset versions by domain.
        parent: the walk of the graph around, where this program is that of a subgraph: what the subgraph uses of it
            becomes an argument (`captured`).
    """

    def __init__(
        self,
        owner: _Import,
        program: Program,
        scope: Scope,
        graph: ir.Graph | ir.Function,
        opsets: Mapping[str, int],
        parent: Walk | None = None,
    ):
        self.owner, self.program, self.scope, self.graph, self.opsets = owner, program, scope, graph, opsets
        self.parent = parent
        self.attributes: Mapping[str, ir.Attr] = {}
        self.captured: list[Live] = []
        self.step = 0
        self._captures: dict[Live, Live] = {}
        self._origins: dict[int, Constant] = {}
        self._constants: list[Constant] = []
        self._node: ir.Node | None = None

    def inside(self, graph: ir.Graph | ir.Function, scope: Scope) -> Walk:
        """Returns the walk of a graph whose nodes become part of this program."""
        walk = Walk(self.owner, self.program, scope, graph, self.opsets, self.parent)
        walk.attributes = self.attributes
        walk.captured, walk._captures = self.captured, self._captures
        return walk

    def run(self) -> list[Any]:
        """Imports every node; returns the values of the graph's outputs."""
        if isinstance(self.graph, ir.Graph):
            for value in self.graph.initializers.values():
                tensor = value.const_value
                assert tensor is not None
                self.scope[value] = Constant(value.name or "", ir.DataType(tensor.dtype), tensor, weight=True)
        remaining = Counter(value for node in self.graph for value in node.inputs if value is not None)
        keep = set(self.graph.outputs)
        for node in self.graph:
            self._node = node
            for value, result in zip(node.outputs, self.run_node(node), strict=False):
                self.scope[value] = result
            for used in node.inputs:
                if used is not None and used not in keep:
                    remaining[used] -= 1
                    if not remaining[used] and all(use.node.graph is self.graph for use in used.uses()):
                        self.scope.pop(used, None)  # its memory goes
        return [self.own(self.scope[value]) for value in self.graph.outputs]

    def finish(self, outputs: Sequence[Any]) -> ImportedModule:
        """Returns the program's module, which gives `outputs`."""
        uses: set[str] = set()
        self.program.comment = ""
        texts = [self.source(value, uses) for value in outputs]
        return self.program.finish(texts, uses)

    def own(self, value: Any) -> Any:
        """Returns a value as this program knows it: one of the graph around becomes an argument."""
        if isinstance(value, list):
            return [self.own(item) for item in value]
        if not isinstance(value, Live) or value.walk.program is self.program:
            return value
        if value not in self._captures:
            name = self.program.name(f"outer_{value.name}")
            self.program.parameters.append(name)
            self.captured.append(value)
            self._captures[value] = Live(name, self, None, value.numbers)
        return self._captures[value]

    def run_node(self, node: ir.Node) -> Sequence[Any]:
        """Imports one node; returns its outputs, `UNKNOWN` ones where it cannot be imported (a problem is noted)."""
        inputs = [None if value is None else self.own(self.scope[value]) for value in node.inputs]
        unknown = [UNKNOWN] * len(node.outputs)
        if any(value is UNKNOWN for value in inputs):
            return unknown
        version = version_of(node, self.opsets)
        self.step += 1
        self.program.comment = f"{node.op_type} {node_name(node)!r}"
        try:
            if node_name(node) in self.owner.refused:
                raise OperatorError(self.owner.refused[node_name(node)])
            types = functools.partial(self._types, node.inputs, inputs)
            entry = self.owner.plan.find(node, version, types, self.attributes)
            if isinstance(entry, ir.Function):
                return self.call_function(node, entry, inputs)
            result = self.run_row(node, entry, inputs)
        except OperatorError as error:
            self.owner.report(node, version, str(error))
            return unknown
        return result if isinstance(result, tuple) else (result,)  # a list is one sequence

    def call_function(self, node: ir.Node, function: ir.Function, inputs: Sequence[Any]) -> Sequence[Any]:
        """Imports the nodes of a function's body in place of a call."""
        scope = Scope()
        for position, value in enumerate(function.inputs):
            scope[value] = inputs[position] if position < len(inputs) else None
        walk = self.inside(function, scope)
        walk.opsets = {**self.opsets, **function.opset_imports}
        walk.attributes = call_attributes(node, function, self.attributes)
        return walk.run()[: len(node.outputs)]

    def run_row(self, node: ir.Node, row: Row, inputs: list[Any]) -> Any:
        """Returns what `row` gives for `inputs`: folded, recorded, or as one line that evaluates it at run time."""
        if row.region:
            return subgraphs.run(self, node, row, inputs)
        attributes = attribute_values(node, row, self.attributes, lambda t: Constant("", t.dtype, t).value)
        attributes |= facts(self.owner.plan, node, row)
        check_inputs(row, inputs)
        if inputs and not row.random and all(_is_known(value) for value in inputs):
            folded = self._fold(row, inputs, attributes)
            if not lays_out_weight(row, inputs) and not self._loses_weight(node, inputs, folded):
                return folded
            table = self._at_run_time(node, row, inputs, attributes, [folded.value] * self.owner.points)
            table.fixed = True
            return table
        if not inputs and not row.random:
            return self._fold(row, inputs, attributes)
        _check_size(row, inputs)
        sampled = all(_has_samples(value) for value in inputs)
        if not sampled:
            return self._at_run_time(node, row, inputs, attributes, None)
        try:
            if row.opaque:
                self._lacks(node, row, inputs, attributes)
                return self._at_run_time(node, row, inputs, attributes, None)
            if row.random or row.whole or row.reads_shape or any(_numbers(value) for value in inputs):
                samples = [operators.apply(row, self._values(inputs, p), attributes) for p in self._points]
                return self._at_run_time(node, row, inputs, attributes, samples)
            return self._record(node, row, inputs, attributes)
        except (NeedsValues, IndexRangeError):
            self._lacks(node, row, inputs, attributes)
        except MissingNameError:
            raise
        except Exception as error:  # OneFlow raises what it likes
            self._refused(node, error)
        return self._at_run_time(node, row, inputs, attributes, None)

    def _refused(self, node: ir.Node, error: Exception) -> None:
        """Decides what it means that a node fails on the samples.

        Raises:
            OperatorError: it fails on every input, for the sizes are fixed.
            StuckError: the sample sizes may be why.
        """
        lines = str(error).strip().splitlines()
        reason = lines[-1] if lines and isinstance(error, RuntimeError) else str(error).strip()
        if "OneFlow 0.9 has no" in reason or not self.owner.sizes:
            raise OperatorError(reason or type(error).__name__) from None
        if self.owner.strict:
            raise StuckError(node, reason) from None

    def _lacks(self, node: ir.Node, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> None:
        """Runs the row once on samples, to see whether OneFlow lacks something that it needs.

        Raises:
            OperatorError: it does.
        """
        try:
            operators.apply(row, self._values(inputs, 0), attributes)
        except MissingNameError:
            raise
        except OperatorError as error:
            if "OneFlow 0.9 has no" in str(error):
                raise
        except Exception:
            return  # the values of the samples may be why

    @property
    def _points(self) -> range:
        return range(self.owner.points)

    def _values(self, inputs: Sequence[Any], point: int) -> list[Any]:
        """Returns run time values that stand for `inputs` at one of the sample sizes."""
        return [self._value(value, point) for value in inputs]

    def _value(self, value: Any, point: int) -> Any:
        if isinstance(value, Constant):
            short = literal(value)
            return value.value if short is None else short
        if isinstance(value, list):
            return [self._value(item, point) for item in value]
        return value.samples[point] if isinstance(value, Live) and value.samples is not None else value

    def _fold(self, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Evaluates a node whose inputs are all known."""
        _check_size(row, inputs)
        values = self._arguments(row, inputs, lambda value: value)
        try:
            result = row.run(namespace, *values, **attributes)
        except OperatorError:
            raise
        except NeedsValues as error:
            raise OperatorError(str(error)) from None
        except Exception as error:
            raise OperatorError(f"it fails on its constants: {str(error).strip().splitlines()[-1:]}") from error
        weights = [value for value in inputs if isinstance(value, Constant) and value.weight]
        if isinstance(result, tuple):
            return tuple(self._settled(item, weights) for item in result)
        return self._settled(result, weights)

    def _settled(self, value: Any, weights: Sequence[Constant]) -> Any:
        """Returns a result as the scope holds it."""
        if isinstance(value, list):
            return [self._settled(item, weights) for item in value]
        if isinstance(value, Tensor):
            known = next((c for c in self._constants if c._value is value), None)
            origin = weights[0] if weights and value.is_floating_point() else None
            return known or Constant.of(value, origin)
        return Constant.of(value) if isinstance(value, np.ndarray) else value

    def _loses_weight(self, node: ir.Node, inputs: Sequence[Any], folded: Any) -> bool:
        """Returns whether `folded` is computed from a weight of the author's, which is then no weight any more.

        A transposed matrix is one as long as a layer takes it, which holds it as the author's did.
        """
        author = self.owner.plan.author
        if author is None or not isinstance(folded, Constant) or not folded.kind.is_floating_point():
            return False
        weights = [v for v in inputs if isinstance(v, Constant) and v.weight and v.name in author.names]
        if not any(weight.kind.is_floating_point() and weight is not folded for weight in weights):
            return False
        users = [self.owner.plan.table.newest(use.node.domain, use.node.op_type) for use in node.outputs[0].uses()]
        products = all(user is not None and "matrix_product" in user.traits for user in users)
        return node.op_type != "Transpose" or not products

    def _arguments(self, row: Row, inputs: Sequence[Any], traced: Any) -> list[Any]:
        """Returns the inputs as a body takes them; `traced` gives what stands for a `Live`."""
        result: list[Any] = []
        for position, value in enumerate(inputs):
            name = row.input_name(position)
            if isinstance(value, Constant) and name in row.numbers and not value.shape:
                result.append(value.numpy().item())
            elif isinstance(value, Constant) and name in row.static:
                result.append(value.numpy().tolist())
            elif isinstance(value, Live) and name in row.static:
                raise NeedsValues(f"input {name} is computed from data")
            else:
                result.append(self._argument(value, traced))
        return result

    def _argument(self, value: Any, traced: Any) -> Any:
        if isinstance(value, Constant):
            if isinstance(value.value, Tensor) and id(value.value.value) not in self._origins:
                self._origins[id(value.value.value)] = value
                self._constants.append(value)
            return value.value
        if isinstance(value, list):
            return [self._argument(item, traced) for item in value]
        return traced(value) if isinstance(value, Live) else value

    def _record(self, node: ir.Node, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Records the body; one line that evaluates the row where its calls depend on sizes."""
        prefix = self.program.prefix(self._variable(node, 0))
        runs = []
        for point in self._points:
            recorder = Recorder(prefix, layers=not any(isinstance(value, Live) and value.fixed for value in inputs))

            def traced(live: Live, recorder: Recorder = recorder, point: int = point) -> Any:
                assert live.samples is not None
                return Traced(recorder, live.name, live.samples[point])

            result = row.body(recorder.F, *self._arguments(row, inputs, traced), **attributes)
            runs.append((recorder.calls, result))
        calls, result = runs[0]
        if any(other != calls or not _alike(result, end) for other, end in runs[1:]):
            samples = [_samples_of(end) for _, end in runs]
            return self._at_run_time(node, row, inputs, attributes, samples)
        self._add_calls(node, calls, inputs)
        if isinstance(result, tuple):
            return tuple(self._recorded(item, [end[i] for _, end in runs], inputs) for i, item in enumerate(result))
        return self._recorded(result, [end for _, end in runs], inputs)

    def _recorded(self, value: Any, ends: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """Returns one result of a recorded body as the scope holds it."""
        if isinstance(value, Traced):
            live = [i for i in _flat(inputs) if isinstance(i, Live)]
            known = [i for i in live if i.name == value.name]
            if known:
                return known[0]
            return Live(value.name, self, [end.sample for end in ends], fixed=bool(live) and all(i.fixed for i in live))
        if isinstance(value, list):
            return [self._recorded(item, [end[i] for end in ends], inputs) for i, item in enumerate(value)]
        return self._settled(value, [i for i in inputs if isinstance(i, Constant) and i.weight])

    def _add_calls(self, node: ir.Node, calls: Sequence[Call], inputs: Sequence[Any]) -> None:
        for call in calls:
            layer: list[str] = []
            if call.layer is not None:
                layer = self._layer_place(node, call.layer, inputs)
                state = {slot: self._one(tensor, inputs) for slot, tensor in call.layer.state.items()}
                call = dataclasses.replace(call, layer=dataclasses.replace(call.layer, state=state))
            self.program.add_call(call, self._constant_place, layer)

    def _layer_place(self, node: ir.Node, layer: Layer, inputs: Sequence[Any]) -> list[str]:
        """Returns where a layer is held in the module tree: where the author's weights are, if it holds such.

        A tied weight is called as it is in the first of its layers; the others are found by what else they hold, or by
        the node's name in files of `oneflow_bridge.export`.
        """
        author = self.owner.plan.author
        names = set() if author is None else author.names
        origins = {slot: self._origin_of(tensor, inputs) for slot, tensor in layer.state.items()}
        paths = [n.removesuffix(f".{slot}") for slot, n in origins.items() if n in names and n.endswith(f".{slot}")]
        if paths:
            place = exported_place(self.owner.model, node)
            free = [path for path in (*paths, place) if path and not self.program.has_layer(path)]
            return split_path(free[0] if free else paths[0])
        return layer_path(node, self.step, self._origin_of(layer.state.get("weight"), inputs))

    def _one(self, tensor: Tensor | None, inputs: Sequence[Any]) -> Tensor | None:
        """Returns the one tensor that stands for a weight in every layer that holds it, also where it is transposed."""
        name = self._origin_of(tensor, inputs)
        if tensor is None or not name:
            return tensor
        known = self.owner.weights.setdefault((name, tuple(tensor.shape), tensor.dtype.name), tensor)
        return known if known is tensor or np.array_equal(known.numpy(), tensor.numpy()) else tensor

    def _origin_of(self, weight: Tensor | None, inputs: Sequence[Any]) -> str:
        """Returns the name of the initializer that a layer's weight is, or is a permutation of."""
        if weight is None:
            return ""
        if id(weight.value) in self._origins:
            return self._origins[id(weight.value)].name
        weights = [value for value in inputs if isinstance(value, Constant) and value.weight]
        return next((c.name for c in weights if sorted(c.shape) == sorted(weight.shape)), "")

    def _constant_place(self, tensor: Tensor) -> tuple[list[str], bool, bool]:
        """Returns where a constant is held, whether it is trained and whether it is saved."""
        assert self._node is not None
        origin = self._origins.get(id(tensor.value))
        name, weight = ("", False) if origin is None else (origin.name, origin.weight)
        author = self.owner.plan.author
        if author is not None and name in author.names:
            return split_path(name), author.trains(name), author.holds(name)
        steps, trained = constant_path(self._node, name, weight, tensor.numel())
        if author is None:
            return steps, trained, origin is not None
        trained = trained and author.may_train(name) and tensor.is_floating_point()
        return steps, trained, trained  # what is no weight of the author's stays out of the state

    def _variable(self, node: ir.Node, index: int) -> str:
        name = node.outputs[index].name or node.op_type.lower()
        steps = [step for step in name.split("/") if step]
        return identifier(steps[-1] if steps else node.op_type.lower())

    def _at_run_time(
        self, node: ir.Node, row: Row, inputs: Sequence[Any], attributes: dict[str, Any], samples: list[Any] | None
    ) -> Any:
        """Adds the line that evaluates a row at run time; `samples` are its results at the sample sizes."""
        if row.operator in ("SequenceConstruct", "SequenceEmpty") or (samples and isinstance(samples[0], list)):
            samples = None
        known = _constant_numbers(samples)
        if known is not None:
            return known
        uses: set[str] = set()
        arguments = [self._literal(row, i, value, inputs, uses) for i, value in enumerate(inputs)]
        for name, value in attributes.items():
            arguments.append(f"{name}={self.program.argument(value, uses, self._constant_place)}")
        names = [self.program.name(self._variable(node, i)) for i in range(max(len(node.outputs), 1))]
        several = len(names) > 1
        self.program.add_operator(tuple(names) if several else names[0], row, arguments, uses)
        numbers = (
            samples is None
            and row.host is not None
            and bool(inputs)
            and (row.reads_shape or all(isinstance(v, (Constant, type(None))) or _numbers(v) for v in inputs))
        )
        if not several:
            values = None if samples is None else [s[0] if isinstance(s, tuple) else s for s in samples]
            return self._live(names[0], values, numbers)
        return tuple(
            self._live(name, None if samples is None else [s[i] for s in samples], numbers)
            for i, name in enumerate(names)
            if samples is None or i < len(samples[0])
        )

    def _live(self, name: str, samples: list[Any] | None, numbers: bool) -> Live:
        if samples is None or not all(isinstance(sample, (Tensor, Host)) for sample in samples):
            return Live(name, self, None, numbers)
        return Live(name, self, samples, isinstance(samples[0], Host))

    def _literal(self, row: Row, position: int, value: Any, inputs: Sequence[Any], uses: set[str]) -> str:
        """Returns the source of an operator's input; short numbers are written out where they may meet sizes."""
        if isinstance(value, Constant):
            name = row.input_name(position)
            floating = value.kind.is_floating_point()
            sizes = not floating or (not value.weight and any(_numbers(other) for other in inputs))
            short = literal(value) if sizes or name in row.static or name in row.numbers else None
            if short is not None:
                return self.program.argument(short, uses, self._constant_place)
        return self.source(value, uses)

    def source(self, value: Any, uses: set[str]) -> str:
        """Returns the source of a value; notes the names it reads in `uses`."""
        if isinstance(value, Live):
            value = self.own(value)
            uses.add(value.name)
            return str(value.name)
        if isinstance(value, list):
            return f"[{', '.join(self.source(item, uses) for item in value)}]"
        if isinstance(value, Constant):
            value = self._argument(value, None)
        return self.program.argument(value, uses, self._constant_place)

    def _types(self, values: Sequence[ir.Value | None], known: Sequence[Any]) -> list[TypeOf]:
        return [self._type_of(value, item) for value, item in zip(values, known, strict=True)]

    def _type_of(self, value: ir.Value | None, known: Any) -> TypeOf:
        declared = self.owner.plan.type_of(value) if value is not None else UNKNOWN_TYPE
        if declared != UNKNOWN_TYPE:
            return declared
        if isinstance(known, list):
            return self._type_of(None, known[0])[0] if known else None, "seq"
        if isinstance(known, Constant):
            return known.kind, ""
        if isinstance(known, Live) and known.samples is not None:
            sample = known.samples[0]
            return (ir.DataType.from_numpy(sample.dtype) if isinstance(sample, Host) else onnx_type(sample.dtype)), ""
        return UNKNOWN_TYPE


def _is_known(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_known(item) for item in value)
    return value is None or isinstance(value, Constant)


def _has_samples(value: Any) -> bool:
    if isinstance(value, list):
        return all(_has_samples(item) for item in value)
    return not isinstance(value, Live) or value.samples is not None


def _numbers(value: Any) -> bool:
    """Whether a value is numbers computed from shapes."""
    return isinstance(value, Live) and value.numbers


def _flat(values: Any) -> list[Any]:
    return [x for value in values for x in (_flat(value) if isinstance(value, (list, tuple)) else [value])]


def _samples_of(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(map(_samples_of, result))
    return result.sample if isinstance(result, Traced) else result


def _alike(a: Any, b: Any) -> bool:
    """Whether two runs of a body end in the same values."""
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, Traced):
        return isinstance(b, Traced) and a.name == b.name
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype is b.dtype and a.shape == b.shape and bool(np.array_equal(a.numpy(), b.numpy(), equal_nan=True))
    return type(a) is type(b) and bool(np.all(a == b))


def _constant_numbers(samples: list[Any] | None) -> Constant | None:
    """Returns numbers computed from shapes that come out equal at every sample size as a constant."""
    if not samples or not all(isinstance(sample, Host) for sample in samples):
        return None
    first = samples[0].array
    if any(sample.array.shape != first.shape or (sample.array != first).any() for sample in samples[1:]):
        return None
    return Constant.of(from_array(np.asarray(first.astype(samples[0].dtype))))


def _check_size(row: Row, inputs: Sequence[Any]) -> None:
    """Refuses a node that asks for more memory than any real one.

    Raises:
        OperatorError: it makes more than `MAX_ELEMENTS` elements.
    """
    position = row.size_position if row.sized_by in row.counts else None
    if position is None or position >= len(inputs) or not isinstance(inputs[position], Constant):
        return
    sizes = inputs[position].numpy().astype(float)
    if sizes.size <= 64 and sizes.prod() > MAX_ELEMENTS:
        raise OperatorError(f"it makes a tensor of {sizes.prod():.0f} elements, the limit is {MAX_ELEMENTS}.")
