"""A block is replaced by another module, which halves what it gets."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.ecosystem.observing import Make, outputs_and_gradient, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "a block replaced"


class Half(nn.Module):
    """Returns half of its first argument.

    Args:
        in_tuple: whether as the tuple that the block returned.
    """

    def __init__(self, in_tuple: bool) -> None:
        super().__init__()
        self.in_tuple = in_tuple

    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Takes what the block takes."""
        return (0.5 * x,) if self.in_tuple else 0.5 * x


def use(make: Make, subject: Subject) -> Any:
    """Returns outputs and gradient of the model with the other block."""
    module = make()
    results: list[Any] = []
    block = module.get_submodule(subject.replaceable)
    block.register_forward_hook(lambda _, __, result: results.append(result))
    outputs_of(module, subject)
    around, _, name = subject.replaceable.rpartition(".")
    parent = module.get_submodule(around)
    other = Half(isinstance(results[0], tuple))
    if name.isdigit():
        parent[int(name)] = other
    else:
        setattr(parent, name, other)
    return outputs_and_gradient(module, subject)
