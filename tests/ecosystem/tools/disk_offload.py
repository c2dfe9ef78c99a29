"""accelerate's `disk_offload`: weights are read for the time of a module's call."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`disk_offload` (accelerate)"
PACKAGES = ("accelerate",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs, and whether all weights are away between calls."""
    from accelerate import disk_offload

    module = make()
    with tempfile.TemporaryDirectory() as folder:
        disk_offload(module, folder, execution_device=torch.device("cpu"))
        outputs = outputs_of(module, subject)
    return {"outputs": outputs, "away": all(x.is_meta for x in module.parameters())}
