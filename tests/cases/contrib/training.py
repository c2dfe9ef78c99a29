"""Cases of ONNX Runtime's operators for training. What they draw at random is judged by its distribution elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import by_formula, f32, of
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"
_RATIO, _TRAINS = np.array(0.3, np.float32), np.array(True)
_ODD = np.float32([[1, np.inf, 2], [3, 4, 5]])


def _bits(count: int) -> np.ndarray:
    bits = np.ones(-(-count // 32) * 32, np.uint64)
    bits[count:] = 0
    return (bits.reshape(-1, 32) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)


def _bias_dropout(data: np.ndarray, bias: np.ndarray, residual: Any = None, *others: Any) -> Any:
    Y = data + bias + (0 if residual is None else residual)
    return Y.astype(data.dtype), np.ones(data.shape, bool)


def _bitmask(data: np.ndarray, *others: Any) -> Any:
    return data, _bits(data.size)


def _bitmask_bias(*inputs: Any) -> Any:
    Y, mask = _bias_dropout(*inputs)
    return Y, _bits(mask.size)


def _finite(*arrays: np.ndarray, isinf_only: int = 0, isnan_only: int = 0) -> np.ndarray:
    test = np.isinf if isinf_only else np.isnan if isnan_only else (lambda x: ~np.isfinite(x))
    return np.array(not any(test(x).any() for x in arrays))


CASES = [
    by_formula(ms("BiasDropout", f32(2, 3, 4), f32(4), f32(2, 3, 4), outputs=2), _bias_dropout, _WHY),
    by_formula(ms("BiasDropout", f32(2, 3, 4), f32(2, 3, 4), None, _RATIO, np.array(False), constant=(3, 4), outputs=2),
               _bias_dropout, _WHY),
    by_formula(ms("BitmaskDropout", f32(5, 9), outputs=2), _bitmask, _WHY),
    by_formula(ms("BitmaskDropout", f32(2, 16), np.array(0.0, np.float32), _TRAINS, constant=(1, 2), outputs=2),
               _bitmask, _WHY),
    by_formula(ms("BitmaskBiasDropout", f32(5, 9), f32(9), f32(5, 9), outputs=2), _bitmask_bias, _WHY),
    *(
        by_formula(ms("IsAllFinite", *inputs, **options), _finite, _WHY)
        for inputs, options in (((f32(2, 3),), {}), ((f32(2, 3), _ODD), {}), ((_ODD,), {"isinf_only": 1}),
                                ((_ODD,), {"isnan_only": 1}), ((np.float32([np.nan]), f32(3)), {"isinf_only": 1}))
    ),
    by_formula(ms("TorchEmbedding", f32(7, 4), np.array([[1, 6, 0], [2, 2, 3]]), constant=(0,)), lambda w, i: w[i], _WHY),
    by_formula(ms("TorchEmbedding", of(np.float64, 7, 4), np.array([5]), np.array(0), note="padding"),
               lambda w, i, p: w[i], _WHY),
]  # fmt: skip
