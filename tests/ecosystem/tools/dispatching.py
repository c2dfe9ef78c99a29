"""accelerate's `dispatch_model`: half of the blocks on the processor, the others on disk."""

from __future__ import annotations

import tempfile
from typing import Any

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`dispatch_model` (accelerate)"
PACKAGES = ("accelerate",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs, and the blocks whose weights are away between calls."""
    from accelerate import dispatch_model

    module = make()
    away = subject.blocks[len(subject.blocks) // 2 :]
    devices = {"": "cpu", **dict.fromkeys(away, "disk")}
    with tempfile.TemporaryDirectory() as folder:
        dispatch_model(module, devices, main_device="cpu", offload_dir=folder, force_hooks=True)
        outputs = outputs_of(module, subject)
    gone = [path for path in subject.blocks if all(x.is_meta for x in module.get_submodule(path).parameters())]
    return {"outputs": outputs, "away": gone}
