"""Packs the projections of `nn.MultiheadAttention` again, which torch's older exporter splits.

Where the value is another tensor than the key, as in DETR, the module multiplies each input with its third of one
matrix: `in_proj_weight.chunk(3)`. Where the query alone is another tensor, as in a decoder, it multiplies the query by
the first third, and the key by the others. The exporter computes the parts where it knows all sizes, so that the file
has three or two matrices without names, and as many biases, which are nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.naming import is_generated
from onnx2nn.provenance.node_places import NodePlaces
from onnx2nn.provenance.weight_keys import WeightKeys, array_of, weight_input

_OUTER = "out_proj.weight"
_PACKED, _SEPARATE = "in_proj_weight", ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_BIAS = "in_proj_bias"


class _Part(NamedTuple):
    """Rows of a weight, and the value that a Split node gives of them."""

    value: ir.Value
    array: np.ndarray[Any, Any]


def restore_attention(keys: WeightKeys, places: NodePlaces) -> None:
    """Gives the projections of each attention the keys and the layout of the module's weights.

    Law: a module that multiplies by its inner layer `out_proj` itself, and before that three inputs by matrices of its
    own, is an `nn.MultiheadAttention`; so is one with two matrices, the second of which gives twice the features. It
    projects the query, the key and the value in this order; the matrices are one parameter if the inputs have one size.
    A further call has a place of its own, the same `out_proj`, and no product that the exporter has already.
    """
    if keys.author.listed or not keys.unfold:
        return
    around: dict[str, list[ir.Node]] = {}
    for node in keys.graph:
        if node.op_type in ("MatMul", "Gemm") and (place := places(node)) is not None:
            around.setdefault(place.path, []).append(node)
    made: dict[str, Sequence[_Part]] = {}
    for nodes in around.values():
        inner = [node for node in nodes if _unnamed(node, 1) is not None]
        outer = {name for node in nodes for name in _names(node) if f".{name}".endswith(f".{_OUTER}")}
        prefix = outer.pop().removesuffix(_OUTER) if len(outer) == 1 else None
        if prefix is not None and f"{prefix}{_PACKED}" in made:
            _restore_further(keys, made[f"{prefix}{_PACKED}"], made.get(f"{prefix}{_BIAS}"), inner)
        elif prefix is not None and len(inner) in (2, 3):
            _restore(keys, prefix, inner, made)


def _restore(keys: WeightKeys, prefix: str, products: Sequence[ir.Node], made: dict[str, Sequence[_Part]]) -> None:
    """Gives the projections in the first call of a module their keys, behind `prefix`; adds their parts to `made`."""
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
        made[own[0]] = _split(keys, own[0], [array_of(matrix).T for matrix in matrices], products[0])
        for node, part in zip(products, made[own[0]], strict=True):
            _multiply_by(keys, node, part)
    else:
        for key, matrix in zip(own, matrices, strict=False):
            keys.rename(matrix, key, "the projections of an attention", "transposed")
    if added:
        made[own[-1]] = _split(keys, own[-1], [bias for _, _, bias in added], products[0])
        for (add, position, _), part in zip(added, made[own[-1]], strict=True):
            add.replace_input_with(position, part.value)


def _restore_further(
    keys: WeightKeys, weights: Sequence[_Part], biases: Sequence[_Part] | None, products: Sequence[ir.Node]
) -> None:
    """Lets the products in a further call read the parts that are equal to their matrices and biases."""
    for node in products:
        matrix, bias = _unnamed(node, 1), _bias(node)
        for number, part in enumerate(weights):
            if matrix is not None and np.array_equal(part.array, array_of(matrix).T):
                _multiply_by(keys, node, part)
                if biases is not None and bias is not None and np.array_equal(biases[number].array, bias[2]):
                    bias[0].replace_input_with(bias[1], biases[number].value)
                break


def _multiply_by(keys: WeightKeys, product: ir.Node, part: _Part) -> None:
    """Replaces the matrix of a product by rows of a weight."""
    turned = ir.Node("", "Transpose", [part.value], {"perm": ir.AttrInt64s("perm", [1, 0])}, version=13)
    _insert(keys, turned, product, f"{product.name}/{part.value.name}/Transpose")
    product.replace_input_with(1, turned.outputs[0])


def _split(keys: WeightKeys, key: str, parts: Sequence[np.ndarray], first: ir.Node) -> Sequence[_Part]:
    """Adds a weight that consists of parts; returns the parts of it, computed in front of a node."""
    keys.add(key, np.concatenate(parts), "the projections of an attention, which the exporter split")
    sizes = ir.AttrInt64s("split", [len(part) for part in parts])
    made = ir.Node("", "Split", [keys.graph.initializers[key]], {"split": sizes}, num_outputs=len(parts), version=11)
    _insert(keys, made, first, f"{first.name}/{key}/Split")
    return [_Part(value, part) for value, part in zip(made.outputs, parts, strict=True)]


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


def _names(node: ir.Node) -> list[str]:
    return [value.name for value in node.inputs if value is not None and value.name is not None]


def _bias(product: ir.Node) -> tuple[ir.Node, int, np.ndarray] | None:
    """Returns the node that adds an unnamed vector to a product, its input, and the vector; None where none does."""
    uses = list(product.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add":
        return None
    add, position = uses[0].node, 1 - uses[0].idx
    value = _unnamed(add, position)
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return (add, position, tensor.numpy()) if tensor is not None and len(tensor.shape) == 1 else None
