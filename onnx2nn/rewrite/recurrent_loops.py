"""Makes LSTM, GRU and RNN nodes of Loops over the steps of a sequence, in which TensorFlow computes a recurrent layer.

tf2onnx knows the loops of some versions of Keras, and writes nodes for these itself. In the body of one that it does
not know, the input of a step and the last state are multiplied by a matrix each. What the body makes of the products
is compared with the formulas of the three layers, on random numbers, with the gates in each order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.importing.trip_counts import trip_count
from onnx2nn.rewrite.evaluation import TOLERANCE, Evaluator
from onnx2nn.rewrite.patterns import attribute_of, origin, tensor_of
from onnx2nn.rewrite.recurrent_layers import ACTIVATIONS
from onnx2nn.rewrite.recurrent_states import is_zeros
from onnx2nn.rewrite.rewrite_rule import REPLACEMENT_OPSET, Replacement
from onnx2nn.rewrite.value_facts import ValueFacts

_STEPS = (1, 5, 11, (1 << 31) - 1)
"""Numbers of steps at which the loop must have as many iterations.

What it counts is picked from sizes and constants, or a smallest of them: one that is the number of steps at these is it
at all up to the last one, the largest number of int32. A comparison of such that holds at the first and the last number
holds between them.
"""

_PICKS = frozenset(
    {
        "And",
        "Cast",
        "Concat",
        "Gather",
        "Greater",
        "Identity",
        "Less",
        "Min",
        "Reshape",
        "Slice",
        "Squeeze",
        "Unsqueeze",
    }
)
"""Operators that pick numbers or compare them."""

_BATCH = 3
"""The size of a batch in a comparison."""

_DEPTH = 64
"""The most nodes between a number and the shape that it is computed from."""

Array = np.ndarray[Any, Any]


@dataclass
class _Cell:
    """The body of a loop that may be a recurrent layer's.

    Attributes:
        loop: the Loop node.
        sequence: `(steps, batch, features)`, of which the body takes one step at a time.
        step: the input of a step in the body.
        states: the positions of the states among the carried values, the hidden state first.
        weights: the matrices of the input and of the hidden state, and the bias where there is one, in the body.
        constants: the constants that they are.
    """

    loop: ir.Node
    sequence: ir.Value
    step: ir.Value
    states: list[int]
    weights: list[ir.Value]
    constants: list[Array]

    @property
    def body(self) -> ir.Graph:
        """The graph of a step."""
        return self.loop.attributes["body"].as_graph()

    @property
    def hidden(self) -> int:
        """The number of elements of the hidden state."""
        return int(self.constants[1].shape[0])


def recurrent_loops(graph: ir.Graph | ir.Function, facts: ValueFacts) -> Iterator[Replacement]:
    """Yields a replacement for each Loop that computes a recurrent layer; its numbers are those of the loop."""
    for node in graph:
        if node.op_type != "Loop" or node.domain or len(node.inputs) < 3:
            continue
        try:
            cell = _cell(node, facts)
            found = None if cell is None or not _has_all_steps(cell, facts) else _replacement(cell, facts)
        except (KeyError, IndexError, TypeError, ValueError, StopIteration):
            continue  # malformed: the import reports it
        if found is not None:
            yield found


def _cell(loop: ir.Node, facts: ValueFacts) -> _Cell | None:
    body = loop.attributes["body"].as_graph()
    carried = list(zip(body.inputs[2:], body.outputs[1:], loop.inputs[2:], strict=False))
    outer = {value: start for value, result, start in carried if origin(result) is value and start is not None}
    counters = {body.inputs[0], *(value for value, result, start in carried if _counts(value, result, start, facts))}
    read = [node for node in body if node.op_type == "Gather" and node.inputs[1] in counters]
    products = {origin(value): node for node in body if node.op_type == "MatMul" and (value := node.inputs[0])}
    if len(read) != 1 or len(products) != 2 or (read[0].outputs[0] not in products) or attribute_of(read[0], "axis", 0):
        return None
    step, source = read[0].outputs[0], read[0].inputs[0]
    sequence = None if source is None else outer.get(source, source)
    states = [at for at, (value, _, _) in enumerate(carried) if value not in outer and value not in counters]
    hidden = next(value for value in products if value is not step)
    states.sort(key=lambda at: carried[at][0] is not hidden)
    if sequence is None or sequence.graph is body or not states or carried[states[0]][0] is not hidden:
        return None
    matrices = [matrix for value in (step, hidden) if (matrix := products[value].inputs[1]) is not None]
    used = dict.fromkeys(value for node in body for value in node.inputs if value is not None)
    others = [value for value in used if value not in matrices and _is_weight(outer.get(value, value), facts)]
    weights = [*matrices, *others]
    constants = [array for value in weights if (array := facts.array(outer.get(value, value))) is not None]
    if len(weights) > 3 or len(constants) != len(weights):
        return None
    return _Cell(loop, sequence, step, states, weights, constants)


def _counts(value: ir.Value, result: ir.Value, start: ir.Value | None, facts: ValueFacts) -> bool:
    """Returns whether a carried value is the number of the iteration."""
    node = origin(result).producer()
    if facts.number(start) != 0 or node is None or node.op_type != "Add":
        return False
    first, second = node.inputs
    return (first is value and facts.number(second) == 1) or (second is value and facts.number(first) == 1)


def _is_weight(value: ir.Value | None, facts: ValueFacts) -> bool:
    """Returns whether a value is a constant of floats with dimensions."""
    array = None if value is None or not facts.constant_shape(value) else facts.array(value)
    return array is not None and array.dtype.kind == "f"


def _has_all_steps(cell: _Cell, facts: ValueFacts) -> bool:
    """Returns whether the loop takes all steps of the sequence, however many these are."""
    return all(_iterations(cell, steps, facts) == steps for steps in _STEPS)


def _iterations(cell: _Cell, steps: int, facts: ValueFacts) -> Any:
    """Returns the number of iterations for a sequence of a number of steps, None where it is unknown."""

    def number(value: ir.Value | None) -> Any:
        shapes = None if value is None else _shapes_before(value, cell.sequence, steps)
        if value is None or shapes is None or (value.graph is cell.body and tensor_of(value) is None):
            return None
        try:
            array = Evaluator(facts.table, facts.F, facts.opsets, facts.account, shapes).array(value)
        except Exception:  # a framework raises errors of many types; the number then counts as unknown
            return None
        return array.item() if array.size == 1 else None

    limit, start, *initial = cell.loop.inputs
    most = number(limit)
    if (start is not None and number(start) is not True) or (limit is not None and most is None):
        return None
    return trip_count(cell.body, most, [number(value) for value in initial], number)


def _shapes_before(value: ir.Value, sequence: ir.Value, steps: int) -> dict[ir.Value, Array] | None:
    """Returns the shapes that a number is computed from, for a number of steps; None where it depends on more.

    They are those of the sequence, and of what has its elements in another order. A number is also None that is
    computed of them otherwise than by `_PICKS`.
    """
    known = {sequence: [steps, _BATCH, 1]}
    while (node := sequence.producer()) is not None and node.op_type in ("Transpose", "ReverseSequence"):
        sizes, before = known[sequence], node.inputs[0]
        if before is None:
            return None
        order = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(3)
        known[before] = [sizes[list(order).index(axis)] for axis in range(3)]
        sequence = before
    found: dict[ir.Value, Array] = {}
    pending = [value]
    for _ in range(_DEPTH):
        if not pending:
            return found
        made = pending.pop()
        node = made.producer()
        if tensor_of(made) is not None:
            continue
        if node is None or (node.op_type == "Shape" and node.inputs[0] not in known):
            return None
        if node.op_type == "Shape":
            if len(node.attributes):
                return None
            assert node.inputs[0] is not None
            found[made] = np.array(known[node.inputs[0]])
        elif node.op_type not in _PICKS:
            return None
        else:
            pending += [read for read in node.inputs if read is not None]
    return None


def _replacement(cell: _Cell, facts: ValueFacts) -> Replacement | None:
    """Returns the layer that computes what the loop does, None where there is none."""
    layer = _layer_of(cell, facts)
    outputs, carried = cell.loop.outputs, len(cell.loop.inputs) - 2
    hidden = origin(cell.body.outputs[1 + cell.states[0]])
    stacked = [at for at in range(carried, len(outputs)) if origin(cell.body.outputs[1 + at]) is hidden]
    wanted = {at for at, output in enumerate(outputs) if output.uses() or output.is_graph_output()}
    if layer is None or not wanted <= {*stacked, *cell.states} or len(wanted & {*stacked}) > 1:
        return None
    kind, activations, arrays = layer
    added = [ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(array))]) for array in arrays]
    starts: list[ir.Value | None] = []
    for at in cell.states:
        start = cell.loop.inputs[2 + at]
        if start is None or is_zeros(start, facts):
            starts.append(None)
            continue
        added.append(ir.Node("", "Unsqueeze", [start], [ir.AttrInt64s("axes", [0])], version=1))
        starts.append(added[-1].outputs[0])
    weights = [node.outputs[0] for node in added[: len(arrays)]]
    attributes: dict[str, Any] = {"hidden_size": cell.hidden, "activations": activations}
    attributes |= {"linear_before_reset": 1} if kind == "GRU" else {}
    node = ir.Node(
        "",
        kind,
        [cell.sequence, *weights, *[None] * (3 - len(weights)), None, *starts],
        ir.convenience.convert_attributes(attributes),
        num_outputs=1 + len(starts),
        version=REPLACEMENT_OPSET,
    )
    node.name = (cell.loop.name or "").rpartition("/")[0] + f"/{kind}" if "/" in (cell.loop.name or "") else None
    added.append(node)
    old, new = [], []
    for at in sorted(wanted):
        axis, output = (1, node.outputs[0]) if at in stacked else (0, node.outputs[1 + cell.states.index(at)])
        added.append(ir.Node("", "Squeeze", [output], [ir.AttrInt64s("axes", [axis])], version=1))
        old.append(outputs[at])
        new.append(added[-1].outputs[0])
    return Replacement(kind, [cell.loop], old, added, new, {})


def _layer_of(cell: _Cell, facts: ValueFacts) -> tuple[str, list[str], list[Array]] | None:
    """Returns the operator of the layer, its activations, and its weights as ONNX has them."""
    rng = np.random.default_rng(0)
    drawn = [np.asarray(rng.normal(size=array.shape)) for array in cell.constants]
    sizes = (len(drawn[0]), *[cell.hidden] * len(cell.states))
    step, *states = (np.asarray(rng.normal(size=(_BATCH, size))) for size in sizes)
    carried = [cell.body.inputs[2 + at] for at in cell.states]
    given = {cell.step: step} | dict(zip(carried, states, strict=True))
    given |= dict(zip(cell.weights, drawn, strict=True))
    evaluator = Evaluator(facts.table, facts.F, facts.opsets, facts.account, given)
    try:
        results = [evaluator.array(cell.body.outputs[1 + at]) for at in cell.states]
    except Exception:  # a framework raises errors of many types: the body computes with more than this
        return None
    gates = drawn[0].shape[1] // cell.hidden
    for form in _FORMS:
        if form.gates != gates or form.states != len(states):
            continue
        for order in itertools.permutations(range(gates)):
            weights = _weights(drawn, order, cell.hidden)
            if weights is None:
                continue
            expected = form.step(step, states, *weights)
            if all(np.allclose(a, b, rtol=0, atol=TOLERANCE) for a, b in zip(results, expected, strict=True)):
                found = _weights(cell.constants, order, cell.hidden)
                assert found is not None
                rows = [np.ascontiguousarray(array.T)[None] for array in found[:2]]
                return form.kind, form.activations, [*rows, np.concatenate(found[2:])[None]]
    return None


def _weights(arrays: Sequence[Array], order: Sequence[int], hidden: int) -> list[Array] | None:
    """Returns the matrices and the biases of the input and of the state, with the gates in an order.

    None where the shapes are no layer's. `order` has the place in the arrays of each of ONNX's gates.
    """
    columns = [column for gate in order for column in range(gate * hidden, (gate + 1) * hidden)]
    width = len(columns)
    biases = [np.zeros((2, width), arrays[0].dtype)]
    if len(arrays) > 2 and arrays[2].shape == (width,):
        biases = [np.stack([arrays[2], np.zeros(width, arrays[2].dtype)])]
    elif len(arrays) > 2:
        biases = [arrays[2]]
    shapes = [array.shape for array in (*arrays[:2], *biases)]
    if shapes != [(arrays[0].shape[0], width), (hidden, width), (2, width)]:
        return None
    return [arrays[0][:, columns], arrays[1][:, columns], *biases[0][:, columns]]


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _lstm(x: Array, states: Sequence[Array], w: Array, r: Array, b: Array, c: Array) -> list[Array]:
    """Returns the next states, as ONNX LSTM-22 computes them."""
    gates = np.split(x @ w + b + states[0] @ r + c, 4, axis=1)
    i, o, f = map(_sigmoid, gates[:3])
    cell = f * states[1] + i * np.tanh(gates[3])
    return [o * np.tanh(cell), cell]


def _gru(x: Array, states: Sequence[Array], w: Array, r: Array, b: Array, c: Array) -> list[Array]:
    """Returns the next state, as ONNX GRU-22 computes it with `linear_before_reset`."""
    of_input, of_state = np.split(x @ w + b, 3, axis=1), np.split(states[0] @ r + c, 3, axis=1)
    z, reset = (_sigmoid(a + b) for a, b in zip(of_input[:2], of_state[:2], strict=True))
    return [(1 - z) * np.tanh(of_input[2] + reset * of_state[2]) + z * states[0]]


def _rnn(x: Array, states: Sequence[Array], w: Array, r: Array, b: Array, c: Array) -> list[Array]:
    return [np.tanh(x @ w + b + states[0] @ r + c)]


def _relu_rnn(x: Array, states: Sequence[Array], w: Array, r: Array, b: Array, c: Array) -> list[Array]:
    return [np.maximum(x @ w + b + states[0] @ r + c, 0)]


@dataclass(frozen=True)
class _Form:
    """A recurrent layer: its operator, the numbers of its gates and states, its activations and a step of it."""

    kind: str
    gates: int
    states: int
    activations: list[str]
    step: Any


_FORMS = (
    _Form("LSTM", 4, 2, ACTIVATIONS["LSTM"], _lstm),
    _Form("GRU", 3, 1, ACTIVATIONS["GRU"], _gru),
    _Form("RNN", 1, 1, ACTIVATIONS["RNN"], _rnn),
    _Form("RNN", 1, 1, ["Relu"], _relu_rnn),
)


def detach(body: Mapping[str, ir.Attr]) -> None:
    """Takes the values of the graph around a loop that is replaced out of its body, so that they have no readers."""
    for node in body["body"].as_graph():
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
