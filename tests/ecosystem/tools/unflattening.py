"""`torch.export.unflatten` of a program: its blocks are called, by hooks."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, by_name, outputs_of, results
from tests.ecosystem.subjects.subject import Subject

TITLE = "`torch.export.unflatten`"


def use(make: Make, subject: Subject) -> Any:
    """Returns what hooks on the blocks of the unflattened program see, and its outputs."""
    program = torch.export.export(make(), subject.inputs(2), preserve_module_call_signature=subject.blocks)
    module = torch.export.unflatten(program)
    seen: list[tuple[str, Any]] = []
    for path in subject.blocks:
        block = module.get_submodule(path)
        block.register_forward_hook(lambda _, __, result, path=path: seen.append((path, results(result))))
    outputs = outputs_of(module, subject)
    return {"outputs": outputs, "seen": by_name(seen)}
