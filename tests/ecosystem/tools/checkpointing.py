"""Activation checkpointing of every block: calls of blocks are repeated and less is kept for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

from tests.ecosystem.observing import Make, block_of, outputs_and_gradient
from tests.ecosystem.subjects.subject import Subject

TITLE = "activation checkpointing of blocks"


def use(make: Make, subject: Subject) -> Any:
    """Returns how often each block runs, whether fewer bytes are kept, and the outputs and gradient."""
    module = make()
    before, _ = _kept_bytes(module, subject)
    blocks = {path: block_of(module, path) for path in subject.blocks}
    calls = dict.fromkeys(blocks, 0)
    for path, block in blocks.items():

        def count(*_: Any, path: str = path) -> None:
            calls[path] += 1

        block.register_forward_pre_hook(count)
    apply_activation_checkpointing(module, check_fn=lambda inner: any(inner is block for block in blocks.values()))
    after, seen = _kept_bytes(module, subject)
    return {"calls": calls, "fewer bytes kept": after < before, **seen}


def _kept_bytes(module: nn.Module, subject: Subject) -> tuple[int, dict[str, torch.Tensor]]:
    """Returns how many bytes a forward pass keeps for the backward pass, a storage once, and what a run gives."""
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        seen = outputs_and_gradient(module, subject)
    return sum(kept.values()), seen
