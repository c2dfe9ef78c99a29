"""Replaces calls that pnnx converts to something else, or not at all, by calls that it converts rightly.

Some of NCNN's layers are right near 1 and wrong elsewhere: its exponential ends at exp(88.4), its power is
exp(b · log(a)), also of zero and of negative numbers, and its sampling reflects once. The comparison of a conversion
would not find that, as its inputs are near 1.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import GraphAppendingTracer
from torch.nn import functional as F


def decompose(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy in which calls and layers with a rule in the tables are written with others.

    Shapes are read where an `fx.passes.shape_prop.ShapeProp` has left them.
    """
    result = fx.GraphModule(module, copy.deepcopy(module.graph))
    tracer = GraphAppendingTracer(result.graph)  # one for all: a call of several proxies asks for the same

    def proxy(node: fx.Node) -> Any:
        return fx.Proxy(node, tracer)

    for node in list(result.graph.nodes):
        if node.op == "call_module":
            _replace_layer(result, node)
        rule: Any = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None:
            continue
        with result.graph.inserting_before(node):
            args, kwargs = fx.map_arg((node.args, node.kwargs), proxy)
            new = rule(*args, **kwargs)
        if new is not None:
            node.replace_all_uses_with(new.node)
            result.graph.erase_node(node)
    result.recompile()
    return result


def _normalized(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Any:
    """`F.normalize`: NCNN's Normalize works along channels, and pnnx writes it for other axes too."""
    if p == 1:
        length = x.abs().sum(dim, keepdim=True)
    elif p == 2:
        length = x.square().sum(dim, keepdim=True).sqrt()
    else:
        length = x.abs().pow(p).sum(dim, keepdim=True).pow(1 / p)
    return x / torch.clamp(length, min=eps)


def _first_rows(x: Any, index: Any) -> Any:
    """The first rows of a table, as many as the input has: pnnx takes the first axis for the batch."""
    counted = isinstance(index, tuple) and any(
        isinstance(part, slice) and isinstance(part.stop, fx.Proxy) for part in index
    )
    if not counted or not isinstance(x, fx.Proxy) or x.node.op != "get_attr" or not isinstance(index[0], slice):
        return None
    table: Any = x.unsqueeze(0)
    behind = (slice(None), *index)
    return table[behind].squeeze(0)


def _replace_layer(module: fx.GraphModule, node: fx.Node) -> None:
    layer = module.get_submodule(str(node.target))
    rule: Any = _LAYER_RULES.get(type(layer))
    new = rule(layer) if rule is not None else None
    if new is not None:
        parent, _, name = str(node.target).rpartition(".")
        setattr(module.get_submodule(parent), name, new)


def _layer_norm_in_a_row(layer: nn.LayerNorm) -> nn.Module | None:
    """NCNN's LayerNorm knows one axis, or two behind a third, and no weight without a bias."""
    shape = layer.normalized_shape
    if len(shape) == 1 and (layer.weight is None or layer.bias is not None):
        return None
    row = nn.LayerNorm(math.prod(shape), layer.eps, layer.elementwise_affine)
    if layer.weight is not None:
        bias = torch.zeros_like(layer.weight) if layer.bias is None else layer.bias
        row.load_state_dict({"weight": layer.weight.flatten(), "bias": bias.flatten()}, assign=True)
    return row if len(shape) == 1 else nn.Sequential(nn.Flatten(-len(shape)), row, nn.Unflatten(-1, shape))


def _with_bias(layer: Any) -> nn.Module | None:
    """NCNN's normalisations know no weight without a bias."""
    if layer.weight is None or layer.bias is not None:
        return None
    new: nn.Module = copy.deepcopy(layer)
    new.bias = nn.Parameter(torch.zeros_like(layer.weight))
    return new


def _layer_norm(
    x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """The same of a call."""
    shape = tuple(normalized_shape)
    if len(shape) == 1:
        return None
    row = x.flatten(-len(shape))
    weight, bias = (None if value is None else value.flatten() for value in (weight, bias))
    return F.layer_norm(row, (math.prod(shape),), weight, bias, eps).unflatten(-1, shape)


def _instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """NCNN's InstanceNorm takes a sequence, `(1, C, length)`, for one channel; its GroupNorm does not."""
    shape = _shape(x)
    if shape is None or len(shape) != 3 or running_mean is not None:
        return None
    return F.group_norm(x, shape[1], weight, bias, eps)


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """NCNN computes log(exp(x) + 1), which is infinite from 89 on."""
    if threshold < 20:  # below, torch's line and its curve differ
        return None
    scaled = x if beta == 1 else x * beta
    curve = F.relu(scaled) + torch.log(torch.exp(-scaled.abs()) + 1)
    return curve if beta == 1 else curve / beta


def _log_softmax(input: Any, dim: int, dtype: None = None) -> Any:
    """NCNN computes the logarithm of a softmax, which is NaN for what is less likely than exp(-88)."""
    shifted = input - input.amax(dim, keepdim=True)
    return shifted - torch.log(torch.exp(shifted).sum(dim, keepdim=True))


def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """NCNN sums the exponentials of the values themselves."""
    largest = x.amax(dim, keepdim=True)
    total = torch.log(torch.exp(x - largest).sum(dim, keepdim=keepdim))
    return total + (largest if keepdim else x.amax(dim))


def _glu(x: Any, dim: int = -1) -> Any:
    """NCNN's GLU is NaN where the gate is below -88."""
    value, gate = (x.chunk(2, dim)[index] for index in range(2))
    return value * torch.sigmoid(gate)


def _power(base: Any, exponent: Any) -> Any:
    """Powers without a logarithm of zero, and whole ones also of negative numbers."""
    number = _number(exponent)
    if number is None:  # of a number's power, the exponent is no number
        return None
    if number.is_integer() and 1 <= abs(number) <= 16:
        product = _whole_power(base, abs(int(number)))
        return product if number > 0 else torch.reciprocal(product)
    if number == 0.5:
        return torch.sqrt(base)
    if number >= 0.25:  # below it, the power of the smallest number would not be near zero
        return torch.clamp(base, min=torch.finfo(torch.float32).tiny).pow(number)
    return None


def _whole_power(base: Any, exponent: int) -> Any:
    """By squares: x⁷ = (x²)² · x² · x."""
    if exponent == 1:
        return base
    half = _whole_power(base, exponent // 2)
    square = half * half
    return square * base if exponent % 2 else square


def _grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Any:
    """NCNN reflects a point once; it is brought between -1 and 1 before, where the reflections have a period of 4."""
    if padding_mode != "reflection":
        return None
    turns = grid + 1
    inside = 1 - (turns - 4 * torch.floor(turns / 4) - 2).abs()
    # bicubic sampling also reflects the neighbours of a point
    padding = padding_mode if mode == "bicubic" else "border"
    return F.grid_sample(input, inside, mode, padding, align_corners)


def _shape(value: Any) -> tuple[int, ...] | None:
    meta = value.node.meta.get("tensor_meta") if isinstance(value, fx.Proxy) else None
    return tuple(meta.shape) if meta is not None else None


def _number(value: Any) -> float | None:
    """A number, also one that a tensor of the module holds."""
    if isinstance(value, fx.Proxy) and value.node.op == "get_attr":
        value = operator.attrgetter(str(value.node.target))(value.node.graph.owning_module)
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        value = value.item()
    return float(value) if isinstance(value, (int, float)) else None


_RULES = {
    F.normalize: _normalized,
    operator.getitem: _first_rows,
    F.layer_norm: _layer_norm,
    F.instance_norm: _instance_norm,
    F.softplus: _softplus,
    torch.log_softmax: _log_softmax,
    F.log_softmax: lambda input, dim, _stacklevel=3, dtype=None: _log_softmax(input, dim),
    torch.logsumexp: _logsumexp,
    F.glu: _glu,
    operator.pow: _power,
    torch.pow: _power,
    F.grid_sample: _grid_sample,
}
_LAYER_RULES: dict[type[nn.Module], Any] = {
    nn.LayerNorm: _layer_norm_in_a_row,
    **dict.fromkeys((nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _with_bias),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _with_bias),
}
