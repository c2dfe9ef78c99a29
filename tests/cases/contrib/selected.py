"""Cases of ONNX Runtime's attention over selected positions, and of what selects them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.cases import Case, by_formula, f32, of
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"


def _int32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def _softmax_of(scores: list[float], sink: float | None) -> np.ndarray:
    x = np.array([*scores, *([] if sink is None else [sink])], np.float64)
    x = np.exp(x - x.max()) if x.size else x
    return (x / x.sum())[: len(scores)] if x.size else x


def _attend(q: Any, keys: list[Any], values: list[Any], sink: float | None, scale: float) -> Any:
    weights = _softmax_of([float(k @ q) * scale for k in keys], sink)
    return sum((w * v for w, v in zip(weights, values, strict=True)), np.zeros_like(q))


def _turned(x: Any, cos: Any, sin: Any, position: int) -> Any:
    half = cos.shape[1]
    a, b = x[..., :half], x[..., half : 2 * half]
    c, s = cos[position], sin[position]
    return np.concatenate([a * c - b * s, b * c + a * s, x[..., 2 * half :]], -1)


def _dynamic(
    query: Any, key: Any, value: Any, past_key: Any, past_value: Any, aux_key: Any, aux_value: Any, indices: Any, counts: Any,
    lengths: Any, total: Any, cos: Any = None, sin: Any = None, positions: Any = None, q_norm: Any = None, k_norm: Any = None,
    sink: Any = None, committed: Any = None, k_scale: Any = None, v_scale: Any = None, *, num_heads: int, kv_num_heads: int,
    local_window_size: int = -1, selected_kv_source: str = "main", smooth_softmax: int = 0, do_rotary: int = 0,
    scale: float | None = None, **options: Any,
) -> Any:  # fmt: skip
    batch, length = query.shape[:2]
    if key is None:
        size = query.shape[2] // (num_heads + 2 * kv_num_heads)
        query, key, value = np.split(query, [num_heads * size, (num_heads + kv_num_heads) * size], 2)
    q, k, v = (x.reshape(batch, length, -1, past_key.shape[3]).astype(np.float64) for x in (query, key, value))
    if q_norm is not None:
        q, k = (x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w for x, w in ((q, q_norm), (k, k_norm)))
    keys, values, out = past_key.copy(), past_value.copy(), np.zeros_like(q)
    k_factor, v_factor = (1 if s is None else s.reshape(kv_num_heads, -1) for s in (k_scale, v_scale))
    for n, t in np.ndindex(batch, length):
        place = lengths[n] + 1 - length + t
        if do_rotary:
            q[n, t], k[n, t] = (_turned(x[n, t], cos, sin, place) for x in (q, k))
        for cache, new, factor in ((keys, k[n, t], k_factor), (values, v[n, t], v_factor)):
            new = new if k_scale is None else np.clip(np.rint(new / factor), -128, 127)
            cache[n, :, place] = new
    for n, t, h in np.ndindex(batch, length, num_heads):
        group, place = h * kv_num_heads // num_heads, lengths[n] + 1 - length + t
        chosen = [int(i) for i in indices[n * length + t][: counts[n * length + t]]]
        main = (
            [i for i in chosen if i <= place]
            if selected_kv_source == "main"
            else range(max(0, place - local_window_size + 1), place + 1)
        )
        rows = [keys[n, group, i] * (1 if k_scale is None else k_factor[group]) for i in main]
        content = [values[n, group, i] * (1 if k_scale is None else v_factor[group]) for i in main]
        if selected_kv_source == "auxiliary":
            rows += [aux_key[n, group, i] for i in chosen]
            content += [(aux_key if aux_value is None else aux_value)[n, group, i] for i in chosen]
        zero = sink[h] if sink is not None else 0.0 if smooth_softmax else None
        out[n, t, h] = _attend(q[n, t, h], rows, content, zero, scale or q.shape[3] ** -0.5)
    return out.reshape(batch, length, -1).astype(np.float32), keys, values


def _paged(
    query: Any, key: Any, value: Any, keys: Any, values: Any, ends: Any, pasts: Any, table: Any, slots: Any, indices: Any,
    counts: Any, aux_key: Any = None, aux_value: Any = None, aux_lengths: Any = None, cos: Any = None, sin: Any = None,
    sink: Any = None, *, num_heads: int, kv_num_heads: int, local_window_size: int = -1, selected_kv_source: str = "main",
    do_rotary: int = 0, **options: Any,
) -> Any:  # fmt: skip
    block, size = keys.shape[1], keys.shape[3]
    q, k, v = (x.reshape(len(x), -1, size).astype(np.float32) for x in (query, key, value))
    keys, values, out = keys.copy(), values.copy(), np.zeros_like(q)
    for i, (a, b) in enumerate(itertools.pairwise(ends)):

        def at(p: int, row: Any = table[i]) -> tuple[int, int]:
            return row[p // block], p % block

        for t in range(a, b):
            place = pasts[i] + t - a
            if do_rotary:
                q[t], k[t] = (
                    _turned(x[t], cos.astype(np.float32), sin.astype(np.float32), place).astype(query.dtype)
                    for x in (q, k)
                )
            keys[at(place)], values[at(place)] = k[t], v[t]
        for t, h in itertools.product(range(a, b), range(num_heads)):
            group, place = h * kv_num_heads // num_heads, pasts[i] + t - a
            chosen = [int(x) for x in indices[t][: counts[t]]]
            main = (
                [x for x in chosen if x <= place]
                if selected_kv_source == "main"
                else range(max(0, place - local_window_size + 1), place + 1)
            )
            rows = [keys[at(x)][group].astype(np.float32) for x in main]
            content = [values[at(x)][group].astype(np.float32) for x in main]
            if selected_kv_source == "auxiliary":
                chosen = [x for x in chosen if x < aux_lengths[i]]
                rows += [aux_key[i, x, min(group, aux_key.shape[2] - 1)].astype(np.float32) for x in chosen]
                content += [
                    (aux_key if aux_value is None else aux_value)[i, x, min(group, aux_key.shape[2] - 1)].astype(
                        np.float32
                    )
                    for x in chosen
                ]
            out[t, h] = _attend(q[t, h], rows, content, None if sink is None else float(sink[h]), size**-0.5)
    return out.reshape(len(query), -1).astype(query.dtype), keys, values


def _indexer(
    query: Any, key: Any, q_norm: Any, k_norm: Any, cos: Any, sin: Any, mask: Any, past: Any, *, compress_ratio: int,
    token_budget: int, epsilon: float = 1e-6, scale: float | None = None, **options: Any,
) -> Any:  # fmt: skip
    size = past.shape[2]
    if key is None:
        query, key = query[..., :-size], query[..., -size:]
    present = np.concatenate([past, key], 1)

    def prepared(x: Any, weight: Any, position: int, n: int) -> Any:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight
        c, s = (t[position] if t.ndim == 2 else t[n, position] for t in (cos, sin))
        a, b = np.split(x[..., : len(c)], 2, -1)
        return np.concatenate([x[..., : len(c)] * c + np.concatenate([-b, a], -1) * s, x[..., len(c) :]], -1)

    batch, length = query.shape[:2]
    out = np.full((batch, length, token_budget + compress_ratio - 1), -1, np.int32)
    for n, t in np.ndindex(batch, length):
        place = past.shape[1] + t
        q = prepared(query[n, t].reshape(-1, size), q_norm, place, n)
        blocks = [
            present[n, i : i + compress_ratio].mean(0) for i in range(0, place + 2 - compress_ratio, compress_ratio)
        ]
        scores = [np.maximum(q @ prepared(k, k_norm, i * compress_ratio, n), 0).sum() for i, k in enumerate(blocks)]
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: token_budget // compress_ratio]
        tokens = [i * compress_ratio + j for i in best for j in range(compress_ratio)]
        tokens += range(len(blocks) * compress_ratio, place + 1)
        out[n, t, : len(tokens)] = tokens
    return out, present


def _selection(queries: int, rows: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns unique positions for each query, with -1 behind, and their counts, the first of which is 0."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, width + 1, queries).astype(np.int32)
    counts[0] = 0
    indices = np.stack([rng.permutation(rows)[:width] for _ in range(queries)]).astype(np.int32)
    return np.where(np.arange(width) < counts[:, None], indices, -1).astype(np.int32), counts


def _attention(
    *others: Any, packed: bool = False, auxiliary: bool = False, quantised: bool = False, **options: Any
) -> Case:
    rows = [f32(2, 3, 64), None, None] if packed else [f32(2, 3, 32), f32(2, 3, 16), f32(2, 3, 16)]
    cache = of(np.int8, 2, 2, 9, 8, low=-100, high=100) if quantised else f32(2, 2, 9, 8)
    aux = [f32(2, 2, 6, 8), None] if auxiliary else [None, None]
    inputs = [*rows, cache, cache, *aux, *_selection(6, 6, 4), _int32(7, 4), _int32(8), *others]
    if auxiliary:
        options |= {
            "attention_mode": "local_plus_selected",
            "selected_kv_source": "auxiliary",
            "auxiliary_kv_shared": 1,
        }
    call = ms(
        "DynamicSparseAttention",
        *inputs,
        num_heads=4,
        kv_num_heads=2,
        outputs=3,
        constant=(10,),
        tolerance=1e-4,
        **options,
    )
    return by_formula(call, _dynamic, _WHY)


def _pages(*others: Any, auxiliary: bool = False, **options: Any) -> Case:
    half = [of(np.float16, *shape, low=-2, high=2) for shape in ((6, 16), (6, 8), (6, 8), (7, 4, 2, 4), (7, 4, 2, 4))]
    tables = [_int32(0, 1, 4, 6), _int32(5, 0, 3), np.array([[2, 0], [4, 5], [6, 1]], np.int32), None]
    aux = [of(np.float16, 3, 6, 1, 4), None, _int32(6, 4, 2)] if auxiliary else [None] * 3
    if auxiliary:
        options |= {
            "attention_mode": "local_plus_selected",
            "selected_kv_source": "auxiliary",
            "auxiliary_kv_shared": 1,
        }
    inputs = [*half, *tables, *_selection(6, 5, 4), *aux, *others]
    call = ms("SparsePagedAttention", *inputs, num_heads=4, kv_num_heads=2, outputs=3, tolerance=3e-3, **options)
    return by_formula(call, _paged, _WHY)


def _indexed(past: int, *, packed: bool = False, batched: bool = False, **options: Any) -> Case:
    rows = [f32(2, 5, 32), None] if packed else [f32(2, 5, 24), f32(2, 5, 8)]
    tables = [f32(2, 20, 4), f32(2, 20, 4)] if batched else [f32(20, 4), f32(20, 4)]
    inputs = [*rows, f32(8), f32(8), *tables, None, f32(2, past, 8)]
    options = {"compress_ratio": 3, "token_budget": 6, "policy_mode": "qsa", "outputs": 2, **options}
    return by_formula(ms("SparseAttentionIndexer", *inputs, **options), _indexer, _WHY)


def _merged(state: list[int], indices: list[list[int]], counts: list[int], *inputs: Any, mode: str) -> Case:
    base, lengths = _int32([5, 2, 7, -1], [0, 1, 2, 3]), _int32(3, 4)
    expected = [np.array(indices, np.int32), _int32(*counts), _int32(*state)]
    call = ms("PackedSparseAttentionIndexerMerge", base, lengths, *inputs, max_output_entries=5, policy_mode=mode, outputs=3,
              note=f"{mode} {state}")  # fmt: skip
    return by_formula(
        call, lambda *arrays, **attributes: tuple(expected), "ONNX Runtime has no CPU kernel; its documentation"
    )


_NONE = [-1] * 5

CASES = [
    _attention(note="selected"),
    _attention(packed=True, smooth_softmax=1, scale=0.3, note="packed"),
    _attention(f32(12, 3), f32(12, 3), None, f32(8), f32(8), f32(4), do_rotary=1, note="rotary, norms, sink"),
    _attention(auxiliary=True, local_window_size=2, note="auxiliary"),
    _attention(*[None] * 7, of(np.float32, 16, low=0.01, high=0.02), of(np.float32, 16, low=0.01, high=0.02), quantised=True, note="int8"),
    _pages(note="selected"),
    _pages(of(np.float16, 16, 2), of(np.float16, 16, 2), of(np.float16, 4), do_rotary=1, note="rotary, sink"),
    _pages(auxiliary=True, local_window_size=2, note="auxiliary"),
    _indexed(7, note="past"),
    _indexed(0, packed=True, note="packed"),
    _indexed(6, batched=True, token_budget=3, epsilon=0.1, scale=2.0, note="angles of each sequence"),
    _merged([0, 0], [[5, 2, 7, 3, -1], [0, 1, 2, 3, -1]], [4, 4], _int32(0, 1), _int32(2, 1), _int32(4, 3), mode="append_range"),
    _merged([1, 2, 1], [_NONE] * 3, [0, 0, 0], _int32(2, 1, 0), _int32(0, 7, 4), _int32(1, 9, 2), mode="append_range"),
    _merged([0, 1], [[5, 2, 7, 9, -1], _NONE], [4, 0], _int32(0, 0), None, None, _int32([7, 9, 4], [1, -1, 4]), _int32(2, 2),
            mode="append_indices"),
]  # fmt: skip
