"""Makes every operator of `torch.ops.onnx2nn` known; import it before torch loads a saved program that calls some.

torch finds an operator by its name when it reads a program. `onnx2nn.functional` makes each one known when it is first
called, for declaring all of them to torch takes 0.2 s, which an import of a model need not wait for.
"""

from __future__ import annotations

from onnx2nn import functional
from onnx2nn.optable.registry import load_rows, name_of

for _row in load_rows():
    if _row.custom_op:
        getattr(functional, name_of(_row))
