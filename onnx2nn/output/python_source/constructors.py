"""Calls of torch's functions and layers: public names, and constructors' arguments read back from a layer."""

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
from onnx2nn.importing.regions import Path
from onnx2nn.layers import LAYERS
from onnx2nn.output.python_source.expressions import Call, Expression, Hole, Text, Unless, literal
from onnx2nn.output.python_source.values import Values

UNKNOWN = object()
"""Marks an argument that a layer does not keep, or that has no effect."""

_SAME_IN_ALL_DIMENSIONS = {"kernel_size", "stride", "padding", "dilation", "output_padding", "output_size"}


POOLS = {nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool2d}
"""Layers whose stride is written as a positional argument after the size of the window."""


def same(one: Any, other: Any) -> bool:
    """Returns whether two arguments are equal and of one type: 1, 1.0 and True differ."""
    return type(one) is type(other) and bool(one == other)


def function_name(function: Callable[..., Any]) -> str:
    """Returns the name of a function in the file.

    Raises:
        InputError: torch gives it no public name.
    """
    name = str(getattr(function, "__name__", ""))
    homes = ((F, "F."), (torch, "torch."), (builtins, ""), (math, "math."), (operator, "operator."))
    for home, prefix in homes:
        if getattr(home, name, None) is function:
            return prefix + name
    registered = isinstance(function, (type(torch.ops.aten.add), type(torch.ops.aten.add.default)))
    long = f"torch.ops.{function}" if registered else f"{getattr(function, '__module__', None) or 'torch'}.{name}"
    found: Any = torch
    for step in long.split(".")[1:]:
        found = getattr(found, step, None)
    if long.startswith("torch.") and found is function:
        return long
    raise InputError(f"The function {long} cannot be written: it has no public name in torch.")


def signature(kind: type[nn.Module]) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a layer's constructor; recurrent layers declare them in their base."""
    if not issubclass(kind, nn.RNNBase):
        found = inspect.signature(kind).parameters
        # nn.Identity takes any and keeps none; others, such as nn.Sigmoid, have nn.Module's constructor
        return {} if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in found.values()) else found
    parameters = dict(inspect.signature(nn.RNNBase).parameters)
    del parameters["mode"]
    if kind is nn.RNN:
        own = inspect.Parameter("nonlinearity", inspect.Parameter.KEYWORD_ONLY, default="tanh")
        parameters["nonlinearity"] = own
    return parameters


def configured(layer: nn.Module, name: str) -> Any:
    """Returns the argument `name` of a layer's constructor, `UNKNOWN` where the layer does not keep it."""
    if name in ("device", "dtype", "inplace") or name.startswith("_"):
        return UNKNOWN
    if name == "proj_size" and not isinstance(layer, nn.LSTM):  # nn.GRU and nn.RNN list it and refuse it
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


def arguments_of(path: Path, layer: nn.Module) -> dict[str, Any]:
    """Returns the arguments of a layer's constructor.

    Raises:
        InputError: an argument cannot be read back from the layer.
    """
    given: dict[str, Any] = {}
    for name, parameter in signature(type(layer)).items():
        value = configured(layer, name)
        if value is not UNKNOWN:
            given[name] = value
        elif parameter.default is parameter.empty:
            where = ".".join(path)
            raise InputError(f"The layer {where} cannot be written: {type(layer).__name__} does not keep {name!r}.")
    return given


def constructor(values: Values, kind: type[nn.Module], given: Mapping[str, Any]) -> Call:
    """Returns the call of `kind`'s constructor with the arguments `given`."""
    args: list[Expression] = []
    kwargs: list[tuple[str, Expression]] = []
    for name, parameter in signature(kind).items():
        if name not in given:
            continue
        expression = _number(values, given[name], name)
        if parameter.default is parameter.empty:
            args.append(expression)
        elif isinstance(expression, Hole):
            kwargs.append((name, Unless(expression, parameter.default)))
        elif not same(given[name], parameter.default):
            kwargs.append((name, expression))
    if kind in POOLS and kwargs and kwargs[0][0] == "stride":
        args.append(kwargs.pop(0)[1])
    return Call(Text(kind.__name__ if kind in LAYERS else f"nn.{kind.__name__}"), tuple(args), tuple(kwargs))


def _number(values: Values, value: Any, name: str) -> Expression:
    """Returns a constructor's argument: numbers are holes, other constants are part of the structure."""
    plain = shortest(value, name)
    numbers = plain if isinstance(plain, tuple) else (plain,)
    if all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in numbers):
        return values.hole(plain, name)
    if isinstance(plain, (bool, str, tuple, type(None))):
        return Text(literal(plain))
    raise InputError(f"The argument {name}={value!r} of a layer cannot be written.")
