"""Appends ONNX nodes and constants to the graph that is written, in the types that an operator takes at its opset."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.job import attribute
from oneflow_bridge.to_onnx.lowering.schemas import DATA_TYPES, NeedsOpsetError, allowed_types, formals, wider_types
from onnx2nn.errors import OperatorError


class NodeWriter:
    """Appends ONNX nodes to a graph while the ops of a job are walked.

    Any attribute that is not defined here or in a subclass is an ONNX operator: `g.Mul(x, g.Sigmoid(x))`. Numbers and
    numpy arrays among its inputs become constants, numbers in the type of the operator's first tensor.

    Attributes:
        opset: the opset that is written.
        nodes: the nodes so far.
        constants: the constants so far, as initialized values.
        node: the op of the job that is being written.
    """

    def __init__(self, model: ir.Model, opset: int):
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.constants: dict[Any, ir.Value] = {}
        self.node: ir.Node | None = None
        self._taken = {value.name for value in (*model.graph.inputs, *model.graph.initializers.values())}
        self._written: dict[str, int] = {}

    def __getattr__(self, op_type: str) -> Any:
        if not op_type[0].isupper():
            raise AttributeError(op_type)
        return functools.partial(self.append, op_type)

    def start(self, node: ir.Node, results: dict[str, ir.Value]) -> None:
        """Names the job op whose nodes follow."""
        self.node = node
        self._results = results
        self._count = 0

    def result(self, name: str = "") -> ir.Value:
        """The job's own value for an output of the op being written: its shape and dtype."""
        return self._results[name] if name else next(iter(self._results.values()))

    def job_outputs(self) -> list[ir.Value]:
        """The job's own values for all outputs of the op being written, in order."""
        return list(self.node.outputs) if self.node is not None else []

    def used(self, name: str) -> bool:
        """Whether an output of the op being written has a reader."""
        value = self._results.get(name)
        return value is not None and (bool(value.uses()) or value.is_graph_output())

    def refuse(self, reason: str) -> NoReturn:
        """Refuses the op being written: ONNX cannot express it."""
        raise OperatorError(reason)

    def needs(self, operator: str, opset: int) -> None:
        """Refuses the op being written unless the opset is at least `opset`."""
        if self.opset < opset:
            raise NeedsOpsetError(operator, opset)

    def const(self, array: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant; equal ones are made once. `dtype` defaults to the array's own."""
        array = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy())
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            name = self._unique("constant")
            tensor = ir.Tensor(array, name=name)
            self.constants[key] = ir.Value(
                name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
        return self.constants[key]

    def ints(self, values: Sequence[int]) -> ir.Value:
        """A 1-D int64 constant."""
        return self.const(np.asarray(values, dtype=np.int64))

    def full(self, number: float, like: ir.Value) -> ir.Value:
        """A 0-D number of the type of `like`."""
        return self.number(number, like.dtype)

    def number(self, number: Any, dtype: ir.DataType | None) -> ir.Value:
        """A 0-D constant."""
        self.fixed(number)
        return self.const(number, dtype)

    def fixed(self, number: Any) -> None:
        """Refuses a number that differs between traces."""
        if isinstance(number, (tuple, str)):
            self.refuse(f"uses a number that depends on a dynamic dimension ({number}); export with it fixed.")

    def append(self, op_type: str, *inputs: Any, n_outputs: int = 1, **attributes: Any) -> Any:
        """Appends a node.

        Args:
            op_type: ONNX operator.
            inputs: values, numbers, arrays, or None for an optional input left out.
            n_outputs: number of outputs.
            attributes: attributes; None leaves one out.

        Returns:
            The output, or a tuple of them.

        Raises:
            OperatorError: the operator does not exist at this opset or does not take these types.
        """
        expected, variadic, results = formals(op_type, self.opset)
        count = len(expected)
        kinds = [expected[min(i, count - 1)] for i in range(len(inputs))]
        if len(inputs) > count and not variadic:
            raise OperatorError(f"ONNX {op_type} takes {count} inputs at opset {self.opset}, not {len(inputs)}.")
        values = self._operands(inputs, kinds)
        bound = {k: v.dtype for k, v in zip(kinds, values, strict=True) if v is not None and v.dtype is not None}
        wide = wider_types(op_type, self.opset, bound)
        if wide:
            return self._append_wide(op_type, values, kinds, bound, wide, n_outputs, attributes)
        outputs = [self._fresh(self._output_type(op_type, results, i, bound, attributes)) for i in range(n_outputs)]
        plain = [attribute(k, _plain(v)) for k, v in attributes.items() if v is not None]
        while values and values[-1] is None:
            values.pop()
        self.nodes.append(ir.Node("", op_type, values, plain, outputs=outputs, name=self._node_name(op_type)))
        return outputs[0] if n_outputs == 1 else tuple(outputs)

    def _operands(self, inputs: Sequence[Any], kinds: Sequence[str]) -> list[ir.Value | None]:
        types: dict[str, ir.DataType] = {}
        for kind, value in zip(kinds, inputs, strict=True):
            if isinstance(value, ir.Value) and value.dtype is not None:
                types.setdefault(kind, value.dtype)
        values: list[ir.Value | None] = []
        for kind, value in zip(kinds, inputs, strict=True):
            if value is None or isinstance(value, ir.Value):
                values.append(value)
            elif isinstance(value, np.ndarray):
                values.append(self.const(value))
            else:
                values.append(self.number(value, types.get(kind) or DATA_TYPES.get(kind)))
        return values

    # Its types are those of `append`, the one caller.
    def _append_wide(self, op_type, values, kinds, bound, wide, n_outputs, attributes):  # type: ignore[no-untyped-def]
        """Appends the node between casts to the wider types and back."""
        cast = [
            self.Cast(v, to=wide[k]) if v is not None and k in wide else v for k, v in zip(kinds, values, strict=True)
        ]
        outputs = self.append(op_type, *cast, n_outputs=n_outputs, **attributes)
        outputs = (outputs,) if n_outputs == 1 else outputs
        results = formals(op_type, self.opset)[2]
        of_outputs = [results[min(i, len(results) - 1)] for i in range(n_outputs)]
        back = [self.Cast(v, to=bound[k]) if k in wide else v for k, v in zip(of_outputs, outputs, strict=True)]
        return back[0] if n_outputs == 1 else tuple(back)

    def _output_type(
        self,
        op_type: str,
        results: Sequence[str],
        index: int,
        bound: dict[str, ir.DataType],
        attributes: dict[str, Any],
    ) -> ir.DataType | None:
        kind = results[min(index, len(results) - 1)]
        if kind in bound:
            return bound[kind]
        if kind in DATA_TYPES:
            return DATA_TYPES[kind]
        chosen = attributes.get("to", attributes.get("dtype", attributes.get("value")))
        if isinstance(chosen, ir.DataType):
            return chosen
        if isinstance(chosen, ir.TensorProtocol):
            return chosen.dtype
        allowed = allowed_types(op_type, self.opset).get(kind, frozenset())
        return DATA_TYPES[next(iter(allowed))] if len(allowed) == 1 else None

    def _fresh(self, dtype: ir.DataType | None) -> ir.Value:
        return ir.Value(type=None if dtype is None else ir.TensorType(dtype))

    def _node_name(self, op_type: str) -> str:
        assert self.node is not None
        self._count += 1
        return self._unique(str(self.node.name) if self._count == 1 else f"{self.node.name}/{op_type}")

    def _unique(self, name: str) -> str:
        number = self._written.get(name, 0)
        self._written[name] = number + 1
        unique = f"{name}_{number}" if number else name
        if unique in self._taken:
            return self._unique(name)
        self._taken.add(unique)
        return unique


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, ir.DataType)):
        return int(value)
    return value
