"""The calls of modules in modules, and whether those of two modules give the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.random_modules import Values


class Fault(AssertionError):
    """What an import does otherwise than its original."""

    def __init__(self, kind: str, detail: str):
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


def close(ours: Any, theirs: Any) -> bool:
    """Returns whether values are equal up to rounding."""
    if isinstance(theirs, (tuple, list)):
        same = isinstance(ours, (tuple, list)) and len(ours) == len(theirs)
        return same and all(map(close, ours, theirs))
    if not isinstance(theirs, torch.Tensor):
        return bool(ours == theirs)
    if not isinstance(ours, torch.Tensor) or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    return torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


Calls = dict[str, list[tuple[tuple[Any, ...], Any]]]


def calls_of(module: nn.Module, inputs: Values) -> tuple[Calls, Any]:
    """Returns the arguments and results of the calls of each module, and the result."""
    calls: Calls = {}
    handles = []
    for name, inner in module.named_modules():

        def note(_: nn.Module, args: tuple[Any, ...], result: Any, name: str = name) -> None:
            calls.setdefault(name, []).append((args, result))

        handles.append(inner.register_forward_hook(note))
    with torch.no_grad():
        result = module(*inputs)
    for handle in handles:
        handle.remove()
    return calls, result
