"""Gives the matrices of linear layers their keys: exporters transpose them and give them a name of their own."""

from __future__ import annotations

import functools
import math
import re

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.naming import without_call_number
from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.node_places import NodePlaces
from onnx2nn.provenance.weight_keys import WeightKeys, is_equal, is_fresh, weight_input

BY_PLACE = "the module that its node stands in"

_PRODUCTS = ("aten.matmul.default", "aten.mm.default")
"""Calls of a product of matrices that are no layer's."""

_TRANSPOSED = re.compile(r"_Transposed(_\d+)?$")
"""What ONNX Runtime's quantiser appends to the name of a matrix, where it makes a MatMul and an Add of a Gemm."""

_MOST_NODES_BEHIND = 32
"""Number of nodes that may compute a bias from the author's: Swin Transformer V2 puts zeros in its middle."""


class MatMulWeights:
    """Restores the keys of the second factors of MatMul nodes."""

    def __init__(self, keys: WeightKeys, places: NodePlaces):
        self._keys, self._places = keys, places

    def restore(self, node: ir.Node) -> None:
        """Names the second factor of a MatMul by the call of linear, the bias added to it, or the node's place."""
        keys, weight = self._keys, weight_input(node, 1)
        if weight is None or weight.shape is None or len(weight.shape) != 2:
            return
        own = _TRANSPOSED.sub("", weight.name or "")
        if own != weight.name and keys.is_key(own) and keys.is_free(own):
            keys.author.names.discard(weight.name or "")
            return keys.rename(weight, own, "the name that a quantiser gives what it transposes", "transposed")
        if keys.is_key(weight.name or ""):
            return
        for key, how in self._candidates(node):
            if key in keys.author.moved and is_equal(weight.const_value, keys.graph.initializers[key].const_value):
                return keys.share(node, 1, key)
            source = self._transposed_source(weight, key) or self._transposed_inside(weight, key)
            if source is not None:
                own = source.name or ""
                return self._read_transposed(node, source, own if self._is_in_larger_module(key) else key)
            if keys.is_free(key):
                return keys.rename(weight, key, how, "transposed")
        if self._is_no_layer(node):
            table = next((t for t in self._tables if _is_transposed(weight.const_value, t.const_value)), None)
            table = table or self._transposed_inside(weight, "")
            if table is not None and _varies(table):
                return self._read_transposed(node, table, table.name or "")
        if not keys.author.listed:
            keys.author.unnamed[weight.name or ""] = "neither its node nor a bias says what it was called"
        return None

    def key_of(self, matrix: ir.Value) -> str:
        """Returns the key that a computed matrix has as the second factor of a MatMul, `""` for other values."""
        use = next(iter(matrix.uses()), None)
        if use is None or use.node.op_type != "MatMul" or use.idx != 1:
            return ""
        return next((key for key, _ in self._candidates(use.node) if self._keys.is_free(key)), "")

    def _is_no_layer(self, node: ir.Node) -> bool:
        """Returns whether a product is one that its author wrote, by the call or as it stands in no module inside."""
        if self._keys.author.listed:
            call = exporter_metadata.call_of(node)
            return call is not None and call.target in _PRODUCTS
        place = self._places(node)
        return place is not None and not place.path

    def _is_in_larger_module(self, key: str) -> bool:
        """Returns whether a matrix's product stands in a module with others, as `x @ self.words.weight.T` does."""
        module = key.rpartition(".")[0]
        own = (f"{module}.weight", f"{module}.bias")
        return any(name.startswith(f"{module}.") and name not in own for name in self._keys.author.names)

    def _candidates(self, node: ir.Node) -> list[tuple[str, str]]:
        """Returns the keys that the matrix of `node` may have, best first, each with its evidence."""
        keys = self._keys
        call = exporter_metadata.call_of(node) or _call_behind(node)
        if call is not None:
            state = keys.argument(call, 1) if call.target.startswith("aten.linear.") else None
            return [] if state is None else [(state.key, "an argument of the call of linear")]
        if keys.author.listed:
            return self._beside_biases(node)
        place = self._places(node)
        path = place.path if place is not None else ""
        alone = path and (node.name or "").endswith("/MatMul") and not self._is_among_others(node)
        names: list[str] = []
        for add, bias in self._biases(node):
            module, _, last = (bias.name or "").rpartition(".")
            weight = f"{last[:-4]}weight"  # of `in_proj_bias` too
            if not path or f"{module}.".startswith(f"{path}."):
                return [(f"{module}.{weight}" if module else weight, f"its product is added to {bias.name!r}")]
            if not alone:
                continue
            first = self._first_call(path, bias, last)
            if first is not None and keys.is_free(f"{first}.{weight}"):  # a scope of this name had other calls before
                return [(f"{first}.{weight}", BY_PLACE)]
            if first is not None and self._is_matrix(node, f"{first}.{weight}"):
                if bias in add.inputs:
                    add.replace_input_with(add.inputs.index(bias), keys.graph.initializers[f"{first}.{last}"])
                return [(f"{first}.{weight}", BY_PLACE)]
            if place != self._places(add):
                continue  # what a module around adds says nothing of the names in this one
            names.append(f"{path}.{weight}")
            own = f"{path}.{last}"
            if bias in add.inputs and keys.is_free(own):  # its own, tied to that bias
                add.replace_input_with(add.inputs.index(bias), keys.tie(own, bias))
        if not alone:
            return []
        first_key = f"{without_call_number(path)}.weight"  # of a module without bias whose calls are numbered
        if first_key in keys.author.moved:
            names.insert(0, first_key)
        return [(name, BY_PLACE) for name in (*names, f"{path}.weight")]

    def _beside_biases(self, node: ir.Node) -> list[tuple[str, str]]:
        """Returns the listed keys of weights without a value beside the biases that are added to a product.

        ONNX Runtime's quantiser to its own operators leaves no note of the calls.
        """
        found = (
            (f"{(bias.name or '')[:-4]}weight", f"its product is added to {bias.name!r}")
            for _, bias in self._biases(node)
        )
        return [(key, how) for key, how in found if key in self._keys.absent]

    def _is_among_others(self, node: ir.Node) -> bool:
        """Returns whether the module of a product reads other computed weights too, as no linear layer does."""
        place = exporter_metadata.place_of(node)
        return place is not None and len(self._computed.get(place.path, ())) > 1

    @functools.cached_property
    def _computed(self) -> dict[str, set[str]]:
        return exporter_metadata.computed_weights(self._keys.graph)

    def _first_call(self, path: str, bias: ir.Value, last: str) -> str | None:
        """Returns the path of the module whose further call is numbered `path`, None where it is none.

        Args:
            path: of the module around a call.
            bias: what the call adds.
            last: the last step of the bias's key.
        """
        first, author = without_call_number(path), self._keys.author
        key = f"{first}.{last}"
        return first if first != path and bias.name in (key, author.ties.get(key)) else None

    def _is_matrix(self, node: ir.Node, key: str) -> bool:
        """Returns whether the second factor of a MatMul is the matrix of `key`, which an earlier one was given."""
        keys, weight = self._keys, node.inputs[1]
        own = keys.graph.initializers.get(key)
        if own is None or weight is None:
            return False
        same = is_equal if key in keys.author.moved else _is_transposed
        return same(weight.const_value, own.const_value)

    def _biases(self, node: ir.Node) -> list[tuple[ir.Node, ir.Value]]:
        """Returns the author's biases that are added to the result of `node`, each with the node that adds it.

        A Clip between both is the range of the integers that a quantiser rounded the result to.
        """
        users = [use.node for use in node.outputs[0].uses()]
        users += [use.node for clip in users if clip.op_type == "Clip" for use in clip.outputs[0].uses()]
        added = [(add, value) for add in users if add.op_type == "Add" for value in add.inputs if value is not None]
        found = [(add, value) for add, value in added if self._is_bias(value)]
        behind = ((add, self._bias_behind(value)) for add, value in added if value is not node.outputs[0])
        return found or [(add, bias) for add, bias in behind if bias is not None]

    def _is_bias(self, value: ir.Value) -> bool:
        return value.name in self._keys.author.names and value.name.endswith("bias")

    def _bias_behind(self, value: ir.Value) -> ir.Value | None:
        """Returns the bias from which alone `value` is computed, None for any other value; looks at few nodes."""
        waiting, weights = [value], set[ir.Value]()
        for _ in range(_MOST_NODES_BEHIND):
            if not waiting:
                break
            node = waiting.pop().producer()
            if node is None or node.graph is not self._keys.graph:
                return None
            given = [v for v in node.inputs if v is not None]
            weights.update(v for v in given if v.is_initializer() and v.name in self._keys.author.names)
            waiting += [v for v in given if not v.is_initializer()]
        bias = next(iter(weights)) if len(weights) == 1 and not waiting else None
        return bias if bias is not None and self._is_bias(bias) else None

    def _transposed_source(self, weight: ir.Value, key: str) -> ir.Value | None:
        """Returns the initializer that `weight` is a transposed copy of: `key`, or a table that it was tied to."""
        own = self._keys.graph.initializers.get(key)
        if own is not None:
            return own if _is_transposed(weight.const_value, own.const_value) else None
        if self._keys.author.listed:
            return None
        return next((table for table in self._tables if _is_transposed(weight.const_value, table.const_value)), None)

    def _transposed_inside(self, weight: ir.Value, key: str) -> ir.Value | None:
        """Returns the author's matrix of which `weight` is a transposed copy, in a module that is no layer itself.

        Args:
            weight: the second factor of a product.
            key: what it would be called in the product's module; `""` for the outermost one.
        """
        if self._keys.author.listed or not (key == "" or self._is_in_larger_module(key)) or not _varies(weight):
            return None
        around = f"{key.rpartition('.')[0]}." if key else ""
        named = (value for name, value in self._keys.graph.initializers.items() if name.startswith(around))
        named = (value for value in named if value.name in self._keys.author.names)
        return next((value for value in named if _is_transposed(weight.const_value, value.const_value)), None)

    @functools.cached_property
    def _tables(self) -> list[ir.Value]:
        """The tables of embeddings, to which a matrix may be tied."""
        keys = self._keys
        found = (weight_input(node, 0) for node in keys.graph if node.op_type == "Gather" and node.inputs)
        return [table for table in dict.fromkeys(found) if table is not None and table.name in keys.author.names]

    def _read_transposed(self, node: ir.Node, source: ir.Value, key: str) -> None:
        """Makes `node` read the transposed `source`, under `key`, instead of its copy."""
        keys = self._keys
        if source.name != key:
            source = keys.tie(key, source)
        transpose = ir.Node("", "Transpose", [source], {"perm": ir.AttrInt64s("perm", [1, 0])})
        transpose.outputs[0].name = f"{key}.transposed_for.{node.name}"
        keys.graph.insert_before(node, transpose)
        node.replace_input_with(1, transpose.outputs[0])


def _call_behind(product: ir.Node) -> exporter_metadata.Call | None:
    """Returns the call of linear of which a product is a part, by the note of the sum behind it; None for others.

    ONNX Runtime's quantiser replaces the product, and leaves the note of the sum alone.
    """
    uses = list(product.outputs[0].uses())
    call = exporter_metadata.call_of(uses[0].node) if len(uses) == 1 and uses[0].node.op_type == "Add" else None
    return call if call is not None and call.target.startswith("aten.linear.") else None


def _varies(value: ir.Value) -> bool:
    """Returns whether a table is not one that any matrix of its shape may equal by chance."""
    array = value.const_value.numpy() if value.const_value is not None else np.zeros(1)
    return bool(array.size) and not is_fresh(array)


def _is_transposed(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    """Returns whether one matrix is the other transposed; reads little where they differ."""
    if one is None or other is None or one.dtype != other.dtype:
        return False
    if len(one.shape) != 2 or tuple(one.shape.numpy()) != tuple(other.shape.numpy())[::-1]:
        return False
    a, b = one.numpy(), other.numpy().T
    return math.prod(a.shape) > 0 and np.array_equal(a[0, :2], b[0, :2]) and np.array_equal(a, b)
