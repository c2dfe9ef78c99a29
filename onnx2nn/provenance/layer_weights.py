"""Gives weights and biases of layers their keys: convolutions, Gemm, PRelu and group normalisations."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.naming import without_call_number
from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.matmul_weights import BY_PLACE
from onnx2nn.provenance.node_places import NodePlaces
from onnx2nn.provenance.weight_keys import WeightKeys, is_equal, weight_input

LAYERS = ("Conv", "ConvTranspose", "Gemm")
"""Operators whose second input is a layer's weight and whose third is its bias."""

_UNSQUEEZED = {
    ("PRelu", "aten.prelu.default"): 1,
    ("Mul", "aten.group_norm.default"): 2,
    ("Add", "aten.group_norm.default"): 3,
}
"""Operator and call → the argument that is a weight of one number a channel; the exporter gives it dimensions of 1."""

_FILLED_IN: Mapping[tuple[str, str], Mapping[int, int | None]] = {
    ("InstanceNormalization", "aten.instance_norm.default"): {1: 1, 2: 2},
    ("LayerNormalization", "aten.layer_norm.default"): {1: 2, 2: 3},
    ("BatchNormalization", "aten._native_batch_norm_legit_no_training.default"): {1: 1, 2: 2},
    ("BatchNormalization", "aten.batch_norm.default"): {1: 1, 2: 2},
    ("InstanceNormalization", "aten.group_norm.default"): {1: None, 2: None},
    ("Mul", "aten.group_norm.default"): {1: 2},
    ("Add", "aten.group_norm.default"): {1: 3},
}
"""Operator and call → inputs that are ones or zeros where the call has no such argument; None: always."""

_NORMALISING = frozenset(operator for operator, _ in _FILLED_IN)

_COMPUTED_WEIGHT = "the exporter computed its weight; the file does not say what from"
_ZEROS = "zeros, which the exporter left out"
_FOLDED = "the exporter folded its batch normalisation into it; the file does not say what that was called"


class LayerWeights:
    """Restores the keys of weights and biases whose layout the exporter kept."""

    def __init__(self, keys: WeightKeys, places: NodePlaces):
        self._keys, self._places = keys, places

    def name_by_place(self, node: ir.Node) -> None:
        """Names the weights that a file without notes numbers: the node's module is the path of their keys."""
        keys = self._keys
        place = self._places(node) if not keys.author.listed else None
        if place is None or not place.path or not (node.name or "").endswith(f"/{node.op_type}"):
            return
        slots = zip(("weight", "bias"), (weight_input(node, position) for position in (1, 2)), strict=True)
        numbered = {s: value for s, value in slots if value is not None and not keys.is_key(value.name or "")}
        if numbered and self._is_further_call(node, place.path, numbered):
            return
        transposed = _is_transposed(node)
        if list(numbered) == ["weight"] and not transposed:  # a batch normalisation would have given it a bias
            keys.author.unnamed[place.path] = _COMPUTED_WEIGHT
            return
        for slot, value in numbered.items():
            key = f"{place.path}.{slot}"
            if keys.is_free(key):
                keys.rename(value, key, BY_PLACE, "transposed" if slot == "weight" and transposed else "")
        if len(numbered) == 2:
            keys.author.unnamed[place.path] = _FOLDED

    def name_folded_bias(self, node: ir.Node) -> None:
        """Names the bias that the newer exporter made of a folded batch normalisation, in a file without its notes."""
        keys, weight, bias = self._keys, weight_input(node, 1), weight_input(node, 2)
        if keys.author.listed or weight is None or bias is None or bias.name != f"{weight.name}_bias":
            return
        path = (weight.name or "").removesuffix(".weight")
        if path != weight.name and keys.is_free(f"{path}.bias"):
            keys.author.names.discard(bias.name)
            keys.rename(bias, f"{path}.bias", "the name that the exporter gives the bias of a folded normalisation")
            keys.author.unnamed[path] = _FOLDED

    def name_by_bias(self, node: ir.Node) -> None:
        """Names the matrix of a Gemm that a simplifier made of the product and the sum of an nn.Linear by its bias."""
        keys, weight, bias = self._keys, weight_input(node, 1), weight_input(node, 2)
        if keys.author.listed or weight is None or bias is None or not _is_transposed(node):
            return
        module, _, last = (bias.name or "").rpartition(".")
        known = module and last.endswith("bias") and bias.name in keys.author.names
        key = f"{module}.{last[:-4]}weight"  # of `in_proj_bias` too
        if known and not keys.is_key(weight.name or "") and keys.is_free(key):
            keys.rename(weight, key, f"its product is added to {bias.name!r}", "transposed")

    def _is_further_call(self, node: ir.Node, path: str, slots: Mapping[str, ir.Value]) -> bool:
        """Makes a further call of a layer read the weights of the first one, of which the exporter computed others.

        Args:
            node: the call.
            path: of the module in which it stands.
            slots: its numbered weights by the last step of their keys.

        Returns:
            Whether it is a further call, with the values of the first one.
        """
        keys, first = self._keys, without_call_number(path)
        if first == path:
            return False
        owned = {f"{first}.{slot}": value for slot, value in slots.items()}
        for key, value in owned.items():
            own = keys.graph.initializers.get(key)
            if own is None or key not in keys.author.restored or not is_equal(value.const_value, own.const_value):
                return False
        for key, value in owned.items():
            keys.share(node, node.inputs.index(value), key)
        return True

    def drop_zeros(self, node: ir.Node) -> None:
        """Takes the zeros off a convolution or a normalisation that the exporter writes where the call has no bias."""
        added = node.inputs[2] if len(node.inputs) > 2 else None
        if added is None or added.is_initializer() or not self._lacks_bias(node):
            return
        made = added.producer()
        while made is not None and made.op_type in ("Expand", "CastLike", "Cast") and made.inputs[0] is not None:
            added, made = made.inputs[0], made.inputs[0].producer()
        value = made.attributes.get("value") if made is not None and made.op_type == "Constant" else None
        tensor = added.const_value if value is None else value.as_tensor()
        if tensor is not None and not tensor.numpy().any():
            node.replace_input_with(2, None)

    def _lacks_bias(self, node: ir.Node) -> bool:
        """Returns whether the author's call has no bias: the newer exporter notes it, the older has no key of one."""
        call, weight = exporter_metadata.call_of(node), weight_input(node, 1)
        if call is not None:
            return call.target.startswith("aten.conv") and call.arguments[2:3] in ((), ("None",))
        named = weight is not None and weight.name in self._keys.author.names
        return node.op_type == "LayerNormalization" and named and not self._keys.author.listed

    def add_zeros(self, node: ir.Node) -> None:
        """Gives a layer the bias of its call again, which the exporter leaves out where it is zero."""
        keys = self._keys
        call = exporter_metadata.call_of(node) if keys.absent and [*node.inputs, None, None][2] is None else None
        weight = weight_input(node, 1)
        if call is None or weight is None or not call.target.startswith(("aten.linear.", "aten.conv")):
            return
        state = keys.argument(call, 2)
        if state is None or weight.const_value is None or state.key not in keys.absent:
            return
        if keys.is_free(state.key):
            if any(state.key in exporter_metadata.folded_from(value) for value in keys.graph.initializers.values()):
                return
            keys.add(state.key, np.zeros(output_channels(node, weight), weight.const_value.dtype.numpy()), _ZEROS)
        elif keys.author.restored.get(state.key) != _ZEROS:  # else the zeros of another call of the layer
            return
        node.resize_inputs(3)
        node.replace_input_with(2, keys.graph.initializers[state.key])

    def separate_defaults(self, node: ir.Node) -> None:
        """Gives a normalisation whose call has no weights ones and zeros of its own.

        The newer exporter fills them in, and makes equal constants one: they are then a weight of another layer.
        """
        call = exporter_metadata.call_of(node) if node.op_type in _NORMALISING else None
        if call is None:
            return
        initializers = self._keys.graph.initializers
        for position, argument in _FILLED_IN.get((node.op_type, call.target), {}).items():
            value = weight_input(node, position)
            given = argument is not None and [*call.arguments[argument : argument + 1]] not in (["None"], [])
            if value is None or given:
                continue
            name = f"{value.name}::default"  # generated, as that of a constant
            if name not in initializers:
                made = ir.Value(None, name=name, shape=value.shape, type=value.type, const_value=value.const_value)
                initializers[name] = made
            node.replace_input_with(position, initializers[name])

    def name_channels(self, node: ir.Node) -> None:
        """Names a weight that has one number for each channel by the call, or by the node's place."""
        keys, weight = self._keys, weight_input(node, 1)
        if weight is None or weight.shape is None or keys.is_key(weight.name or ""):
            return
        found = self._channels_key(node)
        if found is not None and not keys.author.listed:
            path, _, slot = found[0].rpartition(".")
            if self._is_further_call(node, path, {slot: weight}):
                return
        if found is None or not keys.is_free(found[0]) or sum(size != 1 for size in weight.shape) > 1:
            return
        if keys.author.listed or len(weight.shape) > 1:
            keys.rename(weight, *found, "unsqueezed")

    def _channels_key(self, node: ir.Node) -> tuple[str, str] | None:
        keys = self._keys
        if keys.author.listed:
            call = exporter_metadata.call_of(node) if keys.absent else None
            position = None if call is None else _UNSQUEEZED.get((node.op_type, call.target))
            state = None if call is None or position is None else keys.argument(call, position)
            return None if state is None else (state.key, "an argument of the call")
        place = self._places(node) if (node.name or "").endswith(f"/{node.op_type}") else None
        if place is None or not (node.op_type == "PRelu" or place.path in self._group_norms):
            return None
        slot = "bias" if node.op_type == "Add" else "weight"
        if not place.path:  # the file is the layer, or other weights may be the outermost module's too
            return (slot, BY_PLACE) if keys.author.names <= {"weight"} else None
        return f"{place.path}.{slot}", BY_PLACE

    @functools.cached_property
    def _group_norms(self) -> set[str]:
        """Modules that the older exporter wrote as an instance normalisation of groups, a factor and a sum."""
        graph = self._keys.graph
        places = (self._places(node) for node in graph if node.op_type == "InstanceNormalization")
        return {place.path for place in places if place is not None}


def output_channels(node: ir.Node, weight: ir.Value) -> int:
    """Returns the number of channels (features) of the result of a layer with this weight."""
    assert weight.const_value is not None
    shape = weight.const_value.shape.numpy()
    if node.op_type == "ConvTranspose":
        return int(shape[1]) * (node.attributes["group"].as_int() if "group" in node.attributes else 1)
    return int(shape[1 if _is_transposed(node) else 0])


def _is_transposed(node: ir.Node) -> bool:
    """Returns whether a layer's matrix is (inputs, outputs), transposed to nn.Linear's."""
    return node.op_type == "Gemm" and ("transB" not in node.attributes or not node.attributes["transB"].as_int())
