"""Every linear layer is replaced by one of a class of the user's, as quantisers and adapters do."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.ecosystem.observing import Make, outputs_and_gradient
from tests.ecosystem.subjects.subject import Subject

TITLE = "linear layers replaced"


class Rounding(nn.Linear):
    """A linear layer that rounds its weight to quarters, with the gradient of one that does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes what the layer takes."""
        rounded = self.weight + ((4 * self.weight).round() / 4 - self.weight).detach()
        return nn.functional.linear(x, rounded, self.bias)


def use(make: Make, subject: Subject) -> Any:
    """Returns which layers were replaced, and outputs and gradient of the model with the others."""
    module = make()
    # Not those that torch derives from it, which a module reads weights of: `out_proj` of an attention.
    linear = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    for name, layer in linear.items():
        other = Rounding(layer.in_features, layer.out_features, layer.bias is not None)
        other.load_state_dict(layer.state_dict())
        module.set_submodule(name, other)
    return {"layers": sorted(linear), **outputs_and_gradient(module, subject)}
