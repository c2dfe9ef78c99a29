"""Losses, element by element; OneFlow reduces them by ops of their own."""

from __future__ import annotations

import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


@emit("kl_div_loss")
def kl_div_loss(g: Builder, input: ir.Value, target: ir.Value, *, log_target: bool) -> ir.Value:
    """target * (log target - input), 0 where the target is 0."""
    if log_target:
        return g.Mul(g.Exp(target), g.Sub(target, input))
    positive = g.Greater(target, 0)
    safe = g.Where(positive, target, g.full(1, target))
    return g.Where(positive, g.Mul(target, g.Sub(g.Log(safe), input)), g.full(0, target))


@emit("smooth_l1_loss")
def smooth_l1_loss(g: Builder, input: ir.Value, target: ir.Value, *, beta: float) -> ir.Value:
    """d² / (2 beta) below beta, d - beta / 2 from there on, d = |input - target|."""
    distance = g.Abs(g.Sub(input, target))
    if beta == 0:
        return distance
    near = g.Mul(g.Mul(distance, distance), 0.5 / beta)
    return g.Where(g.Less(distance, beta), near, g.Sub(distance, 0.5 * beta))


@emit("binary_cross_entropy")
def binary_cross_entropy(g: Builder, input: ir.Value, target: ir.Value, weight: ir.Value | None = None) -> ir.Value:
    """-(target log(input) + (1 - target) log(1 - input)); logarithms are at least -100."""
    low = g.full(-100, input)
    one = g.full(1, input)
    hit = g.Max(g.Log(input), low)
    miss = g.Max(g.Log(g.Sub(one, input)), low)
    loss = g.Sub(g.Mul(g.Sub(target, one), miss), g.Mul(target, hit))
    return loss if weight is None else g.Mul(loss, weight)


@emit("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    g: Builder,
    input: ir.Value,
    target: ir.Value,
    weight: ir.Value | None = None,
    pos_weight: ir.Value | None = None,
    *,
    has_pos_weight: bool,
) -> ir.Value:
    """The same of sigmoid(input), without overflow: (1 - t) x + w softplus(-x), w = 1 + (pos_weight - 1) t."""
    one = g.full(1, input)
    softplus = g.Add(g.Max(g.Neg(input), g.full(0, input)), g.Log(g.Add(g.Exp(g.Neg(g.Abs(input))), 1)))
    if has_pos_weight:
        softplus = g.Mul(softplus, g.Add(g.Mul(g.Sub(pos_weight, one), target), 1))
    loss = g.Add(g.Mul(g.Sub(one, target), input), softplus)
    return loss if weight is None else g.Mul(loss, weight)


@emit("binary_cross_entropy_with_logits_reduce_mean")
def binary_cross_entropy_with_logits_mean(g: Builder, input: ir.Value, target: ir.Value) -> ir.Value:
    """The mean of `binary_cross_entropy_with_logits`."""
    loss = binary_cross_entropy_with_logits(g, input, target, has_pos_weight=False)
    return g.reduce("ReduceMean", loss, list(range(g.rank(input))), keepdims=False)


@emit("sigmoid_cross_entropy")
def sigmoid_cross_entropy(g: Builder, prediction: ir.Value, label: ir.Value) -> ir.Value:
    """`binary_cross_entropy_with_logits` of a label of any type."""
    return binary_cross_entropy_with_logits(g, prediction, g.Cast(label, to=prediction.dtype), has_pos_weight=False)


@emit("nll")
def nll(
    g: Builder, input: ir.Value, target: ir.Value, weight: ir.Value | None = None, *, ignore_index: int
) -> dict[str, ir.Value]:
    """-weight[target] * input[target] along the last axis; 0 for the ignored class."""
    axis = g.rank(input) - 1
    wide = g.Cast(target, to=ir.DataType.INT64)
    ignored = g.Equal(wide, ignore_index)
    places = g.Where(ignored, g.const(0, ir.DataType.INT64), wide)
    picked = g.Squeeze(g.GatherElements(input, g.Unsqueeze(places, [axis]), axis=axis), [axis])
    zero = g.full(0, input)
    share = g.full(1, input) if weight is None else g.Gather(weight, places, axis=0)
    share = g.Where(ignored, zero, share)
    return {"output": g.Where(ignored, zero, g.Neg(g.Mul(picked, share))), "out_weight": share}


def _labelled(g: Builder, logarithms: ir.Value, label: ir.Value, axis: int) -> ir.Value:
    places = g.Unsqueeze(g.Cast(label, to=ir.DataType.INT64), [axis])
    return g.Neg(g.Squeeze(g.GatherElements(logarithms, places, axis=axis), [axis]))


@emit("sparse_softmax_cross_entropy", "sparse_softmax_cross_entropy_ms", ignore="depth")
def sparse_softmax_cross_entropy(g: Builder, prediction: ir.Value, label: ir.Value) -> dict[str, ir.Value]:
    """-log softmax(prediction)[label] along the last axis."""
    axis = g.rank(prediction) - 1
    logarithms = g.LogSoftmax(prediction, axis)
    return {"prob": g.Exp(logarithms), "out": _labelled(g, logarithms, label, axis)}


@emit("softmax_cross_entropy")
def softmax_cross_entropy(g: Builder, prediction: ir.Value, label: ir.Value) -> dict[str, ir.Value]:
    """-sum(label * log softmax(prediction)) along the last axis."""
    axis = g.rank(prediction) - 1
    logarithms = g.LogSoftmax(prediction, axis)
    total = g.reduce("ReduceSum", g.Mul(label, logarithms), [axis], keepdims=False)
    return {"prob": g.Exp(logarithms), "out": g.Neg(total)}


@emit("sparse_cross_entropy", "sparse_cross_entropy_ms", ignore="depth")
def sparse_cross_entropy(g: Builder, prediction: ir.Value, label: ir.Value) -> ir.Value:
    """-log prediction[label] along the last axis."""
    axis = g.rank(prediction) - 1
    return _labelled(g, g.Log(prediction), label, axis)
