"""captum's LayerIntegratedGradients: at a block, or at the embedding of the tokens."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "LayerIntegratedGradients (captum)"
PACKAGES = ("captum",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the attributions against a black image or tokens 0."""
    from captum.attr import LayerIntegratedGradients

    module = make()
    first, *others = subject.inputs(2)
    method = LayerIntegratedGradients(module, module.get_submodule(subject.embedding or subject.layer))
    found = method.attribute(
        first,
        torch.zeros_like(first),
        target=subject.target,
        additional_forward_args=tuple(others) or None,
        n_steps=5,
    )
    return tensors(found)
