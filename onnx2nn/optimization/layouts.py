"""The memory layout of weights."""

from __future__ import annotations

import torch
from torch import nn


def hold_channels_last(root: nn.Module) -> None:
    """Holds the weights of 2-D convolutions as `channels_last`.

    The results of a convolution have the layout of its weights, so that all that follows works in it; torch's kernels
    for the CPU are faster there. A reshape copies where it has to.
    """
    for module in root.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            with torch.no_grad():
                module.weight = nn.Parameter(
                    module.weight.contiguous(memory_format=torch.channels_last), requires_grad=False
                )
