"""Gives embeddings of positions their keys, which the exporter looked up once for all positions of a fixed length.

Modules of transformers hold the numbers of the positions in a buffer `position_ids`, as many as the table has rows, and
look up those of an image's patches, or of a text's tokens: `self.position_embedding(self.position_ids)`.

A table of which columns are looked up, `self.biases[:, index]`, is transposed by the exporter, whose Gather reads rows.
One of which rows are, `self.weight[positions]`, has another name for the same reason.
"""

from __future__ import annotations

import math
import re

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.naming import is_generated
from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.unsqueezed_weights import replace
from onnx2nn.provenance.weight_keys import WeightKeys, array_of, slot_of, weight_input

_LOOKED_UP = re.compile(r"embedding(_\d+)?")
"""Names of the results of F.embedding."""

_INDEX = re.compile(r"\[(None, )?%\w+\]")
"""The index of rows, or of columns, as a note of a call has it."""

_ALL = re.compile(r"alias(_\d+)?")
"""Names of slices that take everything."""


def restore_looked_up(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that has all rows of a table, looked up by their positions, by the table and a Gather."""
    noted = exporter_metadata.folded_from(folded)
    found = noted & keys.absent
    if not keys.unfold or len(found) != 2 or not _LOOKED_UP.fullmatch(folded.name or ""):
        return
    positions, table = sorted(found, key=lambda key: keys.author.states[key].parameter)
    trained = [keys.author.states[key].parameter for key in (positions, table)]
    if trained != [False, True] or slot_of(positions) != "position_ids" or not all(map(_ALL.fullmatch, noted - found)):
        return
    rows = array_of(folded)
    *leading, count, features = rows.shape if rows.ndim > 1 else (0, 0)
    if math.prod(leading) != 1 or not all(map(keys.is_free, found)):
        return
    keys.add(table, rows.reshape(count, features), f"the rows that the exporter looked up as {folded.name!r}")
    keys.add(positions, np.arange(count).reshape(*leading, count), "the numbers of the rows of a table")
    given = [keys.graph.initializers[key] for key in (table, positions)]
    replace(keys, folded, [ir.Node("", "Gather", given, metadata_props=_notes(folded, table))])


def restore_indexed(keys: WeightKeys, node: ir.Node) -> None:
    """Names a table of which a node looks up rows, or a transposed one of which it looks up columns, by its call."""
    folded = weight_input(node, 0) if keys.absent else None
    call = exporter_metadata.call_of(node) if folded is not None else None
    if folded is None or call is None or call.target != "aten.index.Tensor" or folded.shape is None:
        return
    state = keys.argument(call, 0)
    index = _INDEX.fullmatch(call.arguments[-1]) if len(folded.shape) == 2 else None
    if state is None or index is None or not keys.is_free(state.key) or not is_generated(folded.name or ""):
        return
    if exporter_metadata.folded_from(folded) == {state.key}:
        keys.rename(folded, state.key, "an argument of the call of index", "transposed" if index[1] else "")


def _notes(folded: ir.Value, table: str) -> dict[str, str]:
    """Returns the notes of a lookup in the table of an embedding, by those of a call that uses it; else none."""
    path = table.rpartition(".")[0]
    for use in folded.uses():
        place = exporter_metadata.place_of(use.node)
        if place is not None and place.path == path.rpartition(".")[0]:
            return exporter_metadata.inside(use.node, path, "torch.nn.modules.sparse.Embedding", "embedding")
    return {}
