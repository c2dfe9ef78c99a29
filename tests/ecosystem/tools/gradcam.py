"""GradCAM at a block, by captum."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "GradCAM at a block (captum)"
PACKAGES = ("captum",)


def applies(subject: Subject) -> bool:
    """Whether the model takes images and has maps at the block."""
    return not subject.embedding


def use(make: Make, subject: Subject) -> Any:
    """Returns the map of the block, not only where it is positive."""
    from captum.attr import LayerGradCam

    module = make()
    method = LayerGradCam(module, module.get_submodule(subject.layer))
    return tensors(method.attribute(*subject.inputs(2), target=subject.target))
