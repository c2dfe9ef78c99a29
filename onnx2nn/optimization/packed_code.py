"""Packs the weights of convolutions in programs that inductor compiles for dynamic sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from onnx2nn.optimization.graph_calls import GraphCalls

_CONVOLUTION = torch.ops.mkldnn._convolution_pointwise.default

_BATCH = 1


def pack_convolutions(graph: fx.Graph) -> None:
    """Replaces the weights of convolutions by packed ones where the batch alone is dynamic.

    It is a pass of inductor behind its freezing, which packs them for fixed sizes alone, and else leaves that to each
    call. The order in which oneDNN reads a weight depends on the size of an image, not on the number of images; a
    weight in another order is reordered in each call. Images of dynamic sizes keep the plain weight for that reason: to
    reorder a packed one may take longer than the convolution.

    Args:
        graph: of operators, whose weights are constants.
    """
    known: dict[tuple[Any, ...], tuple[str, torch.Tensor]] = {}
    for node in graph.find_nodes(op="call_function", target=_CONVOLUTION):
        image, weight = node.args[:2]
        if weight.op != "get_attr" or not _has_dynamic_batch(image.meta["val"].shape):
            continue
        calls = GraphCalls(graph)
        plain = calls.constant(weight)
        if plain is None or plain.is_mkldnn or plain.dtype != torch.float32:
            continue
        settings = (weight.target, *map(str, node.args[3:7]), image.meta["val"].shape[1:])
        if settings not in known:
            sizes = [_BATCH, *image.meta["val"].shape[1:]]
            packed = torch.ops.mkldnn._reorder_convolution_weight(plain, *node.args[3:7], sizes)
            known[settings] = f"weight_of_{node.name}", packed
        with graph.inserting_before(node):
            node.update_arg(1, calls.kept(*known[settings], plain))


def _has_dynamic_batch(sizes: Sequence[int | torch.SymInt]) -> bool:
    """Returns whether the first size alone varies.

    An image of one channel or one pixel has both layouts, contiguous and `channels_last`: inductor expects a contiguous
    result of a plain weight, and the packed one gives none.
    """
    batch, *image = sizes
    fixed = all(isinstance(size, int) for size in image)
    return isinstance(batch, torch.SymInt) and fixed and image[0] != 1 and any(size != 1 for size in image[1:])
