"""Gives weights their keys that the exporter repeated for every item of the batch, as a class token."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.weight_keys import WeightKeys, array_of

_EXPANDED = re.compile(r"expand(_\d+)?")
"""Names of the results of Tensor.expand."""


def restore_expanded(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that repeats a weight by the weight and an Expand of it."""
    found = exporter_metadata.folded_from(folded) & keys.absent
    if len(found) != 1 or not _EXPANDED.fullmatch(folded.name or "") or not all(map(keys.is_free, found)):
        return
    array, (key,) = array_of(folded), found
    if not array.ndim or not len(array) or not np.array_equal(array, np.broadcast_to(array[:1], array.shape)):
        return
    if len(array) == 1:
        keys.rename(folded, key, "what the exporter notes that it folded")
    if len(array) == 1 or not keys.unfold:
        return
    keys.add(key, array[:1], f"what the exporter notes that it folded into {folded.name!r}")
    shape = ir.AttrTensor("value", ir.tensor(np.array(array.shape, np.int64)))
    size = ir.Node("", "Constant", [], {"value": shape})
    made = [size, ir.Node("", "Expand", [keys.graph.initializers[key], size.outputs[0]])]
    for node in made:
        node.name = node.outputs[0].name = f"{folded.name}/{node.op_type}"
    keys.graph.insert_before(keys.graph[0], made)
    folded.replace_all_uses_with(made[-1].outputs[0], replace_graph_outputs=True)
    keys.graph.initializers.pop(folded.name or "")
