"""Cases of the recurrent layers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.cases import Case, case, of

_STEPS, _BATCH, _INPUT, _HIDDEN = 6, 3, 4, 5
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_LENGTHS = np.array([6, 2, 4], np.int32)


def _values(*shape: int) -> Any:
    return of(np.float32, *shape, low=-0.8, high=0.8)


def _case(
    operator: str, *extra: Any, bias: bool = True, ways: int = 1, steps: int = _STEPS, constant: Any = (1, 2, 3),
    **options: Any,
) -> Case:  # fmt: skip
    """A call with weights of the right shapes; `extra` are the inputs behind `B`."""
    rows = _GATES[operator] * _HIDDEN
    shape = (_BATCH, steps, _INPUT) if options.get("layout") else (steps, _BATCH, _INPUT)
    inputs = [_values(*shape), _values(ways, rows, _INPUT), _values(ways, rows, _HIDDEN)]
    inputs += [_values(ways, 2 * rows) if bias else None, *extra]
    if ways == 2:
        options["direction"] = "bidirectional"
    if (extra and extra[0] is not None) or {"clip", "activations", "direction", "input_forget"} & set(options):
        options.setdefault(
            "since", 7
        )  # the reference, which alone runs the older revisions, leaves these out of account
    options.setdefault("outputs", 3 if operator == "LSTM" else 2)
    return case(operator, *inputs, hidden_size=_HIDDEN, constant=constant, tolerance=1e-5, **options)


def _state(ways: int = 1) -> Any:
    return _values(ways, _BATCH, _HIDDEN)


_SMOOTH = {"RNN": ["Sigmoid"], "GRU": ["HardSigmoid", "Softsign"], "LSTM": ["HardSigmoid", "Softplus", "Softsign"]}
_WITH = {
    "RNN": (["Elu"], [0.3], None), "GRU": (["HardSigmoid", "LeakyRelu"], [0.3, 0.2], [0.4]),
    "LSTM": (["HardSigmoid", "ScaledTanh", "LeakyRelu"], [0.3, 1.2, 0.2], [0.4, 0.7]),
}  # fmt: skip
_PEEPHOLES = _values(1, 3 * _HIDDEN)


def _shared(operator: str) -> list[Case]:
    """Cases that each of the three operators has."""
    states = 2 if operator == "LSTM" else 1
    names, alpha, beta = _WITH[operator]
    parameters = {"activation_alpha": alpha} | ({} if beta is None else {"activation_beta": beta})
    return [
        _case(operator, note="plain"),
        _case(operator, bias=False, note="no bias"),
        _case(operator, constant=(), note="run time weights"),
        _case(operator, None, *[_state()] * states, note="initial state"),
        _case(operator, direction="reverse"),
        _case(operator, ways=2),
        _case(operator, None, *[_state(2)] * states, ways=2, note="bidirectional from a state"),
        _case(operator, _LENGTHS, note="lengths"),
        _case(operator, _LENGTHS, *[_state()] * states, direction="reverse", note="reverse lengths"),
        _case(operator, _LENGTHS, *[_state(2)] * states, ways=2, note="bidirectional lengths"),
        _case(operator, np.array([6, 6, 6], np.int32), constant=(1, 2, 3, 4), note="full lengths"),
        _case(operator, np.array([6, 0, 3], np.int32), note="a sequence of no steps"),
        _case(operator, clip=0.3),
        _case(operator, activations=_SMOOTH[operator]),
        _case(operator, activations=names, **parameters, note="parameters of activations"),
        _case(operator, ways=2, activations=_SMOOTH[operator] * 2, note="activations of both directions"),
        _case(operator, steps=1, note="one step"),
        _case(operator, outputs=1, note="one output"),
    ]


def _batch_first() -> Case:
    """A reverse RNN with lengths and layout=1, which ONNX Runtime and the reference lack."""
    case = _case(
        "RNN", _LENGTHS, _values(_BATCH, 1, _HIDDEN), layout=1, direction="reverse", since=14, note="layout lengths"
    )
    X, W, R, B, lengths, state = (value.astype(np.float64) for value in case.arrays() if value is not None)
    Y = np.zeros((_BATCH, _STEPS, 1, _HIDDEN))
    for n, length in enumerate(lengths.astype(int)):
        h = state[n, 0]
        for t in reversed(range(length)):
            h = Y[n, t, 0] = np.tanh(W[0] @ X[n, t] + R[0] @ h + B[0].reshape(2, -1).sum(0))
    expected = [Y.astype(np.float32), Y[:, :1, 0].astype(np.float32)]
    return dataclasses.replace(
        case, expected=expected, why="neither has layout=1 with lengths; the formula, with numpy"
    )


CASES = [
    _batch_first(),
    *_shared("RNN"),
    *_shared("GRU"),
    *_shared("LSTM"),
    _case("RNN", activations=["Relu"]),
    _case("LSTM", activations=["sigmoid", "tanh", "tanh"], note="names in small letters"),
    _case("GRU", activations=["hardsigmoid", "SOFTSIGN"], note="names in other letters"),
    _case("GRU", linear_before_reset=1),
    _case("GRU", bias=False, linear_before_reset=1, note="linear_before_reset no bias"),
    _case("GRU", None, _state(2), ways=2, linear_before_reset=1, note="bidirectional linear_before_reset"),
    _case("GRU", linear_before_reset=1, direction="reverse"),
    _case("GRU", _LENGTHS, _state(), linear_before_reset=1, note="lengths linear_before_reset"),
    _case("GRU", linear_before_reset=1, clip=0.3),
    _case("LSTM", None, None, None, _PEEPHOLES, note="peepholes"),
    _case("LSTM", _LENGTHS, _state(), _state(), _PEEPHOLES, note="peepholes lengths"),
    _case("LSTM", None, None, None, _PEEPHOLES, clip=0.4, note="peepholes clip"),
    _case("LSTM", input_forget=1),
    _case("LSTM", None, _state(), note="initial hidden state alone"),
    _case("RNN", layout=1),
    _case("GRU", layout=1, linear_before_reset=1),
    _case("LSTM", layout=1),
]
