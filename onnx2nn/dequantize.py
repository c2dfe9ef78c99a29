"""Quantised models as float ones: weights become floats that train, activations are no longer rounded.

A quantised value stands for a float one. Every node that makes a quantised value gets a float twin; what reads it
through DequantizeLinear reads the twin. The range that the integers could hold stays, as a Clip: tools that quantise
leave out a Relu, or a Clip at 6, where the integers cannot go beyond. So a dequantised model differs from the quantised
one by rounding alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx2nn.constants import Constant
from onnx2nn.elements import BY_NAME
from onnx2nn.ops import quantize
from onnx2nn.rewrite.rule import STANDARD

MICROSOFT = "com.microsoft"

_SUFFIX = re.compile(r"(_quantized|_quant|_int8|_uint8|_q|\.quantized)$")
_UNCHANGED = {
    "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Gather", "MaxPool", "Expand",
    "Tile", "Split", "DepthToSpace", "SpaceToDepth", "ReduceMax", "ReduceMin", "GatherElements", "GatherND",
}  # fmt: skip
"""Operators that give some of the numbers they get, whatever those stand for: the first input's."""


@dataclass
class Dequantization:
    """What was done.

    Attributes:
        weights: names of the float weights that were made.
        operators: how many nodes of each quantising operator are gone.
        kept: nodes that are quantised as before, because what they compute has no float form here.
    """

    weights: list[str] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Twin:
    """The float value that a quantised one stands for, and how."""

    value: ir.Value
    scale: np.ndarray[Any, Any]
    zero_point: np.ndarray[Any, Any]

    def same(self, scale: np.ndarray[Any, Any] | None, zero_point: np.ndarray[Any, Any] | None) -> bool:
        """Returns whether a reader takes the numbers for what they stand for."""
        if scale is None or scale.ravel().tolist() != self.scale.ravel().tolist():
            return False
        zero = np.zeros(1) if zero_point is None else zero_point
        return bool(np.all(zero.astype(np.float64).ravel() == self.zero_point.astype(np.float64).ravel()))


def dequantize(model: ir.Model) -> Dequantization:
    """Makes a quantised model a float one, in place.

    Args:
        model: as `reader.read` gives it.

    Returns:
        What was done; operators that stay quantised are named there.
    """
    return _Dequantizer(model).run()


class _Dequantizer:
    def __init__(self, model: ir.Model):
        self.model, self.graph = model, model.graph
        self.result = Dequantization()
        self.twins: dict[ir.Value, _Twin] = {}
        self.ranges: dict[ir.Value, tuple[ir.Value, ir.Node]] = {}  # dynamically quantised: what of, and by which node
        self.floats: dict[Any, ir.Value] = {}
        self.replaced: list[ir.Node] = []
        self.names = {value.name for node in self.graph for value in node.outputs}
        self.names |= {value.name for value in (*self.graph.inputs, *self.graph.initializers.values())}

    def run(self) -> Dequantization:
        """Walks the graph, then removes what nothing reads any more."""
        before = [node for node in self.graph if _is_quantising(node)]
        for node in list(self.graph):
            rewrite = _REWRITES.get((node.domain, node.op_type))
            if rewrite is not None and rewrite(self, node):
                self.replaced.append(node)
            elif not node.domain and node.op_type == "Concat":
                self.join(node)
            elif not node.domain and node.op_type in _UNCHANGED:
                self.pass_on(node)
        self._remove_dead()
        self._quantise_what_is_read()
        self._remove_dead()
        left = set(self.graph)
        for node in before:
            if node in left:
                self.result.kept.append(node.name or node.outputs[0].name or "?")
            else:
                self.result.operators[node.op_type] = self.result.operators.get(node.op_type, 0) + 1
        return self.result

    # What nodes read.

    def constant(self, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
        """Returns the values of a constant, None where it is none."""
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        return None if tensor is None else tensor.numpy()

    def float_of(
        self, value: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None, axis: int = 1, block: int = 0
    ) -> ir.Value | None:
        """Returns the float value that a quantised one stands for to a reader with this scale and zero point."""
        if value is None:
            return None
        twin = self.twins.get(value)
        if twin is not None:
            return twin.value if twin.same(self.constant(scale), self.constant(zero_point)) else None
        if self.constant(value) is None or self.constant(scale) is None:
            return None
        if zero_point is not None and self.constant(zero_point) is None:
            return None
        key = (value, scale, zero_point, axis)
        if key not in self.floats:
            tensors = [_tensor(item) for item in (value, scale, zero_point)]
            floats = quantize.dequantize_linear(torch, *tensors, axis=axis, block_size=block)
            self.floats[key] = self.weight(value, floats)
        return self.floats[key]

    def weight(self, origin: ir.Value, tensor: torch.Tensor) -> ir.Value:
        """Returns a new float initializer, called as the quantised one without its ending."""
        name = wanted = _SUFFIX.sub("", origin.name or "weight")
        number = 0
        while name in self.names:
            number += 1
            name = f"{wanted}_float{number if number > 1 else ''}"
        self.names.add(name)
        self.result.weights.append(name)
        value = ir.Value(name=name, const_value=ir.tensor(tensor.contiguous(), name=name))
        value.shape, value.dtype = ir.Shape(tensor.shape), value.const_value.dtype  # type: ignore[union-attr]
        self.graph.register_initializer(value)
        return value

    # What takes the place of nodes.

    def emit(
        self, before: ir.Node, operator: str, inputs: Sequence[ir.Value | None], like: ir.Value, **attributes: Any
    ) -> ir.Value:
        """Adds a node in front of `before`; its output has the shape of `like`."""
        node = ir.Node(
            "", operator, inputs, ir.convenience.convert_attributes(attributes), version=STANDARD, name=before.name
        )
        node.metadata_props.update(before.metadata_props)
        output = node.outputs[0]
        name, number = f"{like.name}_float", 1
        while name in self.names:
            number += 1
            name = f"{like.name}_float{number}"
        self.names.add(name)
        output.name, output.shape, output.type = name, like.shape, ir.TensorType(ir.DataType.FLOAT)
        self.graph.insert_before(before, node)
        return output

    def number(self, before: ir.Node, array: np.ndarray[Any, Any], like: ir.Value) -> ir.Value:
        """Adds a constant in front of `before`."""
        return self.emit(before, "Constant", [], like, value=ir.tensor(np.asarray(array, np.float32)))

    def quantised(self, node: ir.Node, value: ir.Value, scale: ir.Value | None, zero_point: ir.Value | None) -> bool:
        """Notes that the node's output stands for `value`, kept within what its integers can hold."""
        steps, zero = self.constant(scale), self.constant(zero_point)
        output = node.outputs[0]
        tensor = None if zero_point is None else ir.convenience.get_const_tensor(zero_point)
        kind = ir.DataType.UINT8 if tensor is None else tensor.dtype
        element = BY_NAME.get(kind.name)
        if steps is None or steps.size != 1 or (zero_point is not None and zero is None):
            return False
        if element is None or element.small is not None or element.largest is not None:
            return False
        zero = np.zeros(()) if zero is None else zero.astype(np.float64)
        low, high = ((limit - float(zero.reshape(()))) * float(steps.reshape(())) for limit in quantize.limits(element))
        bounds = [self.number(node, np.array(bound), output) for bound in (low, high)]
        for bound in bounds:
            bound.shape = ir.Shape([])
        self.twins[output] = _Twin(self.emit(node, "Clip", [value, *bounds], output), steps, zero)
        return True

    def pass_on(self, node: ir.Node) -> None:
        """Gives a node that only moves numbers a float twin."""
        first = node.inputs[0] if node.inputs else None
        if first not in self.twins or len(node.outputs) != 1:
            return
        assert first is not None
        twin = self.twins[first]
        copy = ir.Node(
            node.domain, node.op_type, [twin.value, *node.inputs[1:]], node.attributes.values(), version=node.version
        )
        copy.name = node.name
        output = copy.outputs[0]
        output.name = f"{node.outputs[0].name}_float"
        self.names.add(output.name)
        output.shape, output.type = node.outputs[0].shape, ir.TensorType(ir.DataType.FLOAT)
        self.graph.insert_before(node, copy)
        self.twins[node.outputs[0]] = _Twin(output, twin.scale, twin.zero_point)
        self.replaced.append(node)

    def join(self, node: ir.Node) -> None:
        """Gives a Concat of numbers that all stand for the same a float twin."""
        twins = [self.twins.get(value) for value in node.inputs if value is not None]
        first = twins[0] if twins else None
        if first is None or not all(twin is not None and twin.same(first.scale, first.zero_point) for twin in twins):
            return
        parts = [twin.value for twin in twins if twin is not None]
        y = self.emit(node, "Concat", parts, node.outputs[0], **_given(node))
        self.twins[node.outputs[0]] = _Twin(y, first.scale, first.zero_point)
        self.replaced.append(node)

    def replace(self, node: ir.Node, old: ir.Value, new: ir.Value) -> None:
        """Lets all that reads `old` read `new`; an output of the model keeps its name."""
        for user, index in list(old.uses()):
            user.replace_input_with(index, new)
        for index, output in enumerate(self.graph.outputs):
            if output is old:
                last = self.emit(node, "Identity", [new], old)
                last.name, old.name = old.name, f"{old.name}_quantised"
                self.graph.outputs[index] = last

    def _quantise_what_is_read(self) -> None:
        """Where integers are still read, as an output or by a node that stays quantised, they come from the twin."""
        done = set(self.replaced)
        for value, twin in self.twins.items():
            producer = value.producer()
            if (
                producer is None
                or producer not in done
                or producer.graph is None
                or producer.op_type == "QuantizeLinear"
            ):
                continue
            scale, zero_point = _result_parameters(producer)
            if scale is None:
                continue
            quantised = ir.Node("", "QuantizeLinear", [twin.value, scale, zero_point], version=STANDARD)
            quantised.outputs[0].name = f"{value.name}_again"
            quantised.outputs[0].type, quantised.outputs[0].shape = value.type, value.shape
            self.graph.insert_after(producer, quantised)
            for user, index in list(value.uses()):
                user.replace_input_with(index, quantised.outputs[0])
            for index, output in enumerate(self.graph.outputs):
                if output is value:
                    quantised.outputs[0].name, value.name = value.name, f"{value.name}_gone"
                    self.graph.outputs[index] = quantised.outputs[0]

    def _remove_dead(self) -> None:
        for node in reversed(list(self.graph)):
            if not any(output.uses() or output.is_graph_output() for output in node.outputs):
                self.graph.remove(node, safe=True)
        for name, value in list(self.graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del self.graph.initializers[name]


def _is_quantising(node: ir.Node) -> bool:
    return (node.domain, node.op_type) in _REWRITES or "Quant" in node.op_type or "NBits" in node.op_type


def _tensor(value: ir.Value | None) -> torch.Tensor | None:
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    assert tensor is not None
    found = Constant("", ir.DataType(tensor.dtype), tensor).value
    assert isinstance(found, torch.Tensor)
    return found


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _given(node: ir.Node, *left_out: str) -> dict[str, Any]:
    return {name: attr.value for name, attr in node.attributes.items() if name not in left_out}


def _inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    return [*node.inputs, *[None] * count][:count]


# One function an operator; each returns whether its node is now of no use.


def _quantize_linear(self: _Dequantizer, node: ir.Node) -> bool:
    x, scale, zero_point = _inputs(node, 3)
    assert x is not None
    if _attribute(node, "output_dtype", 0) and zero_point is None:
        return False
    if self.constant(x) is not None:  # a weight that was trained with the rounding: the float one is in the file
        steps, zero = self.constant(scale), self.constant(zero_point)
        if steps is None or (zero_point is not None and zero is None):
            return False
        self.twins[node.outputs[0]] = _Twin(x, steps, np.zeros(steps.shape) if zero is None else zero)
        return True
    return self.quantised(node, x, scale, zero_point)


def _dequantize_linear(self: _Dequantizer, node: ir.Node) -> bool:
    x, scale, zero_point = _inputs(node, 3)
    axis, block = _attribute(node, "axis", 1), _attribute(node, "block_size", 0)
    found = self.float_of(x, scale, zero_point, axis, block) or _from_table(self, node, x, scale, zero_point)
    if found is None or _attribute(node, "output_dtype", 0):
        return False
    self.replace(node, node.outputs[0], found)
    return True


def _from_table(
    self: _Dequantizer, node: ir.Node, x: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None
) -> ir.Value | None:
    """Returns the float form of what is taken out of a constant, rows of an embedding for example."""
    taken = None if x is None else x.producer()
    steps = self.constant(scale)
    if taken is None or taken.domain or taken.op_type not in _UNCHANGED or steps is None or steps.size != 1:
        return None
    table = self.float_of(taken.inputs[0], scale, zero_point)
    if table is None or len(taken.outputs) != 1:
        return None
    assert x is not None
    return self.emit(node, taken.op_type, [table, *taken.inputs[1:]], x, **_given(taken))


def _bias(self: _Dequantizer, bias: ir.Value | None, *scales: ir.Value | None) -> tuple[bool, ir.Value | None]:
    """Returns whether a bias of whole numbers can be a float one, and that one."""
    if bias is None:
        return True, None
    whole, steps = self.constant(bias), [self.constant(scale) for scale in scales]
    if whole is None or any(step is None for step in steps):
        return False, None
    key = (bias, *scales)
    if key not in self.floats:
        values = whole.astype(np.float64)
        for step in steps:
            values = values * np.asarray(step, np.float64).ravel()
        self.floats[key] = self.weight(bias, torch.from_numpy(values.astype(np.float32)))
    return True, self.floats[key]


def _qlinear_conv(self: _Dequantizer, node: ir.Node) -> bool:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = _inputs(node, 9)
    if _attribute(node, "channels_last", 0):
        return False
    data, kernel = self.float_of(x, x_scale, x_zero), self.float_of(w, w_scale, w_zero, axis=0)
    fits, added = _bias(self, bias, x_scale, w_scale)
    if data is None or kernel is None or not fits:
        return False
    y = self.emit(node, "Conv", [data, kernel, added], node.outputs[0], **_given(node, "channels_last"))
    return self.quantised(node, y, y_scale, y_zero)


def _qlinear_matmul(self: _Dequantizer, node: ir.Node) -> bool:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = _inputs(node, 8)
    left, right = self.float_of(a, a_scale, a_zero), self.float_of(b, b_scale, b_zero, axis=-1)
    if left is None or right is None:
        return False
    return self.quantised(node, self.emit(node, "MatMul", [left, right], node.outputs[0]), y_scale, y_zero)


def _binary(operator: str) -> Callable[[_Dequantizer, ir.Node], bool]:
    def rewrite(self: _Dequantizer, node: ir.Node) -> bool:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = _inputs(node, 8)
        left, right = self.float_of(a, a_scale, a_zero), self.float_of(b, b_scale, b_zero)
        if left is None or right is None:
            return False
        return self.quantised(node, self.emit(node, operator, [left, right], node.outputs[0]), y_scale, y_zero)

    return rewrite


def _unary(operator: str) -> Callable[[_Dequantizer, ir.Node], bool]:
    def rewrite(self: _Dequantizer, node: ir.Node) -> bool:
        x, x_scale, x_zero, y_scale, y_zero = _inputs(node, 5)
        data = self.float_of(x, x_scale, x_zero)
        if data is None or _attribute(node, "channels_last", 0):
            return False
        y = self.emit(node, operator, [data], node.outputs[0], **_given(node, "channels_last"))
        return self.quantised(node, y, y_scale, y_zero)

    return rewrite


def _qlinear_concat(self: _Dequantizer, node: ir.Node) -> bool:
    (y_scale, y_zero), triples = node.inputs[:2], [node.inputs[i : i + 3] for i in range(2, len(node.inputs), 3)]
    parts = [self.float_of(x, scale, zero_point) for x, scale, zero_point in triples]
    if any(part is None for part in parts):
        return False
    return self.quantised(node, self.emit(node, "Concat", parts, node.outputs[0], **_given(node)), y_scale, y_zero)


def _qgemm(self: _Dequantizer, node: ir.Node) -> bool:
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = _inputs(node, 9)
    left = self.float_of(a, a_scale, a_zero)
    right = self.float_of(b, b_scale, b_zero, axis=0 if _attribute(node, "transB", 0) else 1)
    fits, added = _bias(self, c, a_scale, b_scale)
    if left is None or right is None or not fits or _attribute(node, "alpha", 1.0) != 1.0:
        return False
    y = self.emit(node, "Gemm", [left, right, added], node.outputs[0], **_given(node))
    if y_scale is None:
        self.replace(node, node.outputs[0], y)
        return True
    return self.quantised(node, y, y_scale, y_zero)


def _dynamic_quantize_linear(self: _Dequantizer, node: ir.Node) -> bool:
    assert node.inputs[0] is not None
    self.ranges[node.outputs[0]] = (node.inputs[0], node)
    return True


def _integer_product(operator: str, axis: int) -> Callable[[_Dequantizer, ir.Node], bool]:
    """Rewrites a product of whole numbers whose result is cast and multiplied with both scales."""

    def rewrite(self: _Dequantizer, node: ir.Node) -> bool:
        a, b, a_zero, b_zero = _inputs(node, 4)
        if a not in self.ranges or b is None or self.constant(b) is None:
            return False
        assert a is not None
        data, quantiser = self.ranges[a]
        if a_zero is not quantiser.outputs[2] or (b_zero is not None and self.constant(b_zero) is None):
            return False
        found = list(_rescaled(self, node.outputs[0], quantiser.outputs[1]))
        if len(found) != 1:
            return False
        ((scaled, b_scale),) = found
        kernel = self.float_of(b, b_scale, b_zero, axis=axis)
        if kernel is None:
            return False
        self.replace(node, scaled, self.emit(node, operator, [data, kernel], scaled, **_given(node)))
        return True

    return rewrite


def _rescaled(self: _Dequantizer, product: ir.Value, a_scale: ir.Value) -> Iterable[tuple[ir.Value, ir.Value]]:
    """Yields for each reader of a product the value in which it is scaled, and the weights' scale."""
    for cast in [use.node for use in product.uses()]:
        for use in cast.outputs[0].uses():
            other = use.node.inputs[1 - use.idx] if use.node.op_type == "Mul" and cast.op_type == "Cast" else None
            scales = other.producer() if other is not None else None
            if scales is None or scales.op_type != "Mul" or a_scale not in scales.inputs:
                continue
            (b_scale,) = (value for value in scales.inputs if value is not a_scale)
            if b_scale is not None and self.constant(b_scale) is not None:
                yield use.node.outputs[0], b_scale


def _dynamic_matmul(self: _Dequantizer, node: ir.Node) -> bool:
    a, b, b_scale, b_zero, bias = _inputs(node, 5)
    kernel = self.float_of(b, b_scale, b_zero, axis=-1)
    if a is None or kernel is None:
        return False
    return _product_with_bias(self, node, a, kernel, bias)


def _matmul_integer_to_float(self: _Dequantizer, node: ir.Node) -> bool:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = _inputs(node, 7)
    kernel = self.float_of(b, b_scale, b_zero, axis=-1)
    data, quantiser = self.ranges.get(a, (None, None)) if a is not None else (None, None)
    if data is None or quantiser is None or kernel is None or [a_scale, a_zero] != list(quantiser.outputs[1:]):
        return False
    return _product_with_bias(self, node, data, kernel, bias)


def _dynamic_lstm(self: _Dequantizer, node: ir.Node) -> bool:
    """Its matrices are transposed, each direction has its own scale or one for every column."""
    x, *matrices = _inputs(node, 3)
    *rest, w_scale, w_zero, r_scale, r_zero = _inputs(node, 12)[3:]
    floats = []
    for matrix, scale, zero_point in zip(matrices, (w_scale, r_scale), (w_zero, r_zero), strict=True):
        values, steps, zero = self.constant(matrix), self.constant(scale), self.constant(zero_point)
        if matrix is None or values is None or steps is None or (zero_point is not None and zero is None):
            return False
        directions = values.shape[0]
        zero = np.zeros(1) if zero is None else zero
        shift = zero.astype(np.float32).reshape(directions if zero.size > 1 else 1, 1, -1)
        product = (values.astype(np.float32) - shift) * steps.reshape(directions if steps.size > 1 else 1, 1, -1)
        floats.append(self.weight(matrix, torch.from_numpy(np.ascontiguousarray(product.transpose(0, 2, 1)))))
    lstm = ir.Node(
        "", "LSTM", [x, *floats, *rest], node.attributes.values(), num_outputs=len(node.outputs), version=STANDARD
    )
    lstm.name = node.name
    self.graph.insert_before(node, lstm)
    for old, new in zip(node.outputs, lstm.outputs, strict=True):
        new.name, new.shape, new.type = f"{old.name}_float", old.shape, old.type
        self.names.add(new.name)
        if old.uses() or old.is_graph_output():
            self.replace(node, old, new)
    return True


def _product_with_bias(
    self: _Dequantizer, node: ir.Node, data: ir.Value, kernel: ir.Value, bias: ir.Value | None
) -> bool:
    y = self.emit(node, "MatMul", [data, kernel], node.outputs[0])
    if bias is not None:
        y = self.emit(node, "Add", [y, bias], node.outputs[0])
    self.replace(node, node.outputs[0], y)
    return True


def _result_parameters(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """Returns scale and zero point of what a quantised operator gives."""
    place = _RESULT.get(node.op_type)
    if place is None:
        return None, None
    scale, zero_point = _inputs(node, place + 2)[place:]
    return scale, zero_point


_RESULT = {
    "QLinearConv": 6, "QLinearMatMul": 6, "QLinearAdd": 6, "QLinearMul": 6, "QLinearSigmoid": 3, "QLinearLeakyRelu": 3,
    "QLinearGlobalAveragePool": 3, "QLinearAveragePool": 3, "QLinearConcat": 0, "QGemm": 7,
}  # fmt: skip

_REWRITES: dict[tuple[str, str], Callable[[_Dequantizer, ir.Node], bool]] = {
    ("", "QuantizeLinear"): _quantize_linear,
    (MICROSOFT, "QuantizeLinear"): _quantize_linear,
    ("", "DequantizeLinear"): _dequantize_linear,
    (MICROSOFT, "DequantizeLinear"): _dequantize_linear,
    ("", "QLinearConv"): _qlinear_conv,
    (MICROSOFT, "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    (MICROSOFT, "QLinearAdd"): _binary("Add"),
    (MICROSOFT, "QLinearMul"): _binary("Mul"),
    (MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (MICROSOFT, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (MICROSOFT, "QLinearAveragePool"): _unary("AveragePool"),
    (MICROSOFT, "QLinearConcat"): _qlinear_concat,
    (MICROSOFT, "QGemm"): _qgemm,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize_linear,
    ("", "MatMulInteger"): _integer_product("MatMul", -1),
    ("", "ConvInteger"): _integer_product("Conv", 0),
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_matmul,
    (MICROSOFT, "DynamicQuantizeLSTM"): _dynamic_lstm,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_integer_to_float,
}
