"""AOTInductor: exported with a dynamic batch, compiled to a package, read back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`aoti_compile_and_package`"
HELD = True


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of the package at two batch sizes."""
    batch = torch.export.Dim("batch", min=2, max=64)
    inputs = subject.inputs(2)
    program = torch.export.export(make(), inputs, dynamic_shapes=tuple({0: batch} for _ in inputs))
    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(Path(folder, "model.pt2")))
        module = torch._inductor.aoti_load_package(path)
        return outputs_of(module, subject) + outputs_of(module, subject, 3)
