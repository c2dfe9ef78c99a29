"""`torch.jit.script` of the model."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`torch.jit.script`"


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of the script at two batch sizes."""
    script = torch.jit.script(make())
    return outputs_of(script, subject) + outputs_of(script, subject, 3)
