"""torch.nn.functional: attention."""

from __future__ import annotations

import math

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import add, mul
from oneflow_bridge.namespace.comparison import eq, where
from oneflow_bridge.namespace.creation import full
from oneflow_bridge.namespace.functional.activation import dropout, softmax
from oneflow_bridge.namespace.functional.half_precision import computed_in_float32
from oneflow_bridge.namespace.functional.linear import linear
from oneflow_bridge.namespace.linalg import matmul
from oneflow_bridge.namespace.reduction import amax
from oneflow_bridge.namespace.shaping import chunk, expand, flatten, reshape, transpose, tril, unsqueeze
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.errors import OperatorError


@computed_in_float32
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value; a query whose keys are all masked gives zeros."""
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (
            flatten(expand(unsqueeze(v, -3), *v.shape[:-2], times, *v.shape[-2:]), -4, -3) for v in (key, value)
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = mul(matmul(query, transpose(key, -2, -1)), scale)
    if is_causal:
        size = full((query.shape[-2], key.shape[-2]), True, dtype=dtypes.bool_, device=query.device)
        attn_mask = tril(size)
    if attn_mask is not None:
        scores = where(attn_mask, scores, -math.inf) if attn_mask.dtype is dtypes.bool_ else add(scores, attn_mask)
    weights = softmax(scores, -1)
    if attn_mask is not None and not is_causal:
        weights = where(eq(amax(scores, -1, True), -math.inf), 0.0, weights)
    return matmul(dropout(weights, dropout_p, dropout_p > 0), value)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor,
    in_proj_bias: Tensor | None,
    bias_k: None,
    bias_v: None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Attention of queries (L, N, E) to keys and values (S, N, E) by packed weights, without dropout.

    `attn_mask` is (L, S) or (N * num_heads, L, S), `key_padding_mask` (N, S). A float mask is added to the scores, a
    bool one is True at masked positions.
    """
    if any(v is not None for v in (bias_k, bias_v)) or add_zero_attn or need_weights:
        raise OperatorError("attention with added keys, or that returns its weights, is not supported on OneFlow.")
    if training and dropout_p:
        raise OperatorError("attention with dropout in training is not supported on OneFlow.")
    size = embed_dim_to_check // num_heads

    def heads(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return transpose(reshape(linear(x, weight, bias), (x.shape[0], x.shape[1] * num_heads, size)), 0, 1)

    biases = [None] * 3 if in_proj_bias is None else chunk(in_proj_bias, 3, 0)
    packed = zip((query, key, value), chunk(in_proj_weight, 3, 0), biases, strict=True)
    q, k, v = (heads(x, weight, bias) for x, weight, bias in packed)
    mask = None if attn_mask is None else _added(attn_mask, q)
    if key_padding_mask is not None:
        every = expand(unsqueeze(_added(key_padding_mask, q), 1), -1, num_heads, -1)
        padding = unsqueeze(flatten(every, 0, 1), 1)
        mask = padding if mask is None else add(mask, padding)
    attended = scaled_dot_product_attention(q, k, v, mask)
    joined = reshape(transpose(attended, 0, 1), query.shape)
    return linear(joined, out_proj_weight, out_proj_bias), None


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """Returns a mask as an addend of the scores; a bool mask is True at masked positions."""
    if mask.dtype is not dtypes.bool_:
        return mask
    return where(mask, full(mask.shape, -math.inf, dtype=like.dtype, device=like.device), 0.0)
