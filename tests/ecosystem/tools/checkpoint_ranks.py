"""`torch.distributed.checkpoint`: saved by two ranks with FSDP2, loaded by one process."""

from __future__ import annotations

import tempfile
from typing import Any

from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.ecosystem.observing import Make, emptied, outputs_of
from tests.ecosystem.subjects.subject import Subject
from tests.ranks import RANKS, on_ranks

TITLE = "DCP, 2 ranks to 1"


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs with the weights of the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        on_ranks(_save, folder, make, subject, preload="tests.ecosystem.subjects.language_models")
        module = emptied(make())
        state = module.state_dict()
        checkpoint.load(state, checkpoint_id=folder)
        module.load_state_dict(state)
    return outputs_of(module, subject)


def _save(_: int, folder: str, make: Make, subject: Subject) -> None:
    module = make()
    mesh = init_device_mesh("cpu", (RANKS,))
    for path in subject.blocks:
        fully_shard(module.get_submodule(path), mesh=mesh)
    fully_shard(module, mesh=mesh)
    checkpoint.save(module.state_dict(), checkpoint_id=folder)
