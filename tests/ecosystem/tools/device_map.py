"""accelerate's `infer_auto_device_map(no_split_module_classes=[the blocks' classes])`."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make
from tests.ecosystem.subjects.subject import Subject

TITLE = "`infer_auto_device_map` (accelerate)"


def use(make: Make, subject: Subject) -> Any:
    """Returns the parts into which each block is cut where a third of the model fits; one each is right."""
    from accelerate import infer_auto_device_map

    module = make()
    classes = sorted({type(module.get_submodule(path)).__name__ for path in subject.blocks})
    size = sum(x.numel() * x.element_size() for x in module.state_dict().values())
    devices = infer_auto_device_map(
        module, max_memory={"cpu": size // 3, "disk": 2 * size}, no_split_module_classes=classes
    )
    inside = {path: [key for key in devices if key.startswith(f"{path}.")] for path in subject.blocks}
    return {path: len(keys) or 1 for path, keys in inside.items()}
