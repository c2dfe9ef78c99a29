"""A module that `torch.compile` wraps, whose weights are constants of its code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Frozen(nn.Module):
    """Calls what `torch.compile` gives such that weights are folded and packed into the code.

    Inductor freezes where its own setting and the gradients' one say so while Dynamo traces, at a first call and for
    other sizes. Options of `torch.compile` are applied behind Dynamo, which by then has made inputs of the weights.

    Args:
        program: what `torch.compile` gives.
        module: what was compiled.

    Attributes:
        module: as given; its weights are read once.
        meta: the record of the ONNX file, as the imported module has it.
    """

    def __init__(self, program: Any, module: nn.Module):
        super().__init__()
        self.module, self.meta = module, module.meta
        self._program = [program]  # in a list: it is no module of its own, but the same weights
        super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the module's outputs, without gradients."""
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            return self._program[0](*args, **kwargs)

    def train(self, mode: bool = True) -> Frozen:
        """Refuses `mode=True`: the weights are constants of the code.

        Raises:
            RuntimeError: for `mode=True`.
        """
        if mode:
            raise RuntimeError("A compiled module cannot be trained. Train the module of onnx2nn.load.")
        return super().train(mode)
