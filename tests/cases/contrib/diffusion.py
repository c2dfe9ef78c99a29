"""Cases of the operators into which ONNX Runtime's optimiser fuses parts of diffusion models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.cases import by_formula, f32, of
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _split_gelu(X: np.ndarray, bias: np.ndarray) -> np.ndarray:
    left, right = np.split(X.astype(np.float64) + bias, 2, -1)
    return (left * _gelu(right)).astype(X.dtype)


def _group_norm(
    X: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, groups: int, activation: int, channels_last: int = 1,
    epsilon: float = 1e-05,
) -> np.ndarray:  # fmt: skip
    x = np.moveaxis(X, -1, 1) if channels_last else X
    grouped = x.reshape(len(x), groups, -1).astype(np.float64)
    mean, variance = grouped.mean(-1, keepdims=True), grouped.var(-1, keepdims=True)
    y = ((grouped - mean) / np.sqrt(variance + epsilon)).reshape(x.shape)
    y = y * gamma.reshape(-1, 1, 1) + beta.reshape(-1, 1, 1)
    y = y / (1 + np.exp(-y)) if activation else y
    return (np.moveaxis(y, 1, -1) if channels_last else y).astype(X.dtype)


def _skip_group_norm(X: np.ndarray, gamma: np.ndarray, beta: np.ndarray, skip: np.ndarray, bias: Any = None, **options: Any) -> Any:  # fmt: skip
    last = options.get("channels_last", 1)
    skip = skip if skip.ndim == 4 else skip[:, None, None] if last else skip[:, :, None, None]
    total = X + skip
    if bias is not None:
        total = total + (bias if last else bias.reshape(-1, 1, 1))
    return _group_norm(total, gamma, beta, **options), total


CASES = [
    by_formula(ms("BiasAdd", f32(2, 3, 4), f32(4), f32(2, 3, 4), constant=(1,)), lambda X, bias, skip: X + bias + skip, _WHY),
    by_formula(ms("BiasSplitGelu", f32(2, 3, 8), f32(8), constant=(1,)), _split_gelu, _WHY),
    by_formula(ms("GroupNorm", f32(2, 3, 5, 8), f32(8), f32(8), groups=4, activation=0), _group_norm, _WHY),
    by_formula(ms("GroupNorm", f32(2, 8, 3, 5), f32(8), f32(8), groups=2, activation=1, channels_last=0, epsilon=0.1,
                  constant=(1, 2)), _group_norm, _WHY),
    by_formula(ms("GroupNorm", of(np.float16, 2, 3, 5, 8), f32(8), f32(8), groups=4, activation=1, tolerance=1e-3,
                  note="float16"), _group_norm, _WHY),
    by_formula(ms("SkipGroupNorm", f32(2, 3, 5, 8), f32(8), f32(8), f32(2, 3, 5, 8), f32(8), groups=4, activation=0,
                  outputs=2), _skip_group_norm, _WHY),
    by_formula(ms("SkipGroupNorm", f32(2, 3, 5, 8), f32(8), f32(8), f32(2, 8), groups=2, activation=1, outputs=2,
                  note="skip of channels"), _skip_group_norm, _WHY),
    by_formula(ms("SkipGroupNorm", f32(2, 3, 5, 8), f32(8), f32(8), f32(2, 1, 1, 8), groups=2, activation=1, outputs=2,
                  note="skip of one pixel"), _skip_group_norm, _WHY),
    by_formula(ms("SkipGroupNorm", f32(2, 8, 3, 5), f32(8), f32(8), f32(2, 8), f32(8), groups=2, activation=1,
                  channels_last=0, outputs=2), _skip_group_norm, _WHY),
]  # fmt: skip
