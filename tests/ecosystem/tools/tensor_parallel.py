"""`parallelize_module` on two ranks: layers split by output features, then by input features."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject
from tests.ranks import RANKS, on_ranks

TITLE = "tensor parallel, 2 ranks"


def applies(subject: Subject) -> bool:
    """Whether the model has linear layers to split."""
    return bool(subject.columns)


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs and which parameters are split."""
    return on_ranks(_split, make, subject, preload="tests.ecosystem.subjects.language_models")[0]


def _split(_: int, make: Make, subject: Subject) -> Any:
    module = make()
    columns = ColwiseParallel() if subject.rows else ColwiseParallel(output_layouts=Replicate())
    plan = {**dict.fromkeys(subject.columns, columns), **dict.fromkeys(subject.rows, RowwiseParallel())}
    parallelize_module(module, init_device_mesh("cpu", (RANKS,)), plan)
    layers = (*subject.columns, *subject.rows)
    split = {path: isinstance(module.get_submodule(path).weight, DTensor) for path in layers}
    return {"split": split, "outputs": outputs_of(module, subject)}
