"""How torch's functions and layers are called: public names, and constructors' arguments read back from a layer."""

from __future__ import annotations

import builtins
import inspect
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from onnx2nn.errors import InputError

UNKNOWN = object()
"""Stands for an argument that a layer does not keep, or that does not matter."""

_SAME_IN_ALL_DIMENSIONS = {"kernel_size", "stride", "padding", "dilation", "output_padding", "output_size"}


POOLS = {nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool2d}
"""Layers whose stride is written without its name, behind the size of the window."""


def same(one: Any, other: Any) -> bool:
    """Returns whether two arguments are equal and of one type: 1, 1.0 and True are three."""
    return type(one) is type(other) and bool(one == other)


def function_name(function: Callable[..., Any]) -> str:
    """Returns what a function is called in the file.

    Raises:
        InputError: torch gives it no public name.
    """
    name = str(getattr(function, "__name__", ""))
    homes = ((F, "F."), (torch, "torch."), (builtins, ""), (math, "math."), (operator, "operator."))
    for home, prefix in homes:
        if getattr(home, name, None) is function:
            return prefix + name
    long = f"{getattr(function, '__module__', None) or 'torch'}.{getattr(function, '__name__', function)}"
    found: Any = torch
    for step in long.split(".")[1:]:
        found = getattr(found, step, None)
    if long.startswith("torch.") and found is function:
        return long
    raise InputError(f"the function {long} cannot be written: it has no public name in torch")


def signature(kind: type[nn.Module]) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a layer's constructor; recurrent layers declare them in their base."""
    if not issubclass(kind, nn.RNNBase):
        return inspect.signature(kind).parameters
    parameters = dict(inspect.signature(nn.RNNBase).parameters)
    del parameters["mode"]
    if kind is nn.RNN:
        own = inspect.Parameter("nonlinearity", inspect.Parameter.KEYWORD_ONLY, default="tanh")
        parameters["nonlinearity"] = own
    return parameters


def configured(layer: nn.Module, name: str) -> Any:
    """Returns what a layer's constructor was given for `name`, `UNKNOWN` where it is not kept or does not matter."""
    if name in ("device", "dtype", "inplace") or name.startswith("_"):
        return UNKNOWN
    if isinstance(layer, nn.MultiheadAttention):
        if name == "bias":
            return layer.in_proj_bias is not None
        if name in ("kdim", "vdim") and getattr(layer, name) == layer.embed_dim:
            return UNKNOWN
        if name == "add_bias_kv":
            return layer.bias_k is not None
    value = getattr(layer, name, UNKNOWN)
    if name == "bias" and (value is None or isinstance(value, torch.Tensor)):
        return value is not None
    return value


def shortest(value: Any, name: str) -> Any:
    """Returns a layer's argument in its shortest form: `(3, 3)` as 3 where the layer takes both, a list as a tuple."""
    if not isinstance(value, (tuple, list, torch.Size)):
        return value
    items = tuple(value)
    alike = len(items) == 1 or (len(set(items)) == 1 and name in _SAME_IN_ALL_DIMENSIONS)
    return items[0] if alike else items
