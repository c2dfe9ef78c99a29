"""`to(memory_format=torch.channels_last)` of the model and the image."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, results, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "`channels_last`"


def applies(subject: Subject) -> bool:
    """Whether the model takes images."""
    return not subject.embedding


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs, and whether the maps that blocks give have channels last."""
    module = make().to(memory_format=torch.channels_last)
    formats: dict[str, list[bool]] = {}
    for path in subject.blocks:

        def note(_: Any, __: Any, result: Any, path: str = path) -> None:
            maps = [x for x in results(result) if x.ndim == 4]
            formats[path] = [x.is_contiguous(memory_format=torch.channels_last) for x in maps]

        module.get_submodule(path).register_forward_hook(note)
    (image,) = subject.inputs(2)
    with torch.no_grad():
        outputs = module(image.to(memory_format=torch.channels_last))
    return {"formats": formats, "outputs": tensors(outputs)}
