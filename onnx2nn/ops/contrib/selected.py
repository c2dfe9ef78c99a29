"""Attention of ONNX Runtime over selected positions, and the operators that select them."""

from __future__ import annotations

import itertools
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.attention import heads_apart, softmax_with_sink
from onnx2nn.ops.contrib.cached import PagedRequests, packed_rows
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.linalg import rotary_embedding
from onnx2nn.ops.shape import scalar
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED

_MODES = {"selected_only": "main", "local_plus_selected": "auxiliary"}
"""Modes of attention with the source of the selected positions."""


def _check_mode(attention_mode: str, selected_kv_source: str, is_causal: int, window: int) -> None:
    if _MODES.get(attention_mode) != selected_kv_source:
        raise OperatorError(
            f"attention_mode={attention_mode!r} with selected_kv_source={selected_kv_source!r} is not defined."
        )
    if not is_causal or (selected_kv_source == "auxiliary" and window <= 0):
        raise OperatorError("is_causal=0, and local_plus_selected without local_window_size, are not defined.")


def _selected(F: Any, indices: Any, counts: Any, rows: Any) -> Any:
    """Returns which of `rows` positions are selected, `(..., rows)`, from the first of each row of indices."""
    there = F.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    place = F.where(there & (indices >= 0) & (indices < rows), indices, rows).to(F.int64)
    mask = F.zeros([*indices.shape[:-1], rows + 1], dtype=F.bool, device=indices.device)
    return mask.scatter(-1, place, True)[..., :rows]


@op("DynamicSparseAttention", 1, domain=MICROSOFT, static=["total_sequence_length"])
def dynamic_sparse_attention(
    F: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    auxiliary_key: Any = None,
    auxiliary_value: Any = None,
    selected_indices: Any = REQUIRED,
    selected_counts: Any = REQUIRED,
    seqlens_k: Any = REQUIRED,
    total_sequence_length: Any = REQUIRED,
    cos_cache: Any = None,
    sin_cache: Any = None,
    position_ids: Any = None,
    q_norm_weight: Any = None,
    k_norm_weight: Any = None,
    head_sink: Any = None,
    committed_length: Any = None,
    key_scale: Any = None,
    value_scale: Any = None,
    *,
    attention_mode: str = "selected_only",
    auxiliary_kv_shared: int = 0,
    do_rotary: int = 0,
    is_causal: int = 1,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    output_bf16: int = 0,
    qk_norm_epsilon: float = 1e-06,
    rotary_interleaved: int = 0,
    rotary_offset: int = 0,
    scale: float | None = None,
    selected_kv_source: str = "main",
    smooth_softmax: int = 0,
    _outputs: int = 1,
) -> Any:
    """Grouped-query attention over a cache `(N, heads, rows, size)`, of which a query attends selected positions.

    With local_plus_selected it attends the last positions of the cache, and selected ones of the auxiliary keys. An
    int8 cache has scales for each head and channel. validation_status and committed_length are refused.
    """
    _check_mode(attention_mode, selected_kv_source, is_causal, local_window_size)
    if _outputs > 3 or committed_length is not None or rotary_offset:
        raise OperatorError("validation_status, committed_length and rotary_offset are not supported.")
    if key is None:
        size = query.shape[2] // (num_heads + 2 * kv_num_heads)
        query, key, value = query.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], 2)
    Q, K, V = heads_apart(query, num_heads), heads_apart(key, kv_num_heads), heads_apart(value, kv_num_heads)
    if q_norm_weight is not None:
        Q, K = (
            F.nn.functional.rms_norm(x.to(F.float32), x.shape[-1:], weight.to(F.float32), qk_norm_epsilon).to(x.dtype)
            for x, weight in ((Q, q_norm_weight), (K, k_norm_weight))
        )
    start = seqlens_k + 1 - Q.shape[2]
    position = start.reshape(-1, 1) + F.arange(Q.shape[2])
    if do_rotary:
        turned = position if position_ids is None else position_ids
        options: dict[str, Any] = dict(interleaved=rotary_interleaved, rotary_embedding_dim=2 * cos_cache.shape[1])
        Q, K = (rotary_embedding(F, x, cos_cache, sin_cache, turned, **options) for x in (Q, K))
    if key_scale is not None:
        K, V = (_rounded(F, x, factor) for x, factor in ((K, key_scale), (V, value_scale)))
    present = [K, V]
    if past_key is not None:
        rows = scalar(total_sequence_length)
        present = [_appended(F, past, new, start, rows) for past, new in ((past_key, K), (past_value, V))]
    k, v = (x.to(F.float32) for x in present)
    if key_scale is not None:
        k, v = (x * factor.reshape(kv_num_heads, 1, -1) for x, factor in ((k, key_scale), (v, value_scale)))
    place = F.arange(k.shape[2])
    seen = place <= position.unsqueeze(-1)
    counts = selected_counts.reshape(Q.shape[0], Q.shape[2])
    indices = selected_indices.reshape(Q.shape[0], Q.shape[2], -1)
    if selected_kv_source == "main":
        seen = seen & _selected(F, indices, counts, k.shape[2])
    else:
        more = auxiliary_key if auxiliary_value is None else auxiliary_value
        near = seen & (place > position.unsqueeze(-1) - local_window_size)
        seen = F.cat([near, _selected(F, indices, counts, auxiliary_key.shape[2])], -1)
        k, v = (F.cat([x, aux.to(F.float32)], 2) for x, aux in ((k, auxiliary_key), (v, more)))
    k, v = (x.repeat_interleave(num_heads // kv_num_heads, 1) for x in (k, v))
    Y = _attention(F, Q.to(F.float32), k, v, seen.unsqueeze(1), head_sink, smooth_softmax, scale)
    Y = Y.transpose(1, 2).flatten(2).to(F.bfloat16 if output_bf16 else query.dtype)
    return (Y, *present)[:_outputs] if _outputs > 1 else Y


def _rounded(F: Any, x: Any, scale: Any) -> Any:
    """Returns `x`, `(N, heads, L, size)`, as int8 with a scale for each head and channel."""
    return (x.to(F.float32) / scale.reshape(x.shape[1], 1, -1)).round().clamp(-128, 127).to(F.int8)


def _appended(F: Any, past: Any, new: Any, start: Any, total: Any) -> Any:
    """Returns the cache with `new`, `(N, heads, L, size)`, from `start`, `(N,)`, on; it grows to `total` rows."""
    missing = total - past.shape[2]
    if isinstance(missing, int) and missing > 0:
        past = F.nn.functional.pad(past, (0, 0, 0, missing))
    row = F.arange(past.shape[2]) - start.reshape(-1, 1)
    taken = row.clamp(0, new.shape[2] - 1).unsqueeze(1).unsqueeze(-1)
    moved = new.gather(2, taken.expand(past.shape[0], past.shape[1], past.shape[2], past.shape[3]))
    inside = ((row >= 0) & (row < new.shape[2])).unsqueeze(1).unsqueeze(-1)
    return F.where(inside, moved, past)


def _attention(F: Any, q: Any, k: Any, v: Any, seen: Any, sink: Any, smooth: int, scale: float | None) -> Any:
    """Returns attention in float32; a query that attends nothing gives zeros."""
    scores = (q @ k.mT) * (scale or q.shape[3] ** -0.5)
    scores = F.where(seen, scores, F.finfo(scores.dtype).min)
    sink = None if sink is None else sink.to(scores.dtype)
    weights = F.softmax(scores, -1) if sink is None and not smooth else softmax_with_sink(F, scores, sink)
    return F.where(seen, weights, 0.0) @ v


def _results_of_pages(
    F: Any, query: Any, key: Any, value: Any, key_cache: Any, *others: Any, num_heads: int, **attributes: Any
) -> Any:
    cache = ([*key_cache.shape], key_cache.dtype)
    return [([query.shape[0], num_heads * key_cache.shape[3]], query.dtype), cache, cache]


@op("SparsePagedAttention", 1, domain=MICROSOFT, call="opaque", results=_results_of_pages, custom_op=True)
def sparse_paged_attention(
    F: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    key_cache: Any = REQUIRED,
    value_cache: Any = REQUIRED,
    cumulative_sequence_length: Any = REQUIRED,
    past_seqlens: Any = REQUIRED,
    block_table: Any = REQUIRED,
    slot_mapping: Any = None,
    selected_indices: Any = REQUIRED,
    selected_counts: Any = REQUIRED,
    auxiliary_key: Any = None,
    auxiliary_value: Any = None,
    auxiliary_lengths: Any = None,
    cos_cache: Any = None,
    sin_cache: Any = None,
    head_sink: Any = None,
    q_norm_weight: Any = None,
    k_norm_weight: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    attention_metadata: Any = None,
    *,
    attention_mode: str = "selected_only",
    auxiliary_cache_layout: str = "contiguous",
    auxiliary_kv_shared: int = 0,
    do_rotary: int = 0,
    is_causal: int = 1,
    k_quant_type: str = "NONE",
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-06,
    rotary_interleaved: int = 0,
    rotary_offset: int = 0,
    scale: float | None = None,
    selected_kv_source: str = "main",
    softcap: float | None = None,
    v_quant_type: str = "NONE",
    _outputs: int = 1,
) -> Any:
    """PagedAttention of which a query attends selected positions, or near ones and selected auxiliary ones.

    auxiliary_key: `(N, rows, kv_num_heads or 1, size)`. Quantised caches and rotary_offset are refused.
    """
    _check_mode(attention_mode, selected_kv_source, is_causal, local_window_size)
    if k_quant_type != "NONE" or v_quant_type != "NONE" or rotary_offset or auxiliary_cache_layout != "contiguous":
        raise OperatorError("quantised caches, rotary_offset and other auxiliary layouts are not supported.")
    Q, K, V = packed_rows(query, key, value, num_heads, kv_num_heads, key_cache.shape[3])
    requests = PagedRequests(
        F, do_rotary, cos_cache, sin_cache, rotary_interleaved, qk_norm_epsilon, q_norm_weight, k_norm_weight
    )

    def attended(i: int, start: int, end: int, place: Any, position: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
        seen = place <= position.unsqueeze(1)
        indices, counts = selected_indices[start:end], selected_counts[start:end]
        if selected_kv_source == "main":
            return k, v, seen & _selected(F, indices, counts, k.shape[0])
        near = seen & (place > position.unsqueeze(1) - local_window_size)
        count = auxiliary_key.shape[1] if auxiliary_lengths is None else int(auxiliary_lengths[i])
        more = [auxiliary_key, auxiliary_key if auxiliary_value is None else auxiliary_value]
        k, v = (F.cat([x, aux[i, :count].expand(count, *x.shape[1:])]) for x, aux in zip((k, v), more, strict=True))
        return k, v, F.cat([near, _selected(F, indices, counts, count)], 1)

    found = requests.run(
        Q, K, V, key_cache, value_cache, cumulative_sequence_length, past_seqlens, block_table, slot_mapping, attended,
        (scale, softcap, head_sink),
    )  # fmt: skip
    return found[:_outputs] if _outputs > 1 else found[0]


def _results_of_merge(
    F: Any,
    base_indices: Any,
    base_counts: Any,
    base_row_indices: Any,
    *others: Any,
    max_output_entries: int,
    **attributes: Any,
) -> Any:
    rows = base_row_indices.shape[0]
    return [([rows, max_output_entries], F.int32), ([rows], F.int32), ([rows], F.int32)]


@op(
    "PackedSparseAttentionIndexerMerge",
    1,
    choices={"policy_mode": ("append_range", "append_indices")},
    domain=MICROSOFT,
    call="opaque",
    results=_results_of_merge,
    custom_op=True,
)
def packed_sparse_attention_indexer_merge(
    F: Any,
    base_indices: Any,
    base_counts: Any,
    base_row_indices: Any,
    range_starts: Any = None,
    range_ends: Any = None,
    additional_indices: Any = None,
    additional_counts: Any = None,
    *,
    max_output_entries: int,
    policy_mode: str,
    _outputs: int = 3,
) -> tuple[Any, ...]:
    """The selected positions of a row, then those of a range or of another selection, each once.

    The status of a query is 0, 1 for counts and positions that cannot be, 2 for more positions than max_output_entries.
    """
    if policy_mode not in ("append_range", "append_indices"):
        raise OperatorError(f"policy_mode={policy_mode!r} is none of append_range, append_indices.")
    queries = base_row_indices.shape[0]
    merged, counts, states = [], [], []
    for n in range(queries):
        row = int(base_row_indices[n])
        if not 0 <= row < base_indices.shape[0]:
            parts: list[list[int] | None] = [None]
        else:
            parts = [_prefix(base_indices[row], base_counts[row])]
        if policy_mode == "append_indices":
            parts.append(_prefix(additional_indices[n], additional_counts[n]))
        else:
            start, end = int(range_starts[n]), int(range_ends[n])
            parts.append(list(range(start, end)) if 0 <= start <= end else None)
        found = list(dict.fromkeys(itertools.chain.from_iterable(part or [] for part in parts)))
        state = 1 if None in parts else 2 if len(found) > max_output_entries else 0
        found = [] if state else found
        merged.append(found + [-1] * (max_output_entries - len(found)))
        counts.append(len(found))
        states.append(state)
    tensors = [F.tensor(x, dtype=F.int32, device=base_indices.device) for x in (merged, counts, states)]
    return tensors[0].reshape(queries, max_output_entries), tensors[1], tensors[2]


def _prefix(indices: Any, count: Any) -> list[int] | None:
    """Returns the first `count` positions, None where they are not there."""
    number = int(count)
    found: list[int] = indices[: max(number, 0)].tolist()
    return found if 0 <= number <= indices.shape[0] and min(found, default=0) >= 0 else None


def _pooled(F: Any, x: Any, weight: Any, epsilon: float) -> Any:
    """Returns the RMS normalised means of blocks, `(..., blocks, ratio, size)`, in float32."""
    return _normalised(F, x.to(F.float32).mean(-2), weight, epsilon)


def _normalised(F: Any, x: Any, weight: Any, epsilon: float) -> Any:
    return F.nn.functional.rms_norm(x, x.shape[-1:], weight.to(F.float32), epsilon)


def _half_turned(F: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Returns `x` whose leading features, as many as the angles have, are rotated half against half."""
    turned, kept = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    a, b = turned.chunk(2, -1)
    return F.cat([turned * cos + F.cat([-b, a], -1) * sin, kept], -1)


def _results_of_indexer(
    F: Any, query: Any, key: Any, query_norm_weight: Any, key_norm_weight: Any, cos_cache: Any, sin_cache: Any,
    mask: Any, past_key: Any, *others: Any, compress_ratio: int, token_budget: int | None = None, **attributes: Any,
) -> Any:  # fmt: skip
    batch, length = query.shape[:2]
    present = [batch, past_key.shape[1] + length, past_key.shape[2]]
    return [([batch, length, (token_budget or 0) + compress_ratio - 1], F.int32), (present, past_key.dtype)]


@op("SparseAttentionIndexer", 1, domain=MICROSOFT, call="opaque", results=_results_of_indexer, custom_op=True)
def sparse_attention_indexer(
    F: Any,
    query: Any,
    key: Any = None,
    query_norm_weight: Any = REQUIRED,
    key_norm_weight: Any = REQUIRED,
    cos_cache: Any = REQUIRED,
    sin_cache: Any = REQUIRED,
    mask: Any = None,
    past_key: Any = REQUIRED,
    gate: Any = None,
    position_bias: Any = None,
    head_weights: Any = None,
    position_ids: Any = None,
    past_sequence_length: Any = None,
    past_proj_buffer: Any = None,
    *,
    compress_ratio: int,
    epsilon: float = 1e-06,
    head_weight_scale: float | None = None,
    index_topk: int | None = None,
    policy_mode: str,
    scale: float | None = None,
    token_budget: int | None = None,
    _outputs: int = 2,
) -> tuple[Any, ...]:
    """The tokens of the best blocks of compress_ratio tokens before each query, then those behind the last whole block.

    query: `(N, L, heads * size)`, which may hold the keys `(N, L, size)` behind it; past_key: `(N, past, size)`. A
    block is as good as the sum of the positive products of the queries with its mean key. Of equal ones the first comes
    first. csa is refused: the position of its entries is not documented; so are masks and caches with room.
    """
    if policy_mode != "qsa" or token_budget is None or token_budget % compress_ratio:
        raise OperatorError(f"policy_mode={policy_mode!r} with token_budget={token_budget} is not supported.")
    if mask is not None or past_sequence_length is not None:
        raise OperatorError("mask and past_sequence_length are not supported. Leave them out.")
    size = past_key.shape[2]
    if key is None:
        query, key = query[..., :-size], query[..., -size:]
    present = F.cat([past_key, key], 1)
    length, past = query.shape[1], past_key.shape[1]
    position = past + F.arange(length)
    blocks = present.shape[1] // compress_ratio
    cos, sin = (x.to(F.float32) if x.ndim == 3 else x.to(F.float32).unsqueeze(0) for x in (cos_cache, sin_cache))
    q = _normalised(F, query.to(F.float32).unflatten(2, (-1, size)), query_norm_weight, epsilon)
    q = _half_turned(F, q, cos[:, position].unsqueeze(2), sin[:, position].unsqueeze(2))
    whole = present[:, : blocks * compress_ratio].unflatten(1, (blocks, compress_ratio))
    first = F.arange(blocks) * compress_ratio
    k = _half_turned(F, _pooled(F, whole, key_norm_weight, epsilon), cos[:, first], sin[:, first])
    products = F.relu(q.transpose(1, 2) @ k.unsqueeze(1).mT).sum(1) * (scale or size**-0.5)  # (N, L, blocks)
    complete = (position + 1) // compress_ratio
    products = F.where(F.arange(blocks) < complete.unsqueeze(1), products, -float("inf"))
    return _tokens_of_blocks(F, products, complete, position, compress_ratio, token_budget // compress_ratio), present


def _tokens_of_blocks(F: Any, products: Any, complete: Any, position: Any, ratio: int, budget: int) -> Any:
    """Returns the tokens of the best blocks of each query, then those behind its last whole block, then -1.

    Args:
        F: the namespace.
        products: scores of the blocks, `(N, L, blocks)`.
        complete: the number of whole blocks before each query, `(L,)`.
        position: positions of the queries, `(L,)`.
        ratio: tokens of a block.
        budget: the number of blocks to choose.
    """
    order = products.argsort(dim=-1, descending=True, stable=True)
    order = F.nn.functional.pad(order, (0, budget))[..., :budget]  # fewer blocks than there could be
    slot = F.arange(budget * ratio + ratio - 1)
    chosen = complete.clamp(max=budget).unsqueeze(1)  # (L, 1)
    tokens = (order.unsqueeze(-1) * ratio + F.arange(ratio)).flatten(-2)
    tokens = F.nn.functional.pad(tokens, (0, ratio - 1))
    rest = (complete * ratio).unsqueeze(1) + slot - chosen * ratio
    tokens = F.where(slot < chosen * ratio, tokens, rest)
    return F.where(tokens <= position.unsqueeze(1), tokens, -1).to(F.int32)
