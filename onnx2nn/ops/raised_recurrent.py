"""Recurrent operators of raised graphs only: all layers of a module of torch in one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.ops.rnn import reordered
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import OWN


def _recurrent(
    F: Any,
    function: Any,
    X: Any,
    rest: Sequence[Any],
    states: int,
    order: Sequence[int],
    num_layers: int,
    bidirectional: int,
    batch_first: int,
    has_biases: int,
    as_torch: int,
) -> tuple[Any, ...]:
    """Returns the results of a torch function for recurrent layers.

    `rest`: the initial states, None for zeros, then the weights of each layer, in torch's layout with `as_torch`, else
    in ONNX's, whose gates `order` permutes.
    """
    initial, weights = list(rest[:states]), rest[states:]
    each = 2 + has_biases
    parameters = list(weights) if as_torch else []
    for layer in range(0 if as_torch else num_layers):
        W, R, *B = weights[layer * each : (layer + 1) * each]
        for direction in range(1 + bidirectional):
            parameters += [reordered(F, W[direction], order), reordered(F, R[direction], order)]
            parameters += [reordered(F, half, order) for b in B for half in b[direction].chunk(2, 0)]
    shape = [num_layers * (1 + bidirectional), X.shape[0 if batch_first else 1], weights[1].shape[-1]]
    zeros = F.zeros(shape, dtype=X.dtype) if None in [s if s is None else 0 for s in initial] else None
    initial = [zeros if state is None else state for state in initial]
    hx = initial if states > 1 else initial[0]
    flags = (num_layers, 0.0, False, bool(bidirectional), bool(batch_first))
    return tuple(function(X, hx, parameters, bool(has_biases), *flags))


@op("LSTM", 1, domain=OWN, traits=["step_by_step"])
def lstm(
    F: Any,
    X: Any,
    *rest: Any,
    num_layers: int,
    bidirectional: int,
    batch_first: int,
    has_biases: int,
    as_torch: int = 0,
) -> Any:
    """All layers of an nn.LSTM: the outputs of the last layer, and the last states of all layers."""
    return _recurrent(F, F.lstm, X, rest, 2, [0, 2, 3, 1], num_layers, bidirectional, batch_first, has_biases, as_torch)


@op("GRU", 1, domain=OWN, traits=["step_by_step"])
def gru(
    F: Any,
    X: Any,
    *rest: Any,
    num_layers: int,
    bidirectional: int,
    batch_first: int,
    has_biases: int,
    as_torch: int = 0,
) -> Any:
    """All layers of an nn.GRU."""
    return _recurrent(F, F.gru, X, rest, 1, [1, 0, 2], num_layers, bidirectional, batch_first, has_biases, as_torch)


@op("RNN", 1, domain=OWN, traits=["step_by_step"])
def rnn(
    F: Any,
    X: Any,
    *rest: Any,
    num_layers: int,
    bidirectional: int,
    batch_first: int,
    has_biases: int,
    as_torch: int = 0,
    nonlinearity: str = "tanh",
) -> Any:
    """All layers of an nn.RNN."""
    function = F.rnn_relu if nonlinearity == "relu" else F.rnn_tanh
    return _recurrent(F, function, X, rest, 1, [0], num_layers, bidirectional, batch_first, has_biases, as_torch)
