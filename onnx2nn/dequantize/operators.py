"""The float forms of operators on 8-bit integers: one function each, which returns whether the node is replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.dequantize import packed_weights
from onnx2nn.dequantize.dequantizer import (
    Dequantizer,
    FloatCounterpart,
    Rewrite,
    attributes_of,
    inputs,
    is_value_preserving,
    output_parameters,
)
from onnx2nn.dequantize.registry import MICROSOFT, Rewrites
from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import FloatForm, Row
from onnx2nn.rewrite.patterns import attribute_of
from onnx2nn.rewrite.rewrite_rule import REPLACEMENT_OPSET

REWRITES = Rewrites(packed_weights.REWRITES)
"""The rewrites of this module and of packed weights."""


def rewrite_of(node: ir.Node) -> Rewrite | None:
    """Returns the rewrite of a quantised node in float form, None for other nodes."""
    special = REWRITES.get((node.domain, node.op_type))
    if special is not None:
        return special
    row = TABLE.newest(node.domain, node.op_type)
    return None if row is None or row.float_form is None else _in_float_form


def _row_of(node: ir.Node) -> tuple[Row, FloatForm]:
    row = TABLE.newest(node.domain, node.op_type)
    assert row is not None and row.float_form is not None
    return row, row.float_form


def _in_float_form(dequantizer: Dequantizer, node: ir.Node) -> bool:
    """Rewrites an operator with scales of operands and output; its row names the operator on floats."""

    row, form = _row_of(node)
    values = dict(zip(map(str.lower, row.inputs), inputs(node, len(row.inputs)), strict=True))
    operands = [name for name in values if f"{name}_scale" in values]
    floats = []
    for position, name in enumerate(operands):
        axis = form.weight_axis if position else 1
        floats.append(
            dequantizer.float_of(values[name], values[f"{name}_scale"], values[f"{name}_zero_point"], axis=axis)
        )
    biases = [name for name in values if name not in operands and not name.endswith(("_scale", "_zero_point"))]
    fits, added = _bias(
        dequantizer, values[biases[0]] if biases else None, *(values[f"{name}_scale"] for name in operands)
    )
    if None in floats or not fits:
        return False
    options = attributes_of(node, "channels_last")
    operands_of_form = [*floats, added] if biases else floats
    if attribute_of(node, "channels_last", 0):
        y = _with_channels_last(dequantizer, node, form.operator, operands_of_form, options)
    else:
        y = dequantizer.emit(node, form.operator, operands_of_form, node.outputs[0], **options)
    return y is not None and dequantizer.set_counterpart(node, y, *output_parameters(row, node))


def _with_channels_last(
    dequantizer: Dequantizer,
    node: ir.Node,
    operator: str,
    operands: Sequence[ir.Value | None],
    options: Mapping[str, Any],
) -> ir.Value | None:
    """Returns the output of an operator whose first operand and result have their channels last.

    None where no shape says how many dimensions there are.
    """
    result, (x, *rest) = node.outputs[0], operands
    kernel = node.attributes.get("kernel_shape")
    shapes = [value.shape for value in operands[:2] if value is not None and value.shape is not None]
    if kernel is None and not shapes:
        return None
    rank = len(shapes[0]) if kernel is None else len(kernel.as_ints()) + 2
    first = dequantizer.emit(node, "Transpose", [x], result, perm=[0, rank - 1, *range(1, rank - 1)])
    y = dequantizer.emit(node, operator, [first, *rest], result, **options)
    first.shape = y.shape = None
    return dequantizer.emit(node, "Transpose", [y], result, perm=[0, *range(2, rank), 1])


@REWRITES.of("NhwcMaxPool", MICROSOFT)
def _nhwc_max_pool(dequantizer: Dequantizer, node: ir.Node) -> bool:
    counterpart = dequantizer.counterparts.get(node.inputs[0]) if node.inputs[0] is not None else None
    if counterpart is None:
        return False
    y = _with_channels_last(dequantizer, node, "MaxPool", [counterpart.value], attributes_of(node))
    if y is None:
        return False
    dequantizer.counterparts[node.outputs[0]] = FloatCounterpart(y, counterpart.scale, counterpart.zero_point)
    return True


@REWRITES.of("QLinearReduceMean", MICROSOFT)
def _qlinear_reduce_mean(dequantizer: Dequantizer, node: ir.Node) -> bool:
    x, scale, zero_point, y_scale, y_zero_point = inputs(node, 5)
    found = dequantizer.float_of(x, scale, zero_point)
    if found is None:
        return False
    y = dequantizer.emit(node, "ReduceMean", [found], node.outputs[0], version=13, **attributes_of(node))
    return dequantizer.set_counterpart(node, y, y_scale, y_zero_point)


@REWRITES.of("QuantizeLinear", "", MICROSOFT)
def _quantize_linear(dequantizer: Dequantizer, node: ir.Node) -> bool:
    x, scale, zero_point = inputs(node, 3)
    assert x is not None
    if attribute_of(node, "output_dtype", 0) and zero_point is None:
        return False
    node.outputs[0].shape = x.shape if node.outputs[0].shape is None else node.outputs[0].shape
    if dequantizer.constant(x) is not None:  # a float weight of quantisation-aware training, quantised in the file
        steps, zero = dequantizer.constant(scale), dequantizer.constant(zero_point)
        if steps is None or (zero_point is not None and zero is None):
            return False
        dequantizer.counterparts[node.outputs[0]] = FloatCounterpart(
            x, steps, np.zeros(steps.shape) if zero is None else zero
        )
        return True
    return dequantizer.set_counterpart(node, x, scale, zero_point)


@REWRITES.of("DequantizeLinear", "", MICROSOFT)
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
    if taken is None or not is_value_preserving(taken) or steps is None or steps.size != 1:
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
        dequantizer.floats[key] = dequantizer.weight(bias, ir.tensor(values.astype(np.float32)))
    return True, dequantizer.floats[key]


@REWRITES.of("QLinearConcat", MICROSOFT)
def _qlinear_concat(dequantizer: Dequantizer, node: ir.Node) -> bool:
    (y_scale, y_zero), triples = node.inputs[:2], [node.inputs[i : i + 3] for i in range(2, len(node.inputs), 3)]
    parts = [dequantizer.float_of(x, scale, zero_point) for x, scale, zero_point in triples]
    if any(part is None for part in parts):
        return False
    return dequantizer.set_counterpart(
        node, dequantizer.emit(node, "Concat", parts, node.outputs[0], **attributes_of(node)), y_scale, y_zero
    )


@REWRITES.of("QGemm", MICROSOFT)
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


@REWRITES.of("DynamicQuantizeLinear", "")
def _dynamic_quantize_linear(dequantizer: Dequantizer, node: ir.Node) -> bool:
    assert node.inputs[0] is not None
    dequantizer.dynamic[node.outputs[0]] = (node.inputs[0], node)
    return True


@REWRITES.of("MatMulInteger", "")
@REWRITES.of("ConvInteger", "")
def _integer_matmul_or_conv(dequantizer: Dequantizer, node: ir.Node) -> bool:
    """For a product of whole numbers whose result is cast and multiplied with both scales."""
    a, b, a_zero, b_zero = inputs(node, 4)
    found = list(_scaled_outputs(node.outputs[0]))
    if b is None or len(found) != 1:
        return False
    _, form = _row_of(node)
    ((scaled, scales),) = found
    for a_scale, b_scale in (scales, scales[::-1]):
        data = _activation(dequantizer, node, a, a_scale, a_zero)
        kernel = None if data is None else dequantizer.float_of(b, b_scale, b_zero, axis=form.weight_axis)
        if kernel is not None:
            break
    else:
        return False
    dequantizer.replace(
        node, scaled, dequantizer.emit(node, form.operator, [data, kernel], scaled, **attributes_of(node))
    )
    return True


def _scaled_outputs(product: ir.Value) -> Iterable[tuple[ir.Value, Sequence[ir.Value | None]]]:
    """Yields each value in which an integer product is cast and scaled, with the two factors of the scale."""
    for cast in [use.node for use in product.uses()]:
        for use in cast.outputs[0].uses():
            other = use.node.inputs[1 - use.idx] if use.node.op_type == "Mul" and cast.op_type == "Cast" else None
            scales = other.producer() if other is not None else None
            if scales is not None and scales.op_type == "Mul":
                yield use.node.outputs[0], scales.inputs


@REWRITES.of("DynamicQuantizeMatMul", MICROSOFT)
def _dynamic_matmul(dequantizer: Dequantizer, node: ir.Node) -> bool:
    a, b, b_scale, b_zero, bias = inputs(node, 5)
    kernel = dequantizer.float_of(b, b_scale, b_zero, axis=-1)
    if a is None or kernel is None:
        return False
    return _product_with_bias(dequantizer, node, a, kernel, bias)


@REWRITES.of("MatMulIntegerToFloat", MICROSOFT)
def _matmul_integer_to_float(dequantizer: Dequantizer, node: ir.Node) -> bool:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = inputs(node, 7)
    kernel = dequantizer.float_of(b, b_scale, b_zero, axis=-1)
    data = _activation(dequantizer, node, a, a_scale, a_zero)
    if data is None or kernel is None:
        return False
    return _product_with_bias(dequantizer, node, data, kernel, bias)


def _activation(
    dequantizer: Dequantizer,
    node: ir.Node,
    x: ir.Value | None,
    scale: ir.Value | None,
    zero_point: ir.Value | None,
) -> ir.Value | None:
    """Returns the float value that was quantised, by DynamicQuantizeLinear or with these constants."""
    data, quantiser = dequantizer.dynamic.get(x, (None, None)) if x is not None else (None, None)
    if quantiser is None:
        found = dequantizer.float_of(x, scale, zero_point)
        return _gathered_weight(dequantizer, node, x, scale, zero_point) if found is None else found
    return data if [scale, zero_point] == list(quantiser.outputs[1:]) else None


@REWRITES.of("QAttention", MICROSOFT)
def _qattention(dequantizer: Dequantizer, node: ir.Node) -> bool:
    x, weight, bias, x_scale, weight_scale, mask, x_zero, weight_zero, past = inputs(node, 9)
    data = _activation(dequantizer, node, x, x_scale, x_zero)
    matrix = dequantizer.float_of(weight, weight_scale, weight_zero)
    if data is None or matrix is None:
        return False
    _replace_node(dequantizer, node, MICROSOFT, "Attention", _without_absent([data, matrix, bias, mask, past]), 1)
    return True


@REWRITES.of("QEmbedLayerNormalization", MICROSOFT)
def _qembed_layer_normalization(dequantizer: Dequantizer, node: ir.Node) -> bool:
    """The operator on floats takes its inputs in another order."""
    row = TABLE.newest(node.domain, node.op_type)
    assert row is not None
    values = dict(zip(row.inputs, inputs(node, len(row.inputs)), strict=True))
    floats = []
    for table in ("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta"):
        quantised = values.get(f"{table}_quant", values.get(table))
        found = dequantizer.float_of(quantised, values[f"{table}_scale"], values[f"{table}_zero_point"])
        if found is None and quantised is not None:
            return False
        floats.append(found)
    given = [values["input_ids"], values["segment_ids"], *floats, values["mask"]]
    _replace_node(dequantizer, node, MICROSOFT, "EmbedLayerNormalization", _without_absent(given), 1)
    return True


def _without_absent(values: list[ir.Value | None]) -> list[ir.Value | None]:
    """Returns inputs without absent ones at the end."""
    while values and values[-1] is None:
        values = values[:-1]
    return values


@REWRITES.of("QLinearWhere", MICROSOFT)
def _qlinear_where(dequantizer: Dequantizer, node: ir.Node) -> bool:
    condition, *rest = inputs(node, 9)
    floats = [dequantizer.float_of(x, scale, zero) for x, scale, zero in (rest[:3], rest[3:6])]
    if None in floats:
        return False
    y = dequantizer.emit(node, "Where", [condition, *floats], node.outputs[0])
    return dequantizer.set_counterpart(node, y, *rest[6:])


@REWRITES.of("QLinearSoftmax", MICROSOFT)
def _qlinear_softmax(dequantizer: Dequantizer, node: ir.Node) -> bool:
    x, scale, zero_point, y_scale, y_zero_point = inputs(node, 5)
    found = dequantizer.float_of(x, scale, zero_point)
    if found is None:
        return False
    version = min(attribute_of(node, "opset", 13), 13)  # before, it runs over all dimensions from its axis on
    axis = attribute_of(node, "axis", -1)
    y = dequantizer.emit(node, "Softmax", [found], node.outputs[0], version=version, axis=axis)
    return dequantizer.set_counterpart(node, y, y_scale, y_zero_point)


@REWRITES.of("DynamicQuantizeLSTM", MICROSOFT)
def _dynamic_lstm(dequantizer: Dequantizer, node: ir.Node) -> bool:
    """Its matrices are transposed, each direction has its own scale or one for every column."""
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
        floats.append(dequantizer.weight(matrix, ir.tensor(np.ascontiguousarray(product.transpose(0, 2, 1)))))
    _replace_node(dequantizer, node, "", "LSTM", [x, *floats, *rest], REPLACEMENT_OPSET)
    return True


def _replace_node(
    dequantizer: Dequantizer,
    node: ir.Node,
    domain: str,
    operator: str,
    values: Sequence[ir.Value | None],
    version: int,
) -> None:
    """Replaces a node whose outputs are floats by another operator with the same attributes and outputs."""
    made = ir.Node(
        domain,
        operator,
        values,
        node.attributes.values(),
        num_outputs=len(node.outputs),
        version=version,
        name=node.name,
    )
    dequantizer.graph.insert_before(node, made)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name, new.shape, new.type = f"{old.name}_float", old.shape, old.type
        dequantizer.names.add(new.name)
        if old.uses() or old.is_graph_output():
            dequantizer.replace(node, old, new)


def _product_with_bias(
    dequantizer: Dequantizer, node: ir.Node, data: ir.Value, kernel: ir.Value, bias: ir.Value | None
) -> bool:
    y = dequantizer.emit(node, "MatMul", [data, kernel], node.outputs[0])
    if bias is not None:
        y = dequantizer.emit(node, "Add", [y, bias], node.outputs[0])
    dequantizer.replace(node, node.outputs[0], y)
    return True
