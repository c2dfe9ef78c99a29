"""Attention of ONNX Runtime on tokens without padding, and what packs and unpacks them, as its documentation has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED, Counted


def _results_of_removal(F: Any, input: Any, sequence_token_count: Any) -> Any:
    batch, length = input.shape[:2]
    kept = Counted("kept", batch * length)
    return [
        ([kept, input.shape[2]], input.dtype),
        ([batch, length], F.int32),
        ([batch + 1], F.int32),
        ([1], F.int32),
    ]


@op("RemovePadding", 1, domain=MICROSOFT, call="opaque", results=_results_of_removal)
def remove_padding(F: Any, input: Any, sequence_token_count: Any) -> tuple[Any, ...]:
    """The tokens of all sequences, the places of tokens and then of padding, where sequences end, and the longest."""
    batch, length = input.shape[:2]
    there = (F.arange(length) < sequence_token_count.reshape(-1, 1)).flatten()
    place = F.arange(batch * length)
    offset = F.cat([place[there], place[F.logical_not(there)]]).reshape(batch, length)
    ends = F.cat([F.zeros([1], dtype=F.int64), sequence_token_count.cumsum(0)])
    rows = input.flatten(0, 1)[there]
    return rows, offset.to(F.int32), ends.to(F.int32), sequence_token_count.max().reshape(1).to(F.int32)


@op("RestorePadding", 1, domain=MICROSOFT)
def restore_padding(F: Any, input: Any, token_offset: Any) -> Any:
    """The tokens `(tokens, features)` at their places, `(N, L, features)`, with zeros at padding."""
    batch, length = token_offset.shape
    place = token_offset.flatten()[: input.shape[0]].to(F.int64)
    rows = F.zeros([batch * length, input.shape[1]], dtype=input.dtype)
    return rows.index_copy(0, place, input).reshape([batch, length, input.shape[1]])


def _attention(F: Any, Q: Any, K: Any, V: Any, token_offset: Any, bias: Any, scale: float | None) -> Any:
    """Returns the attention `(tokens, heads * size)` of each token over those of its sequence.

    Args:
        F: the namespace.
        Q: `(tokens, heads, size)`.
        K: likewise.
        V: likewise.
        token_offset: places of the tokens among sequences with padding, `(N, L)`.
        bias: is added to the scores, `(N or 1, heads or 1, L, L)`.
        scale: of the scores.
    """
    length = token_offset.shape[1]
    place = token_offset.flatten()[: Q.shape[0]].to(F.int64)
    sequence, position = place // length, place % length
    same = sequence.unsqueeze(1) == sequence
    mask = same
    if bias is not None:
        item = sequence.unsqueeze(1) if bias.shape[0] != 1 else F.zeros_like(sequence).unsqueeze(1)
        added = bias[item, :, position.unsqueeze(1), position].permute(2, 0, 1)
        mask = F.where(same, added, -float("inf")).unsqueeze(0)
    Q, K, V = (x.transpose(0, 1).unsqueeze(0) for x in (Q, K, V))
    Y = F.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask, scale=scale or None)
    return Y.squeeze(0).transpose(0, 1).flatten(1)


@op("PackedAttention", 1, domain=MICROSOFT)
def packed_attention(
    F: Any,
    input: Any,
    weights: Any,
    bias: Any,
    token_offset: Any,
    cumulative_sequence_length: Any,
    attention_bias: Any = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float | None = None,
) -> Any:
    """Attention of tokens `(tokens, features)`; the sequences' ends follow from token_offset too."""
    packed = F.nn.functional.linear(input, weights.T, bias)
    sizes = list(qkv_hidden_sizes or [weights.shape[1] // 3] * 3)
    Q, K, V = (part.unflatten(1, (num_heads, -1)) for part in packed.split(sizes, 1))
    return _attention(F, Q, K, V, token_offset, attention_bias, scale)


@op("PackedMultiHeadAttention", 1, domain=MICROSOFT)
def packed_multi_head_attention(
    F: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    bias: Any = None,
    token_offset: Any = REQUIRED,
    cumulative_sequence_length: Any = REQUIRED,
    attention_bias: Any = None,
    *,
    mask_filter_value: float | None = None,
    num_heads: int,
    scale: float | None = None,
) -> Any:
    """query, key, value: `(tokens, heads * size)`, or packed as the query `(tokens, heads, 3, size)`."""
    if key is None:
        query, key, value = (part.flatten(1) for part in query.unbind(2))
    if bias is not None:
        width = query.shape[1]
        query, key, value = query + bias[:width], key + bias[width : 2 * width], value + bias[2 * width :]
    Q, K, V = (x.unflatten(1, (num_heads, -1)) for x in (query, key, value))
    return _attention(F, Q, K, V, token_offset, attention_bias, scale)


@op("GatedRelativePositionBias", 1, domain=MICROSOFT)
def gated_relative_position_bias(
    F: Any,
    query_layer: Any,
    query_bias: Any,
    rel_pos: Any,
    weight: Any,
    bias: Any,
    eco_a: Any,
    token_offset: Any = None,
    *,
    num_heads: int,
) -> Any:
    """rel_pos `(1, heads, L, L)`, times a gate of each query `(N, L, heads * size)`."""
    if token_offset is not None:
        raise OperatorError("token_offset is not supported: the gates of padding are not documented.")
    q = (query_layer + query_bias).unflatten(2, (num_heads, -1)).transpose(1, 2)
    halves = (F.matmul(q, weight) + bias).unflatten(3, (2, -1)).sum(-1)
    u, r = F.sigmoid(halves).chunk(2, -1)
    return (u * (r * eco_a - 1.0) + 2.0) * rel_pos


@op(
    "DecoderAttention",
    1,
    domain=MICROSOFT,
    static=["static_kv", "use_past", "has_layer_state", "has_key_padding_mask"],
)
def decoder_attention(
    F: Any,
    query: Any,
    key: Any,
    q_weight: Any,
    kv_weight: Any,
    bias: Any,
    key_padding_mask: Any = None,
    key_cache: Any = None,
    value_cache: Any = None,
    static_kv: Any = REQUIRED,
    use_past: Any = REQUIRED,
    has_layer_state: Any = REQUIRED,
    has_key_padding_mask: Any = REQUIRED,
    *,
    mask_filter_value: float | None = None,
    num_heads: int,
    _outputs: int = 1,
) -> Any:
    """Attention of fairseq's decoders; query: `(L, N, features)`; keys and values come from the key if static_kv."""
    width = q_weight.shape[1]
    Q = F.matmul(query, q_weight) + bias[:width]
    cached = bool(has_layer_state) and bool(use_past)

    def heads(x: Any) -> Any:
        return x.unflatten(2, (num_heads, -1)).permute(1, 2, 0, 3)  # (N, heads, L, size)

    if cached and static_kv:
        K, V = key_cache, value_cache
    else:
        packed = F.matmul(key if static_kv else query, kv_weight) + bias[width:]
        K, V = (heads(x) for x in packed.chunk(2, 2))
        if cached:
            K, V = F.cat([key_cache, K], 2), F.cat([value_cache, V], 2)
    masked = None
    if has_key_padding_mask:
        filtered = -10000.0 if mask_filter_value is None else mask_filter_value
        masked = F.where(key_padding_mask, filtered, 0.0).to(Q.dtype).unsqueeze(1).unsqueeze(1)
    Y = F.nn.functional.scaled_dot_product_attention(heads(Q), K, V, attn_mask=masked)
    Y = Y.permute(2, 0, 1, 3).flatten(2)
    return (Y, K, V)[:_outputs] if _outputs > 1 else Y
