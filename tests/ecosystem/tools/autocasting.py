"""`torch.autocast` to bfloat16, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, Rounded, number_of, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "`torch.autocast`"

_WITHIN = 4 * torch.finfo(torch.bfloat16).eps
"""Each layer rounds to bfloat16, and a folded norm is rounded with its convolution."""


def use(make: Make, subject: Subject) -> Any:
    """Returns the types of the blocks' results, and outputs and gradient."""
    module = make()
    types: dict[str, list[torch.dtype]] = {}
    for path in subject.blocks:

        def note(_: Any, __: Any, result: Any, path: str = path) -> None:
            types[path] = [x.dtype for x in tensors(result)]

        module.get_submodule(path).register_forward_hook(note)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = module(*subject.inputs(2))
    number_of(outputs.float()).backward()
    gradient = module.get_submodule(subject.head).weight.grad
    return {"types": types, "outputs": Rounded(outputs.detach(), _WITHIN), "gradient": Rounded(gradient, _WITHIN)}
