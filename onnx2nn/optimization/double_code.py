"""Convolutions of float64 in programs that inductor compiles, whose weights it must not pack."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_CONVOLUTION = torch.ops.aten.convolution.default


@torch.library.custom_op("onnx2nn::double_convolution", mutates_args=())
def double_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> torch.Tensor:
    """Returns `aten.convolution` of the same arguments."""
    return _CONVOLUTION(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@double_convolution.register_fake
def _(*arguments: Any) -> torch.Tensor:
    return _CONVOLUTION(*arguments)


_KEPT = torch.ops.onnx2nn.double_convolution.default


def keep_convolutions(graph: fx.Graph) -> None:
    """Keeps convolutions of float64 from inductor's freezing, by another name.

    It packs the weights of each type for oneDNN, which has no float64 and raises an error (torch 2.13). It is a pass of
    inductor before its freezing.

    Args:
        graph: of operators.
    """
    for node in graph.find_nodes(op="call_function", target=_CONVOLUTION):
        if node.meta["val"].dtype == torch.float64:
            node.target = _KEPT


def restore_convolutions(graph: fx.Graph) -> None:
    """Gives the convolutions of `keep_convolutions` their name again. It is a pass of inductor behind its freezing.

    Args:
        graph: of operators.
    """
    for node in graph.find_nodes(op="call_function", target=_KEPT):
        node.target = _CONVOLUTION
