"""Values of a run that are too large for the memory: their shapes are computed first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from onnx2nn.ground.quiet import quiet
from onnx2nn.verification.module_runs import inputs_for

MOST_BYTES = 1 << 31
"""The most bytes of one value: an attention between all pixels of an image has the square of their number."""

_SMALL = 1 << 12
"""Up to this number of elements of all inputs nothing is asked about the values computed of them."""


def is_in_run(module: Any, arrays: Sequence[np.ndarray]) -> bool:
    """Returns whether a run of a module would compute a value that is too large, as far as shapes alone tell."""
    if sum(array.size for array in arrays) <= _SMALL:
        return False
    state = {name: tensor.to("meta") for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    inputs = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in inputs_for(module, arrays)]
    with contextlib.suppress(Exception), quiet(), torch.no_grad(), _Largest() as largest:  # some calls need elements
        torch.func.functional_call(module, state, tuple(inputs))
    return largest.bytes > MOST_BYTES


class _Largest(TorchFunctionMode):
    """Notes how many bytes the largest value has that a function of torch gives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls a function of torch."""
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                self.bytes = max(self.bytes, value.untyped_storage().nbytes())
        return result
