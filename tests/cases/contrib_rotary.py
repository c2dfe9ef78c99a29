"""Cases of ONNX Runtime's rotary embeddings for several position streams, and Gemma's."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import by_formula, f32, of
from tests.cases.contrib_fused import ms

_POSITIONS = np.random.default_rng(1).integers(0, 9, (3, 2, 5))


def _gemma(emb: Any, q: Any, q_rot: Any, k: Any, k_rot: Any) -> Any:
    cos, sin = np.cos(emb)[:, None], np.sin(emb)[:, None]
    return (q * cos + q_rot * sin).astype(np.float16), (k * cos + k_rot * sin).astype(np.float16)


def _half(*shape: int) -> Any:
    return of(np.float16, *shape)


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
]  # fmt: skip
