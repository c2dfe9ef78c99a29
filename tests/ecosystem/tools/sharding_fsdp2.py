"""FSDP2's `fully_shard` of every block and the model, on two ranks, each with an image or text of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from tests.ecosystem.observing import Make, number_of
from tests.ecosystem.subjects.subject import Subject
from tests.ranks import RANKS, on_ranks

TITLE = "FSDP2 per block, 2 ranks"


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs before and after a step of training, and which modules are sharded."""
    return on_ranks(_shard, make, subject, preload="tests.ecosystem.subjects.language_models")[0]


def _shard(rank: int, make: Make, subject: Subject) -> Any:
    module = make()
    mesh = init_device_mesh("cpu", (RANKS,))
    for path in subject.blocks:
        fully_shard(module.get_submodule(path), mesh=mesh)
    fully_shard(module, mesh=mesh)
    inputs = tuple(x[rank : rank + 1] for x in subject.inputs(RANKS))
    outputs = module(*inputs)
    number_of(outputs).backward()
    sharded = [name for name, inner in module.named_modules() if isinstance(inner, FSDPModule)]
    return {
        "outputs": outputs.detach(),
        "sharded": sharded,
        "all parameters": all(isinstance(parameter, DTensor) for parameter in module.parameters()),
        "gradient of the head": _gradient(module.get_submodule(subject.head)),
    }


def _gradient(layer: torch.nn.Module) -> torch.Tensor:
    gradient = layer.weight.grad
    assert isinstance(gradient, DTensor)
    return gradient.full_tensor()
