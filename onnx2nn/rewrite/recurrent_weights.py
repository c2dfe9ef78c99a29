"""The weights of torch's recurrent layers, from which files compute those of ONNX's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnx2nn.rewrite.patterns import int_of, ints_of, tensor_of
from onnx2nn.rewrite.value_facts import ValueFacts


class TorchWeights(NamedTuple):
    """The weights of torch's layer for one ONNX node.

    Attributes:
        values: of each direction the weights of the input and of the hidden state, then the biases if there are any.
        nodes: the nodes that hold those of which the file has constants in ONNX's order; the graph lacks them yet.
    """

    values: list[ir.Value]
    nodes: list[ir.Node]


def torch_weights(order: Sequence[int], inputs: Sequence[ir.Value], facts: ValueFacts) -> TorchWeights | None:
    """Returns torch's weights of each direction, from which the file computes the weights of the ONNX node.

    Exporters without constant folding, such as PyTorch's before 1.5, leave in the nodes that reorder the gates. Its
    newer exporter folds small constants only: often the biases, but not the matrices.

    Args:
        order: for each of ONNX's gates, its position among the gates in torch's weights.
        inputs: the node's weights.
        facts: what is known of the graph.
    """
    found, nodes = list[list[ir.Value]](), list[ir.Node]()
    for number, value in enumerate(inputs):
        count = 1 + (number == 2)
        tensor = tensor_of(value)
        if tensor is not None:
            added = _rearranged(tensor.numpy(), order, count)
            found.append([node.outputs[0] for node in added])
            nodes += added
            continue
        directions = _directions(value, facts)
        if directions is None:
            return None
        of_input = [_reordered(rows, order, count) for rows in directions]
        if any(values is None for values in of_input):
            return None
        found.append([value for values in of_input for value in values or ()])
    W, R, *B = found
    if any(len(values) != len(W) * (1 + (values in B)) for values in found):
        return None
    values = [v for i in range(len(W)) for v in (W[i], R[i], *(b for values in B for b in values[2 * i : 2 * i + 2]))]
    return TorchWeights(values, nodes)


def _rearranged(value: np.ndarray[Any, Any], order: Sequence[int], count: int) -> list[ir.Node]:
    """Returns nodes that hold the parts of a weight in ONNX's order, `count` of each direction, in torch's order.

    Args:
        value: the weight, `(directions, count * gates * hidden, *columns)`.
        order: for each of ONNX's gates, its position among the gates in torch's weights.
        count: the number of torch's weights in a direction's part.
    """
    gates = value.reshape(len(value) * count, len(order), -1, *value.shape[2:])
    parts = [part[np.argsort(order)].reshape(-1, *value.shape[2:]) for part in gates]
    return [ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(part))]) for part in parts]


_Rows = list[tuple[ir.Value, int, int]]
"""Initializers whose rows are concatenated: each with its first row and the row after its last."""


def _directions(value: ir.Value | None, facts: ValueFacts) -> list[_Rows] | None:
    """Returns the rows of each direction's part of a value, None where they are unknown."""
    node = None if value is None else value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Unsqueeze" and facts.axes(node) == [0]:
        rows = _rows(node.inputs[0], facts)
        return None if rows is None else [rows]
    if node.op_type != "Concat" or int_of(node, "axis", -1) != 0:
        return None
    parts = [_directions(part, facts) for part in node.inputs]
    return None if any(part is None for part in parts) else [rows for part in parts for rows in part or ()]


def _rows(value: ir.Value | None, facts: ValueFacts) -> _Rows | None:
    """Returns the rows of initializers that a value is made of by Slice and Concat nodes, None for any other value."""
    node = None if value is None else value.producer()
    if node is None:
        shape = facts.constant_shape(value) if value is not None and value.is_initializer() else None
        return [(value, 0, shape[0])] if value is not None and shape else None
    if node.domain or node.op_type not in ("Concat", "Slice"):
        return None
    if node.op_type == "Concat":
        parts = [_rows(part, facts) for part in node.inputs] if int_of(node, "axis", -1) == 0 else [None]
        return None if any(part is None for part in parts) else [row for part in parts for row in part or ()]
    rows, bounds = _rows(node.inputs[0], facts), slice_bounds(node, facts)
    if rows is None or len(rows) != 1 or bounds is None:
        return None
    (source, first, last), (start, end) = rows[0], bounds
    return [(source, first + start, min(first + end, last))] if 0 <= start < end else None


def slice_bounds(node: ir.Node, facts: ValueFacts, axis: int = 0) -> tuple[int, int] | None:
    """Returns start and end of a Slice along a dimension, the first by default; None for any other Slice."""
    given = zip(("starts", "ends", "axes"), node.inputs[1:], strict=False)
    bounds: dict[str, Any] = {name: facts.ints(value) for name, value in given}
    bounds |= {name: ints_of(node, name) for name in node.attributes}
    start, end, axes = (bounds.get(name) for name in ("starts", "ends", "axes"))
    step = facts.ints(node.inputs[4]) if len(node.inputs) > 4 else [1]
    if (
        step != [1]
        or axes not in (([axis],) if axis else ([0], None))
        or start is None
        or end is None
        or len(start) != 1
        or len(end) != 1
    ):
        return None
    return None if None in (start[0], end[0]) else (start[0], end[0])


def _reordered(rows: _Rows, order: Sequence[int], count: int) -> list[ir.Value] | None:
    """Returns the `count` initializers whose gates have the order `order` in `rows`, None for any other rows."""
    size, gates = sum(last - first for _, first, last in rows) // (count * len(order)), list[tuple[ir.Value, int]]()
    for source, first, last in rows:
        if not size or first % size or last % size:
            return None
        gates += [(source, gate) for gate in range(first // size, last // size)]
    sources = [source for source, _ in gates[:: len(order)]]
    wanted = [(source, gate) for source in sources for gate in order]
    fits = gates == wanted and all(source.shape and source.shape[0] == size * len(order) for source in sources)
    return sources if fits and len(sources) == count else None
