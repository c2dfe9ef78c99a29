"""Cases of `onnx2nn.ops.contrib_attention` and `onnx2nn.ops.contrib_standard`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import Case, f32, i64
from tests.cases.contrib_fused import ms

_Q, _K, _V = f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8)
_LENGTHS = np.array([5, 2], np.int32)
_MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32)
_ANGLES = f32(7, 2)
_BOXES = np.array(
    [[0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9], [-0.2, 0.1, 1.3, 0.7], [0.9, 0.8, 0.1, 0.2], [0.5, 0.5, 0.5, 0.5]], np.float32
)
"""The whole, a part, one over the border, a mirrored one, a point."""
_TURNS = f32(12, 8)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention of `(N, L, heads, size)`, heads side by side in the result: what the packed forms have to equal."""
    scores = np.einsum("nqhs,nkhs->nhqk", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return np.einsum("nhqk,nkhs->nqhs", weights, v).reshape(*q.shape[:2], -1).astype(np.float32)


_PACKED = np.random.default_rng(0).standard_normal((2, 5, 2, 3, 4)).astype(np.float32)
_PACKED_WHY = "ONNX Runtime has no CPU kernel; what the unpacked form gives, computed with numpy"


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def _group(
    batch: int,
    new: int,
    past: int,
    lengths: tuple[int, ...],
    *extra: Any,
    size: int = 8,
    packed: bool = False,
    **options: Any,
) -> Case:
    """4 heads of queries, 2 of keys and values; `lengths` are of the whole sequences, `extra` come from cos_cache on."""
    widths = [4 * size, 2 * size, 2 * size]
    tokens = [f32(batch, new, sum(widths)), None, None] if packed else [f32(batch, new, width) for width in widths]
    cache = [f32(batch, 2, past, size)] * 2 if past else [None, None]
    total = np.array(max(lengths), np.int32)
    counts = [np.array(lengths, np.int32) - 1, total]
    options = {"constant": (6,), "outputs": 3, **options}
    return ms("GroupQueryAttention", *tokens, *cache, *counts, *extra, num_heads=4, kv_num_heads=2, **options)


CASES = [
    ms("MultiHeadAttention", _Q, _K, _V, num_heads=2),
    ms("MultiHeadAttention", _Q, _K, _V, num_heads=2, scale=0.3, note="scale"),
    ms("MultiHeadAttention", _Q, _K, _V, f32(24), _MASK, num_heads=2, note="bias, mask"),
    ms("MultiHeadAttention", _Q, _K, _V, None, _LENGTHS, num_heads=2, note="lengths"),
    ms("MultiHeadAttention", _Q, _K, _V, None, None, f32(1, 4, 3, 5), num_heads=4, note="attention bias"),
    ms("MultiHeadAttention", _Q, f32(2, 2, 5, 4), f32(2, 2, 5, 4), num_heads=2, note="heads apart"),
    ms("MultiHeadAttention", _Q, _Q, _Q, num_heads=2, unidirectional=1),
    ms(
        "MultiHeadAttention", _Q, _Q, _Q, None, None, None, f32(2, 2, 4, 4), f32(2, 2, 4, 4),
        num_heads=2, outputs=3, unidirectional=1, note="past",
    ),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), num_heads=2, constant=(1, 2)),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), _MASK, num_heads=2, constant=(1, 2), note="mask"),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), _LENGTHS, num_heads=2, constant=(1, 2), note="lengths"),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), num_heads=2, unidirectional=1, constant=(1, 2)),
    ms("Attention", f32(2, 5, 6), f32(6, 20), f32(20), qkv_hidden_sizes=[8, 8, 4], num_heads=2, constant=(1, 2)),
    ms(
        "Attention", f32(2, 3, 6), f32(6, 24), f32(24), None, f32(2, 2, 2, 4, 4),
        num_heads=2, unidirectional=1, outputs=2, constant=(1, 2), note="past",
    ),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), i32(5, 4, 0, 2), num_heads=2, constant=(1, 2), note="ends, starts"),
    ms("MultiHeadAttention", _PACKED, num_heads=2, note="packed", why=_PACKED_WHY,
       expected=[_attention(*np.moveaxis(_PACKED, 3, 0))]),
    ms("MultiHeadAttention", _PACKED[:, :3, :, 0].reshape(2, 3, 8), np.ascontiguousarray(_PACKED[:, :, :, 1:]),
       num_heads=2, note="packed keys", why=_PACKED_WHY,
       expected=[_attention(_PACKED[:, :3, :, 0], _PACKED[:, :, :, 1], _PACKED[:, :, :, 2])]),
    _group(2, 5, 0, (5, 5), note="prompt"),
    _group(2, 5, 0, (5, 5), packed=True, outputs=1, note="packed"),
    _group(2, 5, 0, (5, 5), constant=(), note="run time"),
    _group(2, 1, 6, (7, 7), note="token"),
    _group(2, 1, 6, (7, 4), note="token, lengths"),
    _group(2, 1, 9, (7, 4), constant=(5, 6), note="token, shared cache"),
    _group(1, 3, 6, (9,), constant=(), note="tokens, run time"),
    _group(1, 3, 12, (9,), note="tokens, shared cache"),
    _group(1, 5, 0, (5,), local_window_size=2),
    _group(1, 1, 6, (7,), local_window_size=3),
    _group(2, 5, 0, (5, 5), None, None, None, f32(1, 4, 5, 5), softcap=1.5, note="softcap, bias"),
    _group(2, 1, 6, (7, 4), None, None, None, f32(2, 1, 1, 7), note="token, bias"),
    _group(2, 5, 0, (5, 5), None, None, None, None, f32(4), scale=0.3, note="sink"),
    _group(2, 5, 0, (5, 5), smooth_softmax=1),
    _group(2, 1, 6, (7, 4), causal=0),
    _group(2, 5, 0, (5, 5), _TURNS, _TURNS, do_rotary=1, constant=(6, 7, 8), size=16),
    _group(2, 1, 6, (7, 4), _TURNS, _TURNS, do_rotary=1, constant=(6, 7, 8), rotary_interleaved=1, packed=True, size=16),
    _group(2, 1, 6, (7, 4), _TURNS, _TURNS, np.array([[5], [2]]), do_rotary=1, constant=(6, 7, 8), size=16, note="positions"),
    _group(1, 5, 0, (5,), _TURNS, _TURNS, np.array([[2, 0, 0, 0, 0]]), do_rotary=1, constant=(6, 7, 8), size=16, note="prompt, positions"),
    _group(1, 5, 0, (5,), _TURNS, _TURNS, do_rotary=1, constant=(6, 7, 8), size=32, note="half turned"),
    ms("RotaryEmbedding", f32(2, 3, 8), np.array([[0, 1, 2], [4, 5, 6]]), _ANGLES, _ANGLES, constant=(2, 3)),
    ms("RotaryEmbedding", f32(2, 3, 8), i64(2), _ANGLES, _ANGLES, interleaved=1, constant=(2, 3)),
    ms("RotaryEmbedding", f32(3, 6, 5, 4), i64(1), _ANGLES, _ANGLES, constant=(2, 3)),
    ms("Pad", f32(2, 3), i64(1, 0, 2, 1), np.array([0.5], np.float32), constant=(1, 2)),
    ms("Pad", f32(4, 5), i64(1, 0, 2, 1), mode="reflect", constant=(1,)),
    ms("Unique", np.array([2, 1, 1, 3, 4, 3], np.float32), outputs=3),
    ms("Trilu", f32(3, 4), np.array(1), constant=(1,)),
    ms("Trilu", f32(2, 3, 4), upper=0),
    ms("GridSample", f32(1, 2, 4, 5), lambda rng: rng.uniform(-1.2, 1.2, (1, 3, 3, 2)).astype(np.float32)),
    *(
        ms("CropAndResize", f32(2, 3, 5, 6), _BOXES, i32(0, 1, 1, 0, 1), i32(*size), mode=mode, extrapolation_value=2.5,
           constant=(3,), note=f"{mode} {size}")
        for mode in ("bilinear", "nearest") for size in ((4, 5), (1, 3), (9, 1))
    ),
    ms("CropAndResize", f32(2, 3, 5, 6), _BOXES, i32(0, 1, 1, 0, 1), i32(3, 2), note="run time"),
    ms("Inverse", f32(2, 3, 3), tolerance=1e-4),
]  # fmt: skip
