"""Gives convolutions their biases back, which ONNX Runtime's dynamic quantiser adds behind the product of integers."""

from __future__ import annotations

import onnx_ir as ir


def join_biases(graph: ir.Graph) -> None:
    """Makes the sum of a convolution and a bias of one number a channel the convolution with this bias, in place."""
    for node in list(graph):
        if node.op_type != "Conv" or node.domain or len(node.inputs) != 2 or len(node.outputs[0].uses()) != 1:
            continue
        add = next(iter(node.outputs[0].uses())).node
        bias = _bias_of(add, node)
        if bias is None or add.op_type != "Add" or add.graph is not graph or node.outputs[0].is_graph_output():
            continue
        joined = ir.Node(
            "", "Conv", [*node.inputs, bias], node.attributes.values(), version=node.version, name=node.name
        )
        joined.metadata_props.update(node.metadata_props)
        graph.insert_before(add, joined)
        result, old = joined.outputs[0], add.outputs[0]
        result.shape, result.type = old.shape, old.type
        ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
        result.name, old.name = old.name, None
        graph.remove([add, node], safe=True)


def _bias_of(add: ir.Node, convolution: ir.Node) -> ir.Value | None:
    """Returns the vector that is added to a convolution's result along its channels, None for anything else."""
    given = [value for value in add.inputs if value is not None and value is not convolution.outputs[0]]
    reshape = given[0].producer() if len(given) == 1 else None
    if reshape is None or reshape.op_type != "Reshape" or reshape.domain:
        return None
    bias, target = reshape.inputs
    kernel = convolution.inputs[1]
    if bias is None or target is None or kernel is None or kernel.shape is None:
        return None
    shape = ir.convenience.get_const_tensor(target)
    known = bias.shape is not None and list(bias.shape) == list(kernel.shape)[:1]
    along = shape is not None and shape.numpy().tolist() == [1, -1, *[1] * (len(kernel.shape) - 2)]
    return bias if known and along else None
