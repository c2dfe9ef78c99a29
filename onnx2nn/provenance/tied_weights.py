"""Gives weights that the author tied every key that they have in the author's state_dict."""

from __future__ import annotations

import itertools

import onnx_ir as ir

from onnx2nn.ground.naming import without_call_number
from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.node_places import NodePlaces
from onnx2nn.provenance.weight_keys import WeightKeys, weight_input

_TIED = (
    (".bias", ".decoder.bias"),
    ("shared.weight", "encoder.embed_tokens.weight"),
    ("encoder.embed_tokens.weight", "shared.weight"),
    ("decoder.embed_tokens.weight", "shared.weight"),
    ("shared.weight", "text_encoder.embed_tokens.weight"),
    ("word_embeddings.weight", "encoder.word_embeddings.weight"),
)
"""Pairs of endings of keys in transformers: a key that no node reads, and the key of the weight that it is tied to."""


def tie_by_place(keys: WeightKeys, node: ir.Node) -> None:
    """Gives a tied weight the key that it has in the module of `node`; the call of `node` names another key."""
    named = keys.call_keys(node)
    uses_weight = len(node.inputs) > 1 or node.op_type == "Transpose"  # torch 2.6 transposes a matrix for each call
    place = exporter_metadata.place_of(node) if named and uses_weight else None
    if place is None:
        return
    for position, value in keys.weights_of(node).items():
        steps = (value.name or "").split(".") if value.name in named else []
        ends = (".".join(steps[-count:]) for count in range(1, len(steps) + 1))  # `scales.0` is in a list of the module
        key = next((key for end in ends if (key := f"{place.path}.{end}") in keys.absent), None)
        if key is not None and keys.is_free(key):
            node.replace_input_with(position, keys.tie(key, value))


def tie_embedding(keys: WeightKeys, places: NodePlaces, node: ir.Node) -> None:
    """Ties the table of an embedding to the key of the node's module, in a file without notes.

    A module with weights in others inside of it is no embedding: its author gave it the table of one.
    """
    table = weight_input(node, 0) if not keys.author.listed and (node.name or "").endswith("/Gather") else None
    place = places(node) if table is not None and table.name in keys.author.names else None
    if table is None or place is None or not place.path:
        return
    module, _, slot = (table.name or "").rpartition(".")
    key, first = f"{place.path}.weight", without_call_number(place.path)  # of a further call of the module
    inside = any(f"{module}.".startswith(f"{path}.") for path in (place.path, first))
    around = any(name.startswith(f"{first}.") for name in keys.author.names)
    if slot == "weight" and not inside and not around and keys.is_free(key):
        node.replace_input_with(0, keys.tie(key, table))


def tie_unused(keys: WeightKeys) -> None:
    """Ties keys that no node reads to the weights that transformers ties them to."""
    for key, (unused, used) in itertools.product(sorted(keys.absent), _TIED):
        other = keys.graph.initializers.get(f"{key.removesuffix(unused)}{used}")
        if other is not None and key.endswith(unused) and keys.is_free(key):
            keys.tie(key, other)
