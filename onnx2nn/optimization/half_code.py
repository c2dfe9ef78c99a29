"""Products of half precision in programs for machine code, computed in float32: where a processor has no kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from onnx2nn.optimization.half_products import HALF
from onnx2nn.optimization.packing import is_slow

_aten = torch.ops.aten

KINDS: dict[Any, type[nn.Conv2d | nn.Linear]] = {
    **dict.fromkeys(
        (
            *(_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default),
            *(_aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding),
            *(_aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input),
            _aten.convolution.default,
        ),
        nn.Conv2d,
    ),
    **dict.fromkeys(
        (
            *(_aten.linear.default, _aten.matmul.default, _aten.mm.default, _aten.bmm.default),
            *(_aten.addmm.default, _aten.baddbmm.default, _aten.einsum.default),
            _aten.scaled_dot_product_attention.default,
        ),
        nn.Linear,
    ),
}
"""Operators of an exported program that multiply, and the layer whose speed is measured for them."""


def compute_in_float32(graph: fx.Graph) -> None:
    """Lets the products of a graph of operators convert their operands to float32, and their results back.

    The result of a product is rounded once, as in `half_products`. Each product's node becomes its last conversion, so
    that outputs keep their names. Where the processor is fast in half precision, nothing changes.

    Args:
        graph: of an exported program.
    """
    for node in [node for node in graph.nodes if node.op == "call_function" and node.target in KINDS]:
        dtype = node.meta["val"].dtype
        kind: Any = KINDS[node.target]
        if dtype not in HALF or not is_slow(kind, dtype):
            continue
        with graph.inserting_before(node):
            product = graph.call_function(node.target, _widened(graph, node.args), _widened(graph, node.kwargs))
        product.meta["val"] = node.meta["val"].to(torch.float32)
        node.target, node.args, node.kwargs = _aten.to.dtype, (product, dtype), {}


def _widened(graph: fx.Graph, arguments: Any) -> Any:
    """Returns the arguments of a call with tensors of half precision converted."""

    def convert(given: fx.Node) -> fx.Node:
        value = given.meta["val"]
        if not isinstance(value, torch.Tensor) or value.dtype not in HALF:
            return given
        found = graph.call_function(_aten.to.dtype, (given, torch.float32))
        found.meta["val"] = value.to(torch.float32)
        return found

    return fx.map_arg(arguments, convert)
