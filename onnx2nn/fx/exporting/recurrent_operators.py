"""Recurrent layers and functions of torch as ONNX's operators, for torch.onnx.export."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

RECURRENT_LAYERS = (nn.LSTM, nn.GRU, nn.RNN)
"""The layers for `replace_layer`."""

_MODES: dict[Any, str] = {
    torch.lstm: "LSTM",
    torch.gru: "GRU",
    torch.rnn_tanh: "RNN_TANH",
    torch.rnn_relu: "RNN_RELU",
}

RECURRENT_FUNCTIONS = frozenset(_MODES)
"""The functions for `replace_function`."""

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN_TANH": (0,), "RNN_RELU": (0,)}
"""The positions of ONNX's gates in torch's order."""


def called_as(layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a layer with another forward: its hooks run, and the exporters note its place, by which it has its keys."""
    layer.forward = forward
    try:
        return layer(*args, **kwargs)
    finally:
        del layer.forward


def replace_layer(node: fx.Node, layer: Any) -> None:
    """Lets a recurrent layer compute `_recurrent`."""
    if layer.proj_size or (layer.training and layer.dropout):
        return
    with node.graph.inserting_before(node):
        called = node.graph.get_attr(str(node.target))
    node.op, node.target, node.args = "call_function", _layer, (called, *node.args)


def _layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
    weights = [[getattr(layer, name) for name in names] for names in layer._all_weights]
    options = {"kind": layer.mode, "batch_first": layer.batch_first, "bidirectional": layer.bidirectional}
    return called_as(layer, functools.partial(_recurrent, weights, **options), *args, **kwargs)


def replace_function(node: fx.Node) -> None:
    """Replaces the call of a recurrent function by `_recurrent`, but for that of packed sequences."""
    args: Any = node.args
    input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first = args
    count = 4 if has_biases else 2
    packed = isinstance(has_biases, (list, tuple))  # torch.lstm(data, batch_sizes, hx, params, ...)
    if packed or (train and dropout) or len(params) != count * layers * (2 if bidirectional else 1):
        return
    weights = [params[first : first + count] for first in range(0, len(params), count)]
    kind = _MODES[node.target]
    node.target, node.args = _flat_recurrent, (weights, input, hx)
    node.kwargs = {"kind": kind, "batch_first": batch_first, "bidirectional": bidirectional}


def _flat_recurrent(*args: Any, **options: Any) -> Any:
    """The results of `_recurrent` as the functions return them: the sequence, then each last state."""
    y, last = _recurrent(*args, **options)
    return (y, *last) if isinstance(last, tuple) else (y, last)


def _recurrent(
    weights: Sequence[Sequence[Any]],
    input: Any,
    hx: Any = None,
    *,
    kind: str,
    batch_first: bool,
    bidirectional: bool,
) -> Any:
    """The forward of a recurrent layer as ONNX's operator; torch's exporter would unroll it for the traced length.

    Args:
        weights: for each layer and direction: input weights, state weights, and both biases, in torch's order of gates.
        input: `(T, N, I)`, or `(N, T, I)` with `batch_first`.
        hx: the initial states, `(layers * directions, N, hidden)`, two of them for LSTM; None for zeros.
        kind: the layer's mode, a key of `_GATES`.
        batch_first: whether the batch comes before the time, in the output too.
        bidirectional: whether `weights` alternates between two directions.
    """
    gates, hidden = _GATES[kind], weights[0][1].shape[1]
    operator, _, activation = kind.partition("_")
    states = [None] * (2 if kind == "LSTM" else 1) if hx is None else list(hx) if kind == "LSTM" else [hx]
    x = input.transpose(0, 1) if batch_first else input
    directions = 2 if bidirectional else 1
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional" if bidirectional else "forward"}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    if activation:
        attributes["activations"] = [activation.capitalize()] * directions
    last: list[list[Any]] = [[] for _ in states]
    for first in range(0, len(weights), directions):
        kinds = [*zip(*weights[first : first + directions], strict=True)]  # each with a tensor a direction
        W, R, *biases = ([_in_order(tensor, gates, hidden) for tensor in tensors] for tensors in kinds)
        B = [torch.cat(pair) for pair in zip(*biases, strict=True)]
        begin = [None if state is None else state[first : first + directions] for state in states]
        ends = [(directions, x.shape[1], hidden)] * len(states)
        y, *final = torch.onnx.ops.symbolic_multi_out(
            operator,
            (x, *(torch.cat([t.unsqueeze(0) for t in ts]) if ts else None for ts in (W, R, B)), None, *begin),
            attributes,
            dtypes=[x.dtype] * (1 + len(states)),
            shapes=[(x.shape[0], directions, x.shape[1], hidden), *ends],
        )
        x = _side_by_side(y)
        for found, state in zip(last, final, strict=True):
            found.append(state)
    results = [torch.cat(found) for found in last]
    return x.transpose(0, 1) if batch_first else x, tuple(results) if kind == "LSTM" else results[0]


def _side_by_side(y: Any) -> Any:
    """Returns an output, `(T, directions, N, hidden)`, as `(T, N, directions * hidden)`; its Reshape names no sizes."""
    steps, directions, batch, hidden = y.shape
    if directions == 1:
        return y.squeeze(1)
    target, shape = torch.tensor([0, 0, -1]), (steps, batch, directions * hidden)
    return torch.onnx.ops.symbolic("Reshape", (y.transpose(1, 2), target), dtype=y.dtype, shape=shape)


def _in_order(tensor: Any, gates: Sequence[int], hidden: int) -> Any:
    return torch.cat([tensor[gate * hidden : (gate + 1) * hidden] for gate in gates])
