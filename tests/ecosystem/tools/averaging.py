"""`torch.optim.swa_utils.AveragedModel`: moving averages of the weights while the head is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.ecosystem.observing import Make, number_of, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "averages of weights (`swa_utils`)"


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs with the averages and with the weights, after two steps."""
    module = make()
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    optimizer = torch.optim.SGD(module.get_submodule(subject.head).parameters(), lr=0.01)
    for _ in range(2):
        number_of(module(*subject.inputs(2))).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(module)
    return {"averages": outputs_of(averaged, subject), "weights": outputs_of(module, subject)}
