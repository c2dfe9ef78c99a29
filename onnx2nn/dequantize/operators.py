"""The float forms of the quantised operators: one function each, which returns whether the node is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir
import torch

from onnx2nn.dequantize.dequantizer import (
    VALUE_PRESERVING,
    Dequantizer,
    FloatCounterpart,
    attributes_of,
    inputs,
)
from onnx2nn.rewrite.patterns import attribute_of
from onnx2nn.rewrite.rewrite_rule import REPLACEMENT_OPSET

MICROSOFT = "com.microsoft"


def _quantize_linear(dequantizer: Dequantizer, node: ir.Node) -> bool:
    x, scale, zero_point = inputs(node, 3)
    assert x is not None
    if attribute_of(node, "output_dtype", 0) and zero_point is None:
        return False
    if dequantizer.constant(x) is not None:  # a float weight of quantisation-aware training, quantised in the file
        steps, zero = dequantizer.constant(scale), dequantizer.constant(zero_point)
        if steps is None or (zero_point is not None and zero is None):
            return False
        dequantizer.counterparts[node.outputs[0]] = FloatCounterpart(
            x, steps, np.zeros(steps.shape) if zero is None else zero
        )
        return True
    return dequantizer.set_counterpart(node, x, scale, zero_point)


def _dequantize_linear(dequantizer: Dequantizer, node: ir.Node) -> bool:
    x, scale, zero_point = inputs(node, 3)
    axis, block = attribute_of(node, "axis", 1), attribute_of(node, "block_size", 0)
    found = dequantizer.float_of(x, scale, zero_point, axis, block) or _gathered_weight(
        dequantizer, node, x, scale, zero_point
    )
    if found is None or attribute_of(node, "output_dtype", 0):
        return False
    dequantizer.replace(node, node.outputs[0], found)
    return True


def _gathered_weight(
    dequantizer: Dequantizer, node: ir.Node, x: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None
) -> ir.Value | None:
    """Returns the float form of a value that a value-preserving node reads from a constant, such as embedding rows."""
    taken = None if x is None else x.producer()
    steps = dequantizer.constant(scale)
    if taken is None or taken.domain or taken.op_type not in VALUE_PRESERVING or steps is None or steps.size != 1:
        return None
    table = dequantizer.float_of(taken.inputs[0], scale, zero_point)
    if table is None or len(taken.outputs) != 1:
        return None
    assert x is not None
    return dequantizer.emit(node, taken.op_type, [table, *taken.inputs[1:]], x, **attributes_of(taken))


def _bias(dequantizer: Dequantizer, bias: ir.Value | None, *scales: ir.Value | None) -> tuple[bool, ir.Value | None]:
    """Returns whether an int32 bias has a float form, and that form, None for no bias."""
    if bias is None:
        return True, None
    integers, steps = dequantizer.constant(bias), [dequantizer.constant(scale) for scale in scales]
    if integers is None or any(step is None for step in steps):
        return False, None
    key = (bias, *scales)
    if key not in dequantizer.floats:
        values = integers.astype(np.float64)
        for step in steps:
            values = values * np.asarray(step, np.float64).ravel()
        dequantizer.floats[key] = dequantizer.weight(bias, torch.from_numpy(values.astype(np.float32)))
    return True, dequantizer.floats[key]


def _qlinear_conv(dequantizer: Dequantizer, node: ir.Node) -> bool:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = inputs(node, 9)
    if attribute_of(node, "channels_last", 0):
        return False
    data, kernel = dequantizer.float_of(x, x_scale, x_zero), dequantizer.float_of(w, w_scale, w_zero, axis=0)
    fits, added = _bias(dequantizer, bias, x_scale, w_scale)
    if data is None or kernel is None or not fits:
        return False
    y = dequantizer.emit(node, "Conv", [data, kernel, added], node.outputs[0], **attributes_of(node, "channels_last"))
    return dequantizer.set_counterpart(node, y, y_scale, y_zero)


def _qlinear_matmul(dequantizer: Dequantizer, node: ir.Node) -> bool:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs(node, 8)
    left, right = dequantizer.float_of(a, a_scale, a_zero), dequantizer.float_of(b, b_scale, b_zero, axis=-1)
    if left is None or right is None:
        return False
    return dequantizer.set_counterpart(
        node, dequantizer.emit(node, "MatMul", [left, right], node.outputs[0]), y_scale, y_zero
    )


def _binary(operator: str) -> Callable[[Dequantizer, ir.Node], bool]:
    def rewrite(dequantizer: Dequantizer, node: ir.Node) -> bool:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs(node, 8)
        left, right = dequantizer.float_of(a, a_scale, a_zero), dequantizer.float_of(b, b_scale, b_zero)
        if left is None or right is None:
            return False
        return dequantizer.set_counterpart(
            node, dequantizer.emit(node, operator, [left, right], node.outputs[0]), y_scale, y_zero
        )

    return rewrite


def _unary(operator: str) -> Callable[[Dequantizer, ir.Node], bool]:
    def rewrite(dequantizer: Dequantizer, node: ir.Node) -> bool:
        x, x_scale, x_zero, y_scale, y_zero = inputs(node, 5)
        data = dequantizer.float_of(x, x_scale, x_zero)
        if data is None or attribute_of(node, "channels_last", 0):
            return False
        y = dequantizer.emit(node, operator, [data], node.outputs[0], **attributes_of(node, "channels_last"))
        return dequantizer.set_counterpart(node, y, y_scale, y_zero)

    return rewrite


def _qlinear_concat(dequantizer: Dequantizer, node: ir.Node) -> bool:
    (y_scale, y_zero), triples = node.inputs[:2], [node.inputs[i : i + 3] for i in range(2, len(node.inputs), 3)]
    parts = [dequantizer.float_of(x, scale, zero_point) for x, scale, zero_point in triples]
    if any(part is None for part in parts):
        return False
    return dequantizer.set_counterpart(
        node, dequantizer.emit(node, "Concat", parts, node.outputs[0], **attributes_of(node)), y_scale, y_zero
    )


def _qgemm(dequantizer: Dequantizer, node: ir.Node) -> bool:
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = inputs(node, 9)
    left = dequantizer.float_of(a, a_scale, a_zero)
    right = dequantizer.float_of(b, b_scale, b_zero, axis=0 if attribute_of(node, "transB", 0) else 1)
    fits, added = _bias(dequantizer, c, a_scale, b_scale)
    if left is None or right is None or not fits or attribute_of(node, "alpha", 1.0) != 1.0:
        return False
    y = dequantizer.emit(node, "Gemm", [left, right, added], node.outputs[0], **attributes_of(node))
    if y_scale is None:
        dequantizer.replace(node, node.outputs[0], y)
        return True
    return dequantizer.set_counterpart(node, y, y_scale, y_zero)


def _dynamic_quantize_linear(dequantizer: Dequantizer, node: ir.Node) -> bool:
    assert node.inputs[0] is not None
    dequantizer.dynamic[node.outputs[0]] = (node.inputs[0], node)
    return True


def _integer_matmul_or_conv(operator: str, axis: int) -> Callable[[Dequantizer, ir.Node], bool]:
    """Returns the rewrite of an integer product whose output is cast and multiplied by both scales."""

    def rewrite(dequantizer: Dequantizer, node: ir.Node) -> bool:
        a, b, a_zero, b_zero = inputs(node, 4)
        if a not in dequantizer.dynamic or b is None or dequantizer.constant(b) is None:
            return False
        assert a is not None
        data, quantiser = dequantizer.dynamic[a]
        if a_zero is not quantiser.outputs[2] or (b_zero is not None and dequantizer.constant(b_zero) is None):
            return False
        found = list(_scaled_outputs(dequantizer, node.outputs[0], quantiser.outputs[1]))
        if len(found) != 1:
            return False
        ((scaled, b_scale),) = found
        kernel = dequantizer.float_of(b, b_scale, b_zero, axis=axis)
        if kernel is None:
            return False
        dequantizer.replace(
            node, scaled, dequantizer.emit(node, operator, [data, kernel], scaled, **attributes_of(node))
        )
        return True

    return rewrite


def _scaled_outputs(
    dequantizer: Dequantizer, product: ir.Value, a_scale: ir.Value
) -> Iterable[tuple[ir.Value, ir.Value]]:
    """Yields each value in which an integer product is cast and scaled, with the weights' scale."""
    for cast in [use.node for use in product.uses()]:
        for use in cast.outputs[0].uses():
            other = use.node.inputs[1 - use.idx] if use.node.op_type == "Mul" and cast.op_type == "Cast" else None
            scales = other.producer() if other is not None else None
            if scales is None or scales.op_type != "Mul" or a_scale not in scales.inputs:
                continue
            (b_scale,) = (value for value in scales.inputs if value is not a_scale)
            if b_scale is not None and dequantizer.constant(b_scale) is not None:
                yield use.node.outputs[0], b_scale


def _dynamic_matmul(dequantizer: Dequantizer, node: ir.Node) -> bool:
    a, b, b_scale, b_zero, bias = inputs(node, 5)
    kernel = dequantizer.float_of(b, b_scale, b_zero, axis=-1)
    if a is None or kernel is None:
        return False
    return _product_with_bias(dequantizer, node, a, kernel, bias)


def _matmul_integer_to_float(dequantizer: Dequantizer, node: ir.Node) -> bool:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = inputs(node, 7)
    kernel = dequantizer.float_of(b, b_scale, b_zero, axis=-1)
    data, quantiser = dequantizer.dynamic.get(a, (None, None)) if a is not None else (None, None)
    if data is None or quantiser is None or kernel is None or [a_scale, a_zero] != list(quantiser.outputs[1:]):
        return False
    return _product_with_bias(dequantizer, node, data, kernel, bias)


def _dynamic_lstm(dequantizer: Dequantizer, node: ir.Node) -> bool:
    """Replaces the node by an LSTM.

    DynamicQuantizeLSTM's weights are transposed. Their scale has one element for each direction or for each column.
    """
    x, *matrices = inputs(node, 3)
    *rest, w_scale, w_zero, r_scale, r_zero = inputs(node, 12)[3:]
    floats = []
    for matrix, scale, zero_point in zip(matrices, (w_scale, r_scale), (w_zero, r_zero), strict=True):
        values, steps, zero = (
            dequantizer.constant(matrix),
            dequantizer.constant(scale),
            dequantizer.constant(zero_point),
        )
        if matrix is None or values is None or steps is None or (zero_point is not None and zero is None):
            return False
        directions = values.shape[0]
        zero = np.zeros(1) if zero is None else zero
        shift = zero.astype(np.float32).reshape(directions if zero.size > 1 else 1, 1, -1)
        product = (values.astype(np.float32) - shift) * steps.reshape(directions if steps.size > 1 else 1, 1, -1)
        floats.append(dequantizer.weight(matrix, torch.from_numpy(np.ascontiguousarray(product.transpose(0, 2, 1)))))
    lstm = ir.Node(
        "",
        "LSTM",
        [x, *floats, *rest],
        node.attributes.values(),
        num_outputs=len(node.outputs),
        version=REPLACEMENT_OPSET,
    )
    lstm.name = node.name
    dequantizer.graph.insert_before(node, lstm)
    for old, new in zip(node.outputs, lstm.outputs, strict=True):
        new.name, new.shape, new.type = f"{old.name}_float", old.shape, old.type
        dequantizer.names.add(new.name)
        if old.uses() or old.is_graph_output():
            dequantizer.replace(node, old, new)
    return True


def _product_with_bias(
    dequantizer: Dequantizer, node: ir.Node, data: ir.Value, kernel: ir.Value, bias: ir.Value | None
) -> bool:
    y = dequantizer.emit(node, "MatMul", [data, kernel], node.outputs[0])
    if bias is not None:
        y = dequantizer.emit(node, "Add", [y, bias], node.outputs[0])
    dequantizer.replace(node, node.outputs[0], y)
    return True


OUTPUT_SCALE_INPUTS = {
    "QLinearConv": 6, "QLinearMatMul": 6, "QLinearAdd": 6, "QLinearMul": 6, "QLinearSigmoid": 3, "QLinearLeakyRelu": 3,
    "QLinearGlobalAveragePool": 3, "QLinearAveragePool": 3, "QLinearConcat": 0, "QGemm": 7,
}  # fmt: skip
"""By operator type, the position of the input that is the output's scale. The next input is its zero point."""


REWRITES: dict[tuple[str, str], Callable[[Dequantizer, ir.Node], bool]] = {
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
    ("", "MatMulInteger"): _integer_matmul_or_conv("MatMul", -1),
    ("", "ConvInteger"): _integer_matmul_or_conv("Conv", 0),
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_matmul,
    (MICROSOFT, "DynamicQuantizeLSTM"): _dynamic_lstm,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_integer_to_float,
}
