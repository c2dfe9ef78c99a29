"""coremltools' `convert` of an exported or traced module to an ML program; only macOS can run it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch

from tests.ecosystem.observing import Make
from tests.ecosystem.subjects.subject import Subject

TITLE = "`convert` (coremltools)"
PACKAGES = ("coremltools",)
HELD = True


def use(make: Make, subject: Subject) -> Any:
    """Returns the shapes of the outputs, and how many convolutions and linear layers the ML program has."""
    import coremltools

    inputs = subject.inputs(2)
    if subject.embedding:  # coremltools has no LSTM of torch.export; a trace of ViT fails in torch
        types = [coremltools.TensorType(shape=x.shape, dtype=np.int32) for x in inputs]
        model = coremltools.convert(torch.jit.trace(make(), inputs), inputs=types, skip_model_load=True)
    else:
        program = torch.export.export(make(), inputs).run_decompositions({})
        model = coremltools.convert(program, skip_model_load=True)
    specification = model.get_spec()
    (block,) = specification.mlProgram.functions["main"].block_specializations.values()
    counts = Counter(operation.type for operation in block.operations)
    shapes = [list(output.type.multiArrayType.shape) for output in specification.description.output]
    return {"outputs": shapes, "layers": {name: counts[name] for name in ("conv", "linear")}}
