"""The graphs and inputs of If, Loop, Scan and SequenceMap nodes, for every framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import onnx_ir as ir

from onnx2nn.errors import OperatorError
from onnx2nn.ground.naming import split_path
from onnx2nn.importing.constants import Constant
from onnx2nn.importing.node_facts import attribute

Referred = Mapping[str, ir.Attr]
"""The attributes of a function's call, to which those of nodes in the function may refer."""

BRANCHES = ("then_branch", "else_branch")
"""The attributes of an If that hold its branches."""


class LoopForm(NamedTuple):
    """A Loop.

    Attributes:
        body: takes the iteration number, the condition and the carried values.
        trips: the maximum number of iterations, None without a limit.
        condition: the condition of the first iteration, None for true.
        initial: the initial carried values.
    """

    body: ir.Graph
    trips: Any
    condition: Any
    initial: list[Any]


class ScanForm(NamedTuple):
    """A Scan.

    Attributes:
        body: takes the states, then a slice of each scanned value.
        states: the initial carried values.
        scanned: the scanned values.
        axes_in: the scanned axis of each scanned value.
        directions_in: 1 for each value that is scanned backwards, else 0.
        axes_out: the axis along which the slices of each scan output are stacked.
        directions_out: 1 for each output that is stacked backwards, else 0.
    """

    body: ir.Graph
    states: list[Any]
    scanned: list[Any]
    axes_in: list[int]
    directions_in: list[int]
    axes_out: list[int]
    directions_out: list[int]


def branches_of(node: ir.Node) -> list[ir.Graph]:
    """Returns the two graphs of an If, the branch for a true condition first."""
    return [node.attributes[name].as_graph() for name in BRANCHES]


def body_of(node: ir.Node) -> ir.Graph:
    """Returns the body of a Loop, Scan or SequenceMap."""
    return node.attributes["body"].as_graph()


def constant_truth(condition: Any) -> bool | None:
    """Returns the condition of an If where it is known at import, else None."""
    return bool(condition.numpy().all()) if isinstance(condition, Constant) else None


def loop_form(node: ir.Node, inputs: Sequence[Any]) -> LoopForm:
    """Returns the parts of a Loop with `inputs`, of which the first two may be absent."""
    trips, condition, *initial = [*inputs, None, None][: max(len(inputs), 2)]
    return LoopForm(body_of(node), trips, condition, initial)


def scan_form(node: ir.Node, inputs: Sequence[Any], referred: Referred = MappingProxyType({})) -> ScanForm:
    """Returns the parts of a Scan of opset 9 or later with `inputs`; its attributes may refer to a function's."""
    body, count = body_of(node), _scanned(node, len(inputs), referred)
    states = len(inputs) - count
    produced = len(body.outputs) - states
    return ScanForm(
        body,
        list(inputs[:states]),
        list(inputs[states:]),
        _ints(node, "scan_input_axes", count, referred),
        _ints(node, "scan_input_directions", count, referred),
        _ints(node, "scan_output_axes", produced, referred),
        _ints(node, "scan_output_directions", produced, referred),
    )


def batched_scan_form(node: ir.Node, inputs: Sequence[Any], referred: Referred = MappingProxyType({})) -> ScanForm:
    """Returns the parts of the Scan that a Scan of opset 8 runs for each element of the batch.

    The batch is the first dimension of its states and scanned values. The node's first input, the lengths, is left out.
    """
    body, count = body_of(node), _scanned(node, len(inputs) - 1, referred)
    states = len(inputs) - 1 - count
    flat, produced = [0] * count, [0] * (len(body.outputs) - states)
    values = list(inputs[1:])
    directions = _ints(node, "directions", count, referred)
    return ScanForm(body, values[:states], values[states:], flat, directions, produced, list(produced))


def mapped_body(node: ir.Node, inputs: Sequence[Any]) -> ir.Graph:
    """Returns the graph that a SequenceMap of `inputs` runs for each element.

    Raises:
        OperatorError: the body takes another number of inputs.
    """
    body = body_of(node)
    if len(inputs) != len(body.inputs):
        raise OperatorError(f"it has {len(inputs)} inputs, its body takes {len(body.inputs)}.")
    return body


def module_path(node: ir.Node) -> list[str]:
    """Returns the path of the module that runs the node's graphs, in a file that does not name the modules of calls."""
    return split_path(node.name or node.outputs[0].name or node.op_type.lower())


def _scanned(node: ir.Node, inputs: int, referred: Referred) -> int:
    """Returns how many of a Scan's last inputs are scanned."""
    found = attribute(node, "num_scan_inputs", referred)
    if found is None:
        raise OperatorError("attribute 'num_scan_inputs' is missing.")
    count = found.as_int()
    if not 1 <= count <= inputs:
        raise OperatorError(f"num_scan_inputs={count}, it has {inputs} inputs to scan.")
    return count


def _ints(node: ir.Node, name: str, count: int, referred: Referred) -> list[int]:
    found = attribute(node, name, referred)
    return [0] * count if found is None else list(found.as_ints())
