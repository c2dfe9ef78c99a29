"""`torch.fx.symbolic_trace` of the model, and of a block alone."""

from __future__ import annotations

from typing import Any

from torch import fx

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`torch.fx.symbolic_trace`"


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of the traced model, and whether blocks can be traced."""
    module = make()
    traced = fx.symbolic_trace(module)
    for path in subject.blocks:
        fx.symbolic_trace(module.get_submodule(path))
    return outputs_of(traced, subject) + outputs_of(traced, subject, 3)
