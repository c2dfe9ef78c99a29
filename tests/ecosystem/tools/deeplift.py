"""captum's DeepLift: of the image, or of the vectors of the tokens."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "DeepLift (captum)"
PACKAGES = ("captum",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the attributions against a black image or tokens 0."""
    from captum.attr import DeepLift, LayerDeepLift

    module = make()
    first, *others = subject.inputs(2)
    if not subject.embedding:
        return tensors(DeepLift(module).attribute(first, torch.zeros_like(first), target=subject.target))
    method = LayerDeepLift(module, module.get_submodule(subject.embedding))
    return tensors(
        method.attribute(
            first, torch.zeros_like(first), target=subject.target, additional_forward_args=tuple(others) or None
        )
    )
