"""Calls of nn.MultiheadAttention as the calls that they make.

The layer is recognised by names, which the file that is paired with the module has lost.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx, nn
from torch.nn import functional as F


def write_out_attention(module: fx.GraphModule) -> fx.GraphModule:
    """Replaces self-attention without masks by its projections and the attention between them, in place.

    Returns:
        The module, whose state keeps its keys.
    """
    for node in list(module.graph.nodes):
        layer: Any = module.get_submodule(node.target) if node.op == "call_module" else None
        if isinstance(layer, nn.MultiheadAttention) and _is_plain(layer, node):
            with module.graph.inserting_before(node):
                written = _written_out(layer, node)
            for result in list(node.users):
                result.replace_all_uses_with(written)
                module.graph.erase_node(result)
            module.graph.erase_node(node)
    module.recompile()
    return module


def _is_plain(layer: nn.MultiheadAttention, node: fx.Node) -> bool:
    """Returns whether query, key and value are one tensor, and nothing but the output is read."""
    packed = layer.in_proj_weight is not None and layer.bias_k is None and not layer.add_zero_attn
    same = len(node.args) == 3 and len(set(node.args)) == 1 and set(node.kwargs) <= {"need_weights"}
    return packed and same and all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)


def _written_out(layer: nn.MultiheadAttention, node: fx.Node) -> fx.Node:
    """Writes the calls of `F.multi_head_attention_forward`, in its layout: (steps, batch, features)."""
    graph, path = node.graph, str(node.target)

    def weight(key: str, held: Any) -> fx.Node | None:
        return graph.get_attr(f"{path}.{key}") if held is not None else None

    x = graph.call_method("transpose", (node.args[0], 0, 1)) if layer.batch_first else node.args[0]
    inner = weight("in_proj_weight", layer.in_proj_weight), weight("in_proj_bias", layer.in_proj_bias)
    packed = graph.call_function(F.linear, (x, *inner))
    split = graph.call_method("unflatten", (packed, -1, (3, layer.num_heads, layer.head_dim)))
    heads = graph.call_method("permute", (split, 2, 1, 3, 0, 4))
    rows = [graph.call_function(operator.getitem, (heads, index)) for index in range(3)]
    mixed = graph.call_function(F.scaled_dot_product_attention, tuple(rows))
    joined = graph.call_method("flatten", (graph.call_method("permute", (mixed, 2, 0, 1, 3)), 2))
    outer = weight("out_proj.weight", layer.out_proj.weight), weight("out_proj.bias", layer.out_proj.bias)
    result = graph.call_function(F.linear, (joined, *outer))
    return graph.call_method("transpose", (result, 0, 1)) if layer.batch_first else result
