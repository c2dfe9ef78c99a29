"""torch.lstm, torch.gru, torch.rnn_tanh and torch.rnn_relu: loops over time, one layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oneflow_bridge.namespace.arithmetic import add, mul, relu, rsub
from oneflow_bridge.namespace.functional.linear import linear
from oneflow_bridge.namespace.shaping import cat, chunk, stack, transpose, unbind
from oneflow_bridge.namespace.tensor import Tensor
from oneflow_bridge.namespace.transcendental import sigmoid, tanh
from onnx2nn.errors import OperatorError

Cell = Callable[[Tensor, Sequence[Tensor], Tensor, "Tensor | None"], tuple[Tensor, ...]]
"""`cell(gates of the input, states, weight_hh, bias_hh) -> states`."""


def _lstm_cell(x: Tensor, states: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    h, c = states
    i, f, g, o = chunk(add(x, linear(h, weight, bias)), 4, 1)
    c = add(mul(sigmoid(f), c), mul(sigmoid(i), tanh(g)))
    return mul(sigmoid(o), tanh(c)), c


def _gru_cell(x: Tensor, states: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    (h,) = states
    (x_r, x_z, x_n), (h_r, h_z, h_n) = chunk(x, 3, 1), chunk(linear(h, weight, bias), 3, 1)
    r, z = sigmoid(add(x_r, h_r)), sigmoid(add(x_z, h_z))
    return (add(mul(rsub(z, 1.0), tanh(add(x_n, mul(r, h_n)))), mul(z, h)),)


def _rnn_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    def cell(x: Tensor, states: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        return (activation(add(x, linear(states[0], weight, bias))),)

    return cell


def _recurrent(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    def function(
        x: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        if train and dropout:
            raise OperatorError("dropout between recurrent layers.")
        states = [unbind(state, 0) for state in (hx if isinstance(hx, (list, tuple)) else [hx])]
        x = transpose(x, 0, 1) if batch_first else x
        for state in states:
            if any(part.shape[0] != x.shape[1] for part in state):  # an addition would broadcast it; torch refuses it
                raise OperatorError(
                    f"an initial state of batch {state[0].shape[0]} for an input of batch {x.shape[1]}."
                )
        finals, remaining = [], list(params)
        for layer in range(num_layers):
            outputs = []
            for direction in range(1 + bidirectional):
                weights = [remaining.pop(0) for _ in range(4 if has_biases else 2)]
                current = tuple(state[layer * (1 + bidirectional) + direction] for state in states)
                output, last = _run(cell, x, current, weights, bool(direction))
                outputs.append(output)
                finals.append(last)
            x = cat(outputs, 2) if bidirectional else outputs[0]
        output = transpose(x, 0, 1) if batch_first else x
        return (output, *(stack(list(items)) for items in zip(*finals, strict=True)))

    return function


def _run(
    cell: Cell, x: Tensor, states: tuple[Tensor, ...], weights: Sequence[Tensor], backwards: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Returns the first state at every time, stacked, and the last states."""
    bias_ih, bias_hh = weights[2:] or (None, None)
    gates = unbind(linear(x, weights[0], bias_ih), 0)
    if not gates:
        raise OperatorError("a sequence of no steps.")
    sequence = []
    for step in reversed(gates) if backwards else gates:
        states = cell(step, states, weights[1], bias_hh)
        sequence.append(states[0])
    return stack(sequence[::-1] if backwards else sequence), states


lstm = _recurrent(_lstm_cell)
gru = _recurrent(_gru_cell)
rnn_tanh = _recurrent(_rnn_cell(tanh))
rnn_relu = _recurrent(_rnn_cell(relu))
