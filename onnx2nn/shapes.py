"""Shape rules of the commonest functions, for speed alone.

`tracing` finds the shape of any call by running it on meta tensors; for elementwise functions that costs close to a
millisecond, for recurrent ones seconds, a rule here a few microseconds. A rule answers None for whatever it is not sure
of, a list where the function has several results.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Shapes = tuple[tuple[int, ...], ...]
Result = tuple[Shapes, torch.dtype] | list[tuple[Shapes, torch.dtype]] | None


def _spec(value: Any) -> tuple[Shapes, torch.dtype] | None:
    return getattr(value, "spec", None)


def _unary(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
    spec = _spec(args[0]) if args else None
    if spec is None or spec[0] is None or spec[1] is None or not spec[1].is_floating_point:
        return None
    if any(_spec(other) is not None or isinstance(other, torch.Tensor) for other in (*args[1:], *kwargs.values())):
        return None
    return spec


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    if a == b or not b:
        return a
    if len(a) < len(b):
        a, b = b, a
    lead = len(a) - len(b)
    result = list(a[:lead])
    for m, n in zip(a[lead:], b, strict=True):
        if m != n and m != 1 and n != 1:
            return None
        result.append(n if m == 1 else m)
    return tuple(result)


def _binary(comparison: bool) -> Callable[[tuple[Any, ...], dict[str, Any]], Result]:
    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
        if len(args) != 2 or kwargs:
            return None
        a, b = args
        left, right = _spec(a), _spec(b)
        if left is None:
            left, right, b = right, left, a
        if left is None or left[0] is None or left[1] is None:
            return None
        dtype = torch.bool if comparison else left[1]
        if right is None:
            if isinstance(b, torch.Tensor):
                right = ((tuple(b.shape),) * len(left[0]), b.dtype)
            elif type(b) in (int, float) and left[1].is_floating_point:
                return left[0], dtype
            else:
                return None
        if right[0] is None or right[1] != left[1] or not left[1].is_floating_point:
            return None
        shapes = []
        for m, n in zip(left[0], right[0], strict=True):
            shape = _broadcast(m, n)
            if shape is None:
                return None
            shapes.append(shape)
        return tuple(shapes), dtype

    return rule


def _shape_at(value: Any, point: int) -> tuple[int, ...] | None:
    """Returns the shape of a constant or traced tensor at a sample point."""
    spec = _spec(value)
    if spec is None:
        return tuple(value.shape)
    return None if spec[0] is None else spec[0][point]


def _recurrent(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
    """For `torch.lstm`, `gru` and `rnn_*`: the output, then the last states; the shapes of all inputs must fit."""
    x, hx, parameters, has_biases, layers, _, _, bidirectional, batch_first = args
    spec, states = _spec(x), list(hx) if isinstance(hx, (list, tuple)) else [hx]
    if spec is None or spec[0] is None or layers != 1 or kwargs:
        return None
    ways, outputs, last = 1 + bidirectional, [], []
    for point, shape in enumerate(spec[0]):
        weight = _shape_at(parameters[1], point)
        if weight is None or len(shape) != 3:
            return None
        rows, hidden = weight
        state = (ways, shape[0 if batch_first else 1], hidden)
        wanted = [(rows, shape[2]), (rows, hidden), *[(rows,)] * (2 * has_biases)] * ways
        if [_shape_at(p, point) for p in parameters] != wanted or any(_shape_at(s, point) != state for s in states):
            return None
        outputs.append((*shape[:2], ways * hidden))
        last.append(state)
    return [(tuple(outputs), spec[1]), *[(tuple(last), spec[1])] * len(states)]


_UNARY = (
    torch.relu, F.relu, torch.sigmoid, torch.tanh, torch.exp, torch.sqrt, torch.erf, torch.abs, torch.neg, torch.log,
    torch.reciprocal, torch.floor, torch.ceil, torch.sin, torch.cos, torch.clamp, F.gelu, F.silu, F.hardswish,
    F.hardsigmoid, F.leaky_relu, F.elu, F.softplus, F.mish, F.hardtanh, torch.softmax, F.softmax, torch.log_softmax,
    F.dropout, operator.neg, "clamp", "clip", "contiguous",
)  # fmt: skip

RULES: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Result]] = {
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys((operator.add, operator.sub, operator.mul, operator.truediv), _binary(comparison=False)),
    **dict.fromkeys((operator.lt, operator.gt, operator.le, operator.ge, operator.eq, operator.ne), _binary(True)),
}
"""Functions, and names of tensor methods, with their rule."""
