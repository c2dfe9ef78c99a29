"""`DistributedDataParallel` on two ranks, each with an image or text of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.ecosystem.observing import Make, number_of, outputs_of
from tests.ecosystem.subjects.subject import Subject
from tests.ranks import RANKS, on_ranks

TITLE = "DDP, 2 ranks"


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs before and after a step of training the head, and the mean gradient of the head."""
    return on_ranks(_train, make, subject, preload="tests.ecosystem.subjects.language_models")[0]


def _train(rank: int, make: Make, subject: Subject) -> Any:
    module = DistributedDataParallel(make())
    head = module.module.get_submodule(subject.head)
    optimizer = torch.optim.SGD(head.parameters(), 1e-2)  # the others may hold a folded norm
    outputs = module(*(x[rank : rank + 1] for x in subject.inputs(RANKS)))
    number_of(outputs).backward()
    gradient = head.weight.grad.clone()
    optimizer.step()
    return {"outputs": outputs.detach(), "gradient": gradient, "after": outputs_of(module, subject)}
