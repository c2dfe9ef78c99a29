"""Functions of one tensor that are modules of `torch.nn` too: activations, pools, flattening."""

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


def module_of(node: fx.Node) -> tuple[type[nn.Module], dict[str, Any]] | None:
    """Returns the module that does the same as a function call, with its constructor's arguments; None for others."""
    if node.target is torch.clamp and len(node.args) == 3 and all(isinstance(bound, float) for bound in node.args[1:]):
        low, high = node.args[1:]
        return (nn.ReLU6, {}) if (low, high) == (0.0, 6.0) else (nn.Hardtanh, {"min_val": low, "max_val": high})
    if node.target == "flatten":
        return nn.Flatten, {"start_dim": 0, **dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False))}
    kind: Any = ACTIVATIONS.get(node.target)
    if kind is None:
        return None
    options = {**dict(zip(_parameters(kind), node.args[1:], strict=False)), **node.kwargs}
    return kind, {name: _one_of(value) if kind in _POOLS else value for name, value in options.items()}


_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)

ADAPTIVE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)

NO_ACTIVATIONS = (nn.Flatten, *ADAPTIVE_POOLS, *_POOLS)
"""Modules of `ACTIVATIONS`, and what `module_of` adds, that change the shape."""


def _one_of(value: Any) -> Any:
    """Returns the number that all axes share, as authors write it; another value as it is."""
    return value[0] if isinstance(value, (tuple, list)) and len(set(value)) == 1 else value


@functools.cache
def _parameters(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind).parameters)
