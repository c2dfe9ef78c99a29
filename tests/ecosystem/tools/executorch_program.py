"""ExecuTorch: exported, lowered to XNNPACK, run by its own runtime."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "`to_edge_transform_and_lower` (ExecuTorch)"
PACKAGES = ("executorch",)
HELD = True


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of the program's runtime."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    inputs = subject.inputs(2)
    program = torch.export.export(make(), inputs)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    method = Runtime.get().load_program(lowered.buffer).load_method("forward")
    return tensors(method.execute(inputs))
