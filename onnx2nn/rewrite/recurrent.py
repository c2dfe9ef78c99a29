"""Recurrent layers: ONNX has a node for each, its directions stacked; nn.LSTM has all layers and one wide output."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.facts import Facts
from onnx2nn.rewrite.patterns import origin, readers
from onnx2nn.rewrite.rule import Replacement

_STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
RECURRENT = _STATES.keys()
_PLAIN = {"hidden_size", "direction", "layout", "input_forget", "linear_before_reset"}
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_GATES = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}
"""Where ONNX's gates stand in torch's weights."""

_SWAPPED = [1, 0, 2]
"""The permutation between batch first and time first."""


@dataclass
class _Layer:
    """One node and how its directions are joined.

    Attributes:
        node: the LSTM, GRU or RNN.
        joining: the nodes that join its directions.
        output: what they give, `(steps, batch, directions * hidden)`; None where nothing reads it, only the states.
        target: the shape to which they reshape; None where they only squeeze.
        weights: what the node reads as such; torch's own, of each direction, where the file computes that from them.
        as_torch: whether they are torch's own.
        relu: whether the activation of an RNN is ReLU.
    """

    node: ir.Node
    joining: list[ir.Node]
    output: ir.Value | None
    target: ir.Value | None
    weights: list[ir.Value]
    as_torch: bool
    relu: bool

    @property
    def directions(self) -> int:
        """How many there are."""
        direction = self.node.attributes.get("direction")
        return 1 + (direction is not None and direction.as_string() == "bidirectional")

    def start(self, index: int) -> ir.Value | None:
        """Returns an initial state, None where it is absent."""
        return self.node.inputs[5 + index] if len(self.node.inputs) > 5 + index else None


def stacks(graph: ir.Graph | ir.Function, facts: Facts) -> Iterator[Replacement]:
    """Yields what puts one node in the place of each stack of recurrent layers, the next one when this one is done."""
    layers: dict[ir.Node, _Layer] = {}
    for node in graph:
        if node.op_type in _STATES:
            with contextlib.suppress(KeyError, TypeError, ValueError):  # attributes that the import complains about
                layer = _layer(node, facts)
                layers |= {} if layer is None else {node: layer}
    followers = {layer.output: layer for layer in layers.values() if layer.output is not None}
    first = [layer for layer in layers.values() if _before(layer, followers) is None]
    for layer in first:
        chain = [layer]
        while (after := _after(chain[-1], layers)) is not None:
            chain.append(after)
        whole = _replacement(chain, facts)
        yield from [whole] if whole is not None else filter(None, (_replacement([one], facts) for one in chain))


def _layer(node: ir.Node, facts: Facts) -> _Layer | None:
    """Returns a node that means what a layer of torch's means; None for another."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    activations = attributes.pop("activations", None)
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    if node.domain or not set(attributes) <= _PLAIN or attributes.get("layout") or attributes.get("input_forget"):
        return None
    if attributes.get("direction", "forward") not in ("forward", "bidirectional"):
        return None
    if node.op_type == "GRU" and not attributes.get("linear_before_reset"):
        return None
    usual, ways = _ACTIVATIONS[node.op_type], 1 + (attributes.get("direction") == "bidirectional")
    named = usual if activations is None else [name.capitalize() for name in activations]
    relu = node.op_type == "RNN" and named in (["Relu"], ["Relu"] * ways)
    if not relu and named not in (usual, usual * ways):
        return None
    if inputs[4] is not None or inputs[7] is not None or None in inputs[1:3]:
        return None
    weights = [value for value in inputs[1:4] if value is not None]
    constant = all(facts.constant_shape(value) is not None for value in weights)
    used = weights if constant else _torch_weights(node.op_type, weights, facts)
    joined = _joined(node, facts)
    return None if joined is None or used is None else _Layer(node, *joined, used, not constant, relu)


def _torch_weights(kind: str, inputs: Sequence[ir.Value], facts: Facts) -> list[ir.Value] | None:
    """Returns the weights of each direction, as torch has them, of which the file computes those of ONNX.

    Exporters that fold no constants, PyTorch's before 1.5 among them, leave in what puts the gates in another order.
    """
    order, found = _GATES[kind], list[list[ir.Value]]()
    for number, value in enumerate(inputs):
        directions = _directions(value, facts)
        if directions is None:
            return None
        of_input = [_reordered(rows, order, 1 + (number == 2)) for rows in directions]
        if any(values is None for values in of_input):
            return None
        found.append([value for values in of_input for value in values or ()])
    W, R, *B = found
    if any(len(values) != len(W) * (1 + (values in B)) for values in found):
        return None
    return [v for i in range(len(W)) for v in (W[i], R[i], *(b for values in B for b in values[2 * i : 2 * i + 2]))]


_Rows = list[tuple[ir.Value, int, int]]
"""Initializers one below the other, of each the first row and the one behind the last."""


def _directions(value: ir.Value | None, facts: Facts) -> list[_Rows] | None:
    """Returns of which rows the part of each direction consists."""
    node = None if value is None else value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Unsqueeze" and facts.axes(node) == [0]:
        rows = _rows(node.inputs[0], facts)
        return None if rows is None else [rows]
    if node.op_type != "Concat" or node.attributes["axis"].as_int() != 0:
        return None
    parts = [_directions(part, facts) for part in node.inputs]
    return None if any(part is None for part in parts) else [rows for part in parts for rows in part or ()]


def _rows(value: ir.Value | None, facts: Facts) -> _Rows | None:
    """Returns the rows of initializers that a value consists of, None where it is anything else."""
    node = None if value is None else value.producer()
    if node is None:
        shape = facts.constant_shape(value) if value is not None and value.is_initializer() else None
        return [(value, 0, shape[0])] if value is not None and shape else None
    if node.domain or node.op_type not in ("Concat", "Slice"):
        return None
    if node.op_type == "Concat":
        parts = [_rows(part, facts) for part in node.inputs] if node.attributes["axis"].as_int() == 0 else [None]
        return None if any(part is None for part in parts) else [row for part in parts for row in part or ()]
    whole, cut = _rows(node.inputs[0], facts), _cut(node, facts)
    if whole is None or len(whole) != 1 or cut is None:
        return None
    (source, first, last), (start, end) = whole[0], cut
    return [(source, first + start, min(first + end, last))] if 0 <= start < end else None


def _cut(node: ir.Node, facts: Facts) -> tuple[int, int] | None:
    """Returns from where to where a Slice of either form cuts the first dimension, None where it does anything else."""
    given = zip(("starts", "ends", "axes"), node.inputs[1:], strict=False)
    bounds: dict[str, Any] = {name: facts.ints(value) for name, value in given}
    bounds |= {name: list(attribute.as_ints()) for name, attribute in node.attributes.items()}
    start, end, axes = (bounds.get(name) for name in ("starts", "ends", "axes"))
    step = facts.ints(node.inputs[4]) if len(node.inputs) > 4 else [1]
    if step != [1] or axes not in ([0], None) or start is None or end is None or len(start) != 1 or len(end) != 1:
        return None
    return None if None in (start[0], end[0]) else (start[0], end[0])


def _reordered(rows: _Rows, order: Sequence[int], count: int) -> list[ir.Value] | None:
    """Returns the initializers, `count` of them, whose gates are put in another order in `rows`."""
    size, gates = sum(last - first for _, first, last in rows) // (count * len(order)), list[tuple[ir.Value, int]]()
    for source, first, last in rows:
        if not size or first % size or last % size:
            return None
        gates += [(source, gate) for gate in range(first // size, last // size)]
    sources = [source for source, _ in gates[:: len(order)]]
    wanted = [(source, gate) for source in sources for gate in order]
    fits = gates == wanted and all(source.shape and source.shape[0] == size * len(order) for source in sources)
    return sources if fits and len(sources) == count else None


def _joined(node: ir.Node, facts: Facts) -> tuple[list[ir.Node], ir.Value | None, ir.Value | None] | None:
    """Returns the nodes that join the directions of a layer, what they give, and the shape that they reshape to."""
    if not readers(node.outputs[0]):
        return [], None, None
    first = _reader(node.outputs[0])
    if first is None:
        return None
    if first.op_type == "Squeeze":
        return ([first], first.outputs[0], None) if facts.axes(first) == [1] else None
    if (
        first.op_type != "Transpose"
        or "perm" not in first.attributes
        or list(first.attributes["perm"].as_ints()) != [0, 2, 1, 3]
    ):
        return None
    second = _reader(first.outputs[0])
    if second is None or second.op_type != "Reshape":
        return None
    return [first, second], second.outputs[0], second.inputs[1]


def _reader(value: ir.Value) -> ir.Node | None:
    """Returns the one node that reads a value, besides those that read its shape."""
    nodes = [use.node for use in value.uses() if use.node.op_type != "Shape"]
    return nodes[0] if len(nodes) == 1 and not value.is_graph_output() else None


def _before(layer: _Layer, followers: dict[ir.Value, _Layer]) -> _Layer | None:
    source = layer.node.inputs[0]
    before = None if source is None else followers.get(source)
    return before if before is not None and _fits(before, layer) else None


def _after(layer: _Layer, layers: dict[ir.Node, _Layer]) -> _Layer | None:
    reader = None if layer.output is None else _reader(layer.output)
    if reader is None or reader not in layers or reader.inputs[0] is not layer.output:
        return None
    after = layers[reader]
    return after if _fits(layer, after) else None


def _fits(a: _Layer, b: _Layer) -> bool:
    same = a.node.op_type == b.node.op_type and a.directions == b.directions
    sizes = [node.attributes["hidden_size"].value for node in (a.node, b.node) if "hidden_size" in node.attributes]
    same = same and a.as_torch == b.as_torch and a.relu == b.relu
    return same and len(set(sizes)) == 1 and (a.node.inputs[3] is None) == (b.node.inputs[3] is None)


def _replacement(chain: Sequence[_Layer], facts: Facts) -> Replacement | None:
    first, last = chain[0], chain[-1]
    count, kind = _STATES[first.node.op_type], first.node.op_type
    starts = [_start([layer.start(i) for layer in chain], first.directions, facts) for i in range(count)]
    finals = [_final([layer.node for layer in chain], 1 + i) for i in range(count)]
    if any(start is None for start in starts) or any(final is None for final in finals):
        return None
    source, output = first.node.inputs[0], last.output
    assert source is not None
    before, after = source.producer(), None if output is None else _reader(output)
    turned = [node for node in (after, before) if node is not None and _turns(node)]
    batch_first = len(turned) == 2 or (output is None and len(turned) == 1)
    if batch_first and turned[-1].inputs[0] is not None:
        source, output = turned[-1].inputs[0], None if output is None else turned[0].outputs[0]
    weights = [value for layer in chain for value in layer.weights]
    has_biases = len(first.node.inputs) > 3 and first.node.inputs[3] is not None
    attributes: dict[str, Any] = {"num_layers": len(chain), "bidirectional": first.directions - 1}
    attributes |= {"batch_first": int(batch_first), "has_biases": int(has_biases)}
    attributes |= {"as_torch": 1} if first.as_torch else {}
    attributes |= {"nonlinearity": "relu"} if first.relu else {}
    given_states = [start for start in starts if start is not None]
    new = ir.Node(
        OWN,
        kind,
        [source, *(start.source for start in given_states), *weights],
        ir.convenience.convert_attributes(attributes),
        num_outputs=1 + count,
        version=1,
    )
    old = [output, *(final.value for final in finals if final is not None)]
    joining = [node for layer in reversed(chain) for node in (*layer.joining[::-1], layer.node)]
    concats = [final.node for final in finals if final is not None and final.node is not None]
    nodes = (
        [last.node, *turned[:-1], *joining, *concats, *turned[-1:]] if batch_first else [last.node, *joining, *concats]
    )
    sample = _sample(chain, source, starts, batch_first, facts)
    pairs = [(a, b) for a, b in zip(old, new.outputs, strict=True) if a is not None]
    return Replacement(kind, list(dict.fromkeys(nodes)), [a for a, _ in pairs], [new], [b for _, b in pairs], sample)


def _turns(node: ir.Node) -> bool:
    return (
        node.op_type == "Transpose"
        and "perm" in node.attributes
        and list(node.attributes["perm"].as_ints()) == _SWAPPED
    )


@dataclass
class _Start:
    """An initial state of all layers: the value that holds it, None for zeros, and the values that are zeros."""

    source: ir.Value | None
    zeros: list[ir.Value]


@dataclass
class _Final:
    """A last state of all layers: the value that holds it, None where nothing reads it, and the node that joins it."""

    value: ir.Value | None
    node: ir.Node | None


def _start(values: Sequence[ir.Value | None], directions: int, facts: Facts) -> _Start | None:
    present = [value for value in values if value is not None]
    if all(_is_zeros(value, facts) for value in present):
        return _Start(None, present)
    if len(values) == 1:
        return _Start(values[0], [])
    sources = set()
    for layer, value in enumerate(values):
        node = None if value is None else value.producer()
        if node is None or node.op_type != "Slice" or node.inputs[0] is None:
            return None
        if _cut(node, facts) != (layer * directions, (layer + 1) * directions):
            return None
        sources.add(node.inputs[0])
    return _Start(sources.pop(), []) if len(sources) == 1 else None


def _is_zeros(value: ir.Value, facts: Facts) -> bool:
    """Whether a value is zeros in some shape, or a part of such."""
    node = origin(value).producer()
    while node is not None and node.op_type == "Slice" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is not None and node.op_type == "ConstantOfShape":
        fill: Any = node.attributes["value"].value.numpy() if "value" in node.attributes else np.zeros(1)
        return not fill.any()
    if node is not None and node.op_type == "ConstantFill":
        return "value" not in node.attributes or node.attributes["value"].as_float() == 0
    return node is not None and node.op_type == "Expand" and facts.number(node.inputs[0]) == 0


def _final(nodes: Sequence[ir.Node], index: int) -> _Final | None:
    """Returns where the last states of all layers come together; None where one is read on its own."""
    values = [node.outputs[index] if len(node.outputs) > index else None for node in nodes]
    if not any(value is not None and (value.uses() or value.is_graph_output()) for value in values):
        return _Final(None, None)
    if len(nodes) == 1:
        return _Final(values[0], None)
    joins = {None if value is None else _reader(value) for value in values}
    join = joins.pop() if len(joins) == 1 else None
    if join is None or join.op_type != "Concat" or join.attributes["axis"].as_int() != 0:
        return None
    return _Final(join.outputs[0], join) if list(join.inputs) == values else None


def _sample(
    chain: Sequence[_Layer], source: ir.Value, starts: Sequence[_Start | None], batch_first: bool, facts: Facts
) -> dict[ir.Value, Any]:
    """Returns the shape of the input and of the initial states at sizes that the reshapes of the file fit."""
    directions = chain[0].directions
    shape = facts.constant_shape(chain[0].weights[0]) or ()
    hidden = (facts.constant_shape(chain[0].weights[1]) or ())[-1]
    steps, batch = 5, 3
    for layer in chain:
        target = facts.ints(layer.target) or []
        if len(target) == 3:
            steps, batch = (
                given if given and given > 0 else default
                for given, default in zip(target[:2], (steps, batch), strict=True)
            )
    time, sample = (1, 0), dict[ir.Value, Any]()
    sizes = (steps, batch) if not batch_first else tuple((steps, batch)[axis] for axis in time)
    sample[source] = (*sizes, shape[-1])
    for start in starts:
        if start is not None and start.source is not None:
            sample[start.source] = (len(chain) * directions, batch, hidden)
        for zero in start.zeros if start is not None else ():
            sample[zero] = np.zeros((directions, batch, hidden))
    return sample
