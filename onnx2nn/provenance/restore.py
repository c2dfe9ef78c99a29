"""Gives weights in torch's exports their keys back, and splits weights that the exporter folded or merged.

Exporters keep the key of a weight as its initializer's name unless they change the values: a transposed matrix becomes
`val_14` or `onnx::MatMul_406`, a batch normalisation vanishes into the convolution before it. Notes elsewhere in the
file (see `exporter_metadata`) say which weight that was. No restorer changes the function that a model computes.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx2nn.ground.pass_times import timed
from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.attention_biases import restore_joined_biases
from onnx2nn.provenance.attention_weights import restore_attention
from onnx2nn.provenance.author import Author
from onnx2nn.provenance.expanded_weights import restore_expanded
from onnx2nn.provenance.exponential_weights import restore_exponential
from onnx2nn.provenance.folded_batch_norms import unfold_batch_norm
from onnx2nn.provenance.fused_operators import split_activations, split_biases
from onnx2nn.provenance.genai_weights import is_of_genai, restore_genai
from onnx2nn.provenance.layer_weights import LAYERS, LayerWeights
from onnx2nn.provenance.looked_up_weights import restore_indexed, restore_looked_up
from onnx2nn.provenance.matmul_weights import MatMulWeights
from onnx2nn.provenance.merged_weights import join_nameless, split_equal, split_folded, split_identity
from onnx2nn.provenance.node_places import NodePlaces
from onnx2nn.provenance.quantised_weights import holds_integers, name_integers, restore_quantised, restore_rounded
from onnx2nn.provenance.relative_positions import restore_axis, restore_distances, restore_table
from onnx2nn.provenance.tied_weights import tie_by_place, tie_embedding, tie_unused
from onnx2nn.provenance.unsqueezed_weights import restore_transposed, restore_unsqueezed, share_viewed
from onnx2nn.provenance.weight_keys import WeightKeys


@timed("naming")
def restore(model: ir.Model, *, unfold: bool = True) -> Author | None:
    """Renames the weights of `model` in place.

    Args:
        model: as `reader.read` gives it.
        unfold: whether a batch normalisation that was folded into a convolution becomes a node again.

    Returns:
        The record of the author's names; None where the file does not keep names.
    """
    author = restore_genai(model) if is_of_genai(model) else _restored(model, unfold)
    return None if author is None else author.with_writable_keys()


def _restored(model: ir.Model, unfold: bool) -> Author | None:
    """Returns the record with all keys, as the file has them."""
    changed = exporter_metadata.is_changed(model)
    keys = WeightKeys(model.graph, unfold, changed)
    if changed and not keys.author.listed:
        name_integers(keys, NodePlaces(keys))
    if not exporter_metadata.keeps_names(model):
        return None
    _restore_nodes(keys)
    join_nameless(keys, {"MatMul", *LAYERS})
    if keys.absent:
        split_equal(keys)
        split_folded(keys)
        for node in keys.graph:
            tie_by_place(keys, node)
    tie_unused(keys)
    for value in list(keys.graph.initializers.values()) if keys.absent else ():
        restore_expanded(keys, value)
        restore_unsqueezed(keys, value)
        restore_transposed(keys, value)
        restore_looked_up(keys, value)
        restore_exponential(keys, value)
        restore_distances(keys, value)
        restore_axis(keys, value)
        restore_joined_biases(keys, value)
    for value in list(keys.graph.initializers.values()):
        share_viewed(keys, value)
    _note_copies(keys)
    if changed and holds_integers(model.graph):
        return None  # an import has these weights in its state, which the author's has not
    if keys.absent - keys.author.names:
        keys.author.computed = _computed(keys)
    return keys.author


def _restore_nodes(keys: WeightKeys) -> None:
    """Restores the weights of each node by the node's operator."""
    split_activations(keys.graph)
    split_biases(keys.graph)
    places = NodePlaces(keys)
    restore_attention(keys, places)
    matrices, layers = MatMulWeights(keys, places), LayerWeights(keys, places)
    for node in list(keys.graph):
        operator = node.op_type
        if operator == "DequantizeLinear":  # of any domain: 4-bit integers are in ONNX Runtime's before opset 21
            restore_quantised(keys, node, matrices)
        elif operator == "QuantizeLinear":
            restore_rounded(keys, node, matrices)
        if node.domain:
            continue
        layers.separate_defaults(node)
        if operator == "Identity":
            split_identity(keys, node)
        elif operator == "MatMul":
            matrices.restore(node)
        elif operator in LAYERS:
            layers.name_by_place(node)
            layers.name_by_bias(node)
            layers.drop_zeros(node)
            layers.add_zeros(node)
            unfold_batch_norm(keys, node)
            layers.name_folded_bias(node)
        elif operator == "LayerNormalization":
            layers.drop_zeros(node)
        elif operator in ("PRelu", "Mul", "Add"):
            layers.name_channels(node)
        elif operator == "Gather":
            tie_embedding(keys, places, node)
        elif operator == "GatherND":
            restore_indexed(keys, node)
        if operator in ("Add", "Reshape"):
            restore_table(keys, node)


def _computed(keys: WeightKeys) -> dict[str, set[str]] | None:
    """Returns initializer → the lost keys that it was computed from; None where the file notes no computations."""
    noted = {name: exporter_metadata.folded_from(value) for name, value in keys.graph.initializers.items()}
    lost = keys.absent - keys.author.names
    return {name: found & lost for name, found in noted.items() if found & lost} if any(noted.values()) else None


def _note_copies(keys: WeightKeys) -> None:
    """Notes initializers that the exporter computed from weights that the file holds too: they do not follow these."""
    for name, value in keys.graph.initializers.items():
        is_copy = name not in keys.author.names and (value.uses() or value.is_graph_output())
        noted = exporter_metadata.folded_from(value) & keys.author.names if is_copy else ()
        if key := next((key for key in sorted(noted) if keys.author.trains(key)), None):
            keys.author.unnamed[name] = f"the exporter computed it from {key!r}, whose changes it does not follow"
