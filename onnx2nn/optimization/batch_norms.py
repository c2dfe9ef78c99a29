"""Folds batch norms into the convolutions and linear layers before them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from onnx2nn.fx.blocks.extended_layers import ExtendedLayer, behind
from onnx2nn.optimization.chains import Calls, Link, links, parts
from onnx2nn.optimization.extended import open_convolutions

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_FOLDING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_batch_norms(root: nn.Module) -> None:
    """Folds the batch norms of a tree in evaluation mode; they are removed from it, or become `nn.Identity`.

    Of one that its author extended, what is behind it stays; convolutions that he extended are opened before.

    Law: a batch norm with fixed statistics is a product and a sum for each channel, as is the layer's weight and bias.
    """
    open_convolutions(root)
    calls = Calls(root)
    for part in parts(root):
        folded = [link for link in links(part) if _folds(link, calls)]
        for link in folded:
            _fold(link)
        if folded and isinstance(part, fx.GraphModule):
            part.recompile()


def without_batch_norms(module: nn.Module) -> nn.Module:
    """Returns a copy whose batch norms are folded; it shares the weights of all other layers with the module."""
    if not any(isinstance(layer, _BATCH_NORMS) for layer in module.modules()):
        return module
    shared = {id(value): value for value in (*module.parameters(), *module.buffers())}
    copied = copy.deepcopy(module, shared)
    fold_batch_norms(copied)
    return copied


def _folds(link: Link, calls: Calls) -> bool:
    before, layer = link.before, link.layer
    if not isinstance(layer, _BATCH_NORMS) or layer.running_mean is None or before is None:
        return False
    if type(before) not in _FOLDING or calls[before] > 1 or calls[layer] > 1:
        return False
    if type(before) is nn.Linear:  # a batch norm of three dimensions has its channels at the second one
        return isinstance(layer, nn.BatchNorm1d) and _is_flat(link)
    return True


def _is_flat(link: Link) -> bool:
    source: Any = None if link.node is None else link.node.args[0]
    value = None if source is None else source.meta.get("val")
    return value is not None and value.ndim == 2


def _fold(link: Link) -> None:
    before, norm = link.before, link.layer
    assert isinstance(before, _FOLDING) and isinstance(norm, _BATCH_NORMS)
    assert norm.running_mean is not None and norm.running_var is not None
    weight, bias = fuse_conv_bn_weights(
        _by_output(before, before.weight),
        before.bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        norm.weight,
        norm.bias,
    )
    before.weight = nn.Parameter(_by_output(before, weight.detach()), requires_grad=False)
    before.bias = nn.Parameter(bias.detach(), requires_grad=False)
    if isinstance(norm, ExtendedLayer):
        link.part.set_submodule(link.name, behind(norm))
        return
    if link.node is None:
        setattr(link.part, link.name, nn.Identity())
        return
    link.node.replace_all_uses_with(link.node.args[0])  # type: ignore[arg-type]  # the input is a node
    link.node.graph.erase_node(link.node)
    around, _, name = link.name.rpartition(".")
    delattr(link.part.get_submodule(around), name)


def _by_output(layer: nn.Module, weight: torch.Tensor) -> torch.Tensor:
    """Returns the weight of a layer with the channels of its output first, and such a weight in the layer's own order.

    A transposed convolution has those of the input first, and second those of one group of the output. Both orders
    come from each other by the same exchange, group by group.
    """
    if not isinstance(layer, _TRANSPOSED):
        return weight
    return weight.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1).contiguous()
