"""Gives weights their keys that a file holds as integers and dequantises."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from onnx2nn.provenance.matmul_weights import MatMulWeights
from onnx2nn.provenance.node_places import NodePlaces
from onnx2nn.provenance.weight_keys import WeightKeys, weight_input

_SUFFIX = "_quantized"
"""What ONNX Runtime's quantiser and `onnx2nn.export_onnx` add to the name of a weight that they make integers of."""

_PARTS = (_SUFFIX, "_scale", "_zero_point")
"""What the quantiser adds to the names of the parts of a weight that operators on integers read."""


def name_integers(keys: WeightKeys, places: NodePlaces) -> None:
    """Names the matrices of integers that ONNX Runtime's quantiser makes of those that torch's older exporter numbers.

    Their step and their zero point too, by the module in which they are multiplied by. They are no keys of the
    author's, but `layer.weight_quantized` tells what `onnx::MatMul_12_quantized` does not.
    """
    products = [node for node in keys.graph if node.op_type == "MatMulInteger"]
    found = {node: place.path for node in products if (place := places(node)) is not None}
    count = Counter(found.values())
    for node, path in found.items():
        integers = weight_input(node, 1)
        numbered = "" if integers is None else (integers.name or "").removesuffix(_SUFFIX)
        if not path or count[path] > 1 or keys.is_key(numbered) or not (node.name or "").endswith("/MatMul_quant"):
            continue
        parts = {part: value for part in _PARTS if (value := keys.graph.initializers.get(f"{numbered}{part}"))}
        if all(keys.is_free(f"{path}.weight{part}") for part in parts):
            for part, value in parts.items():
                value.name = f"{path}.weight{part}"


def restore_quantised(keys: WeightKeys, node: ir.Node, matrices: MatMulWeights) -> None:
    """Names the integers of a DequantizeLinear by the key that their name begins with, or by what reads them."""
    integers, result = weight_input(node, 0), node.outputs[0]
    if integers is None:
        return
    name, of_linear = integers.name or "", matrices.key_of(result)
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


def restore_rounded(keys: WeightKeys, node: ir.Node, matrices: MatMulWeights) -> None:
    """Names the floats of a QuantizeLinear that the next node dequantises to the matrix of a linear layer."""
    weight, pair = weight_input(node, 0), next(iter(node.outputs[0].uses()), None)
    if weight is None or pair is None or pair.node.op_type != "DequantizeLinear" or keys.is_key(weight.name or ""):
        return
    if key := matrices.key_of(pair.node.outputs[0]):
        keys.rename(weight, key, "what is made of it is the matrix of a linear layer", "transposed")


def holds_integers(graph: ir.Graph) -> bool:
    """Returns whether operators on integers read weights of a graph: matrices of 8-bit integers."""
    return any(
        value.dtype in (ir.DataType.INT8, ir.DataType.UINT8)
        and len(value.shape or ()) > 1
        and any(use.node.op_type != "DequantizeLinear" for use in value.uses())
        for value in graph.initializers.values()
    )
