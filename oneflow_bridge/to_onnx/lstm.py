"""Finds the LSTMs that a job unrolls over time: on CPU every step is twenty ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from oneflow_bridge.to_onnx.job import op_node, sizes_of
from oneflow_bridge.to_onnx.replacement import JOB, New, replace
from onnx2nn.rewrite.patterns import Match, matches, parse, readers

_CELL = parse(
    "add_n(sigmoid((forget := narrow(gates, dim=1))) * c,"
    " sigmoid((input := narrow(gates, dim=1))) * tanh((cell := narrow(gates, dim=1))))",
    JOB,
)
_HIDDEN = parse("sigmoid((output := narrow(gates, dim=1))) * tanh((state := CELL))", JOB, CELL=_CELL)
_GATES = parse(
    "add_n(fused_matmul_bias(h, weight_hh, bias_hh), fused_matmul_bias(x, weight_ih, bias_ih))"
    " | add_n(matmul(h, weight_hh, transpose_a=0, transpose_b=1, alpha=1.0),"
    " matmul(x, weight_ih, transpose_a=0, transpose_b=1, alpha=1.0))",
    JOB,
)
_TAKEN = parse("squeeze((at := narrow(sequence, dim=0, length=1)), axes=[0])", JOB)

_Named = Sequence[tuple[str, ir.Value]]

_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass
class _Step:
    """One step: its output, its cell state, the match that found it, and the time of its input.

    The input comes from one sequence, or from the two directions of the previous layer, which are concatenated.
    """

    hidden: ir.Value
    state: ir.Value
    match: Match
    sources: tuple[ir.Value, ...]
    time: int


def raise_lstms(model: ir.Model) -> None:
    """Replaces each unrolled LSTM by one op `lstm`, in place; the steps are left for the removal of dead nodes."""
    cells = [(node, gates) for node in model.graph if (gates := _gates(node)) is not None]
    for node in list(model.graph) if cells else ():
        parts = _stacked_in_parts(node)
        if parts:
            replace(model.graph, node, New("stack", parts, {"axis": 0, "max_dim_size": len(parts)}))
    raised: set[ir.Value] = set()
    while _raise_layers(model.graph, cells, raised):
        pass  # a layer is found after the previous layer is one op, whose sequence it reads
    for node in list(model.graph) if raised else ():
        sources = _stacked(node)
        if sources:
            joined = _joined(model.graph, sources, node.outputs[0])
            node.outputs[0].replace_all_uses_with(joined, replace_graph_outputs=True)
    model.graph.sort()


def _gates(node: ir.Node) -> ir.Node | None:
    """The sum of the two products of which the node is the output of an LSTM's cell; None for any other node."""
    cell = next(matches(node.outputs[0], _HIDDEN, {}), None) if node.op_type == "broadcast_mul" else None
    return None if cell is None else cell["gates"].producer()


def _raise_layers(graph: ir.Graph, cells: Sequence[tuple[ir.Node, ir.Node]], raised: set[ir.Value]) -> bool:
    """Raises the layers that read a sequence; returns whether there was one. `raised` collects the steps' outputs."""
    waiting = [node for node, gates in cells if node.outputs[0] not in raised and _reads_sequence(gates)]
    found = [step for node in waiting if (step := _step(node)) is not None]
    steps = {step.hidden: step for step in found}
    followed = {step.match["h"] for step in found}
    chains = [_chain(step, steps) for step in found if step.hidden not in followed]
    complete = [chain for chain in chains if _is_complete(chain)]
    for chain in complete:
        _replace(graph, chain)
        raised.update(step.hidden for step in chain)
    return bool(complete)


def _reads_sequence(gates: ir.Node) -> bool:
    """Whether a factor of the gates' products is a time of a sequence; matching the cell again takes much longer."""
    products = [value.producer() for value in gates.inputs if value is not None]
    factors = [product.inputs[0] for product in products if product is not None and product.inputs]
    return any(factor is not None and _time(factor) is not None for factor in factors)


def _step(node: ir.Node) -> _Step | None:
    for cell in matches(node.outputs[0], _HIDDEN, {}):
        for match in matches(cell["gates"], _GATES, cell):
            taken = _time(match["x"])
            if taken is not None and _gates_in_order(match):
                return _Step(node.outputs[0], match["state"].outputs[0], match, *taken)
    return None


def _gates_in_order(match: Match) -> bool:
    """Whether the gates are input, forget, cell and output in this order, each as wide as the state."""
    size = match["c"].shape[-1]
    narrows = [match[name] for name in ("input", "forget", "cell", "output")]
    return match["gates"].shape[-1] == 4 * size and all(
        n.attributes["start"].value == i * size and n.attributes["length"].value == size for i, n in enumerate(narrows)
    )


def _time(value: ir.Value) -> tuple[tuple[ir.Value, ...], int] | None:
    """Returns the sequences and the time of a step's input: squeeze(narrow(sequence, 0, time, 1))."""
    node = value.producer()
    if node is not None and node.op_type == "lstm" and value is node.outputs[1]:  # its last output
        sequence = node.outputs[0]
        return (sequence,), 0 if node.attributes["reverse"].value else int(sizes_of(sequence)[0]) - 1
    if node is not None and node.op_type == "concat" and node.attributes["axis"].value == 1:
        parts = [part for value in node.inputs if value is not None and (part := _time(value)) is not None]
        sources = tuple(source for part in parts for source in part[0])
        same_time = len({time for _, time in parts}) == 1 and len({sizes_of(source)[0] for source in sources}) == 1
        return (sources, parts[0][1]) if same_time and len(parts) == len(node.inputs) else None
    taken = next(matches(value, _TAKEN, {}), None)
    return None if taken is None else ((taken["sequence"],), taken["at"].attributes["start"].value)


def _chain(last: _Step, steps: dict[ir.Value, _Step]) -> list[_Step]:
    """All steps before the last that share its weights and sequence, in the order they are computed."""
    chain = [last]
    while chain[0].match["h"] in steps:
        before = steps[chain[0].match["h"]]
        same = all(before.match.get(name) is last.match.get(name) for name in _PARAMETERS)
        if not same or before.sources != last.sources or before.state is not chain[0].match["c"]:
            break
        chain.insert(0, before)
    return chain


def _is_complete(chain: list[_Step]) -> bool:
    """Whether the steps take every time once, forward or backward, and no inner state has another reader."""
    times = [step.time for step in chain]
    length = sizes_of(chain[0].sources[0])[0]
    if times not in (list(range(len(times))), list(range(len(times)))[::-1]) or length != len(times):
        return False
    return all(readers(step.state) == 2 for step in chain[:-1])  # the next step and its own tanh


def _replace(graph: ir.Graph, chain: list[_Step]) -> None:
    """Replaces the steps by one op, which reads the first step's inputs and gives the sequence and last states."""
    first, last = chain[0], chain[-1]
    match = first.match
    operands = {"x": _joined(graph, first.sources, first.hidden), "h": match["h"], "c": match["c"]}
    operands |= {name: match[name] for name in _PARAMETERS if name in match}
    steps, (batch, size) = len(chain), match["c"].shape
    sequence = _value(last.hidden, "sequence", [steps, batch, size])
    hidden, state = _value(last.hidden, "hidden", [batch, size]), _value(last.state, "state", [batch, size])
    results = [("y", sequence), ("hy", hidden), ("cy", state)]
    node = _node("lstm", list(operands.items()), results, last.hidden, reverse=int(first.time > last.time))
    by_time = [step.hidden for step in sorted(chain, key=lambda step: step.time)]
    stacks = [use.node for use in last.hidden.uses() if _is_stack(use.node, by_time)]
    known = {*(step.hidden.producer() for step in chain), *stacks}
    graph.append(node)
    for stack in stacks:
        stack.outputs[0].replace_all_uses_with(sequence, replace_graph_outputs=True)
    for step in chain[:-1]:
        _give_slice(graph, step, sequence, known, match["weight_hh"])
    last.state.replace_all_uses_with(state, replace_graph_outputs=True)
    last.hidden.replace_all_uses_with(hidden, replace_graph_outputs=True)


def _joined(graph: ir.Graph, sequences: tuple[ir.Value, ...], near: ir.Value) -> ir.Value:
    """The features of all sequences side by side."""
    if len(sequences) == 1:
        return sequences[0]
    length, batch, _, *rest = sizes_of(sequences[0])
    shape = [length, batch, sum(int(sizes_of(sequence)[2]) for sequence in sequences), *rest]
    joined = _value(near, "joined", shape)
    graph.append(_node("concat", [("in", sequence) for sequence in sequences], [("out", joined)], near, axis=2))
    return joined


def _is_along_time(node: ir.Node, *op_types: str) -> bool:
    return node.op_type in op_types and node.attributes["axis"].value == 0


def _stacked_in_parts(node: ir.Node) -> list[tuple[str, ir.Value]]:
    """The values that a concat of stacks stacks, as OneFlow stacks 128 at a time; empty for any other node."""
    if not _is_along_time(node, "concat"):
        return []
    parts = [value.producer() for value in node.inputs if value is not None]
    stacks = [part for part in parts if part is not None and _is_along_time(part, "stack", "expand_dims")]
    return [("in", value) for part in stacks for value in part.inputs if value] if len(stacks) == len(parts) else []


def _stacked(node: ir.Node) -> tuple[ir.Value, ...]:
    """Returns the sequences that a `stack` reassembles, every time in order; empty for any other node."""
    if not _is_along_time(node, "stack"):
        return ()
    taken = [_time(value) for value in node.inputs if value is not None]
    sources, times = [part[0] for part in taken if part], [part[1] for part in taken if part]
    complete = times == list(range(len(node.inputs))) and len(set(sources)) == 1
    return sources[0] if complete and sizes_of(sources[0][0])[0] == len(times) else ()


def _is_stack(node: ir.Node, values: list[ir.Value]) -> bool:
    return _is_along_time(node, "stack") and list(node.inputs) == values


def _give_slice(graph: ir.Graph, step: _Step, sequence: ir.Value, known: set[ir.Node | None], weight: ir.Value) -> None:
    """Gives the readers of one step's output outside the LSTM a slice of the sequence."""
    product = step.hidden
    outside = [u for u in product.uses() if u.node not in known and not _feeds_next(u.node, product, weight)]
    if not outside and not product.is_graph_output():
        return
    batch, size = sizes_of(product)
    part = _value(product, "slice", [1, batch, size])
    row = _value(product, "row", [batch, size])
    graph.append(_node("narrow", [("in", sequence)], [("out", part)], product, dim=0, start=step.time, length=1))
    graph.append(_node("squeeze", [("in", part)], [("out", row)], product, axes=[0]))
    for use in outside:
        use.node.replace_input_with(use.idx, row)
    for index, output in enumerate(graph.outputs):
        if output is product:
            graph.outputs[index] = row


def _feeds_next(node: ir.Node, hidden: ir.Value, weight: ir.Value) -> bool:
    """Whether a reader is the next step's product with the hidden weights."""
    return node.op_type in ("fused_matmul_bias", "matmul") and list(node.inputs[:2]) == [hidden, weight]


def _value(like: ir.Value, name: str, shape: list) -> ir.Value:
    return ir.Value(name=f"{like.name}/{name}", shape=ir.Shape(shape), type=like.type)


def _node(op_type: str, operands: _Named, results: _Named, near: ir.Value, **attributes: int | list[int]) -> ir.Node:
    before = near.producer()
    return op_node(
        op_type, operands, results, attributes, f"{before.name if before is not None else near.name}/{op_type}"
    )
