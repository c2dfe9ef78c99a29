"""Recurrent cells, as OneFlow fuses them on GPU, and the LSTM that raising finds in an unrolled job."""

from __future__ import annotations

import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


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


@emit("lstm")
def lstm(
    g: Builder,
    x: ir.Value,
    h: ir.Value,
    c: ir.Value,
    weight_ih: ir.Value,
    weight_hh: ir.Value,
    bias_ih: ir.Value | None = None,
    bias_hh: ir.Value | None = None,
    *,
    reverse: bool,
) -> dict[str, ir.Value]:
    """An LSTM over all steps, which raising found: x (T, N, I) → y (T, N, H) and the last step's values (N, H)."""
    size = g.static(g.sizes(weight_hh)[1], "the hidden size")
    biases = [_onnx_order(g, bias, size) for bias in (bias_ih, bias_hh) if bias is not None]
    y, hy, cy = g.LSTM(
        x,
        *(g.Unsqueeze(_onnx_order(g, weight, size), [0]) for weight in (weight_ih, weight_hh)),
        g.Unsqueeze(g.Concat(*biases, axis=0), [0]) if biases else None,
        None,
        g.Unsqueeze(h, [0]),
        g.Unsqueeze(c, [0]),
        hidden_size=size,
        direction="reverse" if reverse else "forward",
        n_outputs=3,
    )
    return {"y": g.Squeeze(y, [1]), "hy": g.Squeeze(hy, [0]), "cy": g.Squeeze(cy, [0])}


def _onnx_order(g: Builder, weight: ir.Value, size: int) -> ir.Value:
    """Gate rows input, forget, cell, output as ONNX has them: input, output, forget, cell."""
    i, f, c, o = g.Split(weight, [size] * 4, axis=0)
    return g.Concat(i, o, f, c, axis=0)
