"""PT2E quantisation (torchao): export, `prepare_pt2e`, calibration, `convert_pt2e`, for x86 processors."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.observing import Make, Rounded, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "PT2E quantisation (torchao)"
PACKAGES = ("torchao",)


def use(make: Make, subject: Subject) -> Any:
    """Returns how many weights are quantised, and the outputs."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    module = make()
    (exact,) = outputs_of(module, subject)
    program = torch.export.export(module, subject.inputs(2)).module()
    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(program, quantizer)
    outputs_of(prepared, subject)
    converted = convert_pt2e(prepared)
    (outputs,) = outputs_of(converted, subject)
    weights = sum("dequantize_per_channel" in str(node.target) for node in converted.graph.nodes)
    return {"weights": weights, "outputs": Rounded.beside(outputs, exact)}
