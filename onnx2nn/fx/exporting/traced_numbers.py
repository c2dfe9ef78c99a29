"""Floats computed of sizes, in traces: torch.jit.trace makes tensors of sizes, whose quotients are of float32."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from onnx2nn.fx.blocks.scopes import numbers

_FLOATING = frozenset({operator.truediv, operator.mul, operator.add, operator.sub})
"""Arithmetic of which the result may be a float."""


def keep_double(graph: fx.Graph) -> bool:
    """Computes the floats of a program that are computed of sizes in float64 where they are tensors, as Python does.

    Beside a tensor with dimensions they are rounded to its type, as numbers are; beside others they would make it wide.

    Args:
        graph: changed in place.

    Returns:
        Whether there are such floats.
    """
    found = numbers(graph)
    floats: set[fx.Node] = set()
    for node in graph.nodes:
        given = floats.intersection(node.all_input_nodes)
        if node in found:
            is_float = given or node.target is operator.truediv or any(isinstance(arg, float) for arg in node.args)
            if is_float and node.target in _FLOATING:
                node.target = _in_double(node.target)
                floats.add(node)
        elif given and node.op == "call_function":
            node.target = _beside_numbers(node.target)
        elif given and node.op == "call_method":
            node.op, node.target = "call_function", _beside_numbers(getattr(torch.Tensor, node.target))
    return bool(floats)


@functools.cache
def _in_double(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns arithmetic of two numbers, of which one may be a tensor."""

    def call(a: Any, b: Any) -> Any:
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            return function(a, b)
        return function(*(x.double() if isinstance(x, torch.Tensor) else _wide(x) for x in (a, b)))

    call.__name__ = call.__qualname__ = function.__name__
    return call


def _wide(number: float) -> torch.Tensor:
    return torch.full((), number, dtype=torch.float64)


@functools.cache
def _beside_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function to which a float64 tensor without dimensions is a number where all others have none, too."""

    def call(*args: Any, **kwargs: Any) -> Any:
        others = [x for x in args if isinstance(x, torch.Tensor) and not _is_number(x)]
        if others and all(x.ndim == 0 for x in others):
            dtype = torch.result_type(others[0], 1.0)
            args = tuple(x.to(dtype) if _is_number(x) else x for x in args)
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = getattr(function, "__name__", "call")
    return call


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.dtype is torch.float64
