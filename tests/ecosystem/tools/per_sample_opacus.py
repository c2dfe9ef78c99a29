"""Opacus: a gradient for each sample and layer, by the `GradSampleModule` that `PrivacyEngine` puts around a model."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.ecosystem.observing import Make, Named, number_of, weights_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "gradients of samples (Opacus)"
PACKAGES = ("opacus",)
HELD = True


def use(make: Make, subject: Subject) -> Any:
    """Returns the samples' gradients of every layer."""
    from opacus import GradSampleModule

    module = make().train()  # in evaluation Opacus notes nothing
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0  # no file holds it
    weights = weights_of(module)
    wrapped = GradSampleModule(module)
    number_of(wrapped(*subject.inputs(3))).backward()
    seen = [(name.rpartition(".")[0], x.grad_sample) for name, x in sorted(module.named_parameters())]
    return Named(weights, seen)
