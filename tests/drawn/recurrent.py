"""Calls of recurrent operators."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import F32, Call, Draw, call

_DATA = frozenset({0})


@call("LSTM", "GRU", "RNN")
def _rnn(d: Draw, name: str) -> Call:
    gates = dict(LSTM=4, GRU=3, RNN=1)[name]
    direction = d.one(("forward", "reverse", "bidirectional"))
    dirs = 2 if direction == "bidirectional" else 1
    T, B, W, H = d.int(1, 4), d.int(1, 3), d.int(1, 3), d.int(1, 3)
    a = {"hidden_size": H}
    if direction != "forward" or d.flag():
        a["direction"] = direction
    lens = d.array([B], np.int32, 1, T) if d.flag(3) else None
    ins = [
        d.array([T, B, W], F32, -0.7, 0.7),
        d.array([dirs, gates * H, W], F32, -0.7, 0.7),
        d.array([dirs, gates * H, H], F32, -0.7, 0.7),
        d.array([dirs, 2 * gates * H], F32, -0.7, 0.7) if d.flag() else None,
        lens,
        d.array([dirs, B, H], F32, -0.7, 0.7) if d.flag() else None,
    ]
    if name == "LSTM":
        ins += [
            d.array([dirs, B, H], F32, -0.7, 0.7) if d.flag() else None,
            d.array([dirs, 3 * H], F32, -0.7, 0.7) if d.flag(3) else None,
        ]
        if d.flag(6):
            a["input_forget"] = 1
    if name == "GRU" and d.flag():
        a["linear_before_reset"] = d.int(0, 1)
    if d.flag(5):
        a["clip"] = 0.4
    if d.flag(5):
        count = dict(LSTM=3, GRU=2, RNN=1)[name]
        a["activations"] = [d.one(("Tanh", "Sigmoid", "Relu", "Softsign", "Softplus")) for _ in range(count)] * dirs
    return Call(name, d.one((7, 14, 22)), ins, a, outputs=3 if name == "LSTM" else 2, rtol=1e-3, open_=_DATA)
