"""Cases of ONNX Runtime's attention on tokens without padding."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.cases import Case, by_formula, f32
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"
_COUNTS = np.array([1, 2, 4], np.int32)
_OFFSETS = np.array([[0, 4, 5, 8], [9, 10, 11, 1], [2, 3, 6, 7]], np.int32)
_ENDS = np.array([0, 1, 3, 7], np.int32)


def _removed(input: np.ndarray, counts: np.ndarray) -> Any:
    rows = np.concatenate([item[:count] for item, count in zip(input, counts, strict=True)])
    return rows, _OFFSETS, _ENDS, counts.max(keepdims=True)


def _restored(input: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    rows = np.zeros((offsets.size, input.shape[1]), input.dtype)
    rows[offsets.reshape(-1)[: len(input)]] = input
    return rows.reshape(*offsets.shape, -1)


def _softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def _attended(q: Any, k: Any, v: Any, heads: int, bias: Any, scale: float | None) -> np.ndarray:
    """q, k, v: `(tokens, heads * size)`, of the sequences in `_ENDS`."""
    out = []
    for i, (a, b) in enumerate(itertools.pairwise(_ENDS)):
        Q, K, V = (x[a:b].reshape(b - a, heads, -1).transpose(1, 0, 2).astype(np.float64) for x in (q, k, v))
        scores = Q @ K.transpose(0, 2, 1) * (scale or Q.shape[2] ** -0.5)
        if bias is not None:
            scores = scores + bias[i if len(bias) > 1 else 0, :, : b - a, : b - a]
        out.append((_softmax(scores) @ V).transpose(1, 0, 2).reshape(b - a, -1))
    return np.concatenate(out).astype(np.float32)


def _packed(input: Any, weights: Any, bias: Any, offsets: Any, ends: Any, added: Any = None, *, num_heads: int, scale: Any = None, qkv_hidden_sizes: Any = None) -> np.ndarray:  # fmt: skip
    sizes = qkv_hidden_sizes or [weights.shape[1] // 3] * 3
    q, k, v = np.split(input @ weights + bias, np.cumsum(sizes)[:2], 1)
    return _attended(q, k, v, num_heads, added, scale)


def _multi(query: Any, key: Any, value: Any, bias: Any, offsets: Any, ends: Any, added: Any = None, *, num_heads: int, scale: Any = None) -> np.ndarray:  # fmt: skip
    if key is None:
        query, key, value = (query[:, :, i].reshape(len(query), -1) for i in range(3))
    if bias is not None:
        a, b, c = np.split(bias, [query.shape[1], query.shape[1] + key.shape[1]])
        query, key, value = query + a, key + b, value + c
    return _attended(query, key, value, num_heads, added, scale)


def _gated(
    query: Any, query_bias: Any, rel_pos: Any, weight: Any, bias: Any, eco: Any, *, num_heads: int
) -> np.ndarray:
    batch, length, _ = query.shape
    q = (query + query_bias).reshape(batch, length, num_heads, -1).transpose(0, 2, 1, 3)
    gates = 1 / (1 + np.exp(-(q @ weight + bias).reshape(batch, num_heads, length, 2, -1).sum(-1)))
    u, r = np.split(gates, 2, -1)
    return ((u * (r * eco - 1) + 2) * rel_pos).astype(np.float32)


def _decoder(
    query: Any, key: Any, q_weight: Any, kv_weight: Any, bias: Any, mask: Any, key_cache: Any, value_cache: Any, static: Any,
    use_past: Any, has_state: Any, has_mask: Any, *, num_heads: int, mask_filter_value: float = -10000.0,
) -> Any:  # fmt: skip
    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2, 0, 3)

    width = q_weight.shape[1]
    Q = heads(query @ q_weight + bias[:width])
    if static and use_past and has_state:
        K, V = key_cache, value_cache
    else:
        K, V = (heads(x) for x in np.split((key if static else query) @ kv_weight + bias[width:], 2, 2))
        if use_past and has_state:
            K, V = np.concatenate([key_cache, K], 2), np.concatenate([value_cache, V], 2)
    scores = Q @ K.transpose(0, 1, 3, 2) * Q.shape[3] ** -0.5
    if has_mask:
        scores = scores + np.where(mask, mask_filter_value, 0)[:, None, None]
    Y = (_softmax(scores) @ V).transpose(2, 0, 1, 3)
    return Y.reshape(*query.shape).astype(np.float32), K, V


def _decoded(static: bool, use_past: bool, mask: Any = None, cache: int = 0, **options: Any) -> Case:
    caches = [f32(2, 2, cache, 4), f32(2, 2, cache, 4)] if cache else [None, None]
    flags = [np.array(flag) for flag in (static, use_past, bool(cache), mask is not None)]
    inputs = [f32(3, 2, 8), f32(5, 2, 8), f32(8, 8), f32(8, 16), f32(24), mask, *caches, *flags]
    call = ms("DecoderAttention", *inputs, num_heads=2, outputs=3, tolerance=1e-4, constant=(8, 9, 10, 11), **options)
    return by_formula(call, _decoder, _WHY)


def _formula(call: Case, formula: Any) -> Case:
    return by_formula(call, formula, _WHY)


CASES = [
    _formula(ms("RemovePadding", f32(3, 4, 5), _COUNTS, outputs=4), _removed),
    _formula(ms("RestorePadding", f32(7, 5), _OFFSETS), _restored),
    _formula(ms("PackedAttention", f32(7, 6), f32(6, 24), f32(24), _OFFSETS, _ENDS, num_heads=2), _packed),
    _formula(ms("PackedAttention", f32(7, 6), f32(6, 28), f32(28), _OFFSETS, _ENDS, f32(3, 2, 4, 4), num_heads=2,
                qkv_hidden_sizes=[8, 8, 12], scale=0.3), _packed),
    _formula(ms("PackedMultiHeadAttention", f32(7, 8), f32(7, 8), f32(7, 8), f32(24), _OFFSETS, _ENDS, f32(1, 1, 4, 4),
                num_heads=2), _multi),
    _formula(ms("PackedMultiHeadAttention", f32(7, 2, 3, 4), None, None, None, _OFFSETS, _ENDS, num_heads=2, scale=0.3),
             _multi),
    _formula(ms("GatedRelativePositionBias", f32(2, 3, 8), f32(8), f32(1, 2, 3, 3), f32(4, 6), f32(6), f32(1, 2, 1, 1),
                num_heads=2), _gated),
    _decoded(False, False, note="self"),
    _decoded(True, False, np.array([[False] * 4 + [True], [False] * 5]), note="cross"),
    _decoded(False, True, cache=4, note="self, cache"),
    _decoded(True, True, cache=4, note="cross, cache"),
]  # fmt: skip
