"""What nodes whose attributes are graphs say of themselves: If, Loop, Scan, SequenceMap, whatever the framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from onnx2nn.errors import OperatorError
from onnx2nn.ground.naming import split_path
from onnx2nn.importing.constants import Constant

BRANCHES = ("then_branch", "else_branch")
"""The attributes of If that hold graphs."""


class LoopForm(NamedTuple):
    """A Loop.

    Attributes:
        body: takes the iteration number, the condition and the carried values.
        trips: the largest number of iterations, None where there is no limit.
        condition: whether it starts, None where it always does.
        initial: the carried values at the start.
    """

    body: ir.Graph
    trips: Any
    condition: Any
    initial: list[Any]


class ScanForm(NamedTuple):
    """A Scan.

    Attributes:
        body: takes the states, then a slice of each scanned value.
        states: the carried values at the start.
        scanned: the values that are scanned.
        axes_in: along which axis each of them.
        directions_in: 1 for each that is scanned backwards.
        axes_out: along which axis the slices of each scan output are stacked.
        directions_out: 1 for each that is stacked backwards.
    """

    body: ir.Graph
    states: list[Any]
    scanned: list[Any]
    axes_in: list[int]
    directions_in: list[int]
    axes_out: list[int]
    directions_out: list[int]


def branches_of(node: ir.Node) -> list[ir.Graph]:
    """Returns the two graphs of an If, that for a true condition first."""
    return [node.attributes[name].as_graph() for name in BRANCHES]


def body_of(node: ir.Node) -> ir.Graph:
    """Returns the graph that a Loop, Scan or SequenceMap repeats."""
    return node.attributes["body"].as_graph()


def constant_truth(condition: Any) -> bool | None:
    """Returns the condition of an If where it is known at import, else None."""
    return bool(condition.numpy().all()) if isinstance(condition, Constant) else None


def loop_form(node: ir.Node, inputs: Sequence[Any]) -> LoopForm:
    """Returns what a Loop of `inputs` is; the first two may be absent."""
    trips, condition, *initial = [*inputs, None, None][: max(len(inputs), 2)]
    return LoopForm(body_of(node), trips, condition, initial)


def scan_form(node: ir.Node, inputs: Sequence[Any]) -> ScanForm:
    """Returns what a Scan of opset 9 or later of `inputs` is."""
    body, count = body_of(node), node.attributes["num_scan_inputs"].as_int()
    states = len(inputs) - count
    produced = len(body.outputs) - states
    return ScanForm(
        body,
        list(inputs[:states]),
        list(inputs[states:]),
        _ints(node, "scan_input_axes", count),
        _ints(node, "scan_input_directions", count),
        _ints(node, "scan_output_axes", produced),
        _ints(node, "scan_output_directions", produced),
    )


def batched_scan_form(node: ir.Node, inputs: Sequence[Any]) -> ScanForm:
    """Returns what the Scan is that a Scan of opset 8 runs for each element of the batch.

    Its states and scanned values have the batch in front. The lengths, the first of the node's inputs, are not in it.
    """
    body, count = body_of(node), node.attributes["num_scan_inputs"].as_int()
    states = len(inputs) - 1 - count
    flat, produced = [0] * count, [0] * (len(body.outputs) - states)
    values = list(inputs[1:])
    return ScanForm(
        body, values[:states], values[states:], flat, _ints(node, "directions", count), produced, list(produced)
    )


def mapped_body(node: ir.Node, inputs: Sequence[Any]) -> ir.Graph:
    """Returns the graph that a SequenceMap of `inputs` runs for each element.

    Raises:
        OperatorError: it takes another number of inputs.
    """
    body = body_of(node)
    if len(inputs) != len(body.inputs):
        raise OperatorError(f"it has {len(inputs)} inputs, its body takes {len(body.inputs)}.")
    return body


def module_path(node: ir.Node) -> list[str]:
    """Returns where the module that runs the node's graphs is held in the module tree."""
    return split_path(node.name or node.outputs[0].name or node.op_type.lower())


def _ints(node: ir.Node, name: str, count: int) -> list[int]:
    attribute = node.attributes.get(name)
    return [0] * count if attribute is None else list(attribute.as_ints())
