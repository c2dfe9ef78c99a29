"""Layers that a program calls on a constant, such as a projection of positions: their weights from what they give."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call

from onnx2nn.errors import InputError
from onnx2nn.layers import Conv1D
from onnx2nn.transferring.programs import Call, Program

MOST_COLUMNS = 4096
"""Weights of one output channel that are solved at once."""

_SMALLEST = 1e-7
"""Singular values below this part of the largest one count as 0: files hold the constants as float32."""


def solved(layer: Call, program: Program, results: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns weights with which a layer gives some results.

    Its results are linear in its weights, in each output channel alone. Where several weights give the results, these
    are the ones of the least norm.

    Args:
        layer: a convolution or linear layer of the program, called on a constant.
        program: the program.
        results: what it has to give, in float64; NaN where nothing reads it.

    Raises:
        InputError: an output channel has too many weights.
    """
    weight, bias = layer.weights["weight"].value, layer.weights.get("bias")
    columns = weight[0].numel()
    assert layer.given is not None  # as of every layer on a constant
    if columns > MOST_COLUMNS:
        raise InputError(f"it is called on a constant, and has {columns} weights a channel to solve.")
    channel = 1 - weight.dim()  # counted from the last dimension, as nothing but the batch stands before it
    groups = program.constant(layer.given).shape[channel] // weight.shape[1]
    unit = torch.eye(columns, dtype=torch.float64).reshape(columns, *weight.shape[1:])
    unit = unit.repeat(groups, *[1] * (weight.dim() - 1))
    known = _rows(_called(layer, program, unit), channel, groups)
    if bias is not None and bias.elements is None:  # a constant
        results = (results.movedim(channel, -1) - bias.value).movedim(-1, channel)
    free = bias is not None and bias.elements is not None
    found = []
    for left, right in zip(known, _rows(results, channel, groups), strict=True):
        left = torch.cat([left, torch.ones_like(left[:, :1])], 1) if free else left
        read = ~right.isnan().any(1)
        found.append(torch.linalg.lstsq(left[read], right[read], rcond=_SMALLEST, driver="gelsd").solution.t())
    both = torch.cat(found)
    values = {"weight": both[:, :columns].reshape(weight.shape)}
    return {**values, "bias": both[:, columns]} if free else values


def _called(layer: Call, program: Program, weight: torch.Tensor) -> torch.Tensor:
    """Returns what the layer gives for another weight, without its bias."""
    node = layer.node
    if node.op == "call_module":
        module, x = program.module.get_submodule(str(node.target)), program.constant(node.all_input_nodes[0])
        if isinstance(module, (nn.Linear, Conv1D)):
            return nn.functional.linear(x, weight)
        nothing = {} if getattr(module, "bias", None) is None else {"bias": weight.new_zeros(len(weight))}
        result: torch.Tensor = functional_call(module, {"weight": weight, **nothing}, (x,))
        return result
    given, place, *bias = node.all_input_nodes
    known: dict[fx.Node, Any] = {place: weight, **dict.fromkeys(bias)}
    known[given] = program.constant(given)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda value: known[value])
    assert callable(node.target)  # a function, by `Program`
    found: torch.Tensor = node.target(*args, **kwargs)
    return found


def _rows(results: torch.Tensor, channel: int, groups: int) -> list[torch.Tensor]:
    """Returns for each group a matrix of its channels at all places."""
    return list(results.movedim(channel, -1).flatten(0, -2).chunk(groups, 1))
