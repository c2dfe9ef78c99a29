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


class FakeQuantize(nn.Module):
    """Rounds numbers to those that small integers with a scale stand for.

    It computes ONNX's QuantizeLinear and DequantizeLinear to the last bit: halves are
    rounded to even numbers, NaN becomes the smallest number.
    `torch.fake_quantize_per_tensor_affine` multiplies by the reciprocal of the scale,
    which rounds some numbers otherwise. As there, the gradient passes the rounding
    unchanged and is 0 for numbers out of range, so that a network with such layers can
    be trained. The buffers have the names of those in
    `torch.ao.quantization.FakeQuantize`.

    Args:
        quant_min: the smallest integer.
        quant_max: the largest integer.
        axis: the dimension along which there are several scales; None: there is one.
        channels: the number of scales; None: the scale is 0-D.
        persistent: whether the buffers are in state_dict, as those of a training are.
        device: of the buffers.
        dtype: of the scale.
    """

    class _Rounded(torch.autograd.Function):
        """Rounds halves to even numbers; the gradient is that of the identity."""

        generate_vmap_rule = True

        @staticmethod
        def forward(levels: torch.Tensor) -> torch.Tensor:
            return torch.round(levels)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    def __init__(
        self,
        quant_min: int,
        quant_max: int,
        axis: int | None = None,
        channels: int | None = None,
        persistent: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.quant_min, self.quant_max = quant_min, quant_max
        self.axis, self.channels, self.persistent = axis, channels, persistent
        shape = () if channels is None else (channels,)
        scale = torch.ones(shape, device=device, dtype=dtype)
        zero_point = torch.zeros(shape, device=device, dtype=torch.int32)
        self.scale: torch.Tensor
        self.zero_point: torch.Tensor
        self.register_buffer("scale", scale, persistent=persistent)
        self.register_buffer("zero_point", zero_point, persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the nearest numbers, of the shape and the float type of `x`."""
        scale = self.scale
        zero_point = self.zero_point.to(scale.dtype)
        levels = (x if self.axis is None else x.movedim(self.axis, -1)) / scale
        if torch.jit.is_scripting():
            levels = levels.round_()
        elif isinstance(levels, torch.Tensor) and levels.requires_grad:
            levels = self._Rounded.apply(levels)
        else:
            levels = levels.round_()
        shifted = levels.add_(zero_point)  # also of 0: -0.0 becomes 0.0
        shifted = shifted.nan_to_num_(nan=float(self.quant_min))
        shifted = shifted.clamp_(self.quant_min, self.quant_max)
        found = shifted.sub_(zero_point).mul_(scale)
        return found if self.axis is None else found.movedim(-1, self.axis)

    def extra_repr(self) -> str:
        """Returns the arguments, for `print`."""
        limits = f"quant_min={self.quant_min}, quant_max={self.quant_max}"
        one = f", channels={self.channels}" if self.channels is not None else ""
        return limits + (f", axis={self.axis}" if self.axis is not None else "") + one


LAYERS: tuple[type[nn.Module], ...] = (Conv1D, FakeQuantize)
"""All layers."""
