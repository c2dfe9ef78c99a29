"""Activation functions."""

from __future__ import annotations

import math

import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit, row

row("relu", "Relu")
row("sigmoid", "Sigmoid")
row("tanh", "Tanh")
row("elu", "Elu", "in", "out", attributes={"alpha": "alpha"})
row("leaky_relu", "LeakyRelu", attributes={"alpha": "alpha"})
row("selu", "Selu", "in", "out")
row("softsign", "Softsign", "in", "out")
row("hardsigmoid", "HardSigmoid", "in", "out", constants={"alpha": 1 / 6, "beta": 0.5})
row("hardshrink", "Shrink", "in", "out", attributes={"lambd": "lambd"}, constants={"bias": 0.0})


@emit("celu")
def celu(g: Builder, in_: ir.Value, *, alpha: float) -> ir.Value:
    """max(x, 0) + min(alpha (exp(x / alpha) - 1), 0); the operator came at opset 12."""
    if g.opset >= 12:
        return g.append("Celu", in_, alpha=alpha)
    return g.Mul(g.Elu(g.Div(in_, alpha), alpha=1.0), alpha)


@emit("softshrink")
def softshrink(g: Builder, in_: ir.Value, *, alpha: float) -> ir.Value:
    """x shrunk towards 0 by alpha."""
    return g.Shrink(in_, lambd=alpha, bias=alpha)


@emit("hardtanh")
def hardtanh(g: Builder, in_: ir.Value, *, min_val: float, max_val: float) -> ir.Value:
    """x within bounds."""
    return g.Clip(in_, min_val, max_val)


@emit("hardswish")
def hardswish(g: Builder, in_: ir.Value) -> ir.Value:
    """x * hardsigmoid(x); an operator since opset 14."""
    if g.opset >= 14:
        return g.append("HardSwish", in_)
    return g.Mul(in_, g.HardSigmoid(in_, alpha=1 / 6, beta=0.5))


@emit("softplus")
def softplus(g: Builder, in_: ir.Value, *, beta: float, threshold: float) -> ir.Value:
    """log(1 + exp(beta x)) / beta, and x itself where beta x > threshold."""
    x = in_
    if beta == 1 and threshold >= 20:  # log(1 + exp(x)) is x in float32 from 17 on
        return g.Softplus(x)
    scaled = g.Mul(x, beta)
    return g.Where(g.Greater(scaled, threshold), x, g.Div(g.Softplus(scaled), beta))


@emit("log_sigmoid")
def log_sigmoid(g: Builder, x: ir.Value) -> ir.Value:
    """-softplus(-x), which does not overflow."""
    return g.Neg(g.Softplus(g.Neg(x)))


@emit("mish")
def mish(g: Builder, in_: ir.Value) -> ir.Value:
    """x * tanh(softplus(x)); an operator since opset 18."""
    return g.append("Mish", in_) if g.opset >= 18 else g.Mul(in_, g.Tanh(g.Softplus(in_)))


@emit("silu")
def silu(g: Builder, in_: ir.Value) -> ir.Value:
    """x * sigmoid(x); an operator (Swish) since opset 24."""
    return g.append("Swish", in_) if g.opset >= 24 else g.Mul(in_, g.Sigmoid(in_))


@emit("quick_gelu")
def quick_gelu(g: Builder, x: ir.Value) -> ir.Value:
    """x * sigmoid(1.702 x)."""
    return g.Mul(x, g.Sigmoid(g.Mul(x, 1.702)))


@emit("gelu")
def gelu(g: Builder, in_: ir.Value) -> ir.Value:
    """x * (1 + erf(x / sqrt 2)) / 2; an operator since opset 20."""
    if g.opset >= 20:
        return g.append("Gelu", in_)
    return g.Mul(g.Mul(in_, g.Add(g.Erf(g.Div(in_, math.sqrt(2))), 1)), 0.5)


@emit("fast_gelu")
def fast_gelu(g: Builder, in_: ir.Value) -> ir.Value:
    """The tanh form of gelu: OneFlow's constants are 0.7978845608 and 0.044715."""
    if g.opset >= 20:
        return g.append("Gelu", in_, approximate="tanh")
    cube = g.Mul(in_, g.Mul(in_, in_))
    inner = g.Mul(g.Add(in_, g.Mul(cube, 0.044715)), math.sqrt(2 / math.pi))
    return g.Mul(g.Mul(in_, g.Add(g.Tanh(inner), 1)), 0.5)


@emit("fused_fast_gelu_mul")
def fused_fast_gelu_mul(g: Builder, in_: ir.Value, multiplier: ir.Value) -> ir.Value:
    """fast_gelu(x) * multiplier."""
    return g.Mul(fast_gelu(g, in_), multiplier)


@emit("threshold")
def threshold(g: Builder, in_: ir.Value, *, threshold_val: float, value: float) -> ir.Value:
    """x where it is above the threshold, else a number."""
    return g.Where(g.Greater(in_, threshold_val), in_, g.full(value, in_))


@emit("prelu")
def prelu(g: Builder, x: ir.Value, alpha: ir.Value) -> ir.Value:
    """Slope alpha per channel (axis 1) for negative x."""
    rank = g.rank(x)
    if g.sizes(alpha) != [1] and rank > 2:
        alpha = g.Unsqueeze(alpha, list(range(1, rank - 1)))
    return g.PRelu(x, alpha)


@emit("tf_prelu")
def tf_prelu(g: Builder, x: ir.Value, alpha: ir.Value) -> ir.Value:
    """Slopes of the shape of x without its batch axis."""
    return g.PRelu(x, alpha)


@emit("softmax")
def softmax(g: Builder, in_: ir.Value) -> ir.Value:
    """Over the last axis."""
    return g.append("Softmax", in_, axis=g.rank(in_) - 1)


@emit("log_softmax")
def log_softmax(g: Builder, in_: ir.Value) -> ir.Value:
    """Over the last axis."""
    return g.append("LogSoftmax", in_, axis=g.rank(in_) - 1)


@emit("fused_glu", ignore="has_bias is_split")
def fused_glu(
    g: Builder,
    x: ir.Value,
    w: ir.Value,
    b: ir.Value | None = None,
    v: ir.Value | None = None,
    c: ir.Value | None = None,
    *,
    activation: str,
) -> dict[str, ir.Value]:
    """(x w' + b) * activation(x v' + c); without v the product is cut in two halves."""
    act = {"none": lambda g, y: y, "sigmoid": lambda g, y: g.Sigmoid(y), "relu": lambda g, y: g.Relu(y)}
    act.update(gelu=gelu, fast_gelu=fast_gelu, silu=silu)
    if activation not in act:
        g.refuse(f"has the activation {activation!r}; known are {sorted(act)}.")
    linear = _linear(g, x, w, b)
    if v is None:
        half = g.static(g.sizes(w)[0], "the width of the gate") // 2
        hidden, gate = g.Split(linear, [half, half], axis=g.rank(x) - 1)
        return {"matmul_wx": linear, "y": g.Mul(hidden, act[activation](g, gate))}
    gate = _linear(g, x, v, c)
    return {"matmul_wx": linear, "matmul_vx": gate, "y": g.Mul(linear, act[activation](g, gate))}


def _linear(g: Builder, x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    product = g.MatMul(x, g.Transpose(weight, [1, 0]))
    return product if bias is None else g.Add(product, bias)
