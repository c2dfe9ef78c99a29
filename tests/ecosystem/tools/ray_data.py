"""Ray Data's `map_batches` with an actor that holds the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.ecosystem.observing import Make
from tests.ecosystem.subjects.subject import Subject

TITLE = "actor of `map_batches` (Ray Data)"
PACKAGES = ("ray",)
HELD = True


class Predicting:
    """What users write around a model.

    Args:
        module: sent to the actor.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of a batch, whose columns are the model's inputs."""
        with torch.no_grad():
            outputs = self.module(*(torch.from_numpy(batch[name]) for name in sorted(batch)))
        return {"outputs": outputs.numpy()}


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of four rows, two a batch."""
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    columns = {f"{index}": x.numpy() for index, x in enumerate(subject.inputs(4))}
    rows = ray.data.from_items([{name: x[row] for name, x in columns.items()} for row in range(4)])
    predicted = rows.map_batches(Predicting, fn_constructor_args=(make(),), batch_size=2, concurrency=1)
    return torch.from_numpy(np.stack([row["outputs"] for row in predicted.take_all()]))
