"""Gives weights their keys that a file holds as integers and dequantises."""

from __future__ import annotations

import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.weight_keys import WeightKeys, weight_input

_SUFFIX = "_quantized"
"""What ONNX Runtime's quantiser and `onnx2nn.export_onnx` add to the name of a weight that they make integers of."""


def restore_quantised(keys: WeightKeys, node: ir.Node) -> None:
    """Names the integers of a DequantizeLinear by the key that their name begins with, or by what reads them."""
    integers, result = weight_input(node, 0), node.outputs[0]
    if integers is None:
        return
    name, of_linear = integers.name or "", _key_of_matrix(keys, result)
    own = name.removesuffix(_SUFFIX)
    key = own if own != name and keys.is_key(own) else of_linear
    if not key or not keys.is_free(key):
        return
    if result.name == key:
        result.name = f"{key}/dequantised"
    keys.author.quantised.add(key)
    if not keys.author.listed:  # the names of integers and steps look like keys
        keys.author.names -= {value.name or "" for value in node.inputs if value is not None}
    keys.rename(integers, key, "integers that are dequantised", "transposed" if key == of_linear else "")


def _key_of_matrix(keys: WeightKeys, weight: ir.Value) -> str:
    """Returns the key of the matrix of an nn.Linear that is the second factor of a MatMul, `""` for other values."""
    node = next(iter(weight.uses())).node if weight.uses() else None
    call = exporter_metadata.call_of(node) if node is not None and node.op_type == "MatMul" else None
    state = keys.argument(call, 1) if call is not None and call.target.startswith("aten.linear.") else None
    return "" if state is None else state.key


def holds_integers(graph: ir.Graph) -> bool:
    """Returns whether operators on integers read weights of a graph: matrices of 8-bit integers."""
    return any(
        value.dtype in (ir.DataType.INT8, ir.DataType.UINT8)
        and len(value.shape or ()) > 1
        and any(use.node.op_type != "DequantizeLinear" for use in value.uses())
        for value in graph.initializers.values()
    )
