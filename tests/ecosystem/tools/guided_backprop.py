"""captum's GuidedBackprop, which hooks the modules that are `nn.ReLU`."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "GuidedBackprop (captum)"
PACKAGES = ("captum",)


def applies(subject: Subject) -> bool:
    """Whether the model takes images."""
    return not subject.embedding


def use(make: Make, subject: Subject) -> Any:
    """Returns the attributions of the image."""
    from captum.attr import GuidedBackprop

    (image,) = subject.inputs(2)
    return tensors(GuidedBackprop(make()).attribute(image.requires_grad_(), target=subject.target))
