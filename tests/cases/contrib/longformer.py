"""Cases of Longformer's attention of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import by_formula, f32
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; what its CUDA kernels compute, token by token"
_GLOBAL = np.array([[1, 0, 0, 0, 0, 1, 0, 0], [0] * 8], np.int32)
_MASK = np.array([[0.0] * 8, [0.0] * 5 + [-10000.0] * 3], np.float32)


def _longformer(
    x: Any, weight: Any, bias: Any, mask: Any, global_weight: Any, global_bias: Any, flags: Any, *, num_heads: int,
    window: int,
) -> Any:  # fmt: skip
    out, length = np.zeros_like(x), x.shape[1]
    size = x.shape[2] // num_heads
    for n, i, h in np.ndindex(len(x), length, num_heads):
        if mask[n, i] < 0:
            continue
        everywhere = flags[n, i] == 1
        own = (global_weight, global_bias) if everywhere else (weight, bias)
        q, k, v = (part.reshape(length, num_heads, size)[:, h] for part in np.split(x[n] @ own[0] + own[1], 3, 1))
        seen = [j for j in range(length) if everywhere or abs(i - j) <= window or flags[n, j]]
        scores = np.array([q[i] @ k[j] / size**0.5 + mask[n, j] for j in seen])
        weights = np.exp(scores - scores.max())
        out[n, i, h * size : (h + 1) * size] = weights / weights.sum() @ v[seen]
    return out


CASES = [
    by_formula(
        ms("LongformerAttention", f32(2, 8, 6), f32(6, 18), f32(18), _MASK, f32(6, 18), f32(18), _GLOBAL, num_heads=2,
           window=window, tolerance=1e-4), _longformer, _WHY)
    for window in (2, 4)
]  # fmt: skip
