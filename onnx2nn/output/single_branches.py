"""The Ifs of which a trace by torch.export holds one branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from onnx2nn.control_flow import If


def single_branches(module: nn.Module, inputs: Sequence[Any]) -> set[nn.Module]:
    """Returns the Ifs of which a trace holds one branch, as the other takes no values of the example's sizes.

    Those that the example does not reach, inside a branch of another, are among them if their branches take different
    sizes.

    Args:
        module: the module.
        inputs: the example.
    """
    sized = [part for part in module.modules() if isinstance(part, If) and part.serves]
    reached, single = set[nn.Module](), set[nn.Module]()

    def note(part: Any, values: tuple[Any, ...]) -> None:
        _, *captured = values
        reached.add(part)
        if part.takes(0, captured) != part.takes(1, captured):
            single.add(part)

    hooks = [part.register_forward_pre_hook(note) for part in sized]
    try:
        with torch.no_grad():
            module(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return single.union(set(sized) - reached)
