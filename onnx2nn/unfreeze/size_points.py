"""Runs a graph on meta tensors at several sizes of its dynamic dimensions, side by side.

A *point* is one choice of these sizes; the first is the file's own. A value is known at every point: as a tensor with
elements where it is computed from constants and shapes alone, else as a meta tensor, which has a shape and a dtype.
The op table's rows give the next value, so that a node that refuses a size does so here as it would in a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx2nn.errors import ModelFileError, OperatorError
from onnx2nn.fx.constants import to_torch, torch_dtype
from onnx2nn.importing.node_facts import attribute_values, call_attributes, check_inputs, facts
from onnx2nn.importing.plan import Plan, version_of
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.unfreeze.substitutions import Dimension, Substitution

MAX_ELEMENTS = 1 << 12
"""Elements of a tensor of more are not computed: sizes are made of less."""

UNKNOWN: Any = None
"""Stands for a value of which nothing is known: a string, a sequence, what data decide, an absent input."""

Points = tuple[Any, ...]
"""A value at every point: tensors or `UNKNOWN`."""

Substituted = dict[int, Substitution]
"""What takes the place of a node's inputs, by position."""


class StuckNodeError(Exception):
    """A node that works at the file's sizes refuses others, or one refuses the file's.

    Attributes:
        node: the node.
        inputs: its inputs at every point.
        step: how many nodes went before it.
        walk: the way through the graph that ends there.
    """

    def __init__(self, node: ir.Node, inputs: Sequence[Points], step: int, walk: Walk, reason: str):
        super().__init__(reason)
        self.node, self.inputs, self.step, self.walk = node, inputs, step, walk


@dataclass
class Walk:
    """One way through the graph.

    Attributes:
        values: what is known of every value, outer graphs and function bodies included.
        substitutions: what takes the place of inputs, by node.
    """

    values: dict[ir.Value, Points] = field(default_factory=dict)
    substitutions: dict[ir.Node, Substituted] = field(default_factory=dict)

    def shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Returns a value's shape at the file's sizes, None where it is not known."""
        known = None if value is None else self.values.get(value)
        return None if known is None or known[0] is UNKNOWN else tuple(known[0].shape)


Substitute = Callable[[ir.Node, Sequence[Points], Walk], Substituted]
"""Says what takes the place of a node's inputs, from what they are at every point."""


class SizePoints:
    """The graph of a model at several points.

    Args:
        model: the model.
        plan: its plan.
        inputs: the shape of every input of the graph at every point, None where it is no tensor of known rank.
    """

    def __init__(self, model: ir.Model, plan: Plan, inputs: Mapping[str, Sequence[tuple[int, ...]] | None]):
        self._model, self._plan, self._inputs = model, plan, inputs
        self.count = max((len(shapes) for shapes in inputs.values() if shapes is not None), default=1)
        self._nothing: Points = (UNKNOWN,) * self.count
        self._constants: dict[ir.Value, Points] = {}
        self._done: dict[Any, tuple[Any, tuple[Points, ...]]] = {}  # what nodes gave, for a walk repeats most of them
        self._step = 0

    def run(self, substitute: Substitute) -> Walk:
        """Goes through the graph.

        Args:
            substitute: called before every node.

        Raises:
            StuckNodeError: a node refuses a point.
        """
        walk, self._step = Walk(), 0
        for value in self._model.graph.inputs:
            walk.values[value] = self._input(value)
        self._graph(self._model.graph, walk, substitute, {}, dict(self._model.graph.opset_imports))
        return walk

    def _input(self, value: ir.Value) -> Points:
        shapes = self._inputs.get(value.name or "")
        if shapes is None or value.dtype is None or value.dtype == ir.DataType.STRING:
            return self._nothing
        return tuple(torch.empty(shape, dtype=torch_dtype(value.dtype), device="meta") for shape in shapes)

    def _graph(
        self,
        graph: ir.Graph | ir.Function,
        walk: Walk,
        substitute: Substitute,
        referred: Mapping[str, ir.Attr],
        opsets: Mapping[str, int],
    ) -> list[Points]:
        for value in graph.initializers.values() if isinstance(graph, ir.Graph) else ():
            walk.values[value] = self._constant(value)
        for node in graph:
            inputs = [self._nothing if v is None else walk.values.get(v, self._nothing) for v in node.inputs]
            self._step += 1
            results = self._node(node, inputs, walk, substitute, referred, opsets)
            for position, value in enumerate(node.outputs):
                walk.values[value] = results[position] if position < len(results) else self._nothing
        return [walk.values.get(value, self._nothing) for value in graph.outputs]

    def _constant(self, value: ir.Value) -> Points:
        if value not in self._constants:
            known: Any = UNKNOWN
            tensor = value.const_value
            if tensor is not None and tensor.dtype != ir.DataType.STRING:
                known = _tensor(tensor)
            self._constants[value] = (known,) * self.count
        return self._constants[value]

    def _node(
        self,
        node: ir.Node,
        inputs: list[Points],
        walk: Walk,
        substitute: Substitute,
        referred: Mapping[str, ir.Attr],
        opsets: Mapping[str, int],
    ) -> Sequence[Points]:
        try:
            entry = self._plan.find(node, version_of(node, opsets), attributes=referred)
        except OperatorError:  # the import names it
            return []
        if not isinstance(entry, Row):
            for value, known in zip(entry.inputs, [*inputs, *[self._nothing] * len(entry.inputs)], strict=False):
                walk.values[value] = known
            own = {**opsets, **entry.opset_imports}
            return self._graph(entry, walk, substitute, call_attributes(node, entry, referred), own)
        if entry.call == "subgraph":
            return self._control_flow(node, inputs, walk, substitute, referred, opsets)
        found = substitute(node, inputs, walk)
        if found:
            walk.substitutions[node] = found
            inputs = [self._replaced(v, found[i], walk) if i in found else v for i, v in enumerate(inputs)]
        key = (node, tuple(map(id, inputs)), bool(referred))
        if found or referred or key not in self._done:
            results = self._row(node, entry, inputs, referred, walk)
            self._done[key] = (inputs, results)  # which keeps the inputs, whose ids are the key
        return self._done[key][1]

    def _replaced(self, value: Points, substitution: Substitution, walk: Walk) -> Points:
        def size_of(dimension: Dimension, point: int) -> int:
            return int(walk.values[dimension[0]][point].shape[dimension[1]])

        return tuple(
            substitution.at(known, lambda dimension, point=point: size_of(dimension, point))  # type: ignore[misc]
            for point, known in enumerate(value)
        )

    def _row(
        self, node: ir.Node, row: Row, inputs: Sequence[Points], referred: Mapping[str, ir.Attr], walk: Walk
    ) -> tuple[Points, ...]:
        columns: list[Sequence[Any]] = []
        for point in range(self.count):
            try:
                columns.append(self._at(node, row, [value[point] for value in inputs], referred))
            except (NeedsValues, NotImplementedError, ModelFileError):
                return ()
            except Exception as error:  # whatever torch or the body says of the shapes
                if "meta tensor" in str(error):  # it reads elements
                    return ()
                reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
                raise StuckNodeError(node, inputs, self._step, walk, reason) from error
        return tuple(zip(*columns, strict=True))

    def _at(self, node: ir.Node, row: Row, inputs: list[Any], referred: Mapping[str, ir.Attr]) -> Sequence[Any]:
        """Returns a node's outputs at one point.

        Raises:
            NeedsValues: they depend on data.
        """
        absent = [value is None for value in node.inputs]
        if any(value is UNKNOWN and not gone for value, gone in zip(inputs, absent, strict=True)):
            raise NeedsValues("an input is not known")
        attributes = attribute_values(node, row, referred, _tensor)
        attributes |= facts(self._plan, node, row)
        check_inputs(row, inputs)
        if row.reads_shape:
            assert row.host is not None
            return [torch.from_numpy(np.asarray(row.host(inputs[0], **attributes), dtype=np.int64))]
        known = all(value is None or value.device.type == "cpu" for value in inputs)
        arguments = [_argument(row, position, value) for position, value in enumerate(inputs)]
        if row.random or (row.call == "opaque" and not known):
            raise NeedsValues("only a run tells its results")
        if row.call != "opaque":
            try:
                results = _on_meta(row, arguments, attributes)
            except (NeedsValues, NotImplementedError, RuntimeError):
                if not known:
                    raise
            else:
                if not known or sum(result.numel() for result in results) > MAX_ELEMENTS:
                    return results
        return _listed(row.run(torch, *arguments, **attributes))

    def _control_flow(
        self,
        node: ir.Node,
        inputs: Sequence[Points],
        walk: Walk,
        substitute: Substitute,
        referred: Mapping[str, ir.Attr],
        opsets: Mapping[str, int],
    ) -> Sequence[Points]:
        """Goes through the branches of an If, and the body of a loop once, as for its first iteration."""
        if node.op_type == "If":
            branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
            condition = inputs[0][0]
            if condition is not UNKNOWN and condition.device.type == "cpu" and _same(inputs[0]):
                taken = branches[0 if bool(condition.all()) else 1]
                return self._graph(taken, walk, substitute, referred, opsets)
            found = [self._graph(branch, walk, substitute, referred, opsets) for branch in branches]
            return [one if _alike(one, other) else self._nothing for one, other in zip(*found, strict=True)]
        if node.op_type == "Loop":
            body = node.attributes["body"].as_graph()
            first = [tuple(torch.empty((), dtype=t, device="meta") for _ in range(self.count)) for t in _COUNTERS]
            carried = [_unread(value) for value in inputs[2:]]
            walk.values |= dict(zip(body.inputs, [*first, *carried], strict=False))
            results = self._graph(body, walk, substitute, referred, opsets)[1 : 1 + len(carried)]
            return [a if _alike(a, b) else self._nothing for a, b in zip(carried, results, strict=True)]
        return []


_COUNTERS = (torch.int64, torch.bool)
"""The first two inputs of a loop's body: the iteration number and the condition."""


def _tensor(tensor: ir.TensorProtocol) -> torch.Tensor:
    """Returns a tensor of the file, without its elements where it is large."""
    kind = ir.DataType(tensor.dtype)
    if tensor.size > MAX_ELEMENTS:
        return torch.empty(tuple(tensor.shape.numpy()), dtype=torch_dtype(kind), device="meta")
    return to_torch(tensor.numpy(), kind)


def _argument(row: Row, position: int, value: Any) -> Any:
    name = row.input_name(position)
    if value is None:
        return None
    if name in row.static:
        if value.device.type == "meta":
            raise NeedsValues(f"input {name} is computed from data")
        return value.tolist()
    if name in row.numbers and value.device.type == "cpu" and not value.ndim:
        return value.item()
    return value


def _on_meta(row: Row, arguments: Sequence[Any], attributes: dict[str, Any]) -> list[torch.Tensor]:
    metas = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in arguments]
    with torch.no_grad():
        try:
            with torch.device("meta"):
                results = row.body(torch, *metas, **attributes)
        except RuntimeError as error:
            if "meta tensor" not in str(error):
                raise
            results = row.body(torch, *metas, **attributes)  # it reads what it makes itself, on the CPU
    return [result.to("meta") for result in _listed(results)]


def _listed(results: Any) -> list[torch.Tensor]:
    listed = list(results) if isinstance(results, tuple) else [results]
    if not all(isinstance(result, torch.Tensor) for result in listed):
        raise NeedsValues("a result is no tensor")
    return listed


def _same(value: Points) -> bool:
    """Returns whether a value has the same elements at every point."""
    return all(torch.equal(known, value[0]) for known in value)


def _alike(one: Points, other: Points) -> bool:
    """Returns whether two values have the same shapes and dtypes at every point."""
    pairs = zip(one, other, strict=True)
    return all(a is not UNKNOWN and b is not UNKNOWN and (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)


def _unread(value: Points) -> Points:
    """Returns a value without its elements, which differ from one iteration to the next."""
    return tuple(known if known is UNKNOWN else known.to("meta") for known in value)


def is_known(value: Points) -> bool:
    """Returns whether the elements of a value are known at every point."""
    return all(known is not UNKNOWN and known.device.type == "cpu" for known in value)


def sizes_of(value: Points, axis: int) -> tuple[int, ...]:
    """Returns a dimension of a value whose shape is known, at every point."""
    return tuple(int(known.shape[axis]) for known in value)


def is_dynamic(value: Points) -> bool:
    """Returns whether a value's shape is known, and not the same at every point."""
    return value[0] is not UNKNOWN and len({tuple(known.shape) for known in value}) > 1


def elements(value: Points) -> int:
    """Returns the number of elements at the file's sizes, 0 where it is not known."""
    return 0 if value[0] is UNKNOWN else math.prod(value[0].shape)
