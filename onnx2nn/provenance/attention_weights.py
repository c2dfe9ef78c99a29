"""Packs the projections of `nn.MultiheadAttention` again, which torch's older exporter splits.

Where the value is another tensor than the key, as in DETR, the module multiplies each input with its third of one
matrix: `in_proj_weight.chunk(3)`. Where the query alone is another tensor, as in a decoder, it multiplies the query by
the first third, and the key by the others. The exporter computes the parts where it knows all sizes, so that the file
has three or two matrices without names, and as many biases, which are nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.naming import is_generated
from onnx2nn.provenance.node_places import NodePlaces
from onnx2nn.provenance.weight_keys import WeightKeys, array_of, weight_input

_OUTER = "out_proj.weight"
_PACKED, _SEPARATE = "in_proj_weight", ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_BIAS = "in_proj_bias"


def restore_attention(keys: WeightKeys, places: NodePlaces) -> None:
    """Gives the projections of each attention the keys and the layout of the module's weights.

    Law: a module that multiplies by its inner layer `out_proj` itself, and before that three inputs by matrices of its
    own, is an `nn.MultiheadAttention`; so is one with two matrices, the second of which gives twice the features. It
    projects the query, the key and the value in this order; the matrices are one parameter if the inputs have one size.
    """
    if keys.author.listed or not keys.unfold:
        return
    around: dict[str, list[ir.Node]] = {}
    for node in keys.graph:
        if node.op_type in ("MatMul", "Gemm") and (place := places(node)) is not None:
            around.setdefault(place.path, []).append(node)
    for path, nodes in around.items():
        inner = [node for node in nodes if _unnamed(node, 1) is not None]
        if len(inner) in (2, 3) and any(_reads(node, f"{path}.{_OUTER}" if path else _OUTER) for node in nodes):
            _restore(keys, f"{path}." if path else "", inner)


def _restore(keys: WeightKeys, prefix: str, products: Sequence[ir.Node]) -> None:
    matrices = [value for node in products if (value := _unnamed(node, 1)) is not None]
    shapes = [tuple(array_of(matrix).shape) for matrix in matrices]
    biases = [_bias(node) for node in products]
    added = [bias for bias in biases if bias is not None]
    if len(added) not in (0, len(products)) or any(len(shape) != 2 for shape in shapes):
        return
    features = shapes[0][1]
    widths = [width for _, width in shapes]
    are_own = all(matrix is node.inputs[1] for matrix, node in zip(matrices, products, strict=True))
    is_packed = {size for size, _ in shapes} == {features}
    if any(bias.size != width for (_, _, bias), width in zip(added, widths, strict=False)):
        return
    if widths != [features] * 3 and not (is_packed and widths == [features, 2 * features]):
        return
    names = [_PACKED] if is_packed else [*_SEPARATE]
    own = [f"{prefix}{name}" for name in (*names, *([_BIAS] if added else []))]
    if not all(map(keys.is_free, own)) or not (is_packed or are_own):
        return
    if is_packed:
        packed = _split(keys, own[0], [array_of(matrix).T for matrix in matrices], products[0])
        for node, part in zip(products, packed, strict=True):
            turned = ir.Node("", "Transpose", [part], {"perm": ir.AttrInt64s("perm", [1, 0])}, version=13)
            _insert(keys, turned, node, f"{part.name}/Transpose")
            node.replace_input_with(1, turned.outputs[0])
    else:
        for key, matrix in zip(own, matrices, strict=False):
            keys.rename(matrix, key, "the projections of an attention", "transposed")
    if added:
        parts = _split(keys, own[-1], [bias for _, _, bias in added], products[0])
        for (add, position, _), part in zip(added, parts, strict=True):
            add.replace_input_with(position, part)


def _split(keys: WeightKeys, key: str, parts: Sequence[np.ndarray], first: ir.Node) -> Sequence[ir.Value]:
    """Adds a weight that consists of parts; returns the parts of it, computed in front of a node."""
    keys.add(key, np.concatenate(parts), "the projections of an attention, which the exporter split")
    sizes = ir.AttrInt64s("split", [len(part) for part in parts])
    made = ir.Node("", "Split", [keys.graph.initializers[key]], {"split": sizes}, num_outputs=len(parts), version=11)
    _insert(keys, made, first, f"{first.name}/{key}/Split")
    return made.outputs


def _insert(keys: WeightKeys, node: ir.Node, before: ir.Node, name: str) -> None:
    node.name = name
    for number, output in enumerate(node.outputs):
        output.name = f"{name}_{number}"
    keys.graph.insert_before(before, node)


def _unnamed(node: ir.Node, position: int) -> ir.Value | None:
    """Returns the constant at an input without a name of the author's; None for another input.

    It may be that of an equal weight, with which the exporter merged it, behind an Identity.
    """
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None or not is_generated(value.name or ""):
        return None
    before = value.producer()
    return (
        weight_input(before, 0) if before is not None and before.op_type == "Identity" else weight_input(node, position)
    )


def _reads(node: ir.Node, name: str) -> bool:
    return any(value is not None and value.name == name for value in node.inputs)


def _bias(product: ir.Node) -> tuple[ir.Node, int, np.ndarray] | None:
    """Returns the node that adds an unnamed vector to a product, its input, and the vector; None where none does."""
    uses = list(product.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add":
        return None
    add, position = uses[0].node, 1 - uses[0].idx
    value = _unnamed(add, position)
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return (add, position, tensor.numpy()) if tensor is not None and len(tensor.shape) == 1 else None
