"""PEFT's LoRA on linear layers, GPT-2's Conv1D and a convolution; ours is registered as a linear layer."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import nn

from onnx2nn.layers import Conv1D
from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "LoRA (PEFT)"
PACKAGES = ("peft",)


def use(make: Make, subject: Subject) -> Any:
    """Returns which layers are adapted, and the outputs with the adapters, before and after they are merged."""
    return adapted(make(), subject)


def adapted(module: nn.Module, subject: Subject, **options: Any) -> Any:
    """Returns which layers get adapters, and the outputs with them, before and after they are merged.

    Args:
        module: gets the adapters.
        subject: tells on which layers.
        options: of PEFT's `LoraConfig`.
    """
    from peft import LoraConfig, get_peft_model
    from peft.tuners import lora

    config = LoraConfig(r=2, target_modules=list(subject.adapted), **options)
    if any(isinstance(layer, Conv1D) for layer in module.modules()):
        config.fan_in_fan_out = True  # PEFT sets it for the Conv1D of transformers
        config._register_custom_module({Conv1D: lora.Linear})
    model = get_peft_model(module, config)
    adapters = {name: x for name, x in model.named_parameters() if "lora_" in name}
    for name, parameter in adapters.items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        with torch.no_grad():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    seen = {"adapters": sorted(adapters), "outputs": outputs_of(model, subject)}
    return {**seen, "merged": outputs_of(model.merge_and_unload(), subject)}
