"""Matrix products and what OneFlow fuses around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.emit.activation import gelu
from oneflow_bridge.to_onnx.emit.arithmetic import bias_add
from oneflow_bridge.to_onnx.emit.conv import added
from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit, row
from oneflow_bridge.to_onnx.lowering.schemas import FLOATS

row("matrix_vector_product", "MatMul", "a b", "out")
row("vector_matrix_product", "MatMul", "a b", "out")
row("dot", "MatMul", "x y", "out")


def _transposed(g: Builder, x: ir.Value, rank: int) -> ir.Value:
    """The last two axes swapped."""
    return g.Transpose(x, [*range(rank - 2), rank - 1, rank - 2])


@emit("matmul", "batch_matmul", "broadcast_matmul")
def matmul(
    g: Builder,
    a: ir.Value,
    b: ir.Value,
    _add_to_output: ir.Value | None = None,
    *,
    transpose_a: bool,
    transpose_b: bool,
    alpha: float,
) -> ir.Value:
    """alpha * a b; two float matrices with a transposition are one Gemm."""
    ranks = g.rank(a), g.rank(b)
    if ranks == (2, 2) and a.dtype in FLOATS and g.opset >= 11 and (transpose_a or transpose_b):
        y = g.Gemm(a, b, transA=int(transpose_a), transB=int(transpose_b), alpha=alpha)
        return added(g, y, _add_to_output)
    a = _transposed(g, a, ranks[0]) if transpose_a else a
    b = _transposed(g, b, ranks[1]) if transpose_b else b
    y = g.MatMul(a, b)
    return added(g, y if alpha == 1 else g.Mul(y, alpha), _add_to_output)


@emit("fused_matmul_bias")
def fused_matmul_bias(
    g: Builder,
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value,
    _add_to_output: ir.Value | None = None,
) -> ir.Value:
    """x weight' + bias: a Gemm for matrices."""
    if g.rank(x) == 2 and x.dtype in FLOATS:
        return added(g, g.Gemm(x, weight, bias, transB=1), _add_to_output)
    return added(g, g.Add(g.MatMul(x, _transposed(g, weight, 2)), bias), _add_to_output)


@emit("cublas_fused_mlp")
def cublas_fused_mlp(
    g: Builder, x: ir.Value, weights: list, biases: list, *, skip_final_activation: bool
) -> dict[str, ir.Value]:
    """Linear layers, each followed by relu."""
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = g.Gemm(x, weight, bias, transB=1)
        if index + 1 < len(weights) or not skip_final_activation:
            x = g.Relu(x)
    return {"out": x}


@emit("fused_matmul_bias_add_relu_dropout")
def fused_matmul_bias_add_relu_dropout(
    g: Builder, x: ir.Value, weights: list, biases: list, *, skip_final_activation: bool, dropout_rate_list: Sequence
) -> dict[str, ir.Value]:
    """As `cublas_fused_mlp`; dropout must be off."""
    if any(dropout_rate_list):
        g.refuse("drops activations: call model.eval() before the export.")
    return cublas_fused_mlp(g, x, weights, biases, skip_final_activation=skip_final_activation)


@emit("grouped_matmul_bias")
def grouped_matmul_bias(g: Builder, xs: list, weights: list, biases: list) -> dict[str, list[ir.Value]]:
    """Several linear layers side by side."""
    layers = zip(xs, weights, biases, strict=True)
    return {"ys": [g.Gemm(x, weight, bias, transB=1) for x, weight, bias in layers]}


@emit("linalg_cross")
def linalg_cross(g: Builder, input: ir.Value, other: ir.Value, *, dim: int) -> ir.Value:
    """The cross product along an axis of 3."""
    axis = dim % g.rank(input)

    def rotated(x: ir.Value, by: int) -> ir.Value:
        return g.Gather(x, np.array([(i + by) % 3 for i in range(3)], dtype=np.int64), axis=axis)

    return g.Sub(g.Mul(rotated(input, 1), rotated(other, 2)), g.Mul(rotated(input, 2), rotated(other, 1)))


@emit("inv")
def inv(g: Builder, x: ir.Value) -> ir.Value:
    """The inverse of square matrices: Gauss-Jordan elimination with row pivoting, one step an axis, unrolled."""
    rank = g.rank(x)
    size = g.static(g.sizes(x)[-1], "the matrix that is inverted")
    if size > 16:
        g.refuse(f"inverts {size} x {size} matrices; ONNX has no inverse, and it is unrolled up to 16 x 16 only.")
    eye = g.append("Expand", g.const(np.eye(size), x.dtype), g.shape(g.sizes(x), x))
    work = g.Concat(x, eye, axis=rank - 1)
    for step in range(size):
        work = _eliminated(g, work, step, size, rank)
    return g.Slice(work, [size], [2 * size], [rank - 1])


def _eliminated(g: Builder, work: ir.Value, step: int, size: int, rank: int) -> ir.Value:
    """One column of Gauss-Jordan: the row with the largest element is swapped up, scaled, and taken from the others."""
    rows, columns = rank - 2, rank - 1
    column = g.Slice(work, [step], [step + 1], [columns])
    below = np.arange(size)[:, None] >= step
    candidates = g.Where(g.const(below), g.Abs(column), g.full(-1, work))
    pivot = g.append("ArgMax", candidates, axis=rows, keepdims=1)  # (..., 1, 1)
    at_pivot = g.Equal(g.const(np.arange(size, dtype=np.int64)[:, None]), pivot)
    at_step = g.const((np.arange(size) == step)[:, None])
    zero = g.full(0, work)
    pivot_row = g.reduce("ReduceSum", g.Where(at_pivot, work, zero), [rows], keepdims=True)
    step_row = g.Slice(work, [step], [step + 1], [rows])
    swapped = g.Where(at_step, pivot_row, g.Where(at_pivot, step_row, work))
    scaled = g.Div(pivot_row, g.Slice(pivot_row, [step], [step + 1], [columns]))
    factors = g.Slice(swapped, [step], [step + 1], [columns])
    return g.Where(at_step, scaled, g.Sub(swapped, g.Mul(factors, scaled)))


@emit("fused_bias_add_gelu")
def fused_bias_add_gelu(g: Builder, a: ir.Value, b: ir.Value, *, axis: int) -> ir.Value:
    """gelu(a + b) with b along one axis."""
    return gelu(g, bias_add(g, a, b, axis=axis))


@emit("fused_bias_add_mask_scale")
def fused_bias_add_mask_scale(
    g: Builder,
    a: ir.Value,
    b: ir.Value,
    mask: ir.Value,
    _add_to_output: ir.Value | None = None,
    *,
    axis: int,
    scale: float,
) -> ir.Value:
    """(a + b) * mask * scale."""
    y = g.Mul(g.Mul(bias_add(g, a, b, axis=axis), g.Cast(mask, to=a.dtype)), scale)
    return added(g, y, _add_to_output)


def _masked_softmax(g: Builder, x: ir.Value, mask: ir.Value, scale: float, fill: float, rank: int) -> ir.Value:
    keep = mask if mask.dtype == ir.DataType.BOOL else g.Not(g.Equal(mask, 0))
    return g.append("Softmax", g.Where(keep, g.Mul(x, scale), g.full(fill, x)), axis=rank - 1)


@emit("fused_scale_mask_softmax")
def fused_scale_mask_softmax(
    g: Builder, x: ir.Value, mask: ir.Value, *, scale_value: float, mask_fill_value: float
) -> ir.Value:
    """softmax(x * scale where the mask is not 0, else a number) over the last axis."""
    return _masked_softmax(g, x, mask, scale_value, mask_fill_value, g.rank(x))


@emit("fused_scale_mask_softmax_dropout", "fused_bias_add_scale_mask_softmax_dropout")
def fused_scale_mask_softmax_dropout(
    g: Builder,
    x: ir.Value,
    mask: ir.Value,
    dropout_mask: ir.Value,
    bias: ir.Value | None = None,
    *,
    scale_value: float,
    mask_fill_value: float,
    dropout_scale_value: float,
) -> dict[str, ir.Value]:
    """As `fused_scale_mask_softmax` of x, plus a bias where there is one, times a dropout mask and its scale."""
    biased = x if bias is None else g.Add(x, bias)
    soft = _masked_softmax(g, biased, mask, scale_value, mask_fill_value, g.rank(x))
    kept = g.Mul(g.Mul(soft, g.Cast(dropout_mask, to=x.dtype)), dropout_scale_value)
    return {"y": kept, "softmax_y": soft}


@emit("fused_tril_scale_softmax_mask_scale")
def fused_tril_scale_softmax_mask_scale(
    g: Builder,
    x: ir.Value,
    mask: ir.Value,
    *,
    diagonal: int,
    tril_fill_value: float,
    tril_scale_value: float,
    mask_scale_value: float,
) -> dict[str, ir.Value]:
    """softmax(tril(x) * scale, a number above the diagonal), times a mask and its scale."""
    rows, columns = (g.static(size, "the matrix under tril") for size in g.sizes(x)[-2:])
    triangle = g.const(np.tril(np.ones((rows, columns), dtype=bool), diagonal))
    soft = g.append(
        "Softmax", g.Where(triangle, g.Mul(x, tril_scale_value), g.full(tril_fill_value, x)), axis=g.rank(x) - 1
    )
    return {"y": g.Mul(g.Mul(soft, g.Cast(mask, to=x.dtype)), mask_scale_value), "softmax_y": soft}


@emit("fused_self_attention_query_mul_key_and_value")
def fused_self_attention(g: Builder, hidden_states: ir.Value, *, head_size: int, alpha: float) -> dict[str, ir.Value]:
    """(S, B, heads * 3 * head_size) → alpha * query key' (B, heads, S, S) and value (B, heads, S, head_size)."""
    steps, batch, width = g.sizes(hidden_states)
    heads = g.static(width, "the width of attention") // (3 * head_size)
    split = g.append("Reshape", hidden_states, g.shape([steps, batch, heads, 3, head_size], hidden_states))
    parts = []
    for index in range(3):
        part = g.Squeeze(g.Slice(split, [index], [index + 1], [3]), [3])
        parts.append(g.Transpose(part, [1, 2, 0, 3]))
    query, key, value = parts
    return {"query_mul_key": g.Mul(g.MatMul(query, g.Transpose(key, [0, 1, 3, 2])), alpha), "value": value}


@emit("fused_multi_head_attention_inference")
def fused_multi_head_attention_inference(
    g: Builder,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    *,
    num_heads: int,
    causal: bool,
    query_hidden_slice_start: int,
    query_hidden_slice_end: int,
    key_hidden_slice_start: int,
    key_hidden_slice_end: int,
    value_hidden_slice_start: int,
    value_hidden_slice_end: int,
) -> ir.Value:
    """softmax(q k' / sqrt(head size)) v, heads packed in the last axis of (B, S, width)."""
    slices = [
        (query, query_hidden_slice_start, query_hidden_slice_end),
        (key, key_hidden_slice_start, key_hidden_slice_end),
        (value, value_hidden_slice_start, value_hidden_slice_end),
    ]
    heads = []
    for source, start, end in slices:
        batch, steps, width = g.sizes(source)
        width = g.static(width, "the width of attention")
        stop = end % (width + 1) if end < 0 else end
        part = source if (start, stop) == (0, width) else g.Slice(source, [start], [stop], [2])
        size = (stop - start) // num_heads
        packed = g.append("Reshape", part, g.shape([batch, steps, num_heads, size], source))
        heads.append((g.Transpose(packed, [0, 2, 1, 3]), size))
    (q, size), (k, _), (v, _) = heads
    scores = g.Mul(g.MatMul(q, g.Transpose(k, [0, 1, 3, 2])), size**-0.5)
    if causal:
        rows, columns = (g.static(g.sizes(s)[1], "the length under a causal mask") for s in (query, key))
        scores = g.Where(g.const(np.tril(np.ones((rows, columns), dtype=bool))), scores, g.full(-np.inf, scores))
    mixed = g.Transpose(g.MatMul(g.append("Softmax", scores, axis=3), v), [0, 2, 1, 3])
    return g.append("Reshape", mixed, g.shape(g.sizes(g.result()), query))
