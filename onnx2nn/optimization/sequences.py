"""Sequences of layers of which some were folded into others."""

from __future__ import annotations

import torch
from torch import nn


class Sequential(nn.Sequential):
    """An `nn.Sequential` that does not call its identities, which stand where layers were folded into others.

    A call of a module takes about as long as that of a small operator.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns what `nn.Sequential` does."""
        for layer in self:
            if type(layer) is not nn.Identity:
                input = layer(input)
        return input


def skip_identities(root: nn.Module) -> None:
    """Lets the sequences of a tree skip their identities."""
    for module in root.modules():
        if type(module) is nn.Sequential and any(type(layer) is nn.Identity for layer in module):
            module.__class__ = Sequential  # the same sequence wherever it stands, with its hooks
