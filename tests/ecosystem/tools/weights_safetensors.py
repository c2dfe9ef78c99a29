"""safetensors' `save_model` and `load_model`, strictly."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.ecosystem.observing import Make, emptied, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`save_model`, `load_model` (safetensors)"
PACKAGES = ("safetensors",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of a module whose weights were zeros before."""
    from safetensors.torch import load_model, save_model

    other = emptied(make())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        save_model(make(), str(path))
        load_model(other, path)
    return outputs_of(other, subject)
