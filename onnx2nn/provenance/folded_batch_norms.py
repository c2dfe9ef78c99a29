"""Makes batch normalisations nodes again that the exporter folded into the convolution before them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.layer_weights import output_channels
from onnx2nn.provenance.weight_keys import WeightKeys, array_of, weight_input

_CALLS = {
    "aten._native_batch_norm_legit_no_training.default": (5, 6),
    "aten.batch_norm.default": (6, 7),
}
"""Calls of a batch normalisation → the arguments that are momentum and epsilon.

The first argument is the input; weight, bias, mean and variance follow it.
"""

_VERSION = 15


def unfold_batch_norm(keys: WeightKeys, node: ir.Node) -> None:
    """Puts a folded batch normalisation back behind `node`, so that it adds the bias and changes nothing else.

    With mean 0, variance 1 - epsilon and weight 1 the normalisation divides by 1. One without weight and bias subtracts
    its mean instead. The author's own statistics are lost: the exporter multiplied them into the weight.
    """
    call = exporter_metadata.call_of(node)
    where = None if call is None else _CALLS.get(call.target)
    weight = weight_input(node, 1)
    if call is None or where is None or weight is None or weight.const_value is None:
        return
    bias = weight_input(node, 2)
    if bias is None and len(node.inputs) > 2 and node.inputs[2] is not None:
        return
    states = [keys.argument(call, position) for position in range(1, 5)]
    prefix, _, slot = (weight.name or "").rpartition(".")
    known = [state.key for state in states if state is not None]
    learns = call.arguments[1:3] != ("None", "None")
    if slot != "weight" or len(known) < (4 if learns else 2) or any(key in keys.graph.initializers for key in known):
        return
    own = f"{prefix}.bias"
    if _is_read_beside(node, keys.graph.initializers.get(own)):
        return
    if not keys.unfold:
        for key in known:
            keys.author.unnamed[key] = "a batch normalisation that the exporter folded into the layer before it"
        return
    momentum, epsilon = (float(call.arguments[position]) for position in where)
    added = (
        np.zeros(output_channels(node, weight), weight.const_value.dtype.numpy()) if bias is None else array_of(bias)
    )
    _insert(keys, node, added, known, momentum, epsilon)
    node.resize_inputs(3)
    node.replace_input_with(2, None)
    if own in keys.author.states:
        keys.graph.initializers.pop(own, None)  # the folded bias has the name of the convolution's own
        keys.add(own, np.zeros_like(added), "the exporter folded it into the batch normalisation's bias")
        node.replace_input_with(2, keys.graph.initializers[own])


def _is_read_beside(node: ir.Node, value: ir.Value | None) -> bool:
    """Returns whether others than `node` need the values that the file has under the name of its bias."""
    return value is not None and (value.is_graph_output() or any(user is not node for user, _ in value.uses()))


def _insert(
    keys: WeightKeys, node: ir.Node, bias: np.ndarray[Any, Any], states: list[str], momentum: float, epsilon: float
) -> None:
    """Inserts a normalisation behind `node` that adds `bias`.

    Args:
        keys: the names of the file's weights.
        node: the node of the layer.
        bias: what is added, one number for each channel.
        states: the keys of the normalisation's weight, bias, mean and variance; of the last two where it has no others.
        momentum: the author's.
        epsilon: the author's.
    """
    ones, zeros = np.ones_like(bias), np.zeros_like(bias)
    learns = len(states) == 4
    arrays = [ones, bias, zeros] if learns else [-bias]
    weight = node.inputs[1]
    assert weight is not None  # the convolution's
    for key, array in zip(states, [*arrays, np.full_like(bias, 1 - epsilon)], strict=True):
        keys.add(key, array, f"of a batch normalisation that was folded into {weight.name!r}")
    given = [keys.graph.initializers[key] for key in states]
    plain = [] if learns else [ir.node("Constant", [], {"value": ir.tensor(array)}) for array in (ones, zeros)]
    old = node.outputs[0]
    norm = ir.Node(
        "",
        "BatchNormalization",
        [old, *(constant.outputs[0] for constant in plain), *given],
        {"epsilon": ir.AttrFloat32("epsilon", epsilon), "momentum": ir.AttrFloat32("momentum", 1 - momentum)},
        version=_VERSION,
        name=f"{node.name}/BatchNormalization",
        metadata_props=dict(node.metadata_props),
    )
    new = norm.outputs[0]
    new.shape, new.type = old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    norm.replace_input_with(0, old)
    keys.graph.insert_after(node, [*plain, norm])
    new.name, old.name = old.name, f"{old.name}.before_batch_norm"
