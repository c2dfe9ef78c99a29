"""Rounds the weights that a network rounds in each call."""

from __future__ import annotations

import torch
from torch import fx, nn

from onnx2nn.layers import FakeQuantize
from onnx2nn.optimization.chains import parts


def round_weights(root: nn.Module) -> None:
    """Holds what each `FakeQuantize` of a tree makes of a weight in the weight's place, and removes the layer."""
    for part in parts(root):
        if not isinstance(part, fx.GraphModule):
            continue
        rounded = [node for node in part.graph.nodes if _rounds(part, node)]
        for node in rounded:
            _hold(part, node)
        if rounded:
            part.recompile()


def _rounds(part: fx.GraphModule, node: fx.Node) -> bool:
    """Returns whether a node is the only reader of a weight, which it rounds."""
    if node.op != "call_module" or type(part.get_submodule(str(node.target))) is not FakeQuantize:
        return False
    (weight,) = node.args
    if not isinstance(weight, fx.Node) or weight.op != "get_attr":
        return False
    readers = (other for other in part.graph.nodes if other.op == "get_attr" and other.target == weight.target)
    return all(set(reader.users) == {node} for reader in readers)


def _hold(part: fx.GraphModule, node: fx.Node) -> None:
    (weight,) = node.args
    assert isinstance(weight, fx.Node)
    path, _, name = str(weight.target).rpartition(".")
    holder, layer = part.get_submodule(path), part.get_submodule(str(node.target))
    value = getattr(holder, name)
    with torch.no_grad():
        found = layer(value)
    setattr(holder, name, nn.Parameter(found, value.requires_grad) if isinstance(value, nn.Parameter) else found)
    node.replace_all_uses_with(weight)
    target = node.target
    part.graph.erase_node(node)
    if all(other.target != target for other in part.graph.nodes):
        part.delete_submodule(str(target))
