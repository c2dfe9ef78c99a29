"""FX graph mode quantisation: `prepare_fx`, calibration, `convert_fx`."""

from __future__ import annotations

from typing import Any

import torch
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

from tests.ecosystem.observing import Make, Rounded, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "FX graph mode quantisation"


def use(make: Make, subject: Subject) -> Any:
    """Returns the quantised layers and the outputs."""
    torch.backends.quantized.engine = "x86"
    module = make()
    (exact,) = outputs_of(module, subject)
    prepared = prepare_fx(module, get_default_qconfig_mapping("x86"), subject.inputs(2))
    outputs_of(prepared, subject)
    converted = convert_fx(prepared)
    kinds = {name: type(layer).__name__ for name, layer in converted.named_modules() if hasattr(layer, "scale")}
    (outputs,) = outputs_of(converted, subject)
    return {"layers": kinds, "outputs": Rounded.beside(outputs, exact)}
