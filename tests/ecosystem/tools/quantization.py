"""torchao's `quantize_` of the weights of linear layers to int8."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "int8 weights (torchao)"


def use(make: Make, subject: Subject) -> Any:
    """Returns which layers are quantized, and the outputs with them."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    module = make()
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    quantize_(module, Int8WeightOnlyConfig())
    changed = [name for name in linear if type(module.get_submodule(name).weight) is not nn.Parameter]
    return {"layers": sorted(changed), "outputs": outputs_of(module, subject)}
