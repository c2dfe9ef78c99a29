"""accelerate's `cpu_offload`: weights come for the time of a module's call."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`cpu_offload` (accelerate)"
PACKAGES = ("accelerate",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs, and whether all weights are away between calls."""
    from accelerate import cpu_offload

    module = make()
    cpu_offload(module, execution_device=torch.device("cpu"))
    outputs = outputs_of(module, subject)
    return {"outputs": outputs, "away": all(x.is_meta for x in module.parameters())}
