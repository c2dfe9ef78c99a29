"""`torch.distributed.pipelining.pipeline` with a `SplitPoint` before every block but the first."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import SplitPoint, pipeline

from tests.ecosystem.observing import Make, outputs_of, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "pipeline stages by `SplitPoint`"


def use(make: Make, subject: Subject) -> Any:
    """Returns the number of stages, and the outputs of all of them one after the other."""
    points = dict.fromkeys(subject.blocks[1:] or subject.blocks, SplitPoint.BEGINNING)
    pipe = pipeline(make(), subject.inputs(2), split_spec=points)
    return {"stages": pipe.num_stages, "outputs": outputs_of(lambda *inputs: tensors(pipe(*inputs)), subject)}
