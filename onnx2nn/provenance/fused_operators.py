"""Takes biases and activations out of ONNX Runtime's fused operators: each is a layer's, or a module, of its own."""

from __future__ import annotations

import re

import onnx_ir as ir

from onnx2nn.provenance.weight_keys import weight_input

_BIASES = {"BiasGelu": 1, "FastGelu": 1, "SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}
"""Operator → which of its inputs is added to the first one."""

_WITHOUT = {"BiasGelu": "Gelu"}
"""Operator → the same without a bias, where that is another one."""

_FUSED = {"FusedConv": ("activation_params",), "FusedGemm": ("activation_alpha", "activation_beta", "activation_gamma")}
"""Layers with an activation behind them → the attributes with its parameters."""

_ACTIVATIONS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
"""Activations → the attributes that the parameters are in the operator of opset 6."""

_RESULT = re.compile(r"(/.+)_output_\d+")
"""Names of results in files of torch's older exporter, which begin with the name of the node."""


def split_activations(graph: ir.Graph) -> None:
    """Makes the activation of a fused layer a node behind it, where the author's stood.

    The layer has the name of the author's node again, by which its weights are found. One that adds a sum stays.
    """
    for node in list(graph):
        names = _FUSED.get(node.op_type) if node.domain == "com.microsoft" else None
        if names is None or any(value is not None for value in node.inputs[3:]):
            continue
        attributes = dict(node.attributes)
        kind = attributes.pop("activation", None)
        if kind is None or kind.as_string() not in _ACTIVATIONS:
            continue
        given = [attribute for name in names if (attribute := attributes.pop(name, None)) is not None]
        numbers = [n for a in given for n in (a.as_floats() if a.type == ir.AttributeType.FLOATS else [a.as_float()])]
        options = zip(_ACTIVATIONS[kind.as_string()], numbers, strict=False)
        result = node.outputs[0]
        layer = ir.Node("", node.op_type.removeprefix("Fused"), node.inputs[:3], list(attributes.values()))
        layer.name = (node.name or "").removeprefix("fused ")
        layer.metadata_props.update(node.metadata_props)
        between = layer.outputs[0]
        between.name, between.shape, between.type = f"{result.name}/before_activation", result.shape, result.type
        named = _RESULT.fullmatch(result.name or "")
        made = [ir.AttrFloat32(name, number) for name, number in options]
        activation = ir.Node("", kind.as_string(), [between], made, version=6, name=named[1] if named else None)
        ir.convenience.replace_nodes_and_values(graph, node, [node], [layer, activation], [result], activation.outputs)


def split_biases(graph: ir.Graph) -> None:
    """Makes the bias of a fused operator an Add behind the product to which it belongs, as it was in the author's file.

    The sum of a product, a bias and what is added to them is the same numbers in another order. Half precision stays:
    the fused operator rounds once.
    """
    for node in list(graph):
        position = _BIASES.get(node.op_type) if node.domain == "com.microsoft" else None
        bias = None if position is None else weight_input(node, position)
        if bias is None or position is None or bias.dtype != ir.DataType.FLOAT:
            continue
        added = range(2) if node.op_type.startswith("Skip") else range(1)
        index = next((i for i in added if _is_product(node.inputs[i], bias)), None)
        if index is not None:
            _split(graph, node, index, position)


def _is_product(value: ir.Value | None, bias: ir.Value) -> bool:
    """Returns whether a value is the product with a matrix that has a column for each number of a bias."""
    product = value.producer() if value is not None else None
    if product is None or product.op_type != "MatMul" or value is None or len(value.uses()) > 1:
        return False
    matrix = weight_input(product, 1)
    if matrix is None or matrix.shape is None or bias.shape is None or value.is_graph_output():
        return False
    return list(matrix.shape)[-1:] == list(bias.shape)


def _split(graph: ir.Graph, node: ir.Node, index: int, position: int) -> None:
    """Adds the bias at one input of a node to the product at another, in the product's module."""
    value, bias = node.inputs[index], node.inputs[position]
    assert value is not None
    product = value.producer()
    assert product is not None
    name = product.name or ""
    add = ir.Node(
        "", "Add", [value, bias], name=f"{name.removesuffix('MatMul')}Add" if name.endswith("/MatMul") else name
    )
    add.metadata_props.update(product.metadata_props)
    total = add.outputs[0]
    total.name, total.shape, total.type = f"{value.name}/with_bias", value.shape, value.type
    graph.insert_before(node, add)
    node.replace_input_with(index, total)
    if node.op_type not in _WITHOUT:
        node.replace_input_with(position, None)
        return
    plain = ir.Node(node.domain, _WITHOUT[node.op_type], [total], node.attributes, name=node.name)
    plain.metadata_props.update(node.metadata_props)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [plain], node.outputs, plain.outputs)
