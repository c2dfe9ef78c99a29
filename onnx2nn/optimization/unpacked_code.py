"""Convolutions whose weights must not be packed for oneDNN, by layers and in programs that inductor compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from onnx2nn.optimization.scaled_code import FOLDED


def skips_rows(weight: torch.Tensor, stride: Sequence[int]) -> bool:
    """Returns whether a convolution of one channel leaves out rows of its input, `stride` being larger than the kernel.

    With packed weights, oneDNN's kernel for them writes outside of its memory (torch 2.13: kernels of one row and
    strides from 3 on, AVX512), and the process ends. With plain weights, torch takes another kernel.

    Args:
        weight: `(channels, channels of a group, *kernel)`.
        stride: of each dimension of the kernel.
    """
    return weight.shape[1] == 1 and any(step > size for step, size in zip(stride, weight.shape[2:], strict=True))


_CONVOLUTION = torch.ops.aten.convolution.default


@torch.library.custom_op("onnx2nn::unpacked_convolution", mutates_args=())
def unpacked_convolution(
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


@unpacked_convolution.register_fake
def _(*arguments: Any) -> torch.Tensor:
    return _CONVOLUTION(*arguments)


_KEPT = torch.ops.onnx2nn.unpacked_convolution.default


def keep_convolutions(graph: fx.Graph) -> None:
    """Keeps some convolutions from inductor's freezing, by another name: it packs and folds their weights wrongly.

    Those of float64, as oneDNN has none and raises an error; those that `skips_rows` names; and transposed ones whose
    result is multiplied or added to: it folds numbers for the channels of the output into those of the input, which
    stand first in such weights (torch 2.13; an error, or wrong numbers where there are as many). It is a pass of
    inductor before its freezing.

    Args:
        graph: of operators.
    """
    for node in graph.find_nodes(op="call_function", target=_CONVOLUTION):
        weight, stride, is_transposed = node.args[1].meta["val"], node.args[3], node.args[6]
        wrong = any(user.target in FOLDED for user in node.users) if is_transposed else skips_rows(weight, stride)
        if weight.dtype == torch.float64 or wrong:
            node.target = _KEPT


def restore_convolutions(graph: fx.Graph) -> None:
    """Gives the convolutions of `keep_convolutions` their name again. It is a pass of inductor behind its freezing.

    Args:
        graph: of operators.
    """
    for node in graph.find_nodes(op="call_function", target=_KEPT):
        node.target = _CONVOLUTION
