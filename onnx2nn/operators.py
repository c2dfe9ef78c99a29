"""Registers every operator of `torch.ops.onnx2nn`; import it before torch loads a saved program that calls one.

torch looks an operator up by its name when it reads a program. `onnx2nn.functional` registers each operator at its
first use only, as registering all of them takes 0.2 s, too long for the import of a model.
"""

from __future__ import annotations

from onnx2nn import functional
from onnx2nn.optable.registry import TABLE, name_of

for _row in TABLE:
    if _row.custom_op:
        getattr(functional, name_of(_row))
