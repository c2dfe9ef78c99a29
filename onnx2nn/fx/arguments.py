"""Converts values of an import to arguments of row bodies and of opaque calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from onnx2nn.fx.constants import Constant
from onnx2nn.fx.origins import Origins
from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.tensor import Tensor, is_traced
from onnx2nn.importing.node_facts import body_arguments, known_array
from onnx2nn.optable.row import Row
from onnx2nn.optable.shape_values import ShapeValues


class Arguments:
    """Makes the arguments of the calls that one tracer records.

    Args:
        tracer: the tracer.
        origins: notes the constants that become arguments.
    """

    def __init__(self, tracer: Tracer, origins: Origins):
        self._tracer, self._origins = tracer, origins

    def tensor(self, value: Any) -> Any:
        """Returns a value as a tensor argument: a constant as a real tensor, shape values as a recorded tensor."""
        if type(value) is Tensor:
            return value
        if isinstance(value, Constant):
            return self._origins.remember(value)
        if isinstance(value, ShapeValues):
            return self._made_of(value.array, torch.from_numpy(np.empty(0, value.dtype)).dtype)
        return [self.tensor(item) for item in value] if isinstance(value, list) else value

    def of_body(self, row: Row, inputs: Sequence[Any]) -> list[Any]:
        """Returns the arguments of a traced body: static inputs as Python values, others as tensors.

        Raises:
            TraceError: a static input is data-dependent.
        """
        result = body_arguments(row, inputs, self.tensor, lambda name, value: self._sizes(row, name, value))
        if (row.static or row.numbers) and is_traced([value for value in result if not isinstance(value, Tensor)]):
            # A method of a real tensor takes no symbolic number: the constants become values of the traced program.
            names = map(row.input_name, range(len(result)))
            pairs = [
                (v, isinstance(v, torch.Tensor) and name not in row.weights)
                for name, v in zip(names, result, strict=True)
            ]
            return [self._tracer.attribute(v) if real else v for v, real in pairs]
        return result

    def _sizes(self, row: Row, name: str, value: Any) -> list[Any]:
        """Returns a data-dependent vector as symbolic numbers, for an input that holds sizes."""
        if name not in row.counts or not isinstance(value, Tensor):
            raise TraceError(f"input {name} is computed from data")
        return self._tracer.elements(value)

    def of_operator(self, row: Row, inputs: Sequence[Any]) -> list[Any]:
        """Returns the arguments of an opaque call."""
        return [
            known_array(value).tolist()
            if isinstance(value, (Constant, ShapeValues)) and row.input_name(position) in row.static
            else self.tensor(value)
            for position, value in enumerate(inputs)
        ]

    def _made_of(self, numbers: np.ndarray[Any, Any], dtype: torch.dtype) -> Any:
        """Returns shape values as a tensor.

        It is stacked from scalars: to torch.jit.trace, `torch.tensor` of a list of sizes would be a constant.
        """
        F = self._tracer.F
        if not numbers.ndim or not is_traced(numbers.tolist()):
            return F.tensor(numbers.tolist(), dtype=dtype)
        if numbers.size == 1:
            return F.full(numbers.shape, numbers.item(), dtype=dtype)
        stacked = F.stack([F.tensor(number, dtype=dtype) for number in numbers.flat])
        return stacked if numbers.ndim == 1 else stacked.reshape(numbers.shape)
