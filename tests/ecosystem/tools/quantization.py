"""torchao's `quantize_` of the weights of linear layers to int8."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "int8 weights (torchao)"
PACKAGES = ("torchao",)


def use(make: Make, subject: Subject) -> Any:
    """Returns which layers are quantized, and the outputs with them."""
    from torchao.quantization import Int8WeightOnlyConfig

    return quantized(make(), subject, Int8WeightOnlyConfig())


def quantized(module: nn.Module, subject: Subject, config: Any) -> Any:
    """Returns which layers torchao's `quantize_` changes, and the outputs with them."""
    from torchao.quantization import quantize_

    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    quantize_(module, config)
    changed = [name for name in linear if type(module.get_submodule(name).weight) is not nn.Parameter]
    return {"layers": sorted(changed), "outputs": outputs_of(module, subject)}
