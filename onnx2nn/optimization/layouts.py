"""The memory layout of weights, and what must not follow it."""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.nn import functional as F


class ContiguousGroupNorm(nn.GroupNorm):
    """An `nn.GroupNorm` on contiguous memory.

    torch's kernel for `channels_last` takes the variance as the mean of the squares less the square of the mean, which
    loses all digits where a group's mean is large beside its deviation.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns what `nn.GroupNorm` does, for `(N, C, *)`."""
        return super().forward(input.contiguous())


def hold_channels_last(root: nn.Module) -> None:
    """Holds the weights of 2-D convolutions as `channels_last`.

    The results of a convolution have the layout of its weights, so that all that follows works in it; torch's kernels
    for the CPU are faster there. A reshape copies where it has to.
    """
    for module in root.modules():
        if type(module) is nn.GroupNorm:
            module.__class__ = ContiguousGroupNorm  # the same layer wherever it stands, with its hooks
        if isinstance(module, fx.GraphModule):
            _normalise_contiguous(module)
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            with torch.no_grad():
                module.weight = nn.Parameter(
                    module.weight.contiguous(memory_format=torch.channels_last), requires_grad=False
                )


def _normalise_contiguous(part: fx.GraphModule) -> None:
    """Does for calls of `F.group_norm` what `ContiguousGroupNorm` does for layers."""
    calls = [node for node in part.graph.nodes if node.op == "call_function" and node.target is F.group_norm]
    for node in calls:
        with part.graph.inserting_before(node):
            contiguous = part.graph.call_method("contiguous", (node.args[0],))
        contiguous.meta.update({key: node.meta[key] for key in ("nn_module_stack",) if key in node.meta})
        node.update_arg(0, contiguous)
    if calls:
        part.recompile()
