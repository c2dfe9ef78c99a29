"""Lets packed convolutions add what a program adds to their results."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.optimization.chains import Calls, parts
from onnx2nn.optimization.packed_layers import PackedConv2d

_SUMS = (operator.add, torch.add)


def fuse_sums(root: nn.Module) -> None:
    """Replaces sums of two tensors by calls of the packed convolution that makes one of them for the sum alone."""
    calls = Calls(root)
    for part in parts(root):
        if isinstance(part, fx.GraphModule):
            fused = [_fuse(part, node, calls) for node in list(part.graph.nodes) if node.target in _SUMS]
            if any(fused):
                part.recompile()


def _fuse(part: fx.GraphModule, node: fx.Node, calls: Calls) -> bool:
    if len(node.args) != 2 or node.kwargs or not all(isinstance(arg, fx.Node) for arg in node.args):
        return False
    for source, other in (node.args[::-1], node.args):
        if _is_for(source, part, calls):
            _replace(node, source, other)
            return True
    return False


def _is_for(source: Any, part: fx.GraphModule, calls: Calls) -> bool:
    """Returns whether a call of a packed convolution has its result for one reader, and takes a sum."""
    if source.op != "call_module" or len(source.users) != 1 or len(source.args) != 1 or source.kwargs:
        return False
    layer = part.get_submodule(str(source.target))
    return type(layer) is PackedConv2d and layer.activation is None and calls[layer] == 1


def _replace(node: fx.Node, source: Any, other: Any) -> None:
    with node.graph.inserting_before(node):
        call = node.graph.call_module(str(source.target), (source.args[0], other))
    call.meta.update(node.meta)
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)
    node.graph.erase_node(source)
