"""ONNX Runtime's attention operators (com.microsoft), as its CPU kernels compute them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ground.element_types import BY_NAME
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.linalg import rotary_embedding
from onnx2nn.ops.shape import scalar
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import Lookup, NeedsValues


def softmax_with_sink(F: Any, scores: Any, sink: Any) -> Any:
    """Returns the softmax of scores, `(..., heads, L, keys)`, over the keys and one more score for each head.

    That score's value is zero: what it takes is missing in the weights' sum.

    Args:
        F: torch or OneFlow.
        scores: what each query scores each key with.
        sink: the further score, `(heads,)`, of the scores' dtype; None for 0.
    """
    nothing = F.zeros_like(scores[..., :1])
    if sink is not None:
        nothing = nothing + sink.reshape(-1, 1, 1)
    return F.softmax(F.cat([nothing, scores], -1), -1)[..., 1:]


def heads_apart(x: Any, count: int) -> Any:
    """Returns `(N, L, count * size)` as `(N, count, L, size)`; a tensor of four dimensions is returned as it is."""
    return x if x.ndim == 4 else x.unflatten(2, (count, -1)).transpose(1, 2)


def _padding(F: Any, mask: Any, batch: Any, keys: Any, filter_value: float, dtype: Any) -> Any:
    """Returns a mask as a term of the scores, of four dimensions: 0 at keys that are attended, else `filter_value`.

    Args:
        F: the namespace.
        mask: lengths `(N,)`; ends, then starts `(2 * N,)`; lengths, then numbers that ONNX Runtime's CPU does not read
            `(3 * N + 2,)`; or 1 at keys that are attended, `(N, keys)` or `(N, queries, keys)`.
        batch: N.
        keys: the number of keys.
        filter_value: `mask_filter_value`.
        dtype: the dtype of the scores.
    """
    if mask.ndim == 1:
        position = F.arange(keys)
        if mask.shape[0] == batch:
            passes = position < mask.reshape(-1, 1)
        elif not (isinstance(mask.shape[0], int) and isinstance(batch, int)):
            raise NeedsValues("the form of a mask whose length or batch is dynamic")
        elif mask.shape[0] == 2 * batch:
            ends, starts = mask.reshape(2, -1, 1).unbind(0)
            passes = (position < ends) & (position >= starts)
        elif mask.shape[0] == 3 * batch + 2:
            passes = position < mask[:batch].reshape(-1, 1)
        else:
            raise OperatorError(f"a mask of {mask.shape[0]} numbers is none of N, 2 * N, 3 * N + 2 for N={batch}.")
    elif mask.ndim in (2, 3):
        passes = mask > 0
    else:
        raise OperatorError(f"a mask of {mask.ndim} dimensions is not supported. Give it 1 to 3 dimensions.")
    added = F.where(passes, 0.0, filter_value).to(dtype)
    return added.unsqueeze(1) if added.ndim == 3 else added.unsqueeze(1).unsqueeze(1)


def _terms(F: Any, Q: Any, K: Any, bias: Any, mask: Any, filter_value: float | None) -> list[Any]:
    """Returns the terms of the scores that the node gives: the bias, the padding mask."""
    terms = [] if bias is None else [bias]
    if mask is not None:
        filter_value = -10000.0 if filter_value is None else filter_value
        terms.append(_padding(F, mask, Q.shape[0], K.shape[2], filter_value, Q.dtype))
    return terms


def _causal(F: Any, queries: Any, keys: Any, past: Any, itself: bool, dtype: Any) -> Any:
    """Returns the causal mask as a term of the scores, `(queries, keys)`: the lowest number at later keys.

    The last query attends every key, as in ONNX Runtime; with `itself`, where each query has its own key, it does so by
    the causal rule already.
    """
    row = F.arange(queries).reshape(-1, 1)
    later = F.arange(keys) > row + past
    later = later if itself else later & (row < queries - 1)
    return F.where(later, F.finfo(dtype).min, 0.0).to(dtype)


def _attend(F: Any, Q: Any, K: Any, V: Any, terms: Sequence[Any], scale: float | None, scores: bool) -> Any:
    """Returns the attention `(N, queries, heads * size)` of Q `(N, heads, queries, size)` over K and V.

    `terms` are added to the scores. With `scores` it also returns the scores, `(N, heads, queries, keys)`.
    """
    added = None
    for term in terms:
        added = term if added is None else added + term
    if not scores:
        Y = F.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=added, scale=scale or None)
        return Y.transpose(1, 2).flatten(2)
    qk = (Q @ K.mT) * (scale or Q.shape[3] ** -0.5)
    qk = qk if added is None else qk + added
    return (F.softmax(qk, -1) @ V).transpose(1, 2).flatten(2), qk


def _extended(F: Any, past: Any, new: Any, length: Any) -> tuple[Any, Any]:
    """Returns the rows that are attended, `new` behind the past, `(..., L, size)`, and the present.

    With a `length`, the past is a buffer of which the first `length` rows are filled. The present is then the buffer
    with the new rows written behind them.
    """
    if past is None:
        return new, new
    if length is None:
        attended = F.cat([past, new], -2)
        return attended, attended
    end = length + new.shape[-2]
    return (
        F.cat([past[..., :length, :], new], -2),
        F.cat([past[..., :length, :], new, past[..., end:, :]], -2),
    )


def _of_beams(F: Any, past: Any, beams: Any, length: Any) -> Any:
    """Returns the first `length` rows of the past `(N, heads, rows, size)`, each gathered from its source beam.

    `beams`: `(N / width, width, rows)`, the source beam of each row, below `width`.
    """
    width = beams.shape[1]
    source = beams[:, :, :length] + width * F.arange(beams.shape[0]).reshape(-1, 1, 1)
    rows = past.transpose(1, 2)[source.flatten(0, 1).to(F.int64), F.arange(length)]
    return rows.transpose(1, 2)


@op("MultiHeadAttention", 1, domain=MICROSOFT, static=["past_sequence_length"])
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
    _output_types: Any = None,
) -> Any:
    """query, key, value: `(N, L, heads * size)`; key and value also `(N, heads, L, size)`.

    They may be packed, `(N, L, heads, 3, size)` as the query or `(N, L, heads, 2, size)` as the key. A mask adds
    -10000, so that a query whose keys are all masked attends all of them, as in ONNX Runtime. The output qk is the
    input of softmax: the scores with bias and masks. cache_indirection is read only where one token is added to a
    buffer of past_sequence_length rows, as in ONNX Runtime.
    """
    if key is None:
        query, key, value = (part.flatten(2) for part in query.unbind(3))
    elif value is None:
        key, value = (part.flatten(2) for part in key.unbind(3))
    if bias is not None:
        first, second = query.shape[2], bias.shape[0] - value.shape[2] if value.ndim == 3 else None
        query = query + bias[:first]
        if key.ndim == 3:
            key, value = key + bias[first:second], value + bias[second:]
    Q, new_K, new_V = heads_apart(query, num_heads), heads_apart(key, num_heads), heads_apart(value, num_heads)
    length = None if past_key is None else scalar(past_sequence_length)
    (K, present_key), (V, present_value) = (
        _extended(F, past, new, length) for past, new in ((past_key, new_K), (past_value, new_V))
    )
    if cache_indirection is not None and length is not None:
        if not isinstance(Q.shape[2], int):
            raise NeedsValues("cache_indirection with a dynamic number of tokens")
        if Q.shape[2] == 1:
            K = F.cat([_of_beams(F, past_key, cache_indirection, length), new_K], 2)
            V = F.cat([_of_beams(F, past_value, cache_indirection, length), new_V], 2)
    terms = _terms(F, Q, K, attention_bias, key_padding_mask, mask_filter_value)
    if unidirectional:
        past = 0 if past_key is None else past_key.shape[2] if length is None else length
        itself = (Q.shape[2] == new_K.shape[2]) is True  # False for dynamic sizes, which may differ
        terms.append(_causal(F, Q.shape[2], K.shape[2], past, itself, Q.dtype))
    if _outputs <= 3:
        Y = _attend(F, Q, K, V, terms, scale, scores=False)
        return (Y, present_key, present_value)[:_outputs] if _outputs > 1 else Y
    Y, qk = _attend(F, Q, K, V, terms, scale, scores=True)
    named = _output_types[3] if _output_types else None
    return Y, present_key, present_value, qk.to(getattr(F, BY_NAME[named].dtype)) if named else qk


def attention_of_rows(
    F: Any,
    packed: Any,
    mask: Any,
    past: Any,
    bias: Any,
    length: Any,
    *,
    mask_filter_value: float | None,
    num_heads: int,
    sizes: Sequence[Any],
    scale: float | None,
    unidirectional: int,
    _outputs: int,
) -> Any:
    """Returns the attention of projected rows `(N, L, features)`, and with two outputs the present.

    Args:
        F: the namespace.
        packed: queries, keys and values of all heads, one behind the other.
        mask: see `_padding`.
        past: keys and values `(2, N, heads, rows, size)`.
        bias: is added to the scores.
        length: the filled rows of the past, None for all.
        mask_filter_value: an attribute of the node, like the others.
        num_heads: the number of heads.
        sizes: features of the queries, the keys and the values.
        scale: of the scores.
        unidirectional: whether later keys are masked.
        _outputs: the node's outputs.
    """
    Q, K, V = (heads_apart(part, num_heads) for part in packed.split(list(sizes), 2))
    (K, present_key), (V, present_value) = (
        _extended(F, None if past is None else past[i], new, length) for i, new in enumerate((K, V))
    )
    terms = _terms(F, Q, K, bias, mask, mask_filter_value)
    if unidirectional:
        behind = 0 if past is None else past.shape[3] if length is None else length
        terms.append(_causal(F, Q.shape[2], K.shape[2], behind, True, Q.dtype))
    Y = _attend(F, Q, K, V, terms, scale, scores=False)
    return (Y, F.stack([present_key, present_value])) if _outputs > 1 else Y


@op("Attention", 1, domain=MICROSOFT, static=["past_sequence_length"])
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
    """One matrix maps the input `(N, L, features)` to queries, keys and values; past and present stack keys and values.

    past_sequence_length is read with past_present_share_buffer only. do_rotary is refused, as by ONNX Runtime's CPU:
    the schema has no input for the angles.
    """
    if do_rotary:
        raise OperatorError("do_rotary=1 has no defined angles. Use RotaryEmbedding before MultiHeadAttention.")
    sizes = list(qkv_hidden_sizes or [weights.shape[1] // 3] * 3)
    packed = F.nn.functional.linear(input, weights.T, bias)
    length = scalar(past_sequence_length) if past is not None and past_present_share_buffer else None
    if past_present_share_buffer and past is not None and length is None:
        raise OperatorError("past_sequence_length is missing, which past_present_share_buffer=1 needs.")
    return attention_of_rows(
        F, packed, mask_index, past, attention_bias, length,
        mask_filter_value=mask_filter_value, num_heads=num_heads, sizes=sizes, scale=scale,
        unidirectional=unidirectional, _outputs=_outputs,
    )  # fmt: skip


@op("RotaryEmbedding", 1, domain=MICROSOFT, lookups=(Lookup("position_ids", "cos_cache"),))
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
    """Like ONNX's RotaryEmbedding, but `position_ids` may be one number, the position of the first token.

    scale and is_packed_batching are not read: ONNX Runtime's CPU ignores scale, and is_packed_batching only permits
    more tokens than there are angles.
    """
    if position_ids.ndim == 1:
        length = input.shape[1] if input.ndim == 3 else input.shape[2]
        position_ids = (F.arange(length) + position_ids).unsqueeze(0)
    options = dict(interleaved=interleaved or 0, rotary_embedding_dim=rotary_embedding_dim or 0)
    if input.ndim == 4 or num_heads:
        return rotary_embedding(F, input, cos_cache, sin_cache, position_ids, num_heads=num_heads, **options)
    X = input.unflatten(2, (-1, 2 * cos_cache.shape[1])).transpose(1, 2)  # a head has two features per angle
    return rotary_embedding(F, X, cos_cache, sin_cache, position_ids, **options).transpose(1, 2).flatten(2)


@op("RelativePositionBias", 1, domain=MICROSOFT, static=["query_length", "key_length"])
def relative_position_bias(
    F: Any,
    bias_table: Any,
    query_length: Any,
    key_length: Any,
    *,
    is_bidirectional: int = 0,
    max_distance: int,
) -> Any:
    """T5's bias `(1, heads, queries, keys)`: distances are counted in buckets that widen with the distance.

    The table has the shape `(buckets, heads)`, but its elements are laid out head by head.
    """
    buckets, heads = bias_table.shape
    behind = F.arange(scalar(query_length)).unsqueeze(1) - F.arange(scalar(key_length))
    sided = buckets // 2 if is_bidirectional else buckets
    distance = behind.abs() if is_bidirectional else behind.clamp(min=0)
    exact = sided // 2
    ratio = F.log(distance.clamp(min=1).to(F.float32) / exact) / math.log(max_distance / exact)
    rough = (exact + (ratio * (sided - exact)).to(F.int64)).clamp(max=sided - 1)
    bucket = F.where(distance < exact, distance, rough)
    if is_bidirectional:
        bucket = F.where(behind < 0, bucket + sided, bucket)
    bias = bias_table.reshape([heads, buckets]).index_select(1, bucket.flatten())
    return bias.reshape([1, heads, *bucket.shape])
