"""torchao's `quantize_` of the weights of linear layers to int4, in groups of 16."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make
from tests.ecosystem.subjects.subject import Subject
from tests.ecosystem.tools.quantization import quantized

TITLE = "int4 weights (torchao)"
PACKAGES = ("torchao",)


def use(make: Make, subject: Subject) -> Any:
    """Returns which layers are quantized, and the outputs with them."""
    import torch
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    return quantized(make(), subject, IntxWeightOnlyConfig(torch.int4, PerGroup(16)))
