"""Attention of ONNX Runtime over caches: one token of a decoder, sparse blocks, and pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.attention import attention, heads_apart, multi_head_attention, softmax_with_sink
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.linalg import rotary_embedding
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED


@op("DecoderMaskedMultiHeadAttention", 1, domain=MICROSOFT, static=["past_sequence_length", "beam_width"])
def decoder_masked_multi_head_attention(
    F: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    mask_index: Any = None,
    attention_bias: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    past_sequence_length: Any = None,
    beam_width: Any = None,
    cache_indirection: Any = None,
    bias: Any = None,
    *,
    mask_filter_value: float | None = None,
    num_heads: int,
    output_qk: int | None = None,
    past_present_share_buffer: int | None = None,
    scale: float | None = None,
    _outputs: int = 1,
) -> Any:
    """MultiHeadAttention of one token, over a cache, or over the key and value `(N, heads, L, size)` of an encoder.

    The key's cache has the plain layout, as in ONNX Runtime's CPU. Beams are refused: its CPU does not read the rows
    that its documentation names. A cache that is no buffer with past_sequence_length rows is refused by it, too.
    """
    if cache_indirection is not None:
        raise OperatorError("cache_indirection is not supported: ONNX Runtime's kernels read different rows.")
    if past_key is not None and not past_present_share_buffer:
        raise OperatorError("a cache needs past_present_share_buffer=1.")
    if _outputs > 3:
        raise OperatorError("the output qk is not supported: ONNX Runtime gives it another type than its kernel.")
    if key is None:
        if bias is not None:
            raise OperatorError("a bias of a packed query is not defined.")
        query, key, value = query.chunk(3, 2)
    if bias is not None and key.ndim == 4:
        query, bias = query + bias[: query.shape[2]], None
    return multi_head_attention(
        F, query, key, value, bias, mask_index, attention_bias, past_key, past_value, past_sequence_length,
        mask_filter_value=mask_filter_value, num_heads=num_heads, scale=scale, _outputs=_outputs,
    )  # fmt: skip


@op("DecoderMaskedSelfAttention", 1, domain=MICROSOFT, static=["past_sequence_length", "beam_width"])
def decoder_masked_self_attention(
    F: Any,
    input: Any,
    weights: Any,
    bias: Any,
    mask_index: Any = None,
    past: Any = REQUIRED,
    attention_bias: Any = None,
    past_sequence_length: Any = REQUIRED,
    beam_width: Any = None,
    cache_indirection: Any = None,
    *,
    do_rotary: int | None = None,
    mask_filter_value: float | None = None,
    num_heads: int,
    past_present_share_buffer: int | None = None,
    scale: float | None = None,
    _outputs: int = 2,
) -> Any:
    """Attention of one token over a past `(2, N, heads, rows, size)`.

    A shared buffer is refused: its keys have the layout of one kind of GPU. Beams and rotation are refused too.
    """
    if past_present_share_buffer or cache_indirection is not None:
        raise OperatorError("past_present_share_buffer=1 and beams have a layout of one kind of GPU. Export it with 0.")
    return attention(
        F, input, weights, bias, mask_index, past, attention_bias, do_rotary=do_rotary,
        mask_filter_value=mask_filter_value, num_heads=num_heads, scale=scale, _outputs=_outputs,
    )  # fmt: skip


def _allowed(F: Any, rows: Any, columns: Any) -> Any:
    """Returns which blocks attend which, `(layouts, blocks, blocks)`, from the CSR form of each layout."""
    blocks = rows.shape[1] - 1
    entry = F.arange(columns.shape[1])
    row = (rows[:, 1:].unsqueeze(1) <= entry.reshape(1, -1, 1)).sum(-1)  # (layouts, entries)
    of_row = row.unsqueeze(-1) == F.arange(blocks)
    of_column = columns.unsqueeze(-1) == F.arange(blocks)
    return (of_row.to(F.float32).mT @ of_column.to(F.float32)) > 0


def _written(F: Any, past: Any, new: Any, starts: list[int]) -> Any:
    """Returns the cache `(N, heads, rows, size)` with each sequence's new rows written from its start on."""
    present = past.clone()
    for i, start in enumerate(starts):
        present[i, :, start : start + new.shape[2]] = new[i]
    return present


def _results_of_sparse(
    F: Any,
    query: Any,
    key: Any,
    value: Any,
    past_key: Any,
    past_value: Any,
    *others: Any,
    num_heads: int,
    **attributes: Any,
) -> Any:
    shape = [query.shape[0], query.shape[1], num_heads * past_key.shape[3]]
    return [(shape, query.dtype), ([*past_key.shape], past_key.dtype), ([*past_value.shape], past_value.dtype)]


@op("SparseAttention", 1, domain=MICROSOFT, call="opaque", results=_results_of_sparse, custom_op=True)
def sparse_attention(
    F: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    past_key: Any = REQUIRED,
    past_value: Any = REQUIRED,
    block_row_indices: Any = REQUIRED,
    block_col_indices: Any = REQUIRED,
    total_sequence_length: Any = REQUIRED,
    key_total_sequence_lengths: Any = REQUIRED,
    cos_cache: Any = None,
    sin_cache: Any = None,
    *,
    do_rotary: int | None = None,
    kv_num_heads: int,
    num_heads: int,
    rotary_interleaved: int | None = None,
    scale: float | None = None,
    sparse_block_size: int,
    _outputs: int = 3,
) -> tuple[Any, ...]:
    """Causal attention in which a block of queries attends some blocks of keys; heads use the layouts in turn.

    query, key, value: `(N, L, heads * size)`, or packed in the query; past and present: `(N, heads, rows, size)`.
    Queries behind a sequence's end are padding. Where lengths differ, ONNX Runtime's CPU (1.31) reads weights of other
    sequences; the results are those of each sequence alone.
    """
    if key is None:
        size = query.shape[2] // (num_heads + 2 * kv_num_heads)
        query, key, value = query.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], 2)
    Q, K, V = heads_apart(query, num_heads), heads_apart(key, kv_num_heads), heads_apart(value, kv_num_heads)
    length = Q.shape[2]
    prompt = int(total_sequence_length.flatten()[0]) == length
    ends = [int(end) for end in key_total_sequence_lengths]
    starts = [0 if prompt else end - length for end in ends]
    position = F.tensor(starts).reshape(-1, 1) + F.arange(length)
    if do_rotary:
        options: dict[str, Any] = dict(interleaved=rotary_interleaved or 0, rotary_embedding_dim=2 * cos_cache.shape[1])
        Q, K = (rotary_embedding(F, x, cos_cache, sin_cache, position, **options) for x in (Q, K))
    present_key, present_value = _written(F, past_key, K, starts), _written(F, past_value, V, starts)
    end = max(starts) + length
    place = F.arange(end)
    blocks = _allowed(F, block_row_indices, block_col_indices).repeat(num_heads // block_row_indices.shape[0], 1, 1)
    sparse = blocks[:, position // sparse_block_size][..., place // sparse_block_size].transpose(0, 1)
    later = place > position.unsqueeze(1).unsqueeze(-1)
    each = num_heads // kv_num_heads
    K, V = (x[:, :, :end].repeat_interleave(each, 1) for x in (present_key, present_value))
    scores = (Q @ K.mT) * (scale or Q.shape[3] ** -0.5)
    scores = F.where(sparse, scores, F.finfo(scores.dtype).min).masked_fill(later, -float("inf"))
    Y = (F.softmax(scores, -1) @ V).transpose(1, 2).flatten(2)
    return (Y, present_key, present_value)[:_outputs]


def _results_of_pages(
    F: Any,
    query: Any,
    key: Any,
    value: Any,
    key_cache: Any,
    value_cache: Any,
    *others: Any,
    num_heads: int,
    **attributes: Any,
) -> Any:
    shape = [query.shape[0], num_heads * key_cache.shape[3]]
    return [(shape, query.dtype), ([*key_cache.shape], key_cache.dtype), ([*key_cache.shape], key_cache.dtype)]


@op("PagedAttention", 1, domain=MICROSOFT, call="opaque", results=_results_of_pages, custom_op=True)
def paged_attention(
    F: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    key_cache: Any = REQUIRED,
    value_cache: Any = None,
    cumulative_sequence_length: Any = REQUIRED,
    past_seqlens: Any = REQUIRED,
    block_table: Any = REQUIRED,
    cos_cache: Any = None,
    sin_cache: Any = None,
    slot_mapping: Any = None,
    head_sink: Any = None,
    q_norm_weight: Any = None,
    k_norm_weight: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    attention_metadata: Any = None,
    *,
    do_rotary: int | None = None,
    is_causal: int = 1,
    k_cache_dtype: str = "",
    k_quant_type: str = "NONE",
    kv_cache_layout: str = "SEPARATE",
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float | None = None,
    rotary_interleaved: int | None = None,
    rotary_offset: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    v_cache_dtype: str = "",
    v_head_size: int | None = None,
    v_quant_type: str = "NONE",
    _outputs: int = 1,
) -> Any:
    """Attention of requests whose tokens, `(tokens, heads * size)`, stand one behind the other, over blocks of a cache.

    The cache, `(blocks, rows, kv_num_heads, size)`, gets the new keys and values at the rows that block_table, or
    slot_mapping, names. Softmax and products are computed in float32. Quantised caches, the latent layout and
    rotary_offset are refused. attention_metadata changes no result.
    """
    if (
        kv_cache_layout != "SEPARATE"
        or k_quant_type != "NONE"
        or v_quant_type != "NONE"
        or rotary_offset
        or v_head_size
    ):
        raise OperatorError("quantised caches, kv_cache_layout, v_head_size and rotary_offset are not supported.")
    if k_cache_dtype not in ("", "float16", "bfloat16") or v_cache_dtype not in ("", "float16", "bfloat16"):
        raise OperatorError(f"k_cache_dtype={k_cache_dtype!r}, v_cache_dtype={v_cache_dtype!r} is not supported.")
    size = key_cache.shape[3]
    shared = (F, do_rotary, cos_cache, sin_cache, rotary_interleaved, qk_norm_epsilon)
    Q, K, V = packed_rows(query, key, value, num_heads, kv_num_heads, size)
    requests = PagedRequests(*shared, q_norm_weight, k_norm_weight)

    def attended(i: int, start: int, end: int, place: Any, position: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
        seen = place <= position.unsqueeze(1) if is_causal else F.ones([end - start, place.shape[0]], dtype=F.bool)
        if local_window_size > 0:
            seen = seen & (place > position.unsqueeze(1) - local_window_size - 1)
        return k, v, seen

    found = requests.run(
        Q, K, V, key_cache, value_cache, cumulative_sequence_length, past_seqlens, block_table, slot_mapping, attended,
        (scale, softcap, head_sink),
    )  # fmt: skip
    return found[:_outputs] if _outputs > 1 else found[0]


def packed_rows(query: Any, key: Any, value: Any, heads: int, kv_heads: int, size: int) -> list[Any]:
    """Returns queries, keys and values `(tokens, heads, size)`; they may be packed in the query."""
    if key is None:
        query, key, value = query.split([heads * size, kv_heads * size, kv_heads * size], 1)
    return [x.unflatten(1, (count, size)) for x, count in ((query, heads), (key, kv_heads), (value, kv_heads))]


@dataclass(frozen=True)
class PagedRequests:
    """Attention of requests over blocks of a cache, with what PagedAttention and SparsePagedAttention share."""

    F: Any
    do_rotary: int | None
    cos_cache: Any
    sin_cache: Any
    rotary_interleaved: int | None
    qk_norm_epsilon: float | None
    q_norm_weight: Any
    k_norm_weight: Any

    def run(
        self, Q: Any, K: Any, V: Any, key_cache: Any, value_cache: Any, ends: Any, past_seqlens: Any, block_table: Any,
        slot_mapping: Any, attended: Callable[..., tuple[Any, Any, Any]], scores: tuple[Any, ...],
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Returns the attention `(tokens, heads * size)` and the written caches.

        Args:
            Q: queries, keys, values: `(tokens, heads, size)`.
            K: see `Q`.
            V: see `Q`.
            key_cache: the caches, `(blocks, rows, kv_num_heads, size)`.
            value_cache: see `key_cache`.
            ends: where requests end.
            past_seqlens: the tokens of each request in the cache.
            block_table: the blocks of each request.
            slot_mapping: the rows that new tokens are written to; None for those that follow.
            attended: `attended(request, start, end, place, position, keys, values)` returns keys, values and the mask
                `(tokens, keys)`.
            scores: scale, softcap and sink.
        """
        F, rows = self.F, key_cache.shape[1]
        if self.q_norm_weight is not None:
            epsilon = 1e-6 if self.qk_norm_epsilon is None else self.qk_norm_epsilon
            Q, K = (
                F.nn.functional.rms_norm(x.to(F.float32), x.shape[-1:], weight.to(F.float32), epsilon).to(x.dtype)
                for x, weight in ((Q, self.q_norm_weight), (K, self.k_norm_weight))
            )
        keys, values = key_cache.flatten(0, 1).clone(), value_cache.flatten(0, 1).clone()
        outputs = []
        for i, (start, end) in enumerate(itertools.pairwise(ends.tolist())):
            past = int(past_seqlens[i])
            place = F.arange(past + end - start)
            slots = block_table[i].to(F.int64)[place // rows] * rows + place % rows
            position = place[past:]
            q, k = (self._turned(x[start:end], position) for x in (Q, K))
            into = slots[past:] if slot_mapping is None else slot_mapping[start:end].to(F.int64)
            kept = into >= 0
            keys[into[kept]], values[into[kept]] = k[kept], V[start:end][kept]
            outputs.append(_paged(F, q, *attended(i, start, end, place, position, keys[slots], values[slots]), *scores))
        return F.cat(outputs).flatten(1).to(Q.dtype), keys.reshape(key_cache.shape), values.reshape(key_cache.shape)

    def _turned(self, x: Any, position: Any) -> Any:
        """Returns queries or keys `(tokens, heads, size)`, rotated where the operator rotates."""
        if not self.do_rotary:
            return x
        options: dict[str, Any] = dict(
            interleaved=self.rotary_interleaved or 0, rotary_embedding_dim=2 * self.cos_cache.shape[1]
        )
        x, position = x.transpose(0, 1).unsqueeze(0), position.unsqueeze(0)
        turned = rotary_embedding(self.F, x, self.cos_cache, self.sin_cache, position, **options)
        return turned.squeeze(0).transpose(0, 1)


def _paged(F: Any, q: Any, k: Any, v: Any, seen: Any, scale: float | None, softcap: float | None, sink: Any) -> Any:
    """Returns the attention of one request, `(tokens, heads, size)`, in float32; `seen`: `(tokens, keys)`."""
    each = q.shape[1] // k.shape[1]
    q, k, v = (x.to(F.float32).transpose(0, 1) for x in (q, k, v))
    k, v = k.repeat_interleave(each, 0), v.repeat_interleave(each, 0)
    scores = (q @ k.mT) * (scale or q.shape[2] ** -0.5)
    scores = F.tanh(scores / softcap) * softcap if softcap else scores
    scores = scores.masked_fill(F.logical_not(seen), -float("inf"))
    weights = F.softmax(scores, -1) if sink is None else softmax_with_sink(F, scores, sink.to(F.float32))
    weights = F.where(seen.any(-1, keepdim=True), weights, 0.0)
    return (weights @ v).transpose(0, 1)
