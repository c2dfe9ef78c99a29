"""Sizes that a file lists one by one, as one constant each: PyTorch 2.6 does not fold what it joins them with."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def join_constants(graph: ir.Graph) -> None:
    """Puts one constant in the place of each Concat of lists of sizes that are constants, where the rules find it."""
    for node in list(graph):
        output = node.outputs[0] if node.op_type == "Concat" and not node.domain else None
        if output is None or output.is_graph_output():
            continue
        parts = [None if value is None else ir.convenience.get_const_tensor(value) for value in node.inputs]
        lists = [part.numpy() for part in parts if part is not None and part.dtype == ir.DataType.INT64]
        if not parts or len(lists) < len(parts) or any(numbers.ndim != 1 for numbers in lists):
            continue
        array = np.concatenate(lists)
        tensor = ir.tensor(array, name=output.name)
        node.outputs[0].name = None
        joined = ir.Value(
            name=tensor.name, shape=ir.Shape([array.size]), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        graph.register_initializer(joined)
        output.replace_all_uses_with(joined)
        graph.remove(node)
