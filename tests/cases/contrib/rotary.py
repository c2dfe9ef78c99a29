"""Cases of ONNX Runtime's rotary embeddings for several position streams, and Gemma's."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from tests.cases import Case, by_formula, f32, of
from tests.cases.contrib.fused import ms

_POSITIONS = np.random.default_rng(1).integers(0, 9, (3, 2, 5))


def _gemma(emb: Any, q: Any, q_rot: Any, k: Any, k_rot: Any) -> Any:
    cos, sin = np.cos(emb)[:, None], np.sin(emb)[:, None]
    return (q * cos + q_rot * sin).astype(np.float16), (k * cos + k_rot * sin).astype(np.float16)


def _half(*shape: int) -> Any:
    return of(np.float16, *shape)


def _rms_rotary(
    X: Any, scale: Any, position: Any, cos: Any, sin: Any, prompt: Any = None, *, rotary_embedding_dim: int,
    epsilon: float = 1e-6, flatten_batch: int = 0, input_start: int = 0, input_width: int = 0, output_fp16: int = 0,
    use_fp32_arithmetic: int = 1,
) -> Any:  # fmt: skip
    wide = X.dtype == np.float16 or output_fp16 or cos.dtype == np.float32
    x = X.astype(np.float32)[..., input_start : input_start + (input_width or X.shape[-1])]
    n = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon)) * scale
    n = n if wide else n.astype(bfloat16).astype(np.float32)
    step = bfloat16 if not wide and (prompt or not use_fp32_arithmetic) else np.float32
    rows = position if position.ndim == 2 else int(position[0]) + np.arange(X.shape[1])[None]
    c, s = (np.broadcast_to(t[rows], (*X.shape[:2], t.shape[1]))[:, :, None].astype(step) for t in (cos, sin))
    half = rotary_embedding_dim // 2
    a, b = n[..., :half].astype(step), n[..., half : 2 * half].astype(step)
    turned = np.concatenate([a * c - b * s, b * c + a * s, n[..., 2 * half :].astype(step)], -1).astype(np.float32)
    Y = turned.reshape(*X.shape[:2], -1).astype(np.float16 if output_fp16 else bfloat16)
    return Y.reshape(1, -1, Y.shape[2]) if flatten_batch else Y, n


def _normed(dtype: Any, cache: Any, position: Any, *prompt: Any, **options: Any) -> Case:
    width = options.get("input_width", 10)
    inputs = [of(dtype, 2, 5, 3, 10, low=-2, high=2), f32(width), position]
    inputs += [of(cache, 9, 2, low=-1, high=1), of(cache, 9, 2, low=-1, high=1), *prompt]
    call = ms("RMSNormRotary", *inputs, rotary_embedding_dim=4, outputs=2, tolerance=1e-2, **options)
    return by_formula(call, _rms_rotary, "ONNX Runtime has no CPU kernel; the description in its schema")


CASES = [
    *(
        ms("MRotaryEmbedding", *inputs, f32(9, 4), f32(9, 4), **options)
        for inputs, options in (
            ((f32(2, 3, 5, 8), _POSITIONS), {"mrope_section": [1, 2, 1]}),
            ((f32(2, 5, 24), _POSITIONS), {"mrope_section": [2, 1, 1], "mrope_layout": 1}),
            ((f32(2, 3, 5, 8), _POSITIONS), {"mrope_section": [4, 0, 0], "interleaved": 1}),
            ((f32(2, 5, 24), _POSITIONS), {"mrope_section": [2, 1, 1], "mrope_layout": 1, "interleaved": 1}),
            ((f32(2, 3, 5, 12), _POSITIONS), {"mrope_section": [1, 1, 2], "rotary_embedding_dim": 8, "num_heads": 3}),
        )
    ),
    by_formula(ms("GemmaRotaryEmbedding", f32(2, 5, 8), *(_half(2, 3, 5, 8),) * 4, outputs=2, tolerance=1e-3), _gemma,
               "ONNX Runtime has no CPU kernel; the script in its documentation"),
    _normed(bfloat16, bfloat16, np.array([3]), note="token"),
    _normed(bfloat16, bfloat16, _POSITIONS[0], np.array(1, np.int32), note="prompt", constant=(5,)),
    _normed(bfloat16, bfloat16, _POSITIONS[0], use_fp32_arithmetic=0, flatten_batch=1),
    _normed(bfloat16, np.float32, np.array([3]), input_start=2, input_width=6, epsilon=0.1),
    _normed(np.float16, bfloat16, np.array([0]), output_fp16=1),
]  # fmt: skip
