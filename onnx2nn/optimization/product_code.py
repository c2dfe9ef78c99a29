"""Products of floats in programs that inductor compiles: of pixels, and small ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from onnx2nn.optimization.graph_calls import GraphCalls

_aten = torch.ops.aten
_CONVOLUTION = torch.ops.mkldnn._convolution_pointwise.default
_PRODUCT = torch.ops.mkldnn._linear_pointwise.default

SMALL = 1 << 19
"""Up to this number of multiplications torch's BLAS takes less time than oneDNN, which needs 10 us to find a kernel."""


def multiply_pixels(graph: fx.Graph) -> None:
    """Replaces convolutions with kernels of one element by products of pixels and weights.

    oneDNN's product takes about 8 us less than its convolution of the same numbers, and the order of its weights does
    not depend on the size of an image. It is a pass of inductor behind its freezing.

    Args:
        graph: of operators, whose weights are constants.
    """
    _replace_calls(graph, _CONVOLUTION, _pixels)


def _pixels(calls: GraphCalls, node: fx.Node) -> fx.Node | None:
    arguments: Any = node.args
    x, source, bias, padding, stride, _, groups, *activation = arguments
    weight, image = calls.constant(source), x.meta["val"]
    if weight is None or weight.dtype != torch.float32 or groups > 1 or image.ndim != 4:
        return None
    if max(stride) > 1 or any(padding) or math.prod(weight.shape[2:]) > 1:
        return None
    if not image.is_contiguous(memory_format=torch.channels_last):
        return None
    weight = (weight.to_dense() if weight.is_mkldnn else weight).flatten(1).contiguous()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    kept = calls.kept(f"weight_of_{node.name}", packed, weight)
    y = calls.call(_PRODUCT, calls.call(_aten.permute.default, x, [0, 2, 3, 1]), kept, bias, *activation)
    return calls.call(_aten.permute.default, y, [0, 3, 1, 2])


def multiply_small(graph: fx.Graph) -> None:
    """Replaces oneDNN's small products by torch's; what is small is told by the sizes of the example.

    It is a pass of inductor behind its freezing.

    Args:
        graph: of operators, whose weights are constants.
    """
    _replace_calls(graph, _PRODUCT, _small)


def _small(calls: GraphCalls, node: fx.Node) -> fx.Node | None:
    arguments: Any = node.args
    x, source, bias, activation, *_ = arguments
    weight, outer = calls.constant(source), x.meta["val"].shape[:-1]
    if weight is None or activation != "none" or x.meta["val"].dtype != torch.float32 or not is_small(outer, weight):
        return None
    weight = weight.to_dense() if weight.is_mkldnn else weight
    columns = calls.kept(f"columns_of_{node.name}", weight.t().contiguous())
    rows = calls.call(_aten.reshape.default, x, [-1, weight.shape[1]])
    if bias is None:
        y = calls.call(_aten.mm.default, rows, columns)
    else:
        y = calls.call(_aten.addmm.default, bias, rows, columns)
    return calls.call(_aten.reshape.default, y, [*calls.sizes(x, *range(len(outer))), weight.shape[0]])


def is_small(outer: Iterable[Any], weight: torch.Tensor) -> bool:
    """Returns whether torch's BLAS takes less time than oneDNN, at the example's sizes; not where data decide one.

    Args:
        outer: the sizes whose product is the number of rows.
        weight: the matrix, of any shape.
    """
    hints = [size if isinstance(size, int) else size.node.hint for size in outer]
    return None not in hints and math.prod(hints) * math.prod(weight.shape) <= SMALL


def _replace_calls(graph: fx.Graph, target: Any, product: Callable[[GraphCalls, fx.Node], fx.Node | None]) -> None:
    """Replaces calls by the products that a function writes; None leaves a call."""
    for node in graph.find_nodes(op="call_function", target=target):
        with graph.inserting_before(node):
            found = product(GraphCalls(graph), node)
        if found is not None:
            node.replace_all_uses_with(found)
            graph.erase_node(node)
