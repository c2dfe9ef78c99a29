"""Signatures of control flow; `onnx2nn.fx.subgraphs.loops` imports the nodes as modules of `onnx2nn.control_flow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.optable.registry import op

_REGION = "control flow is no function of tensors: its subgraphs are imported with the model."


@op("If", 1, call="subgraph")
def if_(F: Any, cond: Any, *, then_branch: Any, else_branch: Any) -> Any:
    raise OperatorError(_REGION)


@op("Loop", 1, call="subgraph")
def loop(F: Any, M: Any = None, cond: Any = None, *v_initial: Any, body: Any) -> Any:
    raise OperatorError(_REGION)


@op("SequenceMap", 17, call="subgraph")
def sequence_map(F: Any, input_sequence: Any, *additional_inputs: Any, body: Any) -> Any:
    raise OperatorError(_REGION)


@op("Scan", 9, call="subgraph")
def scan(
    F: Any,
    *initial_state_and_scan_inputs: Any,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> Any:
    raise OperatorError(_REGION)


@op("Scan", 8, call="subgraph")
def scan_8(
    F: Any,
    sequence_lens: Any = None,
    *initial_state_and_scan_inputs: Any,
    body: Any,
    directions: Sequence[int] | None = None,
    num_scan_inputs: int,
) -> Any:
    raise OperatorError(_REGION)
