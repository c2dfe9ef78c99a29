"""Evaluates values of a graph by the op table's rows, to compare matched nodes with their replacement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import OperatorError
from onnx2nn.ground.limits import Account
from onnx2nn.importing import bounded
from onnx2nn.importing.node_facts import attribute_values, check_inputs
from onnx2nn.importing.plan import version_of
from onnx2nn.optable.registry import Table
from onnx2nn.optable.row import Row
from onnx2nn.rewrite.patterns import tensor_of

TOLERANCE = 1e-5
"""Largest difference relative to the largest magnitude: exporters round the constants of a formula to float32."""

MAX_NODES = 200
"""Limit on the nodes of one evaluation. A pattern has fewer; more nodes mean that the network itself is evaluated."""


class Evaluator:
    """Evaluates a value, and the nodes that it depends on, from given values.

    All floating-point tensors are converted to one dtype. With float64, a difference between two evaluations is not
    caused by rounding.

    Args:
        table: the op table.
        F: `torch`, or the OneFlow namespace that has torch's function names.
        opsets: opset versions by domain, for nodes that have no version of their own.
        account: counts what the values take.
        given: arrays of values at which the evaluation starts.
        floats: the numpy dtype of all floating-point tensors.
        placeholder: returns an array for a value that is neither given nor constant, None to compute the value.
        most: the largest numbers of attributes, which take the places of larger ones.
    """

    def __init__(
        self,
        table: Table,
        F: Any,
        opsets: Mapping[str, int],
        account: Account,
        given: Mapping[ir.Value, np.ndarray[Any, Any]],
        floats: Any = np.float64,
        placeholder: Callable[[ir.Value], np.ndarray[Any, Any] | None] = lambda value: None,
        most: Mapping[str, int] = MappingProxyType({}),
    ):
        self._table, self._F, self._opsets, self._floats, self._placeholder = table, F, opsets, floats, placeholder
        self._account, self._most = account, most
        self._known: dict[ir.Value, Any] = {value: self._tensor(array) for value, array in given.items()}
        self._nodes = 0

    def array(self, value: ir.Value) -> np.ndarray[Any, Any]:
        """Returns the elements of a value.

        Raises:
            TooLargeError: it takes more than the limits allow.
            OperatorError: the value depends on a value that is not given, on a node without a row, on a random
                operator, on control flow, or on more than `MAX_NODES` nodes.
        """
        with self._account.temporarily():
            result: np.ndarray[Any, Any] = self._value(value).numpy()
        return result

    def known_array(self, value: ir.Value) -> np.ndarray[Any, Any] | None:
        """Returns the elements of a value, None where it cannot be computed."""
        try:
            return self.array(value)
        except Exception:  # a framework raises errors of many types; the value then counts as unknown
            return None

    def _tensor(self, array: np.ndarray[Any, Any]) -> Any:
        dtype = None if array.dtype.kind in "biu" else self._floats
        return self._F.from_numpy(np.asarray(array, dtype) if array.flags.writeable else np.array(array, dtype))

    def _value(self, value: ir.Value) -> Any:
        if value not in self._known:
            tensor = tensor_of(value)
            array = self._placeholder(value) if tensor is None else tensor.numpy()
            if array is not None:
                self._known[value] = self._tensor(array)
            else:
                self._run(value.producer())
        return self._known[value]

    def _run(self, node: ir.Node | None) -> None:
        row = None if node is None else self._table.find(node.domain, node.op_type, version_of(node, self._opsets))
        self._nodes += 1
        if node is None or row is None or row.call == "subgraph" or row.random or self._nodes > MAX_NODES:
            raise OperatorError("it depends on values that are known at run time only")

        attributes = attribute_values(node, row, {}, lambda tensor: self._tensor(tensor.numpy()))
        attributes |= {name: min(attributes[name], most) for name, most in self._most.items() if name in attributes}
        inputs = [None if value is None else self._value(value) for value in node.inputs]
        check_inputs(row, inputs, self._account)
        if "_outputs" in row.facts:
            attributes["_outputs"] = len(node.outputs)
        results = bounded.run(row, self._F, _arguments(row, inputs, self._account), attributes, self._account)
        results = results if isinstance(results, tuple) else (results,)
        self._known |= dict(zip(node.outputs, map(self._in_one_dtype, results), strict=False))

    def _in_one_dtype(self, result: Any) -> Any:
        """Returns a result in the dtype of all floating-point tensors, which the node, a Cast, may have changed."""

        wanted = getattr(self._F, np.dtype(self._floats).name)
        other = getattr(result, "is_floating_point", bool)() and result.dtype != wanted
        return result.to(wanted) if other else result


def _arguments(row: Row, inputs: list[Any], account: Account) -> list[Any]:
    arguments = []
    for position, value in enumerate(inputs):
        name = row.input_name(position)
        if value is not None and name in row.static:
            account.too_large("elements", value.numel(), "The number of elements of an input is")
            value = value.numpy().tolist()
        elif value is not None and name in row.numbers and not value.ndim:
            value = value.item()
        arguments.append(value)
    return arguments
