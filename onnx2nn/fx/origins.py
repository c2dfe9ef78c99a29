"""The origins of an import's tensors: the constants of the file from which they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from onnx2nn.fx.constants import Constant, memory_of


class Steps(NamedTuple):
    """The integers that a file has in place of a weight: the weight is `(integers - zero_point) * scale`.

    Attributes:
        kind: the integers' ONNX element type, such as `"INT8"`.
        scale: a number, or one for each index of an axis.
        zero_point: as `scale`.
    """

    kind: str
    scale: float | list[float]
    zero_point: int | list[int]


class Origins:
    """The constants of a graph and of its inner graphs, by the address of their memory."""

    def __init__(self) -> None:
        self._by_memory: dict[int, Constant] = {}
        self._computed: dict[int, StorageWeakRef] = {}
        self._initializers: dict[ir.Value, Constant] = {}
        self._steps: dict[str, Steps] = {}

    def initializer(self, value: ir.Value) -> Constant:
        """Returns an initializer of an inner graph as a constant, the same object in every import of the graph."""
        if value not in self._initializers:
            self._initializers[value] = Constant.initializer(value)
        return self._initializers[value]

    def remember(self, constant: Constant) -> torch.Tensor | np.ndarray[Any, Any]:
        """Returns the values of a constant, and notes its memory; the traced program will hold it."""
        value = constant.value
        if isinstance(value, torch.Tensor):  # of constants with shared memory the last used one counts
            memory = memory_of(value)
            self._by_memory[memory] = constant
            self._computed.pop(memory, None)
        return value  # type: ignore[no-any-return]  # a constant's value has one of these types

    def note_computed(self, tensors: Iterable[Any], weight: Constant) -> None:
        """Notes the float tensors in `tensors` as computed from a weight of the file."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.note_quantised(tensor, weight)

    def note_quantised(self, tensor: torch.Tensor, weight: Constant) -> None:
        """Notes a tensor, also one of integers, as computed from a weight of the file."""
        memory = memory_of(tensor)
        if memory not in self._by_memory or self._is_stale(memory):
            self._by_memory[memory] = weight
            self._computed[memory] = StorageWeakRef(tensor.untyped_storage())

    def note_steps(self, integers: Constant, scale: Constant, zero_point: Constant | None = None) -> None:
        """Notes with what the integers of an initializer are dequantised, where that is no number for each block."""
        if len(scale.shape) < 2 and integers.kind.is_integer():  # a float8 is dequantised too
            zeros = 0 if zero_point is None else zero_point.numpy().tolist()
            self._steps[integers.name] = Steps(integers.kind.name, scale.numpy().tolist(), zeros)

    def steps(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Steps]:
        """Returns by name the steps of the tensors that come from a quantised weight."""
        if not self._steps:
            return {}
        found = {name: self.find(tensor) for name, tensor in tensors.items()}
        return {name: self._steps[of.name] for name, of in found.items() if of is not None and of.name in self._steps}

    def find(self, tensor: Any) -> Constant | None:
        """Returns the constant of which a tensor is a view or from which it is computed, None where there is none."""
        if not isinstance(tensor, torch.Tensor):
            return None
        memory = memory_of(tensor)
        return None if self._is_stale(memory) else self._by_memory.get(memory)

    def _is_stale(self, memory: int) -> bool:
        """Returns whether the computed tensor at this address is freed, so that another tensor may be there."""
        return memory in self._computed and self._computed[memory].expired()
