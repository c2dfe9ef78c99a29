"""Quantisation aware training (torchao): `QATConfig` prepares linear layers, a step is trained, then converted."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, Rounded, number_of, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "quantisation aware training (torchao)"
PACKAGES = ("torchao",)


def use(make: Make, subject: Subject) -> Any:
    """Returns which layers round while they train, the head's gradient, and the outputs after conversion."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerGroup, quantize_
    from torchao.quantization.qat import QATConfig

    module = make()
    floats = {**_outputs(module, subject), **_trained(module, subject)}
    module.zero_grad()
    base = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(16))
    quantize_(module, QATConfig(base, step="prepare"))
    layers = [name for name, layer in module.named_modules() if type(layer).__name__ == "FakeQuantizedLinear"]
    optimizer = torch.optim.SGD(module.get_submodule(subject.head).parameters(), 1e-3)
    found: dict[str, Any] = _trained(module, subject)
    optimizer.step()
    quantize_(module, QATConfig(base, step="convert"))
    found |= _outputs(module, subject)
    if layers:  # the processor's order of a sum decides which step is nearer
        found = {key: Rounded.beside(value, floats[key]) for key, value in found.items()}
    return {"layers": layers, **found}


def _outputs(module: torch.nn.Module, subject: Subject) -> dict[str, torch.Tensor]:
    return {f"output {index}": output for index, output in enumerate(outputs_of(module, subject))}


def _trained(module: torch.nn.Module, subject: Subject) -> dict[str, torch.Tensor]:
    """Returns what a module gives, and the gradient of its head."""
    trained = module(*subject.inputs(2))
    number_of(trained).backward()
    return {"trained": trained.detach(), "gradient": module.get_submodule(subject.head).weight.grad.clone()}
