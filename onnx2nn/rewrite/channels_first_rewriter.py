"""Puts channels-first nodes in the place of channels-last ones, and removes the transposes that cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.rewrite.channels_first_forms import ChannelsFirstForm, is_elementwise, to_channels_first, to_channels_last
from onnx2nn.rewrite.patterns import tensor_of


def channels_first_node(
    node: ir.Node, form: ChannelsFirstForm, inputs: Sequence[ir.Value | None]
) -> tuple[ir.Node, list[ir.Node]]:
    """Returns a node on channels first, and the nodes before it that make its new inputs.

    Args:
        node: the node on channels last.
        form: the changes to it.
        inputs: its inputs, those at `form.data` on channels first.
    """
    before, values = [], list(inputs)
    values += [None] * (max(form.inputs, default=-1) + 1 - len(values))
    for position, array in form.inputs.items():
        made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(array))])
        made.outputs[0].name = f"{node.name or node.outputs[0].name}.input_{position}"
        before.append(made)
        values[position] = made.outputs[0]
    for position in form.reordered:
        order = ir.AttrTensor("value", ir.Tensor(np.array(to_channels_first(form.output_rank), np.int64)))
        places = ir.Node("", "Constant", [], [order])
        picked = ir.Node("", "Gather", [inputs[position], places.outputs[0]], name=f"{node.name}.input_{position}")
        before += [places, picked]
        values[position] = picked.outputs[0]
    changed = {name: ir.convenience.convert_attribute(name, value) for name, value in form.attributes.items()}
    new = ir.Node(
        node.domain,
        node.op_type,
        values,
        {**node.attributes, **changed}.values(),
        num_outputs=len(node.outputs),
        version=node.version,
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    return new, before


def channels_first_constant(array: np.ndarray[Any, Any], rank: int, strip: bool) -> np.ndarray[Any, Any]:
    """Returns a constant that broadcasts against channels first as `array` does against channels last.

    Args:
        array: the constant, of at most `rank` dimensions.
        rank: the rank of the node's output.
        strip: whether leading dimensions of 1 are removed.
    """
    array = array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(to_channels_first(rank))
    while strip and array.ndim > 1 and array.shape[0] == 1:
        array = array[0]
    return np.ascontiguousarray(array)


class Rewriter:
    """Replaces nodes by their channels-first forms.

    Args:
        graph: the graph, changed in place.
        forms: the nodes' channels-first forms.
        towards_first: the transposes between the two orders → whether they lead to channels first.
        ranks: the ranks of values.
    """

    def __init__(
        self,
        graph: ir.Graph,
        forms: Mapping[ir.Node, ChannelsFirstForm],
        towards_first: Mapping[ir.Node, bool],
        ranks: Mapping[ir.Value, int],
    ):
        self.graph, self._forms, self._towards_first, self._ranks = graph, forms, towards_first, ranks
        self._channels_first: dict[ir.Value, ir.Value] = {}
        """Values → the values with the same elements on channels first."""
        self._replaced: dict[ir.Value, ir.Value] = {}
        """Outputs of removed transposes → the values that replace them."""
        self._constants: dict[tuple[ir.Value, int, bool], ir.Value] = {}

    def run(self, chosen: Sequence[ir.Node]) -> None:
        """Replaces the nodes `chosen`, which are in the graph's order."""
        for node in chosen:
            self._replace(node)
        for node, first in list(self._towards_first.items()):
            self._cancel_pair(node, first)
        for node in chosen:
            for output in node.outputs:
                self._redirect_readers(output, set(chosen))
        _remove(self.graph, [*self._towards_first, *chosen])
        self._restore_names()

    def _cancel_pair(self, node: ir.Node, first: bool) -> None:
        """Lets readers behind a pair of inverse transposes read the value before the pair."""
        if node.graph is self.graph and not first:
            self._on_channels_first(node.outputs[0])
            self._skip_transposes(node.outputs[0])
        elif node.graph is self.graph:
            for use in list(node.outputs[0].uses()):
                back, source = use.node, node.inputs[0]
                if self._towards_first.get(back) is False and not back.outputs[0].is_graph_output() and source:
                    back.outputs[0].replace_all_uses_with(source)

    def _replace(self, node: ir.Node) -> None:
        form, inputs = self._forms[node], list(node.inputs)
        data = {position: value for position in form.data if (value := node.inputs[position]) is not None}
        for value in data.values():
            if tensor_of(value) is None:
                self._on_channels_first(value)  # for all inputs before any is read: it may replace an earlier result
        for position, value in data.items():
            constant = tensor_of(value) is not None
            inputs[position] = self._constant(value, form, node) if constant else self._on_channels_first(value)
        new, before = channels_first_node(node, form, inputs)
        self.graph.insert_before(node, [*before, new])
        for old, made in zip(node.outputs, new.outputs, strict=True):
            made.type, made.name = old.type, old.name
            if form.outputs and form.output_rank > 2:
                self._channels_first[old] = made
                made.name = f"{old.name}.channels_first"
                made.shape = _shape(old.shape, to_channels_first(form.output_rank))
            else:
                made.shape = old.shape
                old.replace_all_uses_with(made, replace_graph_outputs=True)

    def _constant(self, value: ir.Value, form: ChannelsFirstForm, reader: ir.Node) -> ir.Value:
        """Returns a constant on channels first; an initializer remains an initializer."""
        key = (value, form.output_rank, is_elementwise(reader))
        if key in self._constants:
            return self._constants[key]
        tensor = tensor_of(value)
        assert tensor is not None
        stored = ir.Tensor(channels_first_constant(tensor.numpy(), form.output_rank, key[2]))
        if value.is_initializer():
            made = ir.Value(name=f"{value.name}.channels_first_{form.output_rank}_{int(key[2])}", const_value=stored)
            made.shape, made.type = ir.Shape(stored.shape.numpy()), ir.TensorType(stored.dtype)
            (value.graph or self.graph).register_initializer(made)
            self._constants[key] = made
            return made
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", stored)])
        node.outputs[0].name = value.name
        self.graph.insert_before(reader, node)
        self._constants[key] = node.outputs[0]
        return node.outputs[0]

    def _restore_names(self) -> None:
        """Restores the names of initializers whose channels-last originals have no readers."""
        for (value, *_), made in self._constants.items():
            graph, name = made.graph, value.name
            if graph is None or name is None or value.uses() or value.is_graph_input() or value.is_graph_output():
                continue
            if made.is_initializer() and graph.initializers.get(name) is value:
                del graph.initializers[name]
                made.name = name

    def _on_channels_first(self, value: ir.Value) -> ir.Value:
        """Returns the channels-first form of a value; adds a transpose where there is none."""
        node = value.producer()
        if value not in self._channels_first and node is not None and self._towards_first.get(node) is False:
            assert node.inputs[0] is not None
            self._channels_first[value] = node.inputs[0]
        if value not in self._channels_first:
            transpose = _transpose(value, to_channels_first(self._ranks[value]), f"{value.name}.channels_first")
            first = next(iter(self.graph)) if node is None or node.graph is not self.graph else None
            if first is not None:
                self.graph.insert_before(first, transpose)
            elif node is not None:
                self.graph.insert_after(node, transpose)
            self._channels_first[value] = transpose.outputs[0]
            self._skip_transposes(value)
        while self._channels_first[value] in self._replaced:
            self._channels_first[value] = self._replaced[self._channels_first[value]]
        return self._channels_first[value]

    def _redirect_readers(self, value: ir.Value, chosen: set[ir.Node]) -> None:
        """Lets the readers of a replaced node's output read the channels-first value, if need be by a transpose."""
        stored = self._channels_first.get(value)
        if stored is None:
            return
        self._skip_transposes(value)
        rank = self._ranks[value]
        for node in {use.node for use in value.uses() if use.node.op_type == "Shape" and not use.node.attributes}:
            sizes, places, picked = _shape_of(stored, rank, node)
            if node.graph is self.graph:
                self.graph.insert_before(node, [sizes, places, picked])
                picked.outputs[0].name = node.outputs[0].name
                node.outputs[0].replace_all_uses_with(picked.outputs[0], replace_graph_outputs=True)
                self._remove_unread(node)
        if value.is_graph_output() or any(use.node not in chosen for use in value.uses()):
            back = _transpose(stored, to_channels_last(rank), value.name or "")
            back.outputs[0].shape, back.outputs[0].type = value.shape, value.type
            producer = stored.producer()
            assert producer is not None
            self.graph.insert_after(producer, back)
            value.replace_all_uses_with(back.outputs[0], replace_graph_outputs=True)

    def _skip_transposes(self, value: ir.Value) -> None:
        """Lets readers behind a transpose to channels first read the channels-first value."""
        stored = self._channels_first[value]
        for node in [use.node for use in value.uses() if self._towards_first.get(use.node)]:
            output = node.outputs[0]
            if node.graph is not self.graph:
                continue
            if output.is_graph_output() and (stored.is_graph_output() or stored.producer() is None):
                continue
            if output.is_graph_output():
                stored.name, output.name = output.name, stored.name
            output.replace_all_uses_with(stored, replace_graph_outputs=True)
            self._replaced[output] = stored
            self._remove_unread(node)

    def _remove_unread(self, node: ir.Node) -> None:
        if node.graph is self.graph:
            self.graph.remove(node, safe=True)


def _shape(shape: Any, order: Sequence[int]) -> ir.Shape | None:
    return None if shape is None else ir.Shape([shape[axis] for axis in order])


def _transpose(value: ir.Value, perm: Sequence[int], name: str) -> ir.Node:
    node = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", perm)], name=name)
    node.outputs[0].name, node.outputs[0].type = name, value.type
    return node


def _shape_of(stored: ir.Value, rank: int, node: ir.Node) -> tuple[ir.Node, ir.Node, ir.Node]:
    """Returns the nodes that compute the channels-last shape of a channels-first value."""
    order = ir.AttrTensor("value", ir.Tensor(np.array(to_channels_last(rank), np.int64)))
    sizes, places = ir.Node("", "Shape", [stored], name=node.name), ir.Node("", "Constant", [], [order])
    return (
        sizes,
        places,
        ir.Node("", "Gather", [sizes.outputs[0], places.outputs[0]], name=f"{node.name}_channels_last"),
    )


def _remove(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Removes those of `nodes` whose outputs have no readers."""

    for node in reversed(nodes):
        if node.graph is graph and not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
