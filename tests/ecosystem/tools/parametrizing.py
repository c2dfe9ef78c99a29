"""`torch.nn.utils.parametrizations`: weight norm of all linear layers, spectral norm of the head, then removed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "weight and spectral norms (`parametrizations`)"


def use(make: Make, subject: Subject) -> Any:
    """Returns the new keys of the linear layers, and the outputs with each norm and without."""
    module = make()
    linear = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    for layer in linear.values():
        weight_norm(layer)
    keys = sorted(key for key in module.state_dict() if key.partition(".parametrizations.")[0] in linear)
    weights = outputs_of(module, subject)
    for layer in linear.values():
        remove_parametrizations(layer, "weight")
    torch.manual_seed(0)
    spectral_norm(module.get_submodule(subject.head))
    spectrum = outputs_of(module, subject)
    remove_parametrizations(module.get_submodule(subject.head), "weight")
    return {"keys": keys, "weights": weights, "spectrum": spectrum, "removed": outputs_of(module, subject)}
