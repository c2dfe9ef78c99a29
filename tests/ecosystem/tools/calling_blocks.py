"""Blocks are called alone, `model.layer1[0](x)`, with another `x` than the model gives them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.ecosystem.observing import Make, block_of, outputs_of, results
from tests.ecosystem.subjects.subject import Subject

TITLE = "a block called alone"


def use(make: Make, subject: Subject) -> Any:
    """Returns the result of each block for a random first argument; the other arguments are those of the model."""
    module = make()
    arguments: dict[str, tuple[Any, Any]] = {}
    handles = []
    for path in subject.blocks:

        def note(_: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            arguments[path] = args, kwargs

        handles.append(block_of(module, path).register_forward_pre_hook(note, with_kwargs=True))
    outputs_of(module, subject)
    for handle in handles:
        handle.remove()
    found = {}
    for path in subject.blocks:
        (x, *others), kwargs = arguments[path]
        x = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            found[path] = results(block_of(module, path)(x, *others, **kwargs))
    return found
