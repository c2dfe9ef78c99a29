"""OpenVINO's `convert_model` of the module, compiled for the processor."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make
from tests.ecosystem.subjects.subject import Subject

TITLE = "`convert_model` (OpenVINO)"
PACKAGES = ("openvino",)
HELD = True


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs at two batch sizes."""
    import openvino

    inputs = subject.inputs(2)
    converted = openvino.convert_model(make(), example_input=inputs)
    compiled = openvino.compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = [compiled([x.numpy() for x in subject.inputs(batch)])[0] for batch in (2, 3)]
    return [torch.from_numpy(x) for x in found]
