"""The initializers of a graph under the keys of the author's state_dict: finds, renames, adds and ties weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.naming import is_generated
from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.author import Author
from onnx2nn.provenance.exporter_metadata import Call, State


class WeightKeys:
    """The state that the restorers of weights share; every change of a weight's name goes through this object.

    Args:
        graph: the graph whose initializers are renamed in place.
        unfold: whether an operator that the exporter folded into weights becomes a node again.
        changed: whether a tool changed the file, which may have added constants under names of its own.

    Attributes:
        called: the author's parameters and buffers, by the names that the noted calls use for them.
        author: the record of the keys that were found.
        absent: the author's keys that named no initializer when the file was read.
    """

    def __init__(self, graph: ir.Graph, unfold: bool, changed: bool = False):
        self.graph, self.unfold, self._changed = graph, unfold, changed
        noted = exporter_metadata.signature(graph)
        self.called = noted or {}
        self.author = Author(noted is not None, {state.key: state for state in self.called.values()})
        found = tuple(filter(self.is_key, graph.initializers))
        kinds = [
            [key for key, state in self.author.states.items() if state.parameter is kind] for kind in (True, False)
        ]
        self.author.names, self.author.declared = set(found), tuple(map(tuple, kinds)) if noted else (found,)
        self.absent = set(self.author.states) - self.author.names
        self._call_keys: dict[ir.Node, list[str]] = {}

    def is_key(self, name: str) -> bool:
        """Returns whether an initializer's name is a key of the author's state_dict."""
        if self.author.listed:
            return name in self.author.states
        value = self.graph.initializers.get(name) if self._changed and "." not in name else None
        if value is not None and value.dtype is not None and not value.dtype.is_floating_point():
            return False  # a size or an axis
        return "/" not in name and all(name.split(".")) and not is_generated(name)

    def is_free(self, key: str) -> bool:
        """Returns whether `key` may be given to a weight: the author has it, and no initializer has that name."""
        return key not in self.graph.initializers and (not self.author.listed or key in self.author.states)

    def argument(self, call: Call, position: int) -> State | None:
        """Returns the parameter or buffer that is an argument of a noted call, None for any other argument."""
        if position >= len(call.arguments):
            return None
        return self.called.get(call.arguments[position].removeprefix("%"))

    def call_keys(self, node: ir.Node) -> list[str]:
        """Returns the keys of the weights that the noted call of `node` takes, in the order of its arguments."""
        found = self._call_keys.get(node)
        if found is None:
            call = exporter_metadata.call_of(node) if not node.domain and node.op_type != "Identity" else None
            names = [text.removeprefix("%") for text in call.arguments] if call is not None else []
            found = self._call_keys[node] = [self.called[name].key for name in names if name in self.called]
        return found

    def weights_of(self, node: ir.Node) -> dict[int, ir.Value]:
        """Returns the author's weights that `node` reads, by position."""
        inputs = enumerate(node.inputs)
        return {i: v for i, v in inputs if v is not None and v.is_initializer() and v.name in self.author.names}

    def rename(self, value: ir.Value, key: str, how: str, moved: str = "") -> None:
        """Gives an initializer its key.

        Args:
            value: the initializer.
            key: its key, which is free.
            how: by which evidence the key was found.
            moved: how the exporter rearranged the weight, `""` where its shape is the author's.
        """
        ties = self.author.ties.items()
        self.author.ties = {key if a == value.name else a: key if b == value.name else b for a, b in ties}
        self.author.names.add(key)
        if moved:
            self.author.moved[key] = moved
        self.author.restored[key] = f"{how}{', ' if moved else ''}{moved}; the file calls it {value.name!r}"
        value.name = key

    def add(self, key: str, array: np.ndarray[Any, Any], how: str) -> None:
        """Adds an initializer under a key of which the file holds no weight; `how` says where its values are from."""
        self.register(key, array)
        self.author.restored[key] = how

    def register(self, key: str, array: np.ndarray[Any, Any]) -> ir.Value:
        """Returns a new initializer `key` of the author's with the values of `array`."""
        tensor = ir.Tensor(array, name=key)
        shape, kind = ir.Shape(array.shape), ir.TensorType(tensor.dtype)
        value = ir.Value(name=key, shape=shape, type=kind, const_value=tensor)
        self.graph.register_initializer(value)
        self.author.names.add(key)
        return value

    def tie(self, key: str, source: ir.Value) -> ir.Value:
        """Returns a second initializer `key` that is the same weight as `source`."""
        self._copy_layout(key, source)
        value = ir.Value(name=key, shape=source.shape, type=source.type, const_value=source.const_value)
        self.graph.register_initializer(value)
        self.author.names.add(key)
        self.author.ties[key] = source.name or ""
        self.author.restored[key] = f"tied to {source.name!r}"
        return value

    def copy(self, key: str, source: ir.Value) -> ir.Value:
        """Returns an initializer `key` with the values of `source`, a weight of its own."""
        self._copy_layout(key, source)
        self.author.restored[key] = f"equal to {source.name!r}, with which the exporter merged it"
        return self.register(key, np.array(array_of(source)))

    def share(self, node: ir.Node, position: int, key: str) -> None:
        """Makes `node` read the weight `key` instead of a copy, which the exporter computes once for each call."""
        copy = node.inputs[position]
        node.replace_input_with(position, self.graph.initializers[key])
        if copy is not None and not copy.uses() and copy.name is not None:
            self.graph.initializers.pop(copy.name)
            self.author.ties.pop(copy.name, None)

    def _copy_layout(self, key: str, source: ir.Value) -> None:
        """Notes that `key` has in the file the layout that `source` has."""
        if source.name in self.author.moved:
            self.author.moved[key] = self.author.moved[source.name]


def weight_input(node: ir.Node, position: int) -> ir.Value | None:
    """Returns the initializer at an input of `node`, None where the input is missing or no initializer."""
    value = node.inputs[position] if position < len(node.inputs) else None
    fits = value is not None and value.is_initializer() and not value.is_graph_input()
    return value if fits else None


def is_equal(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    """Returns whether two tensors hold the same values; reads little where they differ."""
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    a, b = one.numpy(), other.numpy()
    return np.array_equal(a[:1], b[:1]) and np.array_equal(a, b)


def is_fresh(array: np.ndarray[Any, Any]) -> bool:
    """Returns whether weights may be equal to an array by chance: one value everywhere, or an identity matrix.

    Modules begin with these.
    """
    if not array.size:
        return False
    same = bool((array == array.flat[0]).all())
    return same or (array.ndim == 2 and np.array_equal(array, np.eye(*array.shape, dtype=array.dtype)))


def slot_of(key: str) -> str:
    """Returns the last step of a key: the weight's attribute in its module."""
    return key.rpartition(".")[2]


def array_of(value: ir.Value) -> np.ndarray[Any, Any]:
    """Returns the values of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()
