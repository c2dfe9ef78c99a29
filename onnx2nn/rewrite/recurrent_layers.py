"""Merges stacks of LSTM, GRU and RNN nodes into one node, as nn.LSTM, nn.GRU and nn.RNN hold all layers in one module.

An ONNX node is one layer. Its output, `(steps, directions, batch, hidden)`, has the directions as a dimension of their
own; nn.LSTM's, `(steps, batch, directions * hidden)`, has them concatenated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.importing.placement import declared_scope
from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.patterns import int_of, ints_of, readers
from onnx2nn.rewrite.recurrent_states import InitialState, final_state, initial_state, only_reader
from onnx2nn.rewrite.recurrent_weights import TorchWeights, slice_bounds, torch_weights
from onnx2nn.rewrite.rewrite_rule import REPLACEMENT_OPSET, Replacement
from onnx2nn.rewrite.value_facts import ValueFacts

_STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
_SUPPORTED = {"hidden_size", "direction", "layout", "input_forget", "linear_before_reset"}
ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
"""The activations of torch's modules, as the operators name them."""

_GATES = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}
"""For each of ONNX's gates, in their order, its position among the gates in torch's weights."""

_WIDEST, _MOST_HIDDEN = 7, 5
"""The most features and hidden values of a comparison, which stand for any numbers of them."""

_SWAPPED = [1, 0, 2]
"""The permutation that swaps batch and time."""


@dataclass
class _Layer:
    """One recurrent node and the nodes after it that concatenate its directions.

    Attributes:
        node: the LSTM, GRU or RNN node.
        merging: the nodes that concatenate its directions.
        output: their output, `(steps, batch, directions * hidden)`, or these elements in the shape that their Reshape
            gives them; None where only the last states are read.
        target: the target of their Reshape; None for a Squeeze.
        weights: the node's weights; torch's weights of each direction where the file computes ONNX's from them.
        as_torch: whether `weights` are torch's.
        constants: the nodes that hold some of torch's weights, which the graph lacks yet.
        relu: whether the activation of an RNN is ReLU.
    """

    node: ir.Node
    merging: list[ir.Node]
    output: ir.Value | None
    target: ir.Value | None
    weights: list[ir.Value]
    as_torch: bool
    constants: list[ir.Node]
    relu: bool

    @property
    def directions(self) -> int:
        """The number of directions, 1 or 2."""
        direction = self.node.attributes.get("direction")
        return 1 + (direction is not None and direction.as_string() == "bidirectional")

    def rows(self, facts: ValueFacts, source: ir.Value | None) -> np.ndarray[Any, Any] | None:
        """Returns a constant target that may give the output another shape than nn.LSTM does: a matrix, fixed sizes.

        Args:
            facts: what is known of the graph.
            source: the input of the first layer of the stack, whose sequences and batches all its layers have.
        """
        target = None if self.target is None else facts.array(self.target)
        return None if target is None or self.keeps_sizes(facts, source) else target

    def keeps_sizes(self, facts: ValueFacts, source: ir.Value | None) -> bool:
        """Returns whether no number in the target is a size of sequences or batches that those of `source` may not be.

        Numbers that are computed at run time are left to the comparison.
        """
        target = [0, 0, -1] if self.target is None else facts.ints(self.target)
        if target is None or len(target) != 3:
            return target is None
        sizes = (None if source is None else facts.declared(source)) or [None, None]
        hidden = int_of(self.node, "hidden_size", 0)
        width = self.directions * hidden if hidden else None
        proven = [size in (0, None, known) for size, known in zip(target[:2], sizes, strict=False)]
        if all(proven):
            return target[2] in (-1, None, width)
        return any(proven) and -1 in target[:2] and target[2] == width

    def initial_state(self, index: int) -> ir.Value | None:
        """Returns an initial state, None where it is absent; `index` 1 is the cell state of an LSTM."""
        return self.node.inputs[5 + index] if len(self.node.inputs) > 5 + index else None


def stacks(graph: ir.Graph, facts: ValueFacts) -> Iterator[Replacement]:
    """Yields a replacement for each stack of recurrent layers, and for each of its layers where the stack has none.

    Each replacement must be applied before the next one is requested.
    """
    layers: dict[ir.Node, _Layer] = {}
    for node in graph:
        if node.op_type in _STATES:
            with contextlib.suppress(KeyError, TypeError, ValueError):  # malformed attributes: the import reports them
                layer = _layer(node, facts)
                layers |= {} if layer is None else {node: layer}
    followers = {layer.output: layer for layer in layers.values() if layer.output is not None}
    first = [layer for layer in layers.values() if _previous(layer, followers) is None]
    for layer in first:
        chain = [layer]
        while (after := _next(chain[-1], layers)) is not None:
            chain.append(after)
        merged = _replacement(chain, facts)
        yield from [merged] if merged is not None else filter(None, (_replacement([one], facts) for one in chain))


def _layer(node: ir.Node, facts: ValueFacts) -> _Layer | None:
    """Returns the layer of a node that torch's modules can express, None for any other node."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    activations = attributes.pop("activations", None)
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    if node.domain or not set(attributes) <= _SUPPORTED or attributes.get("layout") or attributes.get("input_forget"):
        return None
    if attributes.get("direction", "forward") not in ("forward", "bidirectional"):
        return None
    if node.op_type == "GRU" and not attributes.get("linear_before_reset"):
        return None
    usual, directions = ACTIVATIONS[node.op_type], 1 + (attributes.get("direction") == "bidirectional")
    named = usual if activations is None else [name.capitalize() for name in activations]
    relu = node.op_type == "RNN" and named in (["Relu"], ["Relu"] * directions)
    if not relu and named not in (usual, usual * directions):
        return None
    if inputs[4] is not None or inputs[7] is not None or None in inputs[1:3]:
        return None
    weights = [value for value in inputs[1:4] if value is not None]
    shapes = [facts.constant_shape(value) for value in weights]
    constant = all(shape is not None for shape in shapes)
    if any(shape is not None and len(shape) != rank for shape, rank in zip(shapes, (3, 3, 2), strict=False)):
        return None  # malformed: the import reports it
    used = TorchWeights(weights, []) if constant else torch_weights(_GATES[node.op_type], weights, facts)
    merge = _merge_of_directions(node, facts)
    return None if merge is None or used is None else _Layer(node, *merge, used.values, not constant, used.nodes, relu)


def _merge_of_directions(
    node: ir.Node, facts: ValueFacts
) -> tuple[list[ir.Node], ir.Value | None, ir.Value | None] | None:
    """Returns the nodes that concatenate the directions of a layer, their output, and the target of their Reshape.

    None where the output is read in another way.
    """
    if not readers(node.outputs[0]):
        return [], None, None
    first = only_reader(node.outputs[0])
    if first is None:
        return _joined_directions(node, facts)
    if first.op_type == "Squeeze":
        return ([first], first.outputs[0], None) if facts.axes(first) == [1] else None
    if first.op_type != "Transpose" or ints_of(first, "perm") != [0, 2, 1, 3]:
        return None
    second = only_reader(first.outputs[0])
    if second is None or second.op_type != "Reshape":
        return None
    return [first, second], second.outputs[0], second.inputs[1]


def _joined_directions(
    node: ir.Node, facts: ValueFacts
) -> tuple[list[ir.Node], ir.Value | None, ir.Value | None] | None:
    """Returns what `_merge_of_directions` does where each direction is cut out, as tf2onnx writes it."""
    slices = [use.node for use in node.outputs[0].uses() if use.node.op_type == "Slice"]
    bounds = {slice_bounds(cut, facts, 1): cut for cut in slices}
    if len(list(node.outputs[0].uses())) != 2 or set(bounds) != {(0, 1), (1, 2)} or node.outputs[0].is_graph_output():
        return None
    cuts = [bounds[0, 1], bounds[1, 2]]
    narrow = [only_reader(cut.outputs[0]) for cut in cuts]
    squeezes = [one for one in narrow if one is not None and one.op_type == "Squeeze" and facts.axes(one) == [1]]
    joins = {only_reader(one.outputs[0]) for one in squeezes}
    join = joins.pop() if len(squeezes) == 2 and len(joins) == 1 else None
    if join is None or join.op_type != "Concat" or int_of(join, "axis", 0) not in (2, -1):
        return None
    if list(join.inputs) != [one.outputs[0] for one in squeezes]:
        return None
    return [*cuts, *squeezes, join], join.outputs[0], None


def _previous(layer: _Layer, followers: dict[ir.Value, _Layer]) -> _Layer | None:
    source = layer.node.inputs[0]
    before = None if source is None else followers.get(source)
    return before if before is not None and _may_stack(before, layer) else None


def _next(layer: _Layer, layers: dict[ir.Node, _Layer]) -> _Layer | None:
    reader = None if layer.output is None else only_reader(layer.output)
    if reader is None or reader not in layers or reader.inputs[0] is not layer.output:
        return None
    after = layers[reader]
    return after if _may_stack(layer, after) else None


def _may_stack(a: _Layer, b: _Layer) -> bool:
    same = a.node.op_type == b.node.op_type and a.directions == b.directions
    sizes = [node.attributes["hidden_size"].value for node in (a.node, b.node) if "hidden_size" in node.attributes]
    same = same and a.relu == b.relu
    return same and len(set(sizes)) == 1 and _has_biases(a.node) == _has_biases(b.node)


def _has_biases(node: ir.Node) -> bool:
    return len(node.inputs) > 3 and node.inputs[3] is not None


def _in_one_order(chain: Sequence[_Layer], facts: ValueFacts) -> list[_Layer] | None:
    """Returns the layers with weights in torch's order where some have these, None where one cannot have them."""
    if len({layer.as_torch for layer in chain}) == 1:
        return list(chain)
    found = []
    for layer in chain:
        used = None if layer.as_torch else torch_weights(_GATES[layer.node.op_type], layer.weights, facts)
        if not layer.as_torch and used is None:
            return None
        found.append(
            layer if used is None else replace(layer, weights=used.values, constants=used.nodes, as_torch=True)
        )
    return found


def _replacement(chain: Sequence[_Layer], facts: ValueFacts) -> Replacement | None:
    ordered = _in_one_order(chain, facts)
    if ordered is None:
        return None
    chain = ordered
    first, last = chain[0], chain[-1]
    count, kind = _STATES[first.node.op_type], first.node.op_type
    starts = [initial_state([layer.initial_state(i) for layer in chain], first.directions, facts) for i in range(count)]
    finals = [final_state([layer.node for layer in chain], 1 + i) for i in range(count)]
    if any(start is None for start in starts) or any(final is None for final in finals):
        return None
    source, output = first.node.inputs[0], last.output
    assert source is not None
    rows = last.rows(facts, source)
    if any(layer.rows(facts, source) is not None for layer in chain[:-1]) or (rows is not None and 0 in rows[2:]):
        return None  # a 0 copies the number of directions or a later size, which nn.LSTM's output has not
    if rows is None and not all(layer.keeps_sizes(facts, source) for layer in chain):
        return None
    before, after = source.producer(), None if output is None else only_reader(output)
    transposes = [node for node in (after, before) if node is not None and _swaps_batch_and_time(node)]
    transposes = transposes if rows is None else []
    turned = _orders_around(before, last.node, after, output) if rows is None else None
    order, behind = turned or (None, None)
    if order is not None:
        transposes = [node for node in (after if output is not None else None, before) if node is not None]
    batch_first = len(transposes) == (1 if output is None else 2)
    if batch_first and transposes[-1].inputs[0] is not None:
        source, output = transposes[-1].inputs[0], None if output is None else transposes[0].outputs[0]
    given, added = source, [node for layer in chain for node in layer.constants]
    if order is not None:
        turned_before = _transpose(source, order)
        is_outside = declared_scope(transposes[-1]) != declared_scope(last.node)
        added.append(_like(transposes[-1], turned_before) if is_outside else turned_before)
        given = added[-1].outputs[0]
    new = _stack(chain, [given, *(start.source for start in starts if start is not None)], batch_first)
    results = list(new.outputs)
    added.append(new)
    if rows is not None:
        _like(last.node, new)  # the last node of a replacement, a Reshape here, gets the place of what it replaces
        target = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(rows))])
        added += [target, ir.Node("", "Reshape", [results[0], target.outputs[0]], version=REPLACEMENT_OPSET)]
        results[0] = added[-1].outputs[0]
    if behind is not None:
        _like(last.node, new)
        added.append(_like(transposes[0], _transpose(results[0], behind)))
        results[0] = added[-1].outputs[0]
    old = [output, *(final.value for final in finals if final is not None)]
    merging = [node for layer in reversed(chain) for node in (*layer.merging[::-1], layer.node)]
    concats = [final.node for final in finals if final is not None and final.node is not None]
    nodes = (
        [last.node, *transposes[:-1], *merging, *concats, *transposes[-1:]]
        if batch_first
        else [last.node, *merging, *concats]
    )
    order = order or [0, 1, 2]
    narrow = _narrow_weights(chain, facts)
    sample, larger = (
        _sample(chain, source, starts, batch_first, order, known, narrow) for known in (facts, facts.larger)
    )
    pairs = [(a, b) for a, b in zip(old, results, strict=True) if a is not None]
    replaced, new_values = [a for a, _ in pairs], [b for _, b in pairs]
    repeats = {"hidden_size": _MOST_HIDDEN} if narrow else {}
    nodes = list(dict.fromkeys(nodes))
    if rows is None:
        _name_by_neighbours(new, nodes if before is None else [*nodes, before], first.directions)
    return Replacement(kind, nodes, replaced, added, new_values, sample, larger=larger, repeats=repeats)


def _name_by_neighbours(new: ir.Node, nodes: Sequence[ir.Node], directions: int) -> None:
    """Names a layer by the scope of the nodes around it where that of the file has none: tf2onnx's `LSTM__51`.

    Args:
        new: the layer.
        nodes: what it replaces, and what is before it, from the end.
        directions: their number; Keras has a module for each of two in one around them.
    """
    names = [(node.name or "").split("/") for node in nodes]
    scopes = [steps[:-1] for steps in names if steps[directions:]]
    if scopes and len(names[0]) == 1:
        scope = scopes[-1][: len(scopes[-1]) + 1 - directions]
        new.name = "/".join([*scope, new.op_type])


def _stack(chain: Sequence[_Layer], inputs: Sequence[ir.Value | None], batch_first: bool) -> ir.Node:
    """Returns the node of all layers; `inputs` are the sequence and the initial states."""
    first = chain[0]
    attributes: dict[str, Any] = {"num_layers": len(chain), "bidirectional": first.directions - 1}
    attributes |= {"batch_first": int(batch_first), "has_biases": int(_has_biases(first.node))}
    attributes |= {"as_torch": 1} if first.as_torch else {}
    attributes |= {"nonlinearity": "relu"} if first.relu else {}
    kind, weights = first.node.op_type, [value for layer in chain for value in layer.weights]
    known = ir.convenience.convert_attributes(attributes)
    return ir.Node(OWN, kind, [*inputs, *weights], known, num_outputs=1 + _STATES[kind], version=1)


def _narrow_weights(chain: Sequence[_Layer], facts: ValueFacts) -> dict[ir.Value, tuple[int, ...]]:
    """Returns shapes of weights for a comparison of narrower layers, none where the file fixes the widths elsewhere.

    The time of a comparison of the file's weights, of hundreds of rows in float64, is most of that of a small load.
    """
    directions = chain[0].directions
    width, hidden = ((facts.constant_shape(value) or (0,))[-1] for value in chain[0].weights[:2])
    columns, rows = min(width, _WIDEST), min(hidden, _MOST_HIDDEN)
    found: dict[ir.Value, tuple[int, ...]] = {}
    for layer in chain:
        attribute = layer.node.attributes.get("hidden_size")
        ends = [-1] if layer.target is None else facts.ints(layer.target) or [0]
        if layer.as_torch or ends[-1] != -1 or (attribute is not None and attribute.value != hidden):
            return {}
        shapes = zip(_weight_shapes(layer, width, hidden), _weight_shapes(layer, columns, rows), strict=True)
        for value, (whole, narrow) in zip(layer.weights, shapes, strict=False):
            if facts.constant_shape(value) != whole or found.setdefault(value, narrow) != narrow:
                return {}  # malformed, which the import reports, or shared by layers of several widths
        width, columns = directions * hidden, directions * rows
    return found


def _weight_shapes(layer: _Layer, width: int, hidden: int) -> list[tuple[int, ...]]:
    """Returns the shapes of the weights of a node, for inputs of size `width`."""
    rows = len(_GATES[layer.node.op_type]) * hidden
    return [(layer.directions, rows, width), (layer.directions, rows, hidden), (layer.directions, 2 * rows)]


def _swaps_batch_and_time(node: ir.Node) -> bool:
    return _permutation(node) == _SWAPPED


def _permutation(node: ir.Node) -> list[int] | None:
    """Returns the order in which a Transpose node has the dimensions, None for any other node."""
    return ints_of(node, "perm") if node.op_type == "Transpose" else None


def _orders_around(
    before: ir.Node | None, layer: ir.Node, after: ir.Node | None, output: ir.Value | None
) -> tuple[list[int], list[int] | None] | None:
    """Returns the orders of dimensions before and behind a layer that takes the batch first, as its author has them.

    Exporters write two transposes in a row as one. That a layer turns its input or its output itself then shows in
    the other transpose, or in the place of the merged one before it, which is inside of the layer's module. None for
    another layer, and for one between two plain transposes; the second order is None where the author has no other.

    Args:
        before: the node before the layer.
        layer: the recurrent node.
        after: the node behind it.
        output: the layer's output, None where only the last state is used.
    """
    scope = declared_scope(layer)
    order = None if before is None else _permutation(before)
    behind = _SWAPPED if output is None else None if after is None else _permutation(after)
    if before is None or order is None or behind is None or not scope or not len(order) == len(behind) == 3:
        return None
    turns_output = after is not None and output is not None and declared_scope(after) == scope and behind == _SWAPPED
    if order == behind == _SWAPPED or not (turns_output or declared_scope(before) == scope):
        return None
    around = [_SWAPPED[axis] for axis in behind]
    return [order[axis] for axis in _SWAPPED], None if around == [0, 1, 2] else around


def _transpose(value: ir.Value | None, order: Sequence[int]) -> ir.Node:
    return ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", order)], version=REPLACEMENT_OPSET)


def _like(old: ir.Node, new: ir.Node) -> ir.Node:
    """Returns a node with the place in the author's code that another node has."""
    new.name = old.name
    new.metadata_props.update(old.metadata_props)
    return new


def _sample(
    chain: Sequence[_Layer],
    source: ir.Value,
    starts: Sequence[InitialState | None],
    batch_first: bool,
    order: Sequence[int],
    facts: ValueFacts,
    weights: Mapping[ir.Value, tuple[int, ...]],
) -> dict[ir.Value, Any]:
    """Returns sample inputs for the input and the initial states, of sizes that the file's Reshapes accept.

    Args:
        chain: the layers.
        source: the input.
        starts: the initial states.
        batch_first: whether the batch comes before the time in what the layers get.
        order: the order in which they get the dimensions of `source`.
        facts: what is known of the graph.
        weights: the shapes of the sample's weights, none for the file's.
    """

    directions = chain[0].directions
    shape, of_state = (weights.get(value) or facts.constant_shape(value) or () for value in chain[0].weights[:2])
    hidden = of_state[-1]
    steps, batch = 3, 2  # the fewest that tell apart directions, time and batch: each step makes many calls
    for layer in chain:
        target = facts.ints(layer.target) or []
        if None in target and source.shape is not None and len(source.shape) == 3:
            sizes = facts.shape(source) or (0, 0, 0)  # a Shape node may read another value
            steps, batch = (sizes[axis] or known for axis, known in zip(order, (steps, batch), strict=False))
            steps, batch = (batch, steps) if batch_first else (steps, batch)
        rows = layer.rows(facts, chain[0].node.inputs[0])
        if rows is not None and len(rows) == 2 and rows[0] > 0:
            steps, batch = int(rows[0]), 1
        if len(target) == 3:
            steps, batch = (
                given if given and given > 0 else default
                for given, default in zip(target[:2], (steps, batch), strict=True)
            )
    sample = dict[ir.Value, Any](weights)
    sizes = (batch, steps, shape[-1]) if batch_first else (steps, batch, shape[-1])
    sample[source] = tuple(sizes[order.index(axis)] for axis in range(3))
    for start in starts:
        if start is not None and start.source is not None:
            sample[start.source] = (len(chain) * directions, batch, hidden)
        for zero in start.zeros if start is not None else ():
            sample[zero] = np.zeros((directions, batch, hidden))
    return sample
