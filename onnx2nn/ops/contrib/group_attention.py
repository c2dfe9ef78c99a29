"""GroupQueryAttention of ONNX Runtime (com.microsoft): grouped-query attention with a cache of keys and values."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ground.element_types import BY_NAME
from onnx2nn.ops.arithmetic import larger
from onnx2nn.ops.contrib.attention import heads_apart, softmax_with_sink
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.contrib.packed_weights import unpacked
from onnx2nn.ops.linalg import rotary_embedding
from onnx2nn.ops.quantized_numbers import round_to
from onnx2nn.ops.shape import chosen, demand, scalar
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED

_QUANTISATIONS = ("NONE", "PER_TENSOR", "PER_CHANNEL")


def _taken(F: Any, x: Any, row: Any) -> Any:
    """Returns the rows `row`, `(N, rows)`, of each sequence of `x`, `(N, heads, L, size)`; indices are clamped."""
    row = row.clamp(0, x.shape[2] - 1).unsqueeze(1).unsqueeze(-1)
    return x.gather(2, row.expand(x.shape[0], x.shape[1], row.shape[2], x.shape[3]))


def _cached(F: Any, past: Any, new: Any, start: Any, length: Any) -> Any:
    """Returns the first `start`, `(N,)`, rows of `past`, then `new`, `(N, heads, L, size)`, then zeros to `length`."""
    row = F.arange(length) - start.reshape(-1, 1)
    moved = _taken(F, new, row)
    row = row.unsqueeze(1).unsqueeze(-1)
    old = F.nn.functional.pad(past, (0, 0, 0, length - past.shape[2]))
    return F.where(row < 0, old, F.where(row < new.shape[2], moved, 0))


def _resident(tokens: Any, capacity: Any, window: int) -> Any:
    """Returns the number of a sequence's `tokens` that a windowed cache holds (the schema's L of T)."""
    step = capacity - window + 1
    evictions = (tokens - capacity + step - 1).clamp(min=0) // step
    return tokens - step * evictions


def _quantised(F: Any, x: Any, scale: Any, bits: int) -> Any:
    """Returns `x` as int8, or as bytes of two 4-bit numbers with a zero point of 8, the first in the low bits."""
    numbers = round_to(F, x.to(F.float32) / scale, None, BY_NAME["INT8" if bits == 8 else "INT4"])
    if bits == 8:
        return numbers
    low, high = (numbers + 8).to(F.uint8).unflatten(-1, (-1, 2)).unbind(-1)
    return low | (high << 4)


def _numbers(F: Any, cache: Any, scale: Any, bits: int, dtype: Any) -> Any:
    """Returns a quantised cache, dequantised."""
    whole = cache.to(F.float32) if bits == 8 else unpacked(F, cache, bits).to(F.float32) - 8.0
    return (whole * scale).to(dtype)


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
    query_seqlens: Any = None,
    *,
    causal: int = 1,
    do_rotary: int | None = None,
    k_norm_epsilon: float | None = None,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int | None = None,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    q_norm_epsilon: float | None = None,
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
    """query, key, value: `(N, L, heads * size)`, or packed in the query; past and present: `(N, heads, rows, size)`.

    A sequence has seqlens_k + 1 tokens, of which the last L are new. The present has the rows of the past, or
    total_sequence_length rows if that is more, with zeros behind a sequence's end. A window includes the token itself.
    Queries behind a sequence's end are padding; query_seqlens, `(N,)`, is the number of the others, 0 for an idle
    sequence. Padding gives zeros then, as ONNX Runtime's CPU does.

    New keys and values are quantised before they are attended, as the cache holds them. output_qk is
    `(N, num_heads, L, total_sequence_length)`, with zeros at keys that are not attended. The norms of queries and keys
    follow the schema; ONNX Runtime's CPU has none. Two cases are refused, as by its CPU: output_qk of a windowed cache,
    whose shape is not defined, and float8 caches, whose numbers over 448 are not defined.
    """
    bits = _bits_of_cache(F, past_key, k_quant_type, v_quant_type, kv_cache_bit_width)
    if _outputs > 3 and (not qk_output or sliding_window_cache):
        raise OperatorError("output_qk is not defined for qk_output=0, nor for a windowed cache.")
    if key is None:
        size = query.shape[2] // (num_heads + 2 * kv_num_heads)
        query, key, value = query.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], 2)
    Q, K, V = heads_apart(query, num_heads), heads_apart(key, kv_num_heads), heads_apart(value, kv_num_heads)
    if q_norm_weight is not None:
        Q, K = (
            F.nn.functional.rms_norm(x, x.shape[-1:], weight, qk_norm_epsilon if epsilon is None else epsilon)
            for x, weight, epsilon in ((Q, q_norm_weight, q_norm_epsilon), (K, k_norm_weight, k_norm_epsilon))
        )
    total = scalar(total_sequence_length)
    lengths = seqlens_k + 1
    if query_seqlens is None:
        start = (lengths - Q.shape[2]).clamp(min=0)  # 0 for a prompt with padding behind it
    else:
        start = lengths - query_seqlens
        valid = (F.arange(Q.shape[2]) < query_seqlens.reshape(-1, 1)).unsqueeze(1).unsqueeze(-1)
        K, V = F.where(valid, K, 0.0), F.where(valid, V, 0.0)
    position = start.reshape(-1, 1) + F.arange(Q.shape[2])
    if do_rotary:
        turned = _rotary_positions(F, position, position_ids, Q.shape[2], total)
        options: dict[str, Any] = dict(
            interleaved=rotary_interleaved or 0, rotary_embedding_dim=_rotary_size(cos_cache, Q)
        )
        Q, K = (rotary_embedding(F, x, cos_cache, sin_cache, turned, **options) for x in (Q, K))
    if bits:
        k_scale = _along_channels(k_scale, k_quant_type, kv_num_heads)
        v_scale = _along_channels(v_scale, v_quant_type, kv_num_heads)
        K, V = _quantised(F, K, k_scale, bits), _quantised(F, V, v_scale, bits)
    at = None
    if past_key is not None:
        demand(past_key.shape[3] == K.shape[3], "the rows of a cache are as long as those of the new keys")
        demand(past_value.shape[3] == V.shape[3], "the rows of a cache are as long as those of the new values")
    if sliding_window_cache:
        K, V, at, *present = _windowed(F, past_key, past_value, K, V, start, lengths, local_window_size)
        if attention_bias is not None:
            attention_bias = _columns(F, attention_bias, at)
    elif past_key is not None:
        rows = larger(past_key.shape[2], total)
        present = [_cached(F, past, new, start, rows) for past, new in ((past_key, K), (past_value, V))]
        K, V = (x[:, :, :total] for x in present)
    else:
        present = [K, V]
    if bits:
        K, V = _numbers(F, K, k_scale, bits, Q.dtype), _numbers(F, V, v_scale, bits, Q.dtype)
    K, V = (x.repeat_interleave(num_heads // kv_num_heads, 1) for x in (K, V))
    attended = _attended(F, F.arange(K.shape[2]) if at is None else at, position, lengths, causal, local_window_size)
    asked = qk_output if _outputs > 3 else 0
    parameters = (scale, softcap, smooth_softmax > 0, asked)
    Y, qk = _attention(F, Q, K, V, attended, attention_bias, head_sink, *parameters)
    Y = Y if query_seqlens is None else F.where(valid, Y, 0.0)
    Y = Y.transpose(1, 2).flatten(2)
    return (Y, *present, qk)[:_outputs] if _outputs > 1 else Y


def _bits_of_cache(F: Any, past: Any, k_type: str, v_type: str, bits: int | None) -> int:
    """Returns the bits of a number in a quantised cache; 0 for a cache of floats."""
    if k_type not in _QUANTISATIONS or v_type not in _QUANTISATIONS:
        kinds = f"k_quant_type={k_type!r}, v_quant_type={v_type!r}"
        raise OperatorError(f"{kinds} are not both of {', '.join(_QUANTISATIONS)}.")
    if k_type == v_type == "NONE":
        return 0
    if "NONE" in (k_type, v_type):
        raise OperatorError("keys or values alone are quantised. Quantise both or neither: they have one type.")
    if bits not in (4, 8):
        raise OperatorError(f"kv_cache_bit_width={bits} is none of 4, 8.")
    if past is not None and past.dtype not in (F.int8, F.uint8):
        raise OperatorError(f"a cache of {past.dtype} is not quantised. Give it int8, or uint8 for 4-bit numbers.")
    return bits


def _along_channels(scale: Any, kind: str, heads: int) -> Any:
    """Returns a scale that broadcasts to `(N, heads, L, size)`: one number, or one per head and channel."""
    return scale.reshape(-1) if kind == "PER_TENSOR" else scale.reshape(heads, 1, -1)


def _windowed(
    F: Any, past_key: Any, past_value: Any, K: Any, V: Any, start: Any, lengths: Any, window: int
) -> tuple[Any, ...]:
    """Returns keys and values with the cached ones, their positions `(N, rows)` in the sequence, and the presents."""
    if past_key is None or window <= 0:
        raise OperatorError("sliding_window_cache=1 without a past or without local_window_size is not defined.")
    capacity = past_key.shape[2]
    demand(capacity >= window, f"a cache of a window of {window} tokens has as many rows at least")
    held = _resident(start, capacity, window)
    rows = capacity + K.shape[2]
    K, V = (_cached(F, past, new, held, rows) for past, new in ((past_key, K), (past_value, V)))
    first = start - held
    left = (lengths - _resident(lengths, capacity, window) - first).reshape(-1, 1)
    presents = (_taken(F, x, F.arange(capacity) + left) for x in (K, V))
    return K, V, F.arange(rows) + first.reshape(-1, 1), *presents


def _columns(F: Any, bias: Any, at: Any) -> Any:
    """Returns the columns of `bias`, `(N or 1, heads or 1, queries, positions)`, at the positions `at`, `(N, rows)`."""
    place = at.clamp(max=bias.shape[3] - 1).unsqueeze(1).unsqueeze(1)
    bias = bias.expand(at.shape[0], bias.shape[1], bias.shape[2], bias.shape[3])
    return bias.gather(3, place.expand(at.shape[0], bias.shape[1], bias.shape[2], at.shape[1]))


def _attended(F: Any, at: Any, position: Any, lengths: Any, causal: int, window: int) -> Any:
    """Returns the mask of attention, `(N, 1, queries, keys)`, True at keys that a query attends.

    Args:
        F: the namespace.
        at: positions of the keys, `(keys,)` or `(N, keys)`.
        position: positions of the queries, `(N, queries)`.
        lengths: lengths of the sequences, `(N,)`.
        causal: whether a query attends no later key.
        window: the number of keys up to its own that a query attends; all where it is not positive.
    """
    at = at if at.ndim == 1 else at.unsqueeze(1).unsqueeze(1)
    position = position.unsqueeze(1).unsqueeze(-1)
    attended = at < lengths.reshape(-1, 1, 1, 1)
    if causal:
        attended = attended & (at <= position)
    return attended & (at > position - window) if window > 0 else attended


def _rotary_size(cos_cache: Any, Q: Any) -> int:
    """Returns `rotary_embedding_dim`: 0 where the whole head is rotated."""
    size, whole = 2 * cos_cache.shape[1], Q.shape[3]
    return 0 if isinstance(size, int) and isinstance(whole, int) and size == whole else size


def _rotary_positions(F: Any, position: Any, position_ids: Any, queries: Any, total: Any) -> Any:
    """Returns the positions to rotate by; of a prompt's position_ids only the first is read, as in ONNX Runtime."""
    if position_ids is None:
        return position
    of_prompt = position_ids.flatten()[0] + position
    prompt = chosen(queries == total, 1, 0)
    if isinstance(prompt, int):
        return of_prompt if prompt else position_ids
    return position_ids + (of_prompt - position_ids) * prompt


def _attention(
    F: Any, Q: Any, K: Any, V: Any, attended: Any, bias: Any, sink: Any, scale: float | None, softcap: float | None,
    smooth: bool, asked: int,
) -> tuple[Any, Any]:  # fmt: skip
    """Returns the attention of Q over the keys that are `attended`, and the scores (`asked` 1) or weights (2).

    A `sink` is one more score for each head, whose value is zero; `smooth` is a sink of 0. The scores are capped before
    `bias` is added.
    """
    if not softcap and sink is None and not smooth and not asked:
        mask = attended if bias is None else F.where(attended, bias, -float("inf"))
        return F.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask, scale=scale or None), None
    scores = (Q @ K.mT) * (scale or Q.shape[3] ** -0.5)
    if softcap:
        scores = F.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    weights = F.where(attended, scores, F.finfo(scores.dtype).min)
    weights = F.softmax(weights, -1) if sink is None and not smooth else softmax_with_sink(F, weights, sink)
    return weights @ V, weights if asked == 2 else F.where(attended, scores, 0.0) if asked else None
