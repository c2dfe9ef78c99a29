"""Gives weights their keys that the exporter repeated for every item of the batch, as a class token."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.unsqueezed_weights import inserted, only_source, replace, unsqueeze
from onnx2nn.provenance.weight_keys import WeightKeys, array_of

_EXPANDED = re.compile(r"expand(_\d+)?")
"""Names of the results of Tensor.expand."""


def restore_expanded(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that repeats a weight by the weight and an Expand of it."""
    noted = exporter_metadata.folded_from(folded)
    key = only_source(keys, noted)
    if key is None or not _EXPANDED.fullmatch(folded.name or ""):
        return
    array = array_of(folded)
    if not array.ndim or not len(array) or not np.array_equal(array, np.broadcast_to(array[:1], array.shape)):
        return
    places = inserted(array[:1].shape, noted)
    if places is None:
        return
    if len(array) == 1 and not places:
        keys.rename(folded, key, "what the exporter notes that it folded")
    elif keys.unfold:
        keys.add(key, array[:1].squeeze(places), f"what the exporter notes that it folded into {folded.name!r}")
        made = unsqueeze(keys.graph.initializers[key], places)
        given = made[-1].outputs[0] if made else keys.graph.initializers[key]
        shape = ir.AttrTensor("value", ir.Tensor(np.array(array.shape, np.int64)))
        size = ir.Node("", "Constant", [], {"value": shape})
        replace(keys, folded, [*made, size, ir.Node("", "Expand", [given, size.outputs[0]])])
