"""Packs the projections of `nn.MultiheadAttention` again, which torch's older exporter splits.

Where the value is another tensor than the key, as in DETR, the module multiplies each input with its third of one
matrix: `in_proj_weight.chunk(3)`. Where the query alone is another tensor, as in a decoder, it multiplies the query by
the first third, and the key by the others. The exporter computes the parts where it knows all sizes, so that the file
has three or two matrices without names, and as many biases, which are nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.naming import is_generated
from onnx2nn.provenance.node_places import NodePlaces
from onnx2nn.provenance.weight_keys import WeightKeys, array_of, slot_of, weight_input

_OUTER = "out_proj.weight"
_PACKED, _SEPARATE = "in_proj_weight", ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_BIAS = "in_proj_bias"


class _Read(NamedTuple):
    """A node that reads a part of a weight at an input."""

    node: ir.Node
    position: int
    part: int


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
    made: dict[str, Sequence[np.ndarray]] = {}
    for nodes in around.values():
        inner = [node for node in nodes if _unnamed(node, 1) is not None]
        outer = {name for node in nodes for name in _names(node) if f".{name}".endswith(f".{_OUTER}")}
        prefix = outer.pop().removesuffix(_OUTER) if len(outer) == 1 else None
        if prefix is not None and f"{prefix}{_PACKED}" in made:
            _restore_further(keys, prefix, inner, made)
        elif prefix is not None and len(inner) in (2, 3):
            _restore(keys, prefix, inner, made)


def _restore(keys: WeightKeys, prefix: str, products: Sequence[ir.Node], made: dict[str, Sequence[np.ndarray]]) -> None:
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
    parts = {own[-1]: [bias for _, _, bias in added]} if added else {}
    parts |= {own[0]: [array_of(matrix).T for matrix in matrices]} if is_packed else {}
    for key, arrays in parts.items():
        keys.add(key, np.concatenate(arrays), "the projections of an attention, which the exporter split")
    made |= parts
    if is_packed:
        _read(keys, own[0], widths, [_Read(node, 1, number) for number, node in enumerate(products)], products[0])
    else:
        for key, matrix in zip(own, matrices, strict=False):
            keys.rename(matrix, key, "the projections of an attention", "transposed")
    if added:
        _read(keys, own[-1], widths, [_Read(add, at, number) for number, (add, at, _) in enumerate(added)], products[0])


def _restore_further(
    keys: WeightKeys, prefix: str, products: Sequence[ir.Node], made: dict[str, Sequence[np.ndarray]]
) -> None:
    """Lets the products in a further call read the parts that are equal to their matrices and biases."""
    weights, biases = made[f"{prefix}{_PACKED}"], made.get(f"{prefix}{_BIAS}", ())
    found: dict[str, list[_Read]] = {_PACKED: [], _BIAS: []}
    for node in products:
        matrix, bias = _unnamed(node, 1), _bias(node)
        equal = (
            number
            for number, part in enumerate(weights)
            if matrix is not None and np.array_equal(part, array_of(matrix).T)
        )
        number = next(equal, None)
        if number is not None:
            found[_PACKED].append(_Read(node, 1, number))
            if biases and bias is not None and np.array_equal(biases[number], bias[2]):
                found[_BIAS].append(_Read(bias[0], bias[1], number))
    for name, reads in found.items():
        if reads:
            _read(keys, f"{prefix}{name}", [len(part) for part in weights], reads, products[0])


def _read(keys: WeightKeys, key: str, sizes: Sequence[int], reads: Sequence[_Read], first: ir.Node) -> None:
    """Lets nodes read parts of a weight, which a Split node in front of `first` gives; matrices are transposed."""
    split = {"split": ir.AttrInt64s("split", sizes)}
    made = ir.Node("", "Split", [keys.graph.initializers[key]], split, num_outputs=len(sizes), version=11)
    _insert(keys, made, first, f"{first.name}_{slot_of(key)}_Split")
    for node, position, number in reads:
        part = made.outputs[number]
        if node.op_type != "Add":
            turned = ir.Node("", "Transpose", [part], {"perm": ir.AttrInt64s("perm", [1, 0])}, version=13)
            _insert(keys, turned, node, f"{node.name}_Transpose")
            part = turned.outputs[0]
        node.replace_input_with(position, part)


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
