"""Recurrent cells, as OneFlow fuses them on GPU, and the whole LSTM that raising finds in an unrolled job."""

from __future__ import annotations

import onnx_ir as ir

from oneflow_bridge.emit.builder import Builder
from oneflow_bridge.emit.registry import emit


def _gates(g: Builder, *parts: ir.Value | None) -> ir.Value:
    total = None
    for part in parts:
        if part is not None:
            total = part if total is None else g.Add(total, part)
    assert total is not None
    return total


@emit("fused_lstm_cell")
def fused_lstm_cell(
    g: Builder,
    input_gates: ir.Value,
    hidden_gates: ir.Value,
    cx: ir.Value,
    input_bias: ir.Value | None = None,
    hidden_bias: ir.Value | None = None,
) -> dict[str, ir.Value]:
    """One LSTM step from gate sums (N, 4 H) in the order input, forget, cell, output."""
    hidden = g.static(g.sizes(cx)[1], "the hidden size")
    gates = _gates(g, input_gates, hidden_gates, input_bias, hidden_bias)
    i, f, c, o = g.Split(gates, [hidden] * 4, axis=1)
    cy = g.Add(g.Mul(g.Sigmoid(f), cx), g.Mul(g.Sigmoid(i), g.Tanh(c)))
    return {"hy": g.Mul(g.Sigmoid(o), g.Tanh(cy)), "cy": cy}


@emit("fused_gru_cell")
def fused_gru_cell(
    g: Builder,
    input_gates: ir.Value,
    hidden_gates: ir.Value,
    hx: ir.Value,
    input_bias: ir.Value | None = None,
    hidden_bias: ir.Value | None = None,
) -> dict[str, ir.Value]:
    """One GRU step from gate sums (N, 3 H) in the order reset, update, new."""
    hidden = g.static(g.sizes(hx)[1], "the hidden size")
    from_input = g.Split(_gates(g, input_gates, input_bias), [hidden] * 3, axis=1)
    from_hidden = g.Split(_gates(g, hidden_gates, hidden_bias), [hidden] * 3, axis=1)
    reset = g.Sigmoid(g.Add(from_input[0], from_hidden[0]))
    update = g.Sigmoid(g.Add(from_input[1], from_hidden[1]))
    new = g.Tanh(g.Add(from_input[2], g.Mul(reset, from_hidden[2])))
    return {"hy": g.Add(new, g.Mul(update, g.Sub(hx, new)))}
