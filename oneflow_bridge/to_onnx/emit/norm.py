"""Normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.emit.conv import added
from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


@emit("normalization", ignore="momentum")
def normalization(
    g: Builder,
    x: ir.Value,
    moving_mean: ir.Value | None = None,
    moving_variance: ir.Value | None = None,
    gamma: ir.Value | None = None,
    beta: ir.Value | None = None,
    _add_to_output: ir.Value | None = None,
    *,
    axis: int,
    epsilon: float,
    training: bool,
) -> dict[str, ir.Value]:
    """Batch normalisation by running statistics, or by the batch's own where the layer keeps none."""
    rank = g.rank(x)
    axis %= rank
    swap = [0, axis, *(a for a in range(1, rank) if a != axis)]
    back = [swap.index(a) for a in range(rank)]
    x = g.Transpose(x, swap)
    if not training:
        if moving_mean is None or moving_variance is None or gamma is None or beta is None:
            g.refuse("lacks running statistics, gamma or beta.")
        y = g.BatchNormalization(x, gamma, beta, moving_mean, moving_variance, epsilon=epsilon)
        return {"y": added(g, g.Transpose(y, back), _add_to_output)}
    if moving_mean is not None:
        g.refuse("updates running statistics: call model.eval() before the export.")
    axes = [0, *range(2, rank)]
    mean, inverse, y = _standardised(g, x, axes, epsilon)
    y = _scaled(g, y, gamma, beta, rank - 2)
    flat = [g.Squeeze(value, axes) for value in (mean, inverse)] if g.used("mean") or g.used("inv_variance") else []
    return {
        "y": added(g, g.Transpose(y, back), _add_to_output),
        **dict(zip(("mean", "inv_variance"), flat, strict=False)),
    }


def _standardised(g: Builder, x: ir.Value, axes: Sequence[int], epsilon: float) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Mean, 1 / sqrt(variance + epsilon) and (x - mean) times it, over some axes, which are kept."""
    mean = g.reduce("ReduceMean", x, axes, keepdims=True)
    centred = g.Sub(x, mean)
    variance = g.reduce("ReduceMean", g.Mul(centred, centred), axes, keepdims=True)
    inverse = g.Reciprocal(g.Sqrt(g.Add(variance, epsilon)))
    return mean, inverse, g.Mul(centred, inverse)


def _scaled(g: Builder, x: ir.Value, gamma: ir.Value | None, beta: ir.Value | None, after: int) -> ir.Value:
    """x * gamma + beta, `after` axes following theirs."""
    axes = list(range(1, 1 + after))
    x = x if gamma is None else g.Mul(x, g.Unsqueeze(gamma, axes) if axes else gamma)
    return x if beta is None else g.Add(x, g.Unsqueeze(beta, axes) if axes else beta)


@emit("normalization_add_relu", ignore="momentum")
def normalization_add_relu(
    g: Builder,
    x: ir.Value,
    addend: ir.Value | None = None,
    moving_mean: ir.Value | None = None,
    moving_variance: ir.Value | None = None,
    gamma: ir.Value | None = None,
    beta: ir.Value | None = None,
    *,
    axis: int,
    epsilon: float,
    training: bool,
) -> dict[str, ir.Value]:
    """relu(batch normalisation + addend)."""
    y = normalization(
        g, x, moving_mean, moving_variance, gamma, beta, addend, axis=axis, epsilon=epsilon, training=training
    )
    return {"y": g.Relu(y["y"])}


@emit("batch_norm_elemt")
def batch_norm_elemt(
    g: Builder,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value,
    mean: ir.Value,
    invstd: ir.Value,
    *,
    axis: int,
    eps: float,
) -> ir.Value:
    """(x - mean) * invstd * weight + bias along one axis; eps is in invstd already."""
    after = g.rank(input) - 1 - axis
    wide = [g.Unsqueeze(v, list(range(1, 1 + after))) if after else v for v in (mean, invstd)]
    return _scaled(g, g.Mul(g.Sub(input, wide[0]), wide[1]), weight, bias, after)


@emit("layer_norm", ignore="center scale")
def layer_norm(
    g: Builder,
    x: ir.Value,
    beta: ir.Value | None = None,
    gamma: ir.Value | None = None,
    *,
    begin_norm_axis: int,
    begin_params_axis: int,
    epsilon: float,
) -> dict[str, ir.Value]:
    """Layer normalisation; an operator since opset 17."""
    rank = g.rank(x)
    axis, parameters = begin_norm_axis % rank, begin_params_axis % rank
    axes = list(range(axis, rank))
    if g.opset >= 17 and axis == parameters:
        ones = [g.static(size, "the normalised shape") for size in g.sizes(x)[axis:]]
        gamma = g.const(np.ones(ones), x.dtype) if gamma is None else gamma
        if not (g.used("mean") or g.used("inv_variance")):
            return {"y": g.LayerNormalization(x, gamma, beta, axis=axis, epsilon=epsilon)}
        y, mean, inverse = g.LayerNormalization(x, gamma, beta, axis=axis, epsilon=epsilon, n_outputs=3)
    else:
        mean, inverse, y = _standardised(g, x, axes, epsilon)
        y = _scaled(g, y, gamma, beta, 0)
    if not (g.used("mean") or g.used("inv_variance")):
        return {"y": y}
    return {"y": y, "mean": g.Squeeze(mean, axes), "inv_variance": g.Squeeze(inverse, axes)}


@emit("group_norm", ignore="affine")
def group_norm(
    g: Builder,
    x: ir.Value,
    beta: ir.Value | None = None,
    gamma: ir.Value | None = None,
    *,
    num_groups: int,
    epsilon: float,
    data_format: str,
    activation: str,
) -> dict[str, ir.Value]:
    """Group normalisation; an operator with a scale per channel since opset 21. One group a channel: an instance's."""
    if data_format != "channels_first" or activation not in ("none", "silu"):
        g.refuse(f"has data_format {data_format!r} and activation {activation!r}.")
    sizes = g.sizes(x)
    channels = g.static(sizes[1], "the number of channels")
    ones, zeros = (g.const(np.full(channels, number), x.dtype) for number in (1, 0))
    if num_groups == channels:
        y = g.InstanceNormalization(x, gamma or ones, beta or zeros, epsilon=epsilon)
    elif g.opset >= 21:
        y = g.append("GroupNormalization", x, gamma or ones, beta or zeros, num_groups=num_groups, epsilon=epsilon)
    else:
        y = _by_groups(g, x, num_groups, epsilon)
        y = _scaled(g, y, gamma, beta, len(sizes) - 2)
    y = g.Mul(y, g.Sigmoid(y)) if activation == "silu" else y
    if not (g.used("mean") or g.used("inv_variance")):
        return {"y": y}
    mean, inverse, _ = _standardised(g, _grouped(g, x, num_groups), [2], epsilon)
    return {"y": y, "mean": g.Squeeze(mean, [2]), "inv_variance": g.Squeeze(inverse, [2])}


def _grouped(g: Builder, x: ir.Value, num_groups: int) -> ir.Value:
    return g.append("Reshape", x, g.ints([0, num_groups, -1]))


def _by_groups(g: Builder, x: ir.Value, num_groups: int, epsilon: float) -> ir.Value:
    ones, zeros = (g.const(np.full(num_groups, number), x.dtype) for number in (1, 0))
    y = g.InstanceNormalization(_grouped(g, x, num_groups), ones, zeros, epsilon=epsilon)
    return g.append("Reshape", y, g.shape(g.sizes(x), x))


@emit("standardise")
def standardise(g: Builder, x: ir.Value, *, axis: int, epsilon: float) -> ir.Value:
    """(x - mean) / sqrt(variance + epsilon) over the axes from `axis` on; raising makes this op."""
    return _standardised(g, x, list(range(axis, g.rank(x))), epsilon)[2]


@emit("rms_norm")
def rms_norm(
    g: Builder, x: ir.Value, weight: ir.Value | None = None, *, normalized_shape: Sequence[int], epsilon: float
) -> dict[str, ir.Value]:
    """x / sqrt(mean(x²) + epsilon) * weight over the last axes."""
    rank = g.rank(x)
    axes = list(range(rank - len(normalized_shape), rank))
    mean = g.reduce("ReduceMean", g.Mul(x, x), axes, keepdims=True)
    inverse = g.Reciprocal(g.Sqrt(g.Add(mean, epsilon)))
    y = g.Mul(x, inverse)
    written = {"y": y if weight is None else g.Mul(y, weight)}
    return {**written, "inv_rms": g.Squeeze(inverse, axes)} if g.used("inv_rms") else written


@emit("l2_normalize")
def l2_normalize(g: Builder, x: ir.Value, *, axis: int, epsilon: float) -> dict[str, ir.Value]:
    """x / sqrt(max(sum of squares along an axis, epsilon))."""
    total = g.reduce("ReduceSum", g.Mul(x, x), [axis % g.rank(x)], keepdims=True)
    return {"y": g.Div(x, g.Sqrt(g.Max(total, g.full(epsilon, x)))), "square_x_sum": total}
