"""Cases of `onnx2nn.ops.contrib_attention` and `onnx2nn.ops.contrib_standard`."""

from __future__ import annotations

import numpy as np

from tests.cases import f32, i64
from tests.cases.contrib_fused import ms

_Q, _K, _V = f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8)
_LENGTHS = np.array([5, 2], np.int32)
_MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32)
_ANGLES = f32(7, 2)

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
    ms("RotaryEmbedding", f32(2, 3, 8), np.array([[0, 1, 2], [4, 5, 6]]), _ANGLES, _ANGLES, constant=(2, 3)),
    ms("RotaryEmbedding", f32(2, 3, 8), i64(2), _ANGLES, _ANGLES, interleaved=1, constant=(2, 3)),
    ms("RotaryEmbedding", f32(3, 6, 5, 4), i64(1), _ANGLES, _ANGLES, constant=(2, 3)),
    ms("Pad", f32(2, 3), i64(1, 0, 2, 1), np.array([0.5], np.float32), constant=(1, 2)),
    ms("Pad", f32(4, 5), i64(1, 0, 2, 1), mode="reflect", constant=(1,)),
    ms("Unique", np.array([2, 1, 1, 3, 4, 3], np.float32), outputs=3),
    ms("Trilu", f32(3, 4), np.array(1), constant=(1,)),
    ms("Trilu", f32(2, 3, 4), upper=0),
    ms("GridSample", f32(1, 2, 4, 5), lambda rng: rng.uniform(-1.2, 1.2, (1, 3, 3, 2)).astype(np.float32)),
    ms("Inverse", f32(2, 3, 3), tolerance=1e-4),
]  # fmt: skip
