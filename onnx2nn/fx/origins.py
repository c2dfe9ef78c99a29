"""Which tensors of an import come from which constants of the file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from onnx2nn.fx.constants import Constant, memory_of


class Origins:
    """The constants of a graph and of the graphs inside it, by the memory in which their values lie."""

    def __init__(self) -> None:
        self._by_memory: dict[int, Constant] = {}
        self._computed: dict[int, StorageWeakRef] = {}
        self._initializers: dict[ir.Value, Constant] = {}

    def initializer(self, value: ir.Value) -> Constant:
        """Returns the constant that an initializer of an inner graph is, the same in every import of that."""
        if value not in self._initializers:
            self._initializers[value] = Constant.initializer(value)
        return self._initializers[value]

    def remember(self, constant: Constant) -> torch.Tensor | np.ndarray[Any, Any]:
        """Returns the values of a constant that the traced program is to hold."""
        value = constant.value
        if isinstance(value, torch.Tensor):  # of several that share their memory the one in use is meant
            memory = memory_of(value)
            self._by_memory[memory] = constant
            self._computed.pop(memory, None)
        return value  # type: ignore[no-any-return]  # of the two types that a constant has

    def note_computed(self, tensors: Iterable[Any], weight: Constant) -> None:
        """Notes that float tensors are computed from a weight of the file."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                memory = memory_of(tensor)
                if memory not in self._by_memory or self._is_stale(memory):
                    self._by_memory[memory] = weight
                    self._computed[memory] = StorageWeakRef(tensor.untyped_storage())

    def find(self, tensor: Any) -> Constant | None:
        """Returns the constant that a tensor is, is a view of or is computed from, None where there is none."""
        if not isinstance(tensor, torch.Tensor):
            return None
        memory = memory_of(tensor)
        return None if self._is_stale(memory) else self._by_memory.get(memory)

    def _is_stale(self, memory: int) -> bool:
        """Returns whether what was computed there is gone, so that another tensor may lie there."""
        return memory in self._computed and self._computed[memory].expired()
