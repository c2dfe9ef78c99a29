"""accelerate's `infer_auto_device_map(no_split_module_classes=[the blocks' classes])`."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.ecosystem.observing import Make
from tests.ecosystem.subjects.subject import Subject

TITLE = "`infer_auto_device_map` (accelerate)"
PACKAGES = ("accelerate",)

_PARTS = 8
"""In so many places the model is cut in two, one after the other."""


def use(make: Make, subject: Subject) -> Any:
    """Returns the blocks that are cut although their classes are named: none."""
    module = make()
    if not _cut(module, subject, []):
        raise ValueError("accelerate cuts no block of this model, be its class named or not")
    classes = sorted({type(module.get_submodule(path)).__name__ for path in subject.blocks})
    return sorted(_cut(module, subject, classes))


def _cut(module: nn.Module, subject: Subject, classes: list[str]) -> set[str]:
    """Returns the blocks of which parts get devices of their own."""
    from accelerate import infer_auto_device_map

    size = sum(x.numel() * x.element_size() for x in module.state_dict().values())
    found = set()
    for part in range(1, _PARTS):
        memory = {"cpu": size * part // _PARTS, "disk": 2 * size}
        devices = infer_auto_device_map(module, max_memory=memory, no_split_module_classes=classes)
        found |= {path for path in subject.blocks if any(key.startswith(f"{path}.") for key in devices)}
    return found
