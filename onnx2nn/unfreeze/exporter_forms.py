"""Forms of exporters that hide a frozen size, brought into a form that the rules read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir


def join_constants(graph: ir.Graph) -> None:
    """Puts one constant in the place of each Concat of lists of sizes that are constants, where the rules find it.

    PyTorch 2.6 lists the sizes one by one, and does not fold what it joins them with.
    """
    for node in list(graph):
        output = node.outputs[0] if node.op_type == "Concat" and not node.domain else None
        if output is None or output.is_graph_output():
            continue
        parts = [None if value is None else ir.convenience.get_const_tensor(value) for value in node.inputs]
        lists = [part.numpy() for part in parts if part is not None and part.dtype == ir.DataType.INT64]
        if not parts or len(lists) < len(parts) or any(numbers.ndim != 1 for numbers in lists):
            continue
        array = np.concatenate(lists)
        tensor = ir.Tensor(array, name=output.name)
        node.outputs[0].name = None
        joined = ir.Value(
            name=tensor.name, shape=ir.Shape([array.size]), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        graph.register_initializer(joined)
        output.replace_all_uses_with(joined)
        graph.remove(node)


def reshape_whole_gathers(graph: ir.Graph) -> None:
    """Puts a Reshape in the place of each Gather or GatherND that picks all elements of a value in their order.

    torch's dynamo exporter writes `as_strided` of a flattened value so, and the masks of transformers, whose functions
    are called for each sample and position. The indices would count on at another size.
    """
    for node in list(graph):
        if node.op_type == "GatherND" and not node.domain:
            _reshape_whole_gather_nd(graph, node)
        if node.op_type != "Gather" or node.domain or node.attributes.get_int("axis", 0) != 0:
            continue
        flat, indices = node.inputs[0], _constant(node.inputs[1])
        flatten = None if flat is None else flat.producer()
        if indices is None or flatten is None or flatten.op_type != "Reshape" or flatten.domain:
            continue
        source, target = flatten.inputs[0], _constant(flatten.inputs[1])
        if source is None or source.shape is None or not source.shape.is_static() or target is None:
            continue
        numbers = indices.numpy()
        if target.numpy().tolist() != [-1] or numbers.size != np.prod(source.shape.numpy(), dtype=int):
            continue
        if (numbers.ravel() == np.arange(numbers.size)).all():
            _reshape_instead(graph, node, source, numbers.shape)


def _reshape_whole_gather_nd(graph: ir.Graph, node: ir.Node) -> None:
    source, indices = node.inputs[0], _constant(node.inputs[1])
    batch_dims = node.attributes.get_int("batch_dims", 0)
    if indices is None or batch_dims or source is None or source.shape is None:
        return
    numbers = indices.numpy()
    if not source.shape.is_static() or numbers.shape[-1] != len(source.shape):
        return
    shape = source.shape.numpy()
    if numbers.size != len(shape) * np.prod(shape, dtype=int):
        return
    counted = np.stack(np.unravel_index(np.arange(np.prod(shape, dtype=int)), shape), -1)
    if (numbers.reshape(counted.shape) == counted).all():
        _reshape_instead(graph, node, source, numbers.shape[:-1])


def _constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    return None if value is None else ir.convenience.get_const_tensor(value)


def _reshape_instead(graph: ir.Graph, node: ir.Node, source: ir.Value, sizes: Sequence[int]) -> None:
    """Puts a Reshape of `source` in the place of `node`."""
    output = node.outputs[0]
    tensor = ir.Tensor(np.array(sizes, np.int64), name=f"{output.name}_shape")
    shape = ir.Value(
        name=tensor.name, shape=ir.Shape([len(sizes)]), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(shape)
    reshape = ir.Node("", "Reshape", [source, shape], name=node.name, num_outputs=1)
    reshape.metadata_props.update(node.metadata_props)
    (new,) = reshape.outputs
    new.name, new.shape, new.type = output.name, output.shape, output.type
    output.name = None
    graph.insert_before(node, reshape)
    output.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
