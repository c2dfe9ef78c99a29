"""Recurrent functions of torch as loops, for torch.export, which would repeat a step as often as the example has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from onnx2nn.ops.loops import looped

Step = Callable[..., tuple[Any, ...]]
"""Returns the next states of the gates' inputs from the sequence, those from the state, and the states."""


def _lstm(given: Any, own: Any, h: Any, c: Any) -> tuple[Any, ...]:
    i, f, g, o = (given + own).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(given: Any, own: Any, h: Any) -> tuple[Any, ...]:
    (r, z, n), (own_r, own_z, own_n) = given.chunk(3, -1), own.chunk(3, -1)
    update = (z + own_z).sigmoid()
    return ((1 - update) * (n + (r + own_r).sigmoid() * own_n).tanh() + update * h,)


def _tanh(given: Any, own: Any, h: Any) -> tuple[Any, ...]:
    return ((given + own).tanh(),)


def _relu(given: Any, own: Any, h: Any) -> tuple[Any, ...]:
    return ((given + own).relu(),)


_STEPS: dict[Any, Step] = {torch.lstm: _lstm, torch.gru: _gru, torch.rnn_tanh: _tanh, torch.rnn_relu: _relu}
"""A step of each recurrent function. Source: the equations of nn.LSTM, nn.GRU and nn.RNN."""


class LoopsOverTime(TorchFunctionMode):
    """Computes recurrent functions by torch.while_loop, so that an export follows the length of the sequence.

    Functions of packed sequences, and those that drop out in training, stay.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        step = _STEPS.get(func)
        if step is None or not isinstance(args[3], bool) or (args[5] and args[6]):
            return func(*args, **(kwargs or {}))
        return _recurrent(step, *args)


def is_recurrent(module: nn.Module) -> bool:
    """Returns whether a module calls a recurrent function of torch."""
    inner = list(module.modules())
    graphs = (part.graph for part in inner if isinstance(part, fx.GraphModule))
    return any(isinstance(part, nn.RNNBase) for part in inner) or any(
        node.target in _STEPS for graph in graphs for node in graph.nodes if node.op == "call_function"
    )


def _recurrent(
    step: Step, input: Any, hx: Any, params: Sequence[Any], has_biases: bool, layers: int, *options: Any
) -> tuple[Any, ...]:
    """The results of a recurrent function: the sequence, then the last states of all layers.

    Args:
        step: of the function.
        input: `(steps, batch, features)`; `(batch, steps, features)` where the last of `options` says so.
        hx: the first states, `(layers * directions, batch, hidden)` each, a single one but for an LSTM.
        params: for each layer and direction the weights of input and state, and their biases.
        has_biases: whether they have biases.
        layers: the number of layers.
        options: dropout, whether it drops out, whether there are two directions, whether the batch is first.
    """
    _, _, bidirectional, batch_first = options
    first = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    each, directions = 4 if has_biases else 2, 2 if bidirectional else 1
    x = input.transpose(0, 1) if batch_first else input
    last = []
    for layer in range(layers):
        outputs = []
        for place in range(layer * directions, (layer + 1) * directions):
            weight, own, *biases = params[place * each : (place + 1) * each]
            bias, own_bias = biases or (None, None)
            backwards = place % directions == 1

            def one(given: Any, h: Any, *rest: Any, own: Any = own, own_bias: Any = own_bias) -> tuple[Any, ...]:
                return step(given, F.linear(h, own, own_bias), h, *rest)

            given = F.linear(x, weight, bias)
            found, final = looped(torch, given.flip(0) if backwards else given, [state[place] for state in first], one)
            outputs.append(found.flip(0) if backwards else found)
            last.append(final)
        x = torch.cat(outputs, -1)
    states = (torch.stack(list(items)) for items in zip(*last, strict=True))
    return (x.transpose(0, 1) if batch_first else x, *states)
