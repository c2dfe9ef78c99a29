"""ONNX Runtime's attention operators (com.microsoft), as its CPU kernels compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib_fused import MICROSOFT
from onnx2nn.ops.linalg import rotary_embedding
from onnx2nn.table import REQUIRED, NeedsValues, op


def _heads(x: Any, count: int) -> Any:
    """Returns `(N, L, count * size)` as `(N, count, L, size)`; what has four dimensions already stays."""
    return x if x.ndim == 4 else x.unflatten(2, (count, -1)).transpose(1, 2)


def _padding(F: Any, mask: Any, batch: Any, keys: Any, filter_value: float, dtype: Any) -> Any:
    """Returns what a mask adds to the scores: 0 where it lets through, else `filter_value`; of four dimensions.

    Args:
        F: the namespace.
        mask: lengths `(N,)`, ends and starts `(2 * N,)`, or 1 for let through: `(N, keys)` or `(N, queries, keys)`.
        batch: N.
        keys: how many there are.
        filter_value: `mask_filter_value`.
        dtype: that of the scores.
    """
    if mask.ndim == 1:
        position = F.arange(keys)
        if mask.shape[0] == batch:
            passes = position < mask.reshape(-1, 1)
        elif not (isinstance(mask.shape[0], int) and isinstance(batch, int)):
            raise NeedsValues("what the numbers of a mask are")
        elif mask.shape[0] == 2 * batch:
            ends, starts = mask.reshape(2, -1, 1).unbind(0)
            passes = (position < ends) & (position >= starts)
        else:
            raise OperatorError(f"a mask of {mask.shape[0]} numbers for a batch of {batch}; it has 1 or 2 for each.")
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
        terms.append(_padding(F, mask, Q.shape[0], keys, -10000.0 if filter_value is None else filter_value, Q.dtype))
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
    """query, key, value: `(N, L, heads * size)`; key and value also `(N, heads, L, size)`.

    They may come packed, `(N, L, heads, 3, size)` as the query or `(N, L, heads, 2, size)` as the key. A mask adds
    -10000, so that a query whose keys are all masked attends all of them (ONNX Runtime).
    """
    _refuse(past_sequence_length=past_sequence_length, cache_indirection=cache_indirection)
    if key is None:
        query, key, value = (part.flatten(2) for part in query.unbind(3))
    elif value is None:
        key, value = (part.flatten(2) for part in key.unbind(3))
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


def _cached(F: Any, past: Any, new: Any, start: Any, length: Any) -> Any:
    """Returns `new`, `(N, heads, L, size)`, behind the first `start`, `(N,)`, of what is in `past`; then zeros."""
    row = F.arange(length) - start.reshape(-1, 1)
    place = row.clamp(0, new.shape[2] - 1).reshape(new.shape[0], 1, -1, 1)
    place = place.expand(new.shape[0], new.shape[1], length, new.shape[3])
    row = row.unsqueeze(1).unsqueeze(-1)
    old = F.nn.functional.pad(past, (0, 0, 0, length - past.shape[2]))
    return F.where(row < 0, old, F.where(row < new.shape[2], new.gather(2, place), 0.0))


@op("GroupQueryAttention", 1, domain=MICROSOFT, static=["total_sequence_length"])
def group_query_attention(
    F: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    seqlens_k: Any = REQUIRED,
    total_sequence_length: Any = REQUIRED,
    cos_cache: Any = None,
    sin_cache: Any = None,
    position_ids: Any = None,
    attention_bias: Any = None,
    head_sink: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    q_norm_weight: Any = None,
    k_norm_weight: Any = None,
    *,
    causal: int = 1,
    do_rotary: int | None = None,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int | None = None,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-06,
    qk_output: int = 0,
    rotary_interleaved: int | None = None,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float | None = None,
    v_quant_type: str = "NONE",
    _outputs: int = 1,
) -> Any:
    """query, key, value: `(N, L, heads * size)`, or all three packed in the query; past and present have heads apart.

    A sequence has seqlens_k + 1 tokens, of which the last L are new; the present holds as many rows as the past, or
    total_sequence_length if that is more, with zeros behind a sequence's end. A window counts the token itself.
    Rows of queries behind a sequence's end are padding.
    """
    _refuse(
        k_scale=k_scale, v_scale=v_scale, q_norm_weight=q_norm_weight, k_norm_weight=k_norm_weight,
        sliding_window_cache=sliding_window_cache, qk_output=qk_output,
    )  # fmt: skip
    if k_quant_type != "NONE" or v_quant_type != "NONE":
        raise OperatorError("a quantised cache is not supported; export the model with one of floats.")
    if key is None:
        size = query.shape[2] // (num_heads + 2 * kv_num_heads)
        query, key, value = query.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], 2)
    Q, K, V = _heads(query, num_heads), _heads(key, kv_num_heads), _heads(value, kv_num_heads)
    total = total_sequence_length[0] if isinstance(total_sequence_length, list) else total_sequence_length
    lengths = seqlens_k + 1
    start = (lengths - Q.shape[2]).clamp(min=0)  # of a prompt with padding behind it: 0
    position = start.reshape(-1, 1) + F.arange(Q.shape[2])
    if do_rotary:
        turned = _rotary_positions(F, position, position_ids, Q.shape[2], total)
        options = dict(interleaved=rotary_interleaved or 0, rotary_embedding_dim=_rotary_size(cos_cache, Q))
        Q, K = (rotary_embedding(F, x, cos_cache, sin_cache, turned, **options) for x in (Q, K))
    if past_key is not None:
        if not (isinstance(past_key.shape[2], int) and isinstance(total, int)):
            raise NeedsValues("whether the cache has room for the new tokens")
        rows = max(past_key.shape[2], total)
        K, V = _cached(F, past_key, K, start, rows), _cached(F, past_value, V, start, rows)
    present = (K, V)
    if past_key is not None:
        K, V = K[:, :, :total], V[:, :, :total]
    K, V = (x.repeat_interleave(num_heads // kv_num_heads, 1) for x in (K, V))
    at = F.arange(K.shape[2])
    position = position.unsqueeze(1).unsqueeze(-1)
    attended = at < lengths.reshape(-1, 1, 1, 1)
    if causal:
        attended = attended & (at <= position)
    if local_window_size > 0:
        attended = attended & (at > position - local_window_size)
    Y = _group_attend(F, Q, K, V, attended, attention_bias, head_sink, scale, softcap, smooth_softmax > 0)
    Y = Y.transpose(1, 2).flatten(2)
    return (Y, *present)[:_outputs] if _outputs > 1 else Y


def _rotary_size(cos_cache: Any, Q: Any) -> int:
    """Returns `rotary_embedding_dim`: 0 where each head is turned as a whole."""
    size, whole = 2 * cos_cache.shape[1], Q.shape[3]
    return 0 if isinstance(size, int) and isinstance(whole, int) and size == whole else size


def _rotary_positions(F: Any, position: Any, position_ids: Any, queries: Any, total: Any) -> Any:
    """Returns what to turn by; of a prompt's position_ids the first alone counts, as in ONNX Runtime."""
    if position_ids is None:
        return position
    if not (isinstance(queries, int) and isinstance(total, int)):
        raise NeedsValues("whether the tokens are a prompt")
    return position_ids.flatten()[0] + position if queries == total else position_ids


def _group_attend(
    F: Any, Q: Any, K: Any, V: Any, attended: Any, bias: Any, sink: Any, scale: float | None, softcap: float | None,
    smooth: bool,
) -> Any:  # fmt: skip
    """Returns the attention of Q over the keys that are `attended`.

    A `sink` is one more score of each head, that of nothing; `smooth` is a sink of 0. The scores are capped before
    `bias` is added.
    """
    plain = not softcap and sink is None and not smooth
    if plain:
        mask = attended if bias is None else F.where(attended, bias, -float("inf"))
        return F.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask, scale=scale or None)
    scores = (Q @ K.mT) * (scale or Q.shape[3] ** -0.5)
    if softcap:
        scores = F.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    scores = F.where(attended, scores, -float("inf"))
    if sink is None and not smooth:
        return F.softmax(scores, -1) @ V
    nothing = F.zeros_like(scores[..., :1])
    if sink is not None:
        nothing = nothing + sink.reshape(-1, 1, 1)
    return F.softmax(F.cat([nothing, scores], -1), -1)[..., 1:] @ V
