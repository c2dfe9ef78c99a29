"""Functions of one tensor that are modules of `torch.nn` too: activations, pools, flattening, padding, resizing."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

ACTIVATIONS: dict[Any, type[nn.Module]] = {
    F.relu: nn.ReLU, torch.relu: nn.ReLU, F.gelu: nn.GELU, F.silu: nn.SiLU, F.relu6: nn.ReLU6, F.elu: nn.ELU,
    F.selu: nn.SELU, F.mish: nn.Mish, F.softplus: nn.Softplus, F.hardswish: nn.Hardswish, F.softsign: nn.Softsign,
    F.hardsigmoid: nn.Hardsigmoid, F.leaky_relu: nn.LeakyReLU, torch.tanh: nn.Tanh, torch.sigmoid: nn.Sigmoid,
    F.max_pool1d: nn.MaxPool1d, F.max_pool2d: nn.MaxPool2d, F.max_pool3d: nn.MaxPool3d,
    F.avg_pool1d: nn.AvgPool1d, F.avg_pool2d: nn.AvgPool2d, F.avg_pool3d: nn.AvgPool3d,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d, F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_avg_pool3d: nn.AdaptiveAvgPool3d, F.celu: nn.CELU, F.hardtanh: nn.Hardtanh,
}  # fmt: skip
"""Functions of one tensor that are modules too, whose other arguments have the same names and order."""

_OTHERS: dict[Any, type[nn.Module]] = {
    torch.softmax: nn.Softmax, torch.log_softmax: nn.LogSoftmax, F.interpolate: nn.Upsample, F.fold: nn.Fold,
    torch.pixel_shuffle: nn.PixelShuffle, torch.pixel_unshuffle: nn.PixelUnshuffle, F.glu: nn.GLU,
}  # fmt: skip
"""Likewise, with arguments that some modules lack, or sizes that a program computes."""

Module = tuple[type[nn.Module], dict[str, Any]]
"""The class of a module and the arguments of its constructor."""


def module_of(node: fx.Node) -> Module | None:
    """Returns the module that does the same as a function call, with its constructor's arguments; None for others."""
    if node.target is torch.clamp and len(node.args) == 3 and all(isinstance(bound, float) for bound in node.args[1:]):
        low, high = node.args[1:]
        return (nn.ReLU6, {}) if (low, high) == (0.0, 6.0) else (nn.Hardtanh, {"min_val": low, "max_val": high})
    if node.target == "flatten":
        return nn.Flatten, {"start_dim": 0, **dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False))}
    if node.target is F.pad:
        return _pad(**_options(F.pad, node))
    if node.target in _NORMS:
        return _norm(_NORMS[node.target], _options(node.target, node))
    kind: Any = ACTIVATIONS.get(node.target) or _OTHERS.get(node.target)
    if kind is None:
        return None
    options = _options(kind, node)
    if not options.keys() <= set(_parameters(kind)):
        return None
    return kind, {name: _one_of(value) if name in _PER_AXIS else value for name, value in options.items()}


_PER_AXIS = ("kernel_size", "stride", "padding", "dilation")
"""Arguments that authors write as one number where all axes share it."""


def _options(function: Any, node: fx.Node) -> dict[str, Any]:
    """Returns the arguments of a call behind the tensor, by the names that a class or function gives them."""
    names = _parameters(function)
    return {**dict(zip(names if isinstance(function, type) else names[1:], node.args[1:], strict=False)), **node.kwargs}


def _pad(pad: list[int], mode: str = "constant", value: float | None = None) -> Module | None:
    rank = len(pad) // 2
    if rank not in (1, 2, 3):
        return None
    options = {"padding": pad[0] if len(set(pad)) == 1 else tuple(pad)}
    if mode == "constant" and value:
        return getattr(nn, f"ConstantPad{rank}d"), options | {"value": value}
    return getattr(nn, f"{_PADS[mode]}{rank}d"), options


_PADS = {"constant": "ZeroPad", "reflect": "ReflectionPad", "replicate": "ReplicationPad", "circular": "CircularPad"}
"""Modes of `F.pad`, and how the names of their modules begin."""


def _norm(kind: type[nn.Module], options: dict[str, Any]) -> Module | None:
    """Returns a normalisation without weights over the last dimensions."""
    if options.pop("weight", None) is not None or options.pop("bias", None) is not None:
        return None
    return kind, options | {"elementwise_affine": False}


_NORMS: dict[Any, type[nn.Module]] = {F.layer_norm: nn.LayerNorm, F.rms_norm: nn.RMSNorm}


_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)

ADAPTIVE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)

NO_ACTIVATIONS = (
    nn.Flatten,
    nn.Fold,
    nn.GLU,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.Upsample,
    nn.LayerNorm,
    nn.RMSNorm,
    *(getattr(nn, f"{name}{rank}d") for name in (*_PADS.values(), "ConstantPad") for rank in (1, 2, 3)),
    *ADAPTIVE_POOLS,
    *_POOLS,
)
"""Modules of `module_of` that are no functions of each element, or of one row."""


def _one_of(value: Any) -> Any:
    """Returns the number that all axes share, as authors write it; another value as it is."""
    return value[0] if isinstance(value, (tuple, list)) and len(set(value)) == 1 else value


@functools.cache
def _parameters(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind).parameters)


def activated(node: fx.Node) -> fx.Node | None:
    """Returns the value to which `node` applies an activation, None for another call."""
    found = module_of(node) if node.op in ("call_function", "call_method") else None
    if found is None or issubclass(found[0], NO_ACTIVATIONS) or len(node.all_input_nodes) != 1:
        return None
    return node.all_input_nodes[0]
