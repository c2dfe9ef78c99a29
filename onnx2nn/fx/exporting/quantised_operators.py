"""Quantised operators as ONNX's own, for torch.onnx.export, which would write the arithmetic of which they consist."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import fx

from onnx2nn.fx.exporting.recurrent_operators import called_as
from onnx2nn.layers import FakeQuantize
from onnx2nn.optable.row import Row

_LIMITS = {torch.uint8: (0, 255), torch.int8: (-128, 127)}
"""The types that QuantizeLinear and DequantizeLinear have in every version that torch.onnx.export writes."""

_FOUND_AGAIN = {"_at_run_time", "_outputs"}
"""Facts that a file says of a node without its attributes."""


def is_packed(row: Row, inputs: Sequence[Any], given: Mapping[str, Any]) -> bool:
    """Returns whether a call is of an operator on quantised numbers, in the types that its tensors have.

    Args:
        row: of the operator.
        inputs: of the call.
        given: attributes and facts of the call.
    """
    if "runs_packed" not in row.traits or not given.keys() - row.attributes.keys() <= _FOUND_AGAIN:
        return False
    if row.operator.startswith("QLinear") and _lacks_zero_point(row, inputs):
        return False  # which ONNX Runtime's schema allows: it then refuses the file, or ends the process
    return all(value is None or isinstance(value, torch.Tensor) for value in inputs)


def _lacks_zero_point(row: Row, inputs: Sequence[Any]) -> bool:
    named = zip_longest(row.inputs, inputs)
    return any(value is None and name is not None and name.endswith("zero_point") for name, value in named)


def write_packed(row: Row, function: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Returns a call that torch.onnx.export writes as the ONNX operator of `row`.

    Args:
        row: of the operator.
        function: what computes it, for the shapes and dtypes of the results alone; nothing reads its calls.
        inputs: tensors, None for those left out.
        attributes: by name.
    """
    found = function(*inputs, **attributes)
    results = found if isinstance(found, tuple) else (found,)
    written = torch.onnx.ops.symbolic_multi_out(
        f"{row.domain}::{row.operator}" if row.domain else row.operator,
        inputs,
        {name: value for name, value in attributes.items() if value is not None and name in row.attributes},
        dtypes=[result.dtype for result in results],
        shapes=[result.shape for result in results],
    )
    return tuple(written) if isinstance(found, tuple) else written[0]


def replace_steps(graph: fx.Graph) -> None:
    """Replaces the steps of each QuantizeLinear and DequantizeLinear of the file by one call of it, in place."""
    for node in graph.nodes:
        _, operator_name, _ = node.meta.get("onnx", ("", "", ""))
        if operator_name == "QuantizeLinear":
            _replace_quantisation(node)
        elif operator_name == "DequantizeLinear":
            _replace_dequantisation(node)


def replace_fake_quantize(node: fx.Node) -> None:
    """Lets a `FakeQuantize` be a QuantizeLinear and a DequantizeLinear."""
    with node.graph.inserting_before(node):
        called = node.graph.get_attr(str(node.target))
    node.op, node.target, node.args = "call_function", _fake_quantised, (called, *node.args)


def _fake_quantised(layer: FakeQuantize, x: Any) -> Any:
    return called_as(layer, functools.partial(_there_and_back, layer), x)


def _there_and_back(layer: FakeQuantize, x: Any) -> Any:
    scale, limits = layer.scale, (layer.quant_min, layer.quant_max)
    dtype = next((dtype for dtype, known in _LIMITS.items() if known == limits), None)
    if dtype is None or x.dtype != torch.float32 or scale.dtype != torch.float32:
        return FakeQuantize.forward(layer, x)
    attributes: dict[str, Any] = {"axis": layer.axis} if layer.axis is not None else {}
    steps = scale, layer.zero_point.to(dtype)
    whole = torch.onnx.ops.symbolic("QuantizeLinear", (x, *steps), attributes, dtype=dtype, shape=x.shape)
    return torch.onnx.ops.symbolic("DequantizeLinear", (whole, *steps), attributes, dtype=x.dtype, shape=x.shape)


def _replace(node: fx.Node, function: Any, args: tuple[Any, ...]) -> None:
    """Replaces a call by one of `function`, and removes the steps before it that nothing else reads."""
    unread = node.all_input_nodes
    node.op, node.target, node.args = "call_function", function, args
    while unread:
        step = unread.pop()
        if not step.users and step.op.startswith("call"):
            unread += step.all_input_nodes
            step.graph.erase_node(step)


def _replace_quantisation(node: fx.Node) -> None:
    """Replaces `(torch.round(x / scale) + zero_point).clamp(smallest, largest).to(dtype)` by `_quantised`."""
    dtype: Any = node.args[1] if len(node.args) == 2 else None
    if (node.op, node.target) != ("call_method", "to") or dtype not in _LIMITS:
        return
    smallest, largest = _LIMITS[dtype]
    step: Any = node.args[0]
    if smallest:  # the conversion to uint8 gives 0 for NaN as it is
        if not _is_call(step, torch.nan_to_num) or step.kwargs != {"nan": smallest}:
            return
        step = step.args[0]
    if not _is_call(step, "clamp") or step.args[1:] != (smallest, largest):
        return
    step, zero_point = _with_number(step.args[0], operator.add)
    if not _is_call(step, torch.round) or not smallest <= zero_point <= largest:
        return
    step = step.args[0]
    if _is_call(step, operator.truediv):
        _replace(node, _quantised, (*step.args, zero_point, dtype))


def _replace_dequantisation(node: fx.Node) -> None:
    """Replaces `(x.to(dtype) - zero_point) * scale` by `_dequantised`."""
    if not _is_call(node, operator.mul):
        return
    step, zero_point = _with_number(node.args[0], operator.sub)
    if _is_call(step, "to") and len(step.args) == 2:
        value, dtype = step.args
        _replace(node, _dequantised, (value, node.args[1], zero_point, dtype))


def _is_call(node: Any, target: Any) -> bool:
    kinds = ("call_function", "call_method")
    return isinstance(node, fx.Node) and node.op in kinds and node.target == target


def _with_number(step: Any, target: Any) -> tuple[Any, int]:
    """Returns what a number is added to or subtracted from, and the number; 0 where there is none."""
    if _is_call(step, target) and isinstance(step.args[1], (int, float)) and step.args[1] == int(step.args[1]):
        return step.args[0], int(step.args[1])
    return step, 0


def _quantised(x: Any, scale: Any, zero_point: int, dtype: torch.dtype) -> Any:
    """The integers of `x`, of one scale for all."""
    scale = _tensor(scale, x.dtype)
    if x.dtype == scale.dtype == torch.float32 and scale.ndim == 0:
        zero = torch.full((), zero_point, dtype=dtype)
        return torch.onnx.ops.symbolic("QuantizeLinear", (x, scale, zero), dtype=dtype, shape=x.shape)
    smallest, largest = _LIMITS[dtype]
    shifted = torch.round(x / scale) + zero_point
    return torch.nan_to_num(shifted.clamp(smallest, largest), nan=smallest).to(dtype)


def _dequantised(x: Any, scale: Any, zero_point: int, dtype: torch.dtype) -> Any:
    """The floats of `x`, of one scale for all."""
    scale = _tensor(scale, dtype)
    smallest, largest = _LIMITS.get(x.dtype, (0, 0) if x.dtype == torch.int32 else (1, 0))
    if dtype == scale.dtype == torch.float32 and scale.ndim == 0 and smallest <= zero_point <= largest:
        zero = torch.full((), zero_point, dtype=x.dtype)
        return torch.onnx.ops.symbolic("DequantizeLinear", (x, scale, zero), dtype=dtype, shape=x.shape)
    return (x.to(dtype) - zero_point) * scale


def _tensor(scale: Any, dtype: torch.dtype) -> Any:
    return scale if isinstance(scale, torch.Tensor) else torch.full((), scale, dtype=dtype)
