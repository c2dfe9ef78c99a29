"""The walk over a quantised model that finds float counterparts of its values and replaces its nodes by float nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.dequantize.grouped_weights import GroupedWeight, grouped_forms
from onnx2nn.dequantize.joined_biases import join_biases
from onnx2nn.ground.element_types import BY_NAME
from onnx2nn.importing.constants import Constant
from onnx2nn.ops import quantize
from onnx2nn.ops.quantized_numbers import limits
from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import Row
from onnx2nn.rewrite.rewrite_rule import REPLACEMENT_OPSET

_SUFFIX = re.compile(r"(_quantized|_quant|_int8|_uint8|_q|\.quantized|(_DQ)?_Q\d+(G\d+)?)$")
"""What quantisation tools append to the name of a weight."""

_NODE_SUFFIX = re.compile(r"(_quant|(_matmul)?(_DQ)?_Q\d+(G\d+)?)$")
"""What ONNX Runtime's quantisers append to the name of a node."""


@dataclass
class Dequantization:
    """The report of a dequantisation.

    Attributes:
        weights: names of the new float weights.
        operators: the number of removed nodes by quantised operator type.
        kept: names of the nodes that stay quantised, because they have no float form here.
        forms: for names of the new float weights, functions that return its integers: one for each way to read them
            as rows with scales, none where there is no such way.
    """

    def described(self) -> dict[str, Any]:
        """Returns the names and counts, as `meta` of a module has them."""
        return {"weights": self.weights, "operators": self.operators, "kept": self.kept}

    weights: list[str] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    forms: dict[str, Sequence[Callable[[], GroupedWeight]]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class FloatCounterpart:
    """The float counterpart of a quantised value.

    Attributes:
        value: the float value, of the same shape.
        scale: the scale of the quantised value.
        zero_point: its zero point.
    """

    value: ir.Value
    scale: np.ndarray[Any, Any]
    zero_point: np.ndarray[Any, Any]

    def has_parameters(self, scale: np.ndarray[Any, Any] | None, zero_point: np.ndarray[Any, Any] | None) -> bool:
        """Returns whether a reader with this scale and zero point reads the counterpart's numbers."""
        if scale is None or scale.ravel().tolist() != self.scale.ravel().tolist():
            return False
        zero = np.zeros(1) if zero_point is None else zero_point
        return bool(np.all(zero.astype(np.float64).ravel() == self.zero_point.astype(np.float64).ravel()))


@dataclass(frozen=True)
class Tensors:
    """The tensors of a framework.

    Attributes:
        F: its namespace of tensor functions.
        constants: its class of constants.
    """

    F: Any
    constants: type[Constant]

    def of(self, value: ir.Value | None) -> Any:
        """Returns the elements of a constant as a tensor, None for an absent one."""
        if value is None:
            return None
        tensor = ir.convenience.get_const_tensor(value)
        assert tensor is not None
        return self.constants("", ir.DataType(tensor.dtype), tensor).value


class _Names(set[str | None]):
    """The names of a graph's values."""

    def __init__(self, graph: ir.Graph):
        super().__init__(value.name for node in graph for value in node.outputs)
        self.update(value.name for value in (*graph.inputs, *graph.initializers.values()))

    def unused(self, wanted: str, otherwise: str = "") -> str:
        """Returns `wanted` and takes it; where it is taken, `otherwise`, numbered from 2 on where that is, too."""
        name, number = wanted, 1
        while name in self:
            name = f"{otherwise or wanted}{number if number > 1 else ''}"
            number += 1
        self.add(name)
        return name

    def free(self, name: str, origin: ir.Value) -> None:
        """Takes a name from the result of a node that reads `origin`: DequantizeLinear's may have the weight's."""
        results = (result for use in origin.uses() for result in use.node.outputs)
        for result in results:
            if result.name == name and not result.is_graph_output():
                result.name = f"{name}/dequantised"
                self.discard(name)


class Dequantizer:
    """The walk over a model.

    Args:
        model: the model, changed in place.
        rewrite_of: returns the rewrite of a quantised node, None for other nodes.
        tensors: of the framework that computes the weights.
    """

    def __init__(self, model: ir.Model, rewrite_of: Callable[[ir.Node], Rewrite | None], tensors: Tensors):
        self.graph, self.rewrite_of, self.tensors = model.graph, rewrite_of, tensors
        self.result = Dequantization()
        self.counterparts: dict[ir.Value, FloatCounterpart] = {}
        self.dynamic: dict[ir.Value, tuple[ir.Value, ir.Node]] = {}  # → float value and DynamicQuantizeLinear
        self.limits: dict[ir.Value, tuple[float, float]] = {}  # outputs of the added Clips → their limits
        self.floats: dict[Any, ir.Value] = {}
        self.replaced: list[ir.Node] = []
        self.names = _Names(self.graph)

    def run(self) -> Dequantization:
        """Walks the graph, then removes nodes and initializers without readers."""
        before = [node for node in self.graph if self._is_quantised(node)]
        for node in list(self.graph):
            rewrite = self.rewrite_of(node)
            if rewrite is not None and rewrite(self, node):
                self.replaced.append(node)
            elif not node.domain and node.op_type == "Concat":
                _dequantize_concat(self, node)
            elif is_value_preserving(node):
                self.dequantize_value_preserving(node)
        # What stays quantised may read the numbers of a counterpart that no float node does.
        _remove_unread(self.graph, {counterpart.value for counterpart in self.counterparts.values()})
        self._requantise_read_values()
        _remove_unread(self.graph)
        join_biases(self.graph)
        _remove_unread(self.graph)
        left = set(self.graph)
        _drop_suffixes(left - set(before))
        for node in before:
            if node in left:
                self.result.kept.append(node.name or node.outputs[0].name or "?")
            else:
                self.result.operators[node.op_type] = self.result.operators.get(node.op_type, 0) + 1
        return self.result

    # Float inputs.

    def constant(self, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
        """Returns the elements of a constant, None for any other value."""
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        return None if tensor is None else tensor.numpy()

    def float_of(
        self, value: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None, axis: int = 1, block: int = 0
    ) -> ir.Value | None:
        """Returns the float value that a node reads.

        Args:
            value: the quantised input.
            scale: the node's scale of this input.
            zero_point: the node's zero point of this input.
            axis: the axis of the scale's elements.
            block: the block size of a blocked scale, 0 for none.

        Returns:
            The counterpart of `value`, or a new float weight where it is a constant. None where it has no counterpart,
            or a counterpart of another scale or zero point.
        """
        if value is None:
            return None
        counterpart = self.counterparts.get(value)
        if counterpart is not None:
            return (
                counterpart.value
                if counterpart.has_parameters(self.constant(scale), self.constant(zero_point))
                else None
            )
        if self.constant(value) is None or self.constant(scale) is None:
            return None
        if zero_point is not None and self.constant(zero_point) is None:
            return None
        key = (value, scale, zero_point, axis)
        if key not in self.floats:
            numbers, scales, zero_points = (self.tensors.of(item) for item in (value, scale, zero_point))
            floats = quantize.dequantize_linear(
                self.tensors.F, numbers, scales, zero_points, axis=axis, block_size=block
            )
            made = self.floats[key] = self.weight(value, self.tensors.constants.stored(floats))
            self.result.forms[made.name or ""] = grouped_forms(
                self.tensors.F, numbers, scales, zero_points, axis, block, _type_of(value)
            )
        return self.floats[key]

    def weight(self, origin: ir.Value, constant: ir.TensorProtocol) -> ir.Value:
        """Returns a new float initializer, under the name of `origin` without a suffix such as `_quantized`."""
        wanted = _SUFFIX.sub("", origin.name or "weight")
        self.names.free(wanted, origin)
        name = self.names.unused(wanted, f"{wanted}_float")
        self.result.weights.append(name)
        constant.name = name
        value = ir.Value(name=name, const_value=constant)
        value.shape, value.dtype = ir.Shape(constant.shape.numpy()), constant.dtype
        self.graph.register_initializer(value)
        return value

    # Float nodes.

    def emit(
        self,
        before: ir.Node,
        operator: str,
        inputs: Sequence[ir.Value | None],
        like: ir.Value,
        *,
        version: int = REPLACEMENT_OPSET,
        placed: bool = True,
        **attributes: Any,
    ) -> ir.Value:
        """Inserts a node before another one, in its module if it is `placed`; returns its output, of `like`'s shape."""
        options = ir.convenience.convert_attributes(attributes)
        node = ir.Node("", operator, inputs, options, version=version)
        if placed:
            node.name = before.name
            node.metadata_props.update(before.metadata_props)
        output = node.outputs[0]
        name = self.names.unused(f"{like.name}_float")
        kind = like.dtype if like.dtype is not None and like.dtype.is_floating_point() else ir.DataType.FLOAT
        output.name, output.shape, output.type = name, like.shape, ir.TensorType(kind)
        self.graph.insert_before(before, node)
        return output

    def set_counterpart(
        self, node: ir.Node, value: ir.Value, scale: ir.Value | None, zero_point: ir.Value | None
    ) -> bool:
        """Makes `value`, clipped to the range of the integer dtype, the counterpart of the node's output.

        Returns:
            Whether it did. Per-axis scales, scales known at run time only and small float dtypes are not covered.
        """
        steps, zero = self.constant(scale), self.constant(zero_point)
        output = node.outputs[0]
        tensor = None if zero_point is None else ir.convenience.get_const_tensor(zero_point)
        kind = ir.DataType.UINT8 if tensor is None else tensor.dtype
        element = BY_NAME.get(kind.name)
        if steps is None or steps.size != 1 or (zero_point is not None and (zero is None or zero.size != 1)):
            return False
        if value.dtype not in (None, ir.DataType.FLOAT):
            return False
        if element is None or element.small is not None or element.largest is not None:
            return False
        zero = np.zeros(()) if zero is None else zero.astype(np.float64)
        low, high = ((limit - float(zero.reshape(()))) * float(steps.reshape(())) for limit in limits(element))
        if not self.is_within(value, low, high):
            ends = (ir.tensor(np.array(bound, np.float32)) for bound in (low, high))
            bounds = [self.emit(node, "Constant", [], output, placed=False, value=bound) for bound in ends]
            for bound in bounds:
                bound.shape = ir.Shape([])
            value = self.emit(node, "Clip", [value, *bounds], output, placed=False)
            self.limits[value] = (low, high)
        self.counterparts[output] = FloatCounterpart(value, steps, zero)
        return True

    def is_within(self, value: ir.Value, low: float, high: float) -> bool:
        """Returns whether a value lies between two numbers: an added Clip with such limits gives it, or a weight."""
        producer: ir.Node | None = value.producer()
        while value not in self.limits:
            known = self.constant(value)
            if known is not None:
                return bool(known.size) and low <= known.min() and known.max() <= high
            if producer is None or not (is_value_preserving(producer) or producer.op_type == "GlobalAveragePool"):
                return False
            first = producer.inputs[0]
            if first is None:
                return False
            value, producer = first, first.producer()
        limits = self.limits[value]
        return low <= limits[0] and limits[1] <= high

    def dequantize_value_preserving(self, node: ir.Node) -> None:
        """Sets the counterpart of a value-preserving node's output: a copy of the node on the input's counterpart."""
        first = node.inputs[0] if node.inputs else None
        if first not in self.counterparts or len(node.outputs) != 1:
            return
        assert first is not None
        counterpart = self.counterparts[first]
        copy = ir.Node(
            node.domain,
            node.op_type,
            [counterpart.value, *node.inputs[1:]],
            node.attributes.values(),
            version=node.version,
        )
        copy.name = node.name
        output = copy.outputs[0]
        output.name = f"{node.outputs[0].name}_float"
        self.names.add(output.name)
        output.shape, output.type = node.outputs[0].shape, ir.TensorType(ir.DataType.FLOAT)
        self.graph.insert_before(node, copy)
        self.counterparts[node.outputs[0]] = FloatCounterpart(output, counterpart.scale, counterpart.zero_point)
        self.replaced.append(node)

    def replace(self, node: ir.Node, old: ir.Value, new: ir.Value) -> None:
        """Lets all readers of `old` read `new`; an output of the model keeps its name."""
        for user, index in list(old.uses()):
            user.replace_input_with(index, new)
        for index, output in enumerate(self.graph.outputs):
            if output is old:
                last = self.emit(node, "Identity", [new], old)
                last.name, old.name = old.name, f"{old.name}_quantised"
                self.graph.outputs[index] = last

    def _requantise_read_values(self) -> None:
        """Quantises counterparts for the remaining readers of integers: outputs, and nodes that stay quantised."""
        done = set(self.replaced)
        for value, counterpart in self.counterparts.items():
            producer = value.producer()
            if (
                producer is None
                or producer not in done
                or producer.graph is None
                or producer.op_type == "QuantizeLinear"
            ):
                continue
            row = TABLE.newest(producer.domain, producer.op_type)
            scale, zero_point = (None, None) if row is None else output_parameters(row, producer)
            if scale is None:
                continue
            quantised = ir.Node("", "QuantizeLinear", [counterpart.value, scale, zero_point], version=REPLACEMENT_OPSET)
            quantised.outputs[0].name = f"{value.name}_again"
            quantised.outputs[0].type, quantised.outputs[0].shape = value.type, value.shape
            self.graph.insert_after(producer, quantised)
            for user, index in list(value.uses()):
                user.replace_input_with(index, quantised.outputs[0])
            for index, output in enumerate(self.graph.outputs):
                if output is value:
                    quantised.outputs[0].name, value.name = value.name, f"{value.name}_gone"
                    self.graph.outputs[index] = quantised.outputs[0]

    def _is_quantised(self, node: ir.Node) -> bool:
        return self.rewrite_of(node) is not None or "Quant" in node.op_type or "NBits" in node.op_type


Rewrite = Callable[[Dequantizer, ir.Node], bool]
"""Sets the float counterpart of a quantised node's output, or replaces the output; returns whether it did."""


def is_value_preserving(node: ir.Node) -> bool:
    """Returns whether a node's output has elements of its first input only, with the same scale and zero point."""
    return not node.domain and "value_preserving" in TABLE.traits_of(node.op_type)


def _dequantize_concat(dequantizer: Dequantizer, node: ir.Node) -> None:
    """Sets the counterpart of a Concat's output where all its inputs have one scale and zero point."""
    counterparts = [dequantizer.counterparts.get(value) for value in node.inputs if value is not None]
    first = counterparts[0] if counterparts else None
    if first is None or not all(
        counterpart is not None and counterpart.has_parameters(first.scale, first.zero_point)
        for counterpart in counterparts
    ):
        return
    parts = [counterpart.value for counterpart in counterparts if counterpart is not None]
    y = dequantizer.emit(node, "Concat", parts, node.outputs[0], **attributes_of(node))
    dequantizer.counterparts[node.outputs[0]] = FloatCounterpart(y, first.scale, first.zero_point)
    dequantizer.replaced.append(node)


def output_parameters(row: Row, node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """Returns scale and zero point of a quantised node's output: those that belong to none of its inputs."""

    names = [name.lower() for name in row.inputs]
    for position, name in enumerate(names):
        if name.endswith("_scale") and name.removesuffix("_scale") not in names:
            scale, zero_point = inputs(node, position + 2)[position:]
            return scale, zero_point
    return None, None


def attributes_of(node: ir.Node, *left_out: str) -> dict[str, Any]:
    """Returns the attribute values of a node by name, without those named in `left_out`."""
    return {name: attr.value for name, attr in node.attributes.items() if name not in left_out}


def inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    """Returns the first `count` inputs of a node, None for absent ones."""

    return [*node.inputs, *[None] * count][:count]


def _type_of(value: ir.Value) -> ir.DataType | None:
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else ir.DataType(tensor.dtype)


def _drop_suffixes(nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        node.name = _NODE_SUFFIX.sub("", node.name or "") or node.name


def _remove_unread(graph: ir.Graph, kept: Container[ir.Value] = ()) -> None:
    """Removes nodes without readers, but for those of values to keep, and then initializers."""
    for node in reversed(list(graph)):
        if not any(output.uses() or output.is_graph_output() or output in kept for output in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]
