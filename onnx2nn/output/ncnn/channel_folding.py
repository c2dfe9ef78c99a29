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

from onnx2nn.output.ncnn.views import RESHAPES

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_MULTIPLY = {operator.mul, torch.mul, "mul"}
_ADD = {operator.add, torch.add, "add"}


def fold_channels(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy in which multiplications and additions by channel constants are part of the layer before them.

    Where the nodes have `tensor_meta` of a run (`ShapeProp`), batch normalisations of rows are such constants too, as
    NCNN takes the rows of a matrix for a batch there, and reshapes behind a linear layer that keep its channels are
    looked through.
    """
    result = fx.GraphModule(copy.deepcopy(module), copy.deepcopy(module.graph))
    _write_normalized_rows(result)
    for node in list(result.graph.nodes):
        found = _folded(result, node)
        if found is None:
            continue
        operand, layer, constant = found
        name = str(layer.target)
        parent, _, leaf = name.rpartition(".")
        changed = _changed(result.get_submodule(name), constant, node.target in _MULTIPLY)
        setattr(result.get_submodule(parent), leaf, changed)
        node.replace_all_uses_with(operand)
        result.graph.erase_node(node)
    result.graph.eliminate_dead_code()
    result.recompile()
    return result


def _write_normalized_rows(module: fx.GraphModule) -> None:
    """Writes batch normalisations of matrices as a multiplication and an addition."""
    for node in list(module.graph.nodes):
        norm = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if (
            not isinstance(norm, nn.BatchNorm1d)
            or norm.training
            or norm.running_mean is None
            or norm.running_var is None
        ):
            continue
        if len(_sizes(node)) != 2:
            continue
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight.detach().double()
        shift = -scale * norm.running_mean.double()
        shift = shift if norm.bias is None else shift + norm.bias.detach().double()
        with module.graph.inserting_before(node):
            new = node.args[0]
            for name, function, numbers in (("scale", operator.mul, scale), ("shift", operator.add, shift)):
                path = f"{node.name}_{name}"
                module.register_buffer(path, numbers.float())
                new = module.graph.call_function(function, (new, module.graph.get_attr(path)))
                new.meta["tensor_meta"] = node.meta["tensor_meta"]
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)


def _sizes(node: fx.Node) -> tuple[int, ...]:
    """Returns the sizes that a run found, none without a run."""
    return tuple(getattr(node.meta.get("tensor_meta"), "shape", ()))


def _behind_reshapes(module: fx.GraphModule, node: Any) -> Any:
    """Returns the linear layer whose rows `node` has in another shape, and `node` where there is none."""
    found = node
    while isinstance(found, fx.Node) and found.target in RESHAPES and len(found.users) == 1:
        source = found.args[0]
        if not isinstance(source, fx.Node) or _sizes(source)[-1:] != _sizes(found)[-1:] or not _sizes(source):
            return node
        found = source
    linear = isinstance(found, fx.Node) and found.op == "call_module"
    return found if linear and isinstance(module.get_submodule(str(found.target)), nn.Linear) else node


def _folded(module: fx.GraphModule, node: Any) -> tuple[fx.Node, fx.Node, torch.Tensor] | None:
    """Returns the operand of `node`, the layer that computes it and one number for each channel.

    None where `node` does more than scale or shift the channels of a layer.
    """
    if node.op not in ("call_function", "call_method") or node.target not in _MULTIPLY | _ADD or node.kwargs:
        return None
    for operand, other in (node.args, node.args[::-1]):
        layer = _behind_reshapes(module, operand)
        if not isinstance(layer, fx.Node) or layer.op != "call_module" or len(layer.users) != 1:
            continue
        found = module.get_submodule(str(layer.target))
        if type(found) not in _LAYERS or _uses(module, str(layer.target)) != 1:
            continue
        value = _constant(module, other)
        numbers = None if value is None else _by_channel(found, value)
        if numbers is not None:
            return operand, layer, numbers
    return None


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
