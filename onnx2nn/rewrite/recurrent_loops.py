"""Makes LSTM, GRU and RNN nodes of Loops over the steps of a sequence, in which a recurrent layer is written out.

tf2onnx knows the loops of some versions of Keras, and writes nodes for these itself; others it writes as loops, and
jax2onnx writes all scans so. The body takes one step of the sequence and the last states. What it makes of them and of
the weights is compared with the formulas of the three layers, on random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.importing.trip_counts import trip_count
from onnx2nn.rewrite.evaluation import TOLERANCE, Evaluator
from onnx2nn.rewrite.patterns import attribute_of, ints_of, origin, tensor_of
from onnx2nn.rewrite.recurrent_cells import Array, Layer, Run, layer_of, samples
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
"""The size of a batch in a comparison, where it is dynamic."""

_DEPTH = 64
"""The most nodes between a number and the shape that it is computed from."""

_MOST_STATES, _MOST_WEIGHTS = 2, 16
"""An LSTM's, and for each of its four gates two matrices with a bias each."""


@dataclass
class _Cell:
    """The body of a loop that may be a recurrent layer's.

    Attributes:
        loop: the Loop node.
        sequence: `(steps, batch, features)`, of which the body takes one step at a time; or `(steps, features)`.
        step: the input of a step in the body.
        states: the positions of the states among the carried values.
        weights: the constants of the body, and what they hold.
    """

    loop: ir.Node
    sequence: ir.Value
    step: ir.Value
    states: list[int]
    weights: dict[ir.Value, Array]

    @property
    def body(self) -> ir.Graph:
        """The graph of a step."""
        return self.loop.attributes["body"].as_graph()

    @property
    def carried(self) -> int:
        """The number of carried values."""
        return len(self.loop.inputs) - 2


def recurrent_loops(graph: ir.Graph, facts: ValueFacts) -> Iterator[Replacement]:
    """Yields a replacement for each Loop that computes a recurrent layer; its numbers are those of the loop."""
    for node in graph:
        if node.op_type != "Loop" or node.domain or len(node.inputs) < 3:
            continue
        try:
            cell = _cell(node, facts)
            found = None if cell is None else _replacement(cell, facts)
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
    if len(read) != 1 or attribute_of(read[0], "axis", 0):
        return None
    step, source = read[0].outputs[0], read[0].inputs[0]
    sequence = None if source is None else outer.get(source, source)
    states = [at for at, (value, _, _) in enumerate(carried) if value not in outer and value not in counters]
    if sequence is None or sequence.graph is body or not 0 < len(states) <= _MOST_STATES:
        return None
    used = dict.fromkeys(value for node in body for value in node.inputs if value is not None)
    weights = {
        value: array
        for value in used
        if (array := facts.array(source := outer.get(value, value))) is not None and _is_weight(source, facts)
    }
    return _Cell(loop, sequence, step, states, weights) if len(weights) <= _MOST_WEIGHTS else None


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


def _taken(cell: _Cell, facts: ValueFacts) -> list[ir.Node] | None:
    """Returns the node that takes the steps of the loop out of the sequence, none where these are always all.

    None instead of a list where their number is unknown.
    """
    most = _constant_iterations(cell.loop, facts)
    if most is None:
        return [] if all(_iterations(cell, steps, facts) == steps for steps in _STEPS) else None
    if _size(cell.sequence, 0, facts) == most:
        return []
    bounds = {"starts": [0], "ends": [most], "axes": [0]}
    return [ir.Node("", "Slice", [cell.sequence], ir.convenience.convert_attributes(bounds), version=1)]


def _constant_iterations(loop: ir.Node, facts: ValueFacts) -> int | None:
    """Returns how often a loop runs whose condition never ends it; None where that is no constant, or 0."""
    body, (limit, start) = loop.attributes["body"].as_graph(), loop.inputs[:2]
    most, more = facts.number(limit), origin(body.outputs[0])
    if most is None or most < 1 or (start is not None and not facts.array(start)):
        return None
    return int(most) if more is body.inputs[1] or facts.array(more) else None


def _size(value: ir.Value, axis: int, facts: ValueFacts) -> int | None:
    """Returns a size of what inputs and loops give in another order of axes; None where it is no constant."""
    while (node := value.producer()) is not None and node.op_type == "Transpose":
        order, source = ints_of(node, "perm"), node.inputs[0]
        if order is None or source is None:
            return None
        value, axis = source, order[axis]
    if node is None:
        size = value.shape[axis] if value.is_graph_input() and value.shape is not None else None
        return size if isinstance(size, int) else None  # the module checks it
    stacks = node.op_type == "Loop" and not axis and node.outputs.index(value) >= len(node.inputs) - 2
    return _constant_iterations(node, facts) if stacks else None


def _iterations(cell: _Cell, steps: int, facts: ValueFacts) -> Any:
    """Returns the number of iterations for a sequence of a number of steps, None where it is unknown."""

    def number(value: ir.Value | None) -> Any:
        shapes = None if value is None else _shapes_before(value, cell.sequence, steps)
        if value is None or shapes is None or (value.graph is cell.body and tensor_of(value) is None):
            return None
        array = Evaluator(facts.table, facts.F, facts.opsets, facts.account, shapes).known_array(value)
        return array.item() if array is not None and array.size == 1 else None

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
    added = _taken(cell, facts)
    lead = () if facts.rank(cell.sequence) == 2 else (_batch(cell.sequence),)
    layer = None if added is None else layer_of([*cell.weights.values()], len(cell.states), lead, _runner(cell, facts))
    if added is None or layer is None:
        return None
    outputs = cell.loop.outputs
    states, stacked = [cell.states[at] for at in layer.order], _stacked(cell, layer, lead, facts)
    wanted = {at for at, output in enumerate(outputs) if output.uses() or output.is_graph_output()}
    if not wanted <= {*stacked, *states} or len(wanted & {*stacked}) > 1:
        return None
    batch = [] if lead else [1]  # the axis that a sequence lacks
    sequence = added[-1].outputs[0] if added else cell.sequence
    if batch:
        added.append(_with_axes("Unsqueeze", sequence, batch))
        sequence = added[-1].outputs[0]
    starts: list[ir.Value | None] = []
    for at in states:
        start = cell.loop.inputs[2 + at]
        if start is not None and not is_zeros(start, facts):
            added.append(_with_axes("Unsqueeze", start, [0, *batch]))
            start = added[-1].outputs[0]
            starts.append(start)
        else:
            starts.append(None)
    weights = [ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(a))]) for a in _as_operator(layer)]
    form, hidden = layer.form, len(layer.weights.r)
    attributes: dict[str, Any] = {"hidden_size": hidden, "activations": form.activations}
    attributes |= {"linear_before_reset": 1} if form.kind == "GRU" else {}
    node = ir.Node(
        "",
        form.kind,
        [sequence, *(weight.outputs[0] for weight in weights), None, *starts],
        ir.convenience.convert_attributes(attributes),
        num_outputs=1 + len(starts),
        version=REPLACEMENT_OPSET,
    )
    node.name = (cell.loop.name or "").rpartition("/")[0] + f"/{form.kind}" if "/" in (cell.loop.name or "") else None
    added += [*weights, node]
    old, new = [], []
    for at in sorted(wanted):
        directions, output = (1, node.outputs[0]) if at in stacked else (0, node.outputs[1 + states.index(at)])
        added.append(_with_axes("Squeeze", output, [directions, *(directions + axis for axis in batch)]))
        old.append(outputs[at])
        new.append(added[-1].outputs[0])
    return Replacement(form.kind, [cell.loop], old, added, new, {})


def _with_axes(operator: str, value: ir.Value, axes: Sequence[int]) -> ir.Node:
    return ir.Node("", operator, [value], [ir.AttrInt64s("axes", axes)], version=1)


def _batch(sequence: ir.Value) -> int:
    """Returns the size of the batch in a comparison: the body may have the file's fixed one in it."""
    declared = sequence.shape[1] if sequence.shape is not None and len(sequence.shape) > 1 else None
    return declared if isinstance(declared, int) and declared else _BATCH


def _runner(cell: _Cell, facts: ValueFacts, outputs: Sequence[int] | None = None) -> Run:
    """Returns the function of the body that gives the next states, or other outputs behind the condition."""

    def run(arrays: Sequence[Array], step: Array, states: Sequence[Array]) -> list[Array] | None:
        given = {cell.step: step} | dict(zip(cell.weights, arrays, strict=True))
        given |= {cell.body.inputs[2 + at]: state for at, state in zip(cell.states, states, strict=True)}
        evaluator = Evaluator(facts.table, facts.F, facts.opsets, facts.account, given)
        found = [evaluator.known_array(cell.body.outputs[1 + at]) for at in outputs or cell.states]
        results = [array for array in found if array is not None]
        return results if len(results) == len(found) else None

    return run


def _stacked(cell: _Cell, layer: Layer, lead: tuple[int, ...], facts: ValueFacts) -> set[int]:
    """Returns the positions of the outputs that have the hidden states of all steps."""
    features, hidden, arrays = len(layer.weights.w), len(layer.weights.r), [*cell.weights.values()]
    drawn = [*samples(np.random.default_rng(1), lead, features, [hidden] * len(cell.states))]
    found = set()
    for at in range(cell.carried, len(cell.loop.outputs)):
        run = _runner(cell, facts, [cell.states[layer.order[0]], at])
        results = [run(arrays, step, states) for step, *states in drawn]
        # A Cast may round one of the two.
        if all(pair is not None and np.allclose(pair[0], pair[1], rtol=0, atol=TOLERANCE) for pair in results):
            found.add(at)
    return found


def _as_operator(layer: Layer) -> list[Array]:
    """Returns the weights as ONNX's operators have them, `(1, rows, inputs)` each, and the bias where there is one."""
    w, r, *biases = layer.weights
    arrays = [np.ascontiguousarray(array.T)[None] for array in (w, r)]
    return [*arrays, np.concatenate(biases)[None]]


def detach(body: Mapping[str, ir.Attr]) -> None:
    """Takes the values of the graph around a loop that is replaced out of its body, so that they have no readers."""
    for node in body["body"].as_graph():
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
