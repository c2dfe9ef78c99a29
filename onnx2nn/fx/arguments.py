"""Values of an import as what row bodies, and calls of operators, take them as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from onnx2nn.fx.constants import Constant
from onnx2nn.fx.origins import Origins
from onnx2nn.fx.tracing import Tensor, TraceError, Tracer, is_traced
from onnx2nn.optable.row import Row
from onnx2nn.optable.shape_values import Host


class Arguments:
    """Makes the arguments of what one tracer records.

    Args:
        tracer: the tracer.
        origins: remembers the constants that become arguments.
    """

    def __init__(self, tracer: Tracer, origins: Origins):
        self._tracer, self._origins = tracer, origins

    def tensor(self, value: Any) -> Any:
        """Returns a value as a tensor argument: constants as real tensors, host numbers as a tensor made of them."""
        if type(value) is Tensor:
            return value
        if isinstance(value, Constant):
            return self._origins.remember(value)
        if isinstance(value, Host):
            return self._made_of(value.array, torch.from_numpy(np.empty(0, value.dtype)).dtype)
        return [self.tensor(item) for item in value] if isinstance(value, list) else value

    def of_body(self, row: Row, inputs: Sequence[Any]) -> list[Any]:
        """Returns the inputs as a traced body takes them: static ones as Python values, others as tensors.

        Raises:
            TraceError: a static one is computed from data.
        """
        if not row.static and not row.numbers:
            return [self.tensor(value) for value in inputs]
        result: list[Any] = []
        for position, value in enumerate(inputs):
            name = row.input_name(position)
            if name in row.numbers and isinstance(value, (Constant, Host)) and not _shape_of(value):
                result.append(value.array.item() if isinstance(value, Host) else value.numpy().item())
            elif name not in row.static or value is None:
                result.append(self.tensor(value))
            elif isinstance(value, (Constant, Host)):
                result.append(_plain(value))
            elif name in row.counts and isinstance(value, Tensor):
                result.append(self._tracer.elements(value))
            else:
                raise TraceError(f"input {name} is computed from data")
        if is_traced([value for value in result if not isinstance(value, Tensor)]):
            # A method of a real tensor takes no symbolic number: the constants become values of the traced program.
            return [self._tracer.attribute(v) if isinstance(v, torch.Tensor) else v for v in result]
        return result

    def of_operator(self, row: Row, inputs: Sequence[Any]) -> list[Any]:
        """Returns the inputs as a call of the operator at run time takes them."""
        return [
            _plain(value)
            if isinstance(value, (Constant, Host)) and row.input_name(position) in row.static
            else self.tensor(value)
            for position, value in enumerate(inputs)
        ]

    def _made_of(self, numbers: np.ndarray[Any, Any], dtype: torch.dtype) -> Any:
        """Returns host numbers as a tensor; of a list of sizes torch.jit.trace would keep those of its example."""
        F = self._tracer.F
        if not numbers.ndim or not is_traced(numbers.tolist()):
            return F.tensor(numbers.tolist(), dtype=dtype)
        if numbers.size == 1:
            return F.full(numbers.shape, numbers.item(), dtype=dtype)
        stacked = F.stack([F.tensor(number, dtype=dtype) for number in numbers.flat])
        return stacked if numbers.ndim == 1 else stacked.reshape(numbers.shape)


def _plain(value: Constant | Host) -> Any:
    return value.array.tolist() if isinstance(value, Host) else value.numpy().tolist()


def _shape_of(value: Constant | Host) -> tuple[int, ...]:
    return value.array.shape if isinstance(value, Host) else value.shape
