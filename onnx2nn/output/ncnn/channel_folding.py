"""Folds multiplications and additions by channel into the layer before them: one layer of NCNN instead of three.

Keras's files hold batch normalisation as a multiplication and an addition behind the convolution. The module for NCNN
is a copy that is compared afterwards, so that moving factors into its weights is a matter of rounding alone.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import fx, nn

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_MULTIPLY = {operator.mul, torch.mul, "mul"}
_ADD = {operator.add, torch.add, "add"}


def fold_channels(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy in which multiplications and additions by channel constants are part of the layer before them."""
    result = fx.GraphModule(copy.deepcopy(module), copy.deepcopy(module.graph))
    for node in list(result.graph.nodes):
        layer, constant = _folded(result, node)
        if layer is None or constant is None:
            continue
        name = str(layer.target)
        parent, _, leaf = name.rpartition(".")
        changed = _changed(result.get_submodule(name), constant, node.target in _MULTIPLY)
        setattr(result.get_submodule(parent), leaf, changed)
        node.replace_all_uses_with(layer)
        result.graph.erase_node(node)
    result.graph.eliminate_dead_code()
    result.recompile()
    return result


def _folded(module: fx.GraphModule, node: fx.Node) -> tuple[fx.Node | None, torch.Tensor | None]:
    """Returns the layer and one number for each channel, if `node` only scales or shifts the channels of a layer."""
    if node.op not in ("call_function", "call_method") or node.target not in _MULTIPLY | _ADD or node.kwargs:
        return None, None
    for layer, other in (node.args, node.args[::-1]):
        if not isinstance(layer, fx.Node) or layer.op != "call_module" or len(layer.users) != 1:
            continue
        found = module.get_submodule(str(layer.target))
        if type(found) not in _LAYERS or _uses(module, str(layer.target)) != 1:
            continue
        value = _constant(module, other)
        numbers = None if value is None else _by_channel(found, value)
        if numbers is not None:
            return layer, numbers
    return None, None


def _uses(module: fx.GraphModule, target: str) -> int:
    """Returns the number of layers that hold the weight of `target`: a change must not reach another layer."""
    weight = module.get_submodule(target).weight
    names = [name for name, value in module.named_parameters(remove_duplicate=False) if value is weight]
    calls = [node for node in module.graph.nodes if node.op == "call_module" and node.target == target]
    return max(len(names), len(calls))


def _constant(module: fx.GraphModule, value: Any) -> torch.Tensor | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return torch.tensor(float(value))
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return None
    owner, _, leaf = str(value.target).rpartition(".")
    tensor = getattr(module.get_submodule(owner), leaf)
    return tensor.detach() if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32 else None


def _by_channel(layer: Any, constant: torch.Tensor) -> torch.Tensor | None:
    """Returns one number for each channel, None where `constant` varies along another axis or adds an axis."""
    channels = layer.weight.shape[0]
    if constant.numel() == 1 and constant.ndim <= 1:
        return constant.reshape(1).expand(channels)
    if isinstance(layer, nn.Linear):
        return constant if constant.shape == (channels,) else None
    spatial = layer.weight.ndim - 2
    shape = constant.shape[1:] if constant.ndim == spatial + 2 and constant.shape[0] == 1 else constant.shape
    return constant.reshape(-1) if tuple(shape) == (channels, *(1,) * spatial) else None


def _changed(layer: Any, numbers: torch.Tensor, multiply: bool) -> nn.Module:
    result = copy.deepcopy(layer, {id(parameter): parameter for parameter in layer.parameters()})  # shares weights
    weight, numbers = layer.weight.detach().double(), numbers.double()
    bias = torch.zeros(len(weight)).double() if layer.bias is None else layer.bias.detach().double()
    if multiply:
        weight = weight * numbers.reshape(-1, *(1,) * (weight.ndim - 1))
    result.weight = nn.Parameter(weight.float(), requires_grad=False)
    result.bias = nn.Parameter((bias * numbers if multiply else bias + numbers).float(), requires_grad=False)
    return result  # type: ignore[no-any-return]
