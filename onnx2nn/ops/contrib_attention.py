"""ONNX Runtime's attention operators (com.microsoft), as its CPU kernels compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib_fused import MICROSOFT
from onnx2nn.ops.linalg import rotary_embedding
from onnx2nn.table import op


def _heads(x: Any, count: int) -> Any:
    """Returns `(N, L, count * size)` as `(N, count, L, size)`; what has four dimensions already stays."""
    return x if x.ndim == 4 else x.unflatten(2, (count, -1)).transpose(1, 2)


def _padding(F: Any, mask: Any, keys: Any, filter_value: float, dtype: Any) -> Any:
    """Returns what a mask adds to the scores: 0 where it lets through, else `filter_value`; of four dimensions.

    Args:
        F: the namespace.
        mask: lengths `(N,)`, ends and starts `(2 * N,)`, or 1 for let through: `(N, keys)` or `(N, queries, keys)`.
        keys: how many there are.
        filter_value: `mask_filter_value`.
        dtype: that of the scores.
    """
    if mask.ndim == 1:
        position = F.arange(keys)
        passes = position < mask.reshape(-1, 1)
    elif mask.ndim in (2, 3):
        passes = mask > 0
    else:
        raise OperatorError(f"a mask of {mask.ndim} dimensions; masks of 1 to 3 dimensions are known.")
    added = F.where(passes, 0.0, filter_value).to(dtype)
    return added.unsqueeze(1) if added.ndim == 3 else added.unsqueeze(1).unsqueeze(1)


def _attend(
    F: Any, Q: Any, K: Any, V: Any, mask: Any, bias: Any, causal: int, scale: float | None, filter_value: float | None
) -> Any:
    """Returns the attention `(N, queries, heads * size)` of Q `(N, heads, queries, size)` over K and V."""
    queries, keys = Q.shape[2], K.shape[2]
    terms = [] if bias is None else [bias]
    if mask is not None:
        terms.append(_padding(F, mask, keys, -10000.0 if filter_value is None else filter_value, Q.dtype))
    if causal:
        later = F.arange(keys) > F.arange(queries).reshape(-1, 1) + (keys - queries)
        terms.append(F.where(later, -float("inf"), 0.0).to(Q.dtype))
    added = None
    for term in terms:
        added = term if added is None else added + term
    if not scale:
        scale = None
    Y = F.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=added, scale=scale)
    return Y.transpose(1, 2).flatten(2)


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise OperatorError(f"{name} is not supported; export without the optimisation that writes it.")


@op("MultiHeadAttention", 1, domain=MICROSOFT)
def multi_head_attention(
    F: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    bias: Any = None,
    key_padding_mask: Any = None,
    attention_bias: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    past_sequence_length: Any = None,
    cache_indirection: Any = None,
    *,
    mask_filter_value: float | None = None,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    _outputs: int = 1,
) -> Any:
    """query, key, value: `(N, L, heads * size)`; key and value also `(N, heads, L, size)`. Packed ones are refused.

    A mask adds -10000, so that a query whose keys are all masked attends all of them (ONNX Runtime).
    """
    _refuse(past_sequence_length=past_sequence_length, cache_indirection=cache_indirection)
    if key is None or value is None or query.ndim != 3:
        raise OperatorError("packed queries, keys and values are not supported.")
    if _outputs > 3:
        raise OperatorError("its output qk is not supported.")
    if bias is not None:
        first, second = query.shape[2], bias.shape[0] - value.shape[2] if value.ndim == 3 else None
        query = query + bias[:first]
        if key.ndim == 3:
            key, value = key + bias[first:second], value + bias[second:]
    Q, K, V = _heads(query, num_heads), _heads(key, num_heads), _heads(value, num_heads)
    if past_key is not None:
        K, V = F.cat([past_key, K], 2), F.cat([past_value, V], 2)
    Y = _attend(F, Q, K, V, key_padding_mask, attention_bias, unidirectional, scale, mask_filter_value)
    return (Y, K, V)[:_outputs] if _outputs > 1 else Y


@op("Attention", 1, domain=MICROSOFT)
def attention(
    F: Any,
    input: Any,
    weights: Any,
    bias: Any = None,
    mask_index: Any = None,
    past: Any = None,
    attention_bias: Any = None,
    past_sequence_length: Any = None,
    *,
    do_rotary: int | None = None,
    mask_filter_value: float | None = None,
    num_heads: int,
    past_present_share_buffer: int | None = None,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
    _outputs: int = 1,
) -> Any:
    """One matrix makes queries, keys and values of the input `(N, L, features)`; past and present are stacked pairs."""
    _refuse(
        do_rotary=do_rotary,
        past_present_share_buffer=past_present_share_buffer,
        past_sequence_length=past_sequence_length,
    )
    sizes = list(qkv_hidden_sizes or [weights.shape[1] // 3] * 3)
    packed = F.nn.functional.linear(input, weights.T, bias)
    Q, K, V = (_heads(part, num_heads) for part in packed.split(sizes, 2))
    if past is not None:
        K, V = F.cat([past[0], K], 2), F.cat([past[1], V], 2)
    if mask_index is not None and mask_index.ndim == 1 and mask_index.shape[0] != input.shape[0]:
        raise OperatorError("a mask of ends and starts is not supported.")
    Y = _attend(F, Q, K, V, mask_index, attention_bias, unidirectional, scale, mask_filter_value)
    return (Y, F.stack([K, V])) if _outputs > 1 else Y


@op("RotaryEmbedding", 1, domain=MICROSOFT)
def rotary_embedding_ms(
    F: Any,
    input: Any,
    position_ids: Any,
    cos_cache: Any,
    sin_cache: Any,
    *,
    interleaved: int | None = None,
    is_packed_batching: int | None = None,
    num_heads: int | None = None,
    rotary_embedding_dim: int | None = None,
    scale: float | None = None,
) -> Any:
    """Like ONNX's; `position_ids` may be one number, the position of the first token."""
    _refuse(is_packed_batching=is_packed_batching)
    if scale not in (None, 1.0):
        raise OperatorError(f"scale={scale} is not supported.")
    if position_ids.ndim == 1:
        length = input.shape[1] if input.ndim == 3 else input.shape[2]
        position_ids = (F.arange(length) + position_ids).unsqueeze(0)
    options = dict(interleaved=interleaved or 0, rotary_embedding_dim=rotary_embedding_dim or 0)
    if input.ndim == 4 or num_heads:
        return rotary_embedding(F, input, cos_cache, sin_cache, position_ids, num_heads=num_heads, **options)
    X = input.unflatten(2, (-1, 2 * cos_cache.shape[1])).transpose(1, 2)  # each head is as wide as the angles say
    return rotary_embedding(F, X, cos_cache, sin_cache, position_ids, **options).transpose(1, 2).flatten(2)
