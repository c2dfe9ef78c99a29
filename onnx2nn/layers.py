"""Layers of imported modules that torch.nn lacks.

`output.python_source` copies their text into generated files: they import torch only
and have lines of 88 columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Conv1D(nn.Module):
    """A linear layer whose weight is stored as `(inputs, outputs)`, as in GPT-2.

    Its parameters are those of `transformers.pytorch_utils.Conv1D`, and it computes the
    same: `x @ weight + bias`.

    Args:
        nf: the number of output features.
        nx: the number of input features.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(self, nf: int, nx: int, device: Any = None, dtype: Any = None):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.empty(nx, nf, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(nf, device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def in_features(self) -> int:
        """The number of input features."""
        return self.nx

    @property
    def out_features(self) -> int:
        """The number of output features."""
        return self.nf

    def reset_parameters(self) -> None:
        """Draws the weight from a normal distribution; the bias is 0."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `(..., nf)` for an input `(..., nx)` of the weight's dtype.

        The input has two dimensions or more.

        Raises:
            RuntimeError: the sizes or dtypes do not fit.
        """
        rows = torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight)
        return rows.unflatten(0, x.shape[:-1])

    def extra_repr(self) -> str:
        """Returns the arguments, for `print`."""
        return f"nf={self.nf}, nx={self.nx}"


LAYERS: tuple[type[nn.Module], ...] = (Conv1D,)
"""All layers."""
