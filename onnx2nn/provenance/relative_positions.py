"""Restores tables behind biases of relative positions (Swin Transformer, LeViT), which exporters fold into the bias.

Attention inside a window of W by W places adds a number for every head and pair of places. The number depends only on
the distance of the two places: a table has (2 W - 1)^2 rows, read by an index computed from W (Liu et al. 2021, 3.2).
BEiT's table has three more, for a class token: of it, for it, and for it of itself.

In LeViT the distance has no sign: a table has a column for each place of the image, read by how far a place is from
another one, of which there may be fewer (Graham et al. 2021, 3.4 and appendix).

ViTDet and SAM have a table for each axis of the image, with 2 W - 1 vectors, read by the distance along it of a place
from another one (Li et al. 2021, MViTv2, 4.1).
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.unsqueezed_weights import replace
from onnx2nn.provenance.weight_keys import WeightKeys, array_of, weight_input

_TABLE = re.compile(r"(\w+\.)?relative_position_bias_table")
"""Keys of tables, from the path of the attention on."""

Array = np.ndarray[Any, Any]


def restore_table(keys: WeightKeys, node: ir.Node) -> None:
    """Makes a node read a relative position bias from its table again.

    The exporter folded either the full bias, an input of an Add, or the rows that it reshapes and transposes.
    """
    place = exporter_metadata.place_of(node) if keys.absent and keys.unfold else None
    full = node.op_type == "Add"
    at = 1 if full and weight_input(node, 1) is not None else 0
    folded = weight_input(node, at)
    if place is None or folded is None or folded.const_value is None or keys.is_key(folded.name or ""):
        return
    bias = folded if full else _transposed_heads(node)
    names = _table_and_index(keys, place.path, exporter_metadata.folded_from(folded))
    if bias is None or names is None:
        return
    found = unfold(array_of(folded))
    if found is None:
        return
    table, index = found
    flat = ".swin_transformer." in place.kind and place.kind.startswith("torchvision.")  # others: (places, places)
    for key, array in zip(names, (table, index.ravel() if flat else index), strict=True):
        keys.add(key, array, f"rows and places of what the exporter folded into {folded.name!r}")
    shape = [*[1] * (array_of(folded).ndim - 3 if full else 0), table.shape[1], *index.shape]
    made = _read_table(*(keys.graph.initializers[key] for key in names), shape=shape)
    inner = names[0].rpartition(".")[0]
    notes = node.metadata_props if inner == place.path else exporter_metadata.scopes_of(inner, "relative_position_bias")
    for step, new in enumerate(made):
        new.name = new.outputs[0].name = f"{node.name}/relative_position_bias_{step}"
        new.metadata_props.update(notes)
    keys.graph.insert_before(node, made)
    if full:
        folded.replace_all_uses_with(made[-1].outputs[0])
    else:
        bias.replace_all_uses_with(made[-1].outputs[0])


def _table_and_index(keys: WeightKeys, path: str, noted: set[str]) -> tuple[str, str] | None:
    """Returns the absent keys of a table and its index.

    Args:
        keys: the state that restorers share.
        path: of the attention, which has the table itself or in a module of its own.
        noted: what the exporter notes that it folded; older files note nothing.
    """
    around = len(path) + bool(path)
    found = [key for key in keys.absent if key.startswith(path) and _TABLE.fullmatch(key, around)]
    own = [key for key in found if "." not in key[around:]] or found
    if noted:
        own = [key for key in noted & keys.absent if key.endswith("relative_position_bias_table")]
    names = (own[0], own[0].removesuffix("bias_table") + "index") if len(own) == 1 else None
    return names if names and keys.absent.issuperset(names) and all(map(keys.is_free, names)) else None


def restore_distances(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that has a bias for pairs of places of an image by the table and a Gather (LeViT)."""
    noted = exporter_metadata.folded_from(folded) if keys.unfold else set()
    names = [f"{key.rpartition('.')[0]}.attention_{part}" for key in noted & keys.absent for part in _OF_DISTANCES]
    if {*names} != noted & keys.absent or not names or not all(map(keys.is_free, names)):
        return
    values = array_of(folded)
    index = distance_index(*values.shape[1:]) if values.ndim == 3 else None
    if index is None or not np.array_equal(values, values[:, 0][:, index]):
        return
    for key, array in zip(names[:2], (values[:, 0], index), strict=True):
        keys.add(key, array, f"distances and their places in what the exporter folded into {folded.name!r}")
    given = [keys.graph.initializers[key] for key in names[:2]]
    replace(keys, folded, [ir.Node("", "Gather", given, {"axis": ir.AttrInt64("axis", 1)})])


_OF_DISTANCES = ("biases", "bias_idxs")


_OF_AXIS = re.compile(r"(.*\.)?rel_pos_[hw]")
"""Keys of tables of one axis."""


def restore_axis(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that has a vector for each pair of places along an axis by the table and a Gather.

    SAM interpolates the table to the number of distances. Where that changed the number, the table is the interpolated
    one, which does not take the author's: that has another shape.
    """
    found = exporter_metadata.folded_from(folded) & keys.absent if keys.unfold else set[str]()
    key = next(iter(found)) if len(found) == 1 else ""
    if not _OF_AXIS.fullmatch(key) or not keys.is_free(key):
        return
    values = array_of(folded)
    size = len(values) if values.ndim == 3 and values.shape[0] == values.shape[1] else 0
    if not size:
        return
    index = np.arange(size)[:, None] - np.arange(size) + size - 1
    table = np.empty((2 * size - 1, values.shape[2]), values.dtype)
    table[index] = values
    if not np.array_equal(table[index], values):
        return
    keys.add(key, table, f"distances in what the exporter folded into {folded.name!r}")
    places = ir.Node("", "Constant", [], {"value": ir.AttrTensor("value", ir.Tensor(index.astype(np.int64)))})
    replace(keys, folded, [places, ir.Node("", "Gather", [keys.graph.initializers[key], places.outputs[0]])])


def distance_index(queries: int, places: int) -> Array | None:
    """Returns the column of the table for each place and each of the queries, which are places in regular distances.

    Returns:
        int64 (queries, places); None where the places are no square image or the queries no part of it.
    """
    size = math.isqrt(places)
    steps = [step for step in range(1, size + 1) if (-(-size // step)) ** 2 == queries]
    if size * size != places or not steps:
        return None
    at = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"))
    apart = np.abs(at[:, :: steps[0], :: steps[0]].reshape(2, -1, 1) - at.reshape(2, 1, -1))
    index: Array = apart[0] * size + apart[1]
    return index.astype(np.int64)


def window_index(size: int, *, token: bool = False) -> Array:
    """Returns the row of the table for each pair of places of a window, int64 (size^2, size^2).

    Args:
        size: of the window.
        token: whether a class token is in front of the places, so that there is one place more.
    """
    places = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij")).reshape(2, -1)
    apart = places[:, :, None] - places[:, None, :] + size - 1
    index: Array = (apart[0] * (2 * size - 1) + apart[1]).astype(np.int64)
    if token:
        index = np.pad(index, ((1, 0), (1, 0)))
        index[0], index[1:, 0], index[0, 0] = (rows := (2 * size - 1) ** 2), rows + 1, rows + 2
    return index


def unfold(values: Array) -> tuple[Array, Array] | None:
    """Returns the table (rows, heads) and the index that give a folded bias; None for any other array.

    Args:
        values: the rows that were read, (places^2, heads), or the full bias, (heads, places, places) or (1, heads,
            places, places). The table gives back every number exactly.
    """
    if values.ndim in (3, 4) and values.shape[-2] == values.shape[-1] and values.shape[:-3] in ((), (1,)):
        values = values.reshape(values.shape[-3], -1).T
    places = math.isqrt(len(values)) if values.ndim == 2 else 0
    size = math.isqrt(places)
    token = places - size**2
    if size < 2 or token > 1 or places**2 != len(values):
        return None
    index = window_index(size, token=token > 0)
    table = np.empty(((2 * size - 1) ** 2 + 3 * token, values.shape[1]), values.dtype)
    table[index.ravel()] = values
    return (table, index) if np.array_equal(table[index.ravel()], values) else None


def _read_table(table: ir.Value, index: ir.Value, *, shape: list[int]) -> list[ir.Node]:
    """Returns nodes that read the columns of the transposed table, so that the result is contiguous."""
    heads = ir.Node("", "Transpose", [table], {"perm": ir.AttrInt64s("perm", [1, 0])})
    pairs = ir.Node("", "Gather", [heads.outputs[0], index], {"axis": ir.AttrInt64("axis", 1)})
    wanted = ir.Node("", "Constant", [], {"value": ir.AttrTensor("value", ir.Tensor(np.array(shape, np.int64)))})
    return [heads, pairs, wanted, ir.Node("", "Reshape", [pairs.outputs[0], wanted.outputs[0]])]


def _transposed_heads(reshape: ir.Node) -> ir.Value | None:
    """Returns the bias (heads, places, places) that is computed from the rows, None where another value is."""
    uses = list(reshape.outputs[0].uses())
    node = uses[0].node if len(uses) == 1 else None
    perm = node.attributes.get("perm") if node is not None and node.op_type == "Transpose" else None
    bias = node.outputs[0] if node is not None and perm is not None and list(perm.as_ints()) == [2, 0, 1] else None
    return None if bias is None or bias.is_graph_output() else bias
