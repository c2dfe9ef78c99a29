"""Gives weights their keys that a file holds as integers and dequantises."""

from __future__ import annotations

import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.weight_keys import WeightKeys, weight_input

_SUFFIX = "_quantized"
"""What ONNX Runtime's quantiser and `onnx2nn.export_onnx` add to the name of a weight that they make integers of."""


def restore_quantised(keys: WeightKeys, node: ir.Node) -> None:
    """Names the integers of a DequantizeLinear by the listed key that their name begins with, or by what reads them."""
    integers, result = weight_input(node, 0), node.outputs[0]
    if integers is None:
        return
    own = (integers.name or "").removesuffix(_SUFFIX)
    of_linear = _key_of_matrix(keys, result)
    key = own if own in keys.absent else of_linear
    if key not in keys.absent or not keys.is_free(key):
        return
    if result.name == key:
        result.name = f"{key}/dequantised"
    keys.author.quantised.add(key)
    keys.rename(integers, key, "integers that are dequantised", "transposed" if key == of_linear else "")


def _key_of_matrix(keys: WeightKeys, weight: ir.Value) -> str:
    """Returns the key of the matrix of an nn.Linear that is the second factor of a MatMul, `""` for other values."""
    node = next(iter(weight.uses())).node if weight.uses() else None
    call = exporter_metadata.call_of(node) if node is not None and node.op_type == "MatMul" else None
    state = keys.argument(call, 1) if call is not None and call.target.startswith("aten.linear.") else None
    return "" if state is None else state.key
