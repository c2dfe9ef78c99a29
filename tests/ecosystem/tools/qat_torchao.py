"""Quantisation aware training (torchao): `QATConfig` prepares linear layers, a step is trained, then converted."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, number_of, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "quantisation aware training (torchao)"
PACKAGES = ("torchao",)


def use(make: Make, subject: Subject) -> Any:
    """Returns which layers round while they train, the head's gradient, and the outputs after conversion."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerGroup, quantize_
    from torchao.quantization.qat import QATConfig

    module = make()
    base = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(16))
    quantize_(module, QATConfig(base, step="prepare"))
    layers = [name for name, layer in module.named_modules() if type(layer).__name__ == "FakeQuantizedLinear"]
    optimizer = torch.optim.SGD(module.get_submodule(subject.head).parameters(), 1e-3)
    trained = module(*subject.inputs(2))
    number_of(trained).backward()
    gradient = module.get_submodule(subject.head).weight.grad.clone()
    optimizer.step()
    quantize_(module, QATConfig(base, step="convert"))
    outputs = outputs_of(module, subject)
    return {"layers": layers, "trained": trained.detach(), "gradient": gradient, "outputs": outputs}
