"""Evaluates nodes by the op table's rows, to compare what a rule replaces with what it puts in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import OperatorError
from onnx2nn.nodes import attribute_values, check_inputs
from onnx2nn.plan import version_of
from onnx2nn.rewrite.patterns import tensor_of
from onnx2nn.table import Row, Table


def evaluate(
    nodes: Iterable[ir.Node],
    values: Mapping[ir.Value, np.ndarray[Any, Any]],
    opsets: Mapping[str, int],
    table: Table,
    F: Any,
) -> Any:
    """Returns the first output of the last of `nodes`, which are in the order of their execution, as an array.

    Args:
        nodes: the nodes.
        values: what they take from outside; constants are read from the graph. Floats are taken as float64, so that
            what differs is not rounding.
        opsets: opset versions by domain, of nodes that have none of their own.
        table: the op table.
        F: `torch`, or OneFlow behind its names.

    Raises:
        OperatorError: a node has no row.
    """
    known: dict[ir.Value, Any] = {value: F.from_numpy(_wide(array)) for value, array in values.items()}
    result: Any = None
    for node in nodes:
        row = table.find(node.domain, node.op_type, version_of(node, opsets))
        if row is None or row.region or row.random:
            raise OperatorError(f"{node.op_type} is not evaluated.")
        attributes = attribute_values(node, row, {}, lambda tensor: F.from_numpy(_wide(tensor.numpy())))
        inputs = [None if value is None else _input(value, known, F) for value in node.inputs]
        check_inputs(row, inputs)
        if "_outputs" in row.facts:
            attributes["_outputs"] = len(node.outputs)
        results = row.run(F, *_arguments(row, inputs), **attributes)
        results = results if isinstance(results, tuple) else (results,)
        known |= dict(zip(node.outputs, results, strict=False))
        result = results[0]
    return result.numpy()


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns floats as float64."""
    array = np.array(array)
    return array.astype(np.float64) if array.dtype.kind not in "biu" else array


def _input(value: ir.Value, known: Mapping[ir.Value, Any], F: Any) -> Any:
    if value in known:
        return known[value]
    tensor = tensor_of(value)
    if tensor is None:
        raise OperatorError(f"value {value.name!r} is not given.")
    return F.from_numpy(_wide(tensor.numpy()))


def _arguments(row: Row, inputs: list[Any]) -> list[Any]:
    arguments = []
    for position, value in enumerate(inputs):
        name = row.input_name(position)
        if value is not None and name in row.static:
            value = value.tolist() if not value.ndim or value.numel() else []
        elif value is not None and name in row.numbers and not value.ndim:
            value = value.item()
        arguments.append(value)
    return arguments
