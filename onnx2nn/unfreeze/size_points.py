"""Walks a graph on meta tensors at several sizes of its dynamic dimensions at once.

A *point* is one choice of these sizes; the first one has the file's sizes. A value is a tensor at every point: with
elements where it is computed from constants and shapes only, else a meta tensor, which has a shape and a dtype. The op
table's rows compute each value, so that a node refuses a size here if it would in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx2nn.errors import OperatorError, first_line
from onnx2nn.fx.constants import onnx_type, to_torch, torch_dtype
from onnx2nn.importing.builder import Builder, Regions
from onnx2nn.importing.control_flow import branches_of, loop_form
from onnx2nn.importing.import_state import ImportState
from onnx2nn.importing.node_facts import Scope
from onnx2nn.importing.plan import Plan, TypeOf
from onnx2nn.importing.walk import UNKNOWN, Walk
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.unfreeze.substitutions import Dimension, Substitution

MAX_ELEMENTS = 1 << 12
"""The most elements of a tensor that is computed; larger ones do not hold sizes."""


class Points:
    """A value at every point.

    Attributes:
        at: the tensors.
    """

    __slots__ = ("at",)

    def __init__(self, at: Sequence[torch.Tensor]):
        self.at = tuple(at)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.at)

    @property
    def frozen(self) -> torch.Tensor:
        """The tensor at the file's sizes."""
        return self.at[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape at the file's sizes."""
        return tuple(self.at[0].shape)

    def sizes(self, axis: int) -> tuple[int, ...]:
        """Returns a dimension at every point."""
        return tuple(int(known.shape[axis]) for known in self.at)

    def varies(self, axis: int) -> bool:
        """Returns whether a dimension is not the same at every point."""
        return len(set(self.sizes(axis))) > 1

    @property
    def is_dynamic(self) -> bool:
        """Whether the shape is not the same at every point."""
        return len({known.shape for known in self.at}) > 1

    @property
    def is_known(self) -> bool:
        """Whether the elements are known at every point."""
        return all(known.device.type == "cpu" for known in self.at)

    def unread(self) -> Points:
        """Returns the value as meta tensors."""
        return Points([known.to("meta") for known in self.at])

    def is_like(self, other: Any) -> bool:
        """Returns whether another value has the same shapes and dtypes at every point."""
        if not isinstance(other, Points):
            return False
        return all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(self.at, other.at, strict=True))


Substituted = dict[int, Substitution]
"""The substitutions for a node's inputs, by position."""

Values = Mapping["ir.Value", Points]
"""The known values so far."""

Substitute = Callable[["ir.Node", Sequence["Points | None"], Values], Substituted]
"""Returns the substitutions for a node's inputs, from their values at every point."""


class NodeConflictError(Exception):
    """A node refuses the sizes at a point.

    Attributes:
        node: the node.
        inputs: its inputs at every point, None for an absent one.
        step: the number of nodes before it.
        values: the known values before it.
    """

    def __init__(self, node: ir.Node, inputs: Sequence[Points | None], step: int, values: Values, reason: str):
        super().__init__(reason)
        self.node, self.inputs, self.step, self.values = node, inputs, step, values


class SizePoints:
    """The graph of a model at several points.

    Args:
        model: the model.
        plan: its plan.
        inputs: the shape of every input of the graph at every point, without inputs that are no tensors of known rank.
    """

    def __init__(self, model: ir.Model, plan: Plan, inputs: Mapping[str, Sequence[tuple[int, ...]]]):
        self.model, self.plan, self._inputs = model, plan, inputs
        self.count = max(map(len, inputs.values()), default=1)
        self.constants: dict[ir.Value, Any] = {}
        self.done: dict[Hashable, tuple[Sequence[Any], Any]] = {}

    def run(self, substitute: Substitute) -> PointsBuilder:
        """Walks the graph; returns the builder, which holds the substitutions and the known values.

        Args:
            substitute: called before every node.

        Raises:
            NodeConflictError: a node refuses the sizes at a point.
        """
        builder = PointsBuilder(self, substitute)
        scope = Scope()
        for value in self.model.graph.inputs:
            scope[value] = self._input(value)
            builder.keep(value, scope[value])
        Walk(builder, scope, self.model.graph, dict(self.model.graph.opset_imports)).run()
        return builder

    def _input(self, value: ir.Value) -> Any:
        shapes = self._inputs.get(value.name or "")
        if shapes is None or value.dtype is None or value.dtype == ir.DataType.STRING:
            return UNKNOWN
        return Points([torch.empty(shape, dtype=torch_dtype(value.dtype), device="meta") for shape in shapes])


class PointsBuilder(Builder):
    """Computes the results of nodes at every point; data-dependent results are `UNKNOWN`.

    Attributes:
        values: the known values.
        substitutions: the substitutions by node.
    """

    passing = (NodeConflictError,)

    def __init__(self, points: SizePoints, substitute: Substitute):
        super().__init__(ImportState(points.model, points.plan), _REGIONS)
        self.points, self._substitute = points, substitute
        self.values: dict[ir.Value, Points] = {}
        self.substitutions: dict[ir.Node, Substituted] = {}
        self._step = 0

    def initializer(self, graph: ir.Graph, value: ir.Value) -> Any:
        """Returns a constant, the same at every point."""
        constants = self.points.constants
        if value not in constants:
            tensor = value.const_value
            readable = tensor is not None and tensor.dtype != ir.DataType.STRING
            constants[value] = Points([self.attribute(tensor)] * self.points.count) if readable else UNKNOWN
        return constants[value]

    def inputs(self, node: ir.Node, values: Sequence[Any]) -> list[Any]:
        """Returns the inputs of a node, after substitutions."""
        self._step += 1
        if any(value is UNKNOWN for value in values):
            raise OperatorError("an input is not known.")
        found = self._substitute(node, values, self.values)
        if not found:
            return list(values)
        self.substitutions[node] = found
        return [self._replaced(v, found[i]) if i in found else v for i, v in enumerate(values)]

    def _replaced(self, value: Points, substitution: Substitution) -> Points:
        def sizes_at(point: int) -> Callable[[Dimension], int]:
            return lambda dimension: self.values[dimension[0]].sizes(dimension[1])[point]

        return Points([substitution.at(known, sizes_at(point)) for point, known in enumerate(value)])

    def output(self, value: Any) -> Any:
        """Returns the value."""
        return value

    def type_of(self, value: Any) -> TypeOf:
        """Returns the ONNX type of a value."""
        return onnx_type(value.frozen.dtype) if isinstance(value, Points) else None, ""

    def replay(self, node: ir.Node, version: int, inputs: Sequence[Any]) -> tuple[Hashable, Any]:
        """Returns the node's result in an earlier walk for the same inputs; a search repeats most of the walk."""
        if isinstance(node.graph, ir.Function):  # the result may depend on attributes of the call
            return None, None
        key = (node, *map(id, inputs))
        return key, self.points.done.get(key, (None, None))[1]

    def learn(self, key: Hashable, row: Row, inputs: Sequence[Any], run: Callable[[], Any]) -> Any:
        """Returns the result of `run`, and notes it."""
        result = run()
        if key is not None and isinstance(result, Points):
            self.points.done[key] = (inputs, result)  # keeps the inputs alive, because the key holds their ids
        return result

    def attribute(self, tensor: ir.TensorProtocol | None) -> Any:
        """Returns a tensor of the file, as a meta tensor where it is large."""
        assert tensor is not None
        kind = ir.DataType(tensor.dtype)
        if tensor.size > MAX_ELEMENTS:
            return torch.empty(tuple(tensor.shape.numpy()), dtype=torch_dtype(kind), device="meta")
        return to_torch(tensor.numpy(), kind)

    def fold(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the result of a node without inputs."""
        return self.compute(node, row, inputs, attributes)

    def compute(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the result of a node at every point.

        Raises:
            OperatorError: the result is data-dependent.
            NodeConflictError: the node refuses the sizes at a point.
        """
        columns = []
        for point in range(self.points.count):
            values = [None if value is None else value.at[point] for value in inputs]
            try:
                columns.append(_at_point(row, values, attributes))
            except (NeedsValues, NotImplementedError) as error:
                raise OperatorError(str(error)) from None
            except Exception as error:  # any error of torch or of the body
                if _reads_meta(error):
                    raise OperatorError("its results depend on data.") from None
                raise NodeConflictError(node, inputs, self._step, self.values, first_line(error)) from error
        results = tuple(map(Points, zip(*columns, strict=True)))
        return results[0] if len(results) == 1 else results

    record = record_opaque = compute

    def keep(self, value: ir.Value, result: Any) -> None:
        """Notes a known value."""
        if isinstance(result, Points):
            self.values[value] = result

    def for_function(self) -> PointsBuilder:
        """Returns this builder: a function is walked in place."""
        return self

    def called(
        self, node: ir.Node, function: ir.Function, body: PointsBuilder, outputs: Sequence[Any]
    ) -> Sequence[Any]:
        """Returns the outputs of a function's call."""
        return list(outputs)[: len(node.outputs)]


def _at_point(row: Row, values: Sequence[Any], attributes: dict[str, Any]) -> list[torch.Tensor]:
    """Returns the outputs at one point.

    Raises:
        NeedsValues: they are data-dependent.
    """
    if row.reads_shape:
        assert row.on_shape_values is not None
        return [torch.from_numpy(np.asarray(row.on_shape_values(values[0], **attributes), dtype=np.int64))]
    known = all(value is None or value.device.type == "cpu" for value in values)
    arguments = [_argument(row, position, value) for position, value in enumerate(values)]
    if row.random or (row.call == "opaque" and not known):
        raise NeedsValues("only a run tells its results")
    if row.call != "opaque":
        try:
            results = _on_meta(row, arguments, attributes)
        except (NeedsValues, RuntimeError):
            if not known:
                raise
        else:
            if not known or sum(result.numel() for result in results) > MAX_ELEMENTS:
                return results
    return _listed(row.run(torch, *arguments, **attributes))


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
            if not _reads_meta(error):
                raise
            results = row.body(torch, *metas, **attributes)  # the body reads tensors that it creates itself, on the CPU
    return [result.to("meta") for result in _listed(results)]


def _reads_meta(error: Exception) -> bool:
    """Returns whether an error is about reading the elements of a meta tensor."""
    return "meta tensor" in str(error)


def _listed(results: Any) -> list[torch.Tensor]:
    listed = list(results) if isinstance(results, tuple) else [results]
    if not all(isinstance(result, torch.Tensor) for result in listed):
        raise NeedsValues("a result is no tensor")
    return listed


def _if(walk: Walk[PointsBuilder], node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Walks the branch that is taken at every point, or both branches."""
    branches = branches_of(node)
    (condition,) = inputs
    if condition.is_known and len({bool(known.all()) for known in condition}) == 1:
        return walk.inside(branches[0 if bool(condition.frozen.all()) else 1], {})
    found = [walk.inside(branch, {}) for branch in branches]
    return [one if one.is_like(other) else UNKNOWN for one, other in zip(*found, strict=True)]


def _loop(walk: Walk[PointsBuilder], node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Walks the body once, as in the first iteration; the trip count and the scan outputs are unknown."""
    form = loop_form(node, inputs)
    count = walk.builder.points.count
    counters = [Points([torch.empty((), dtype=dtype, device="meta")] * count) for dtype in (torch.int64, torch.bool)]
    carried = [value.unread() for value in form.initial]
    for value, known in (bindings := dict(zip(form.body.inputs, [*counters, *carried], strict=True))).items():
        walk.builder.keep(value, known)
    results = walk.inside(form.body, bindings)[1 : 1 + len(carried)]
    known_after = [one if one.is_like(other) else UNKNOWN for one, other in zip(carried, results, strict=True)]
    return [*known_after, *[UNKNOWN] * (len(node.outputs) - len(carried))]


_REGIONS: Regions = {("If", 1): _if, ("Loop", 1): _loop}
