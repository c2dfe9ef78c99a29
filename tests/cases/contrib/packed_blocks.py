"""Cases of ONNX Runtime's operators on packed blocks. GatherPacked, which its CPU runs, judges the formats."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from tests.cases import Case, by_formula, f32, of
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"
_SIZES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 6: (32, 22), 8: (32, 34), 13: (256, 176), 14: (256, 210), 20: (32, 18),
          23: (256, 136), 30: (1, 2), 42: (64, 18)}  # fmt: skip
"""Number of a format → numbers and bytes of its block."""
_HALVES = {0: (), 1: (), 13: (0, 2), 14: (208,), 30: ()}
"""Where the float16 factors of a block are."""


def packed(kind: int, rows: int, blocks: int) -> np.ndarray:
    """Returns random rows of a format, whose factors are ordinary numbers."""
    rng = np.random.default_rng(kind)
    numbers, size = _SIZES[kind]
    if numbers == 1:
        dtype: Any = {0: np.float32, 1: np.float16, 30: bfloat16}[kind]
        return rng.standard_normal((rows, blocks)).astype(dtype).view(np.uint8)
    data = rng.integers(0, 256, (rows, blocks, size), np.uint8)
    for place in _HALVES.get(kind, (0,)):
        data[..., place : place + 2] = rng.uniform(-1, 1, (rows, blocks, 1)).astype(np.float16).view(np.uint8)
    return data.reshape(rows, -1)


def _gathered(kind: int, **options: Any) -> Case:
    blocks = 5 if _SIZES[kind][0] == 1 else 2
    inputs = (packed(kind, 4, blocks), np.array([[0, 3, 1], [2, -1, 4]]))
    options = {"output_dtype": 1, "note": f"format {kind}", "constant": (0,), **options}
    return ms("GatherPacked", *inputs, K=blocks * _SIZES[kind][0], packed_type=kind, **options)


def _bytes(B: Any) -> Any:
    blocks = B.reshape(*B.shape[:-1], -1, 34)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    return (scale * np.ascontiguousarray(blocks[..., 2:]).view(np.int8)).reshape(*B.shape[:-1], -1)


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def _product(A: Any, B: Any, factor: Any = None, *, activation_type: str = "none", **options: Any) -> Any:
    Y = A.astype(np.float32) @ _bytes(B).astype(A.dtype).astype(np.float32).T
    Y = (Y * (1 if factor is None else factor)).astype(A.dtype)
    if activation_type == "silu":
        return _silu(Y.astype(np.float32)).astype(A.dtype)
    return np.maximum(Y, 0) ** 2 if activation_type == "relu2" else Y


def _experts(
    x: Any, router: Any, gate: Any, up: Any, down: Any, shares: Any = None, *, k: int, normalize_routing_weights: int = 1,
    routed_scaling_factor: float = 1.0, routing_epsilon: float = 0.0, **options: Any,
) -> Any:  # fmt: skip
    rows, gate, up, down = x.reshape(-1, x.shape[-1]).astype(np.float32), *(_bytes(w) for w in (gate, up, down))
    out = np.zeros_like(rows)
    shares = np.exp(router) / np.exp(router).sum(-1, keepdims=True) if shares is None else shares
    for t, row in enumerate(rows):
        best = np.argsort(-router[t], kind="stable")[:k]
        total = shares[t][best].sum() + routing_epsilon if normalize_routing_weights else 1
        for e in best:
            share = shares[t][e] / total * routed_scaling_factor
            out[t] += share * (down[e] @ (_silu(gate[e] @ row) * (up[e] @ row)))
    return out.reshape(x.shape).astype(x.dtype)


def _mixture(*shares: Any, **options: Any) -> Case:
    weights = [packed(8, 3 * rows, 1).reshape(3, rows, 34) for rows in (32, 32, 32)]
    inputs = [of(np.float16, 2, 3, 32, low=-0.1, high=0.1), f32(6, 3), *weights, *shares]
    types = {"gate_type": 8, "up_type": 8, "down_type": 8}
    return by_formula(
        ms("MoEPacked", *inputs, constant=(2, 3, 4), tolerance=3e-3, k=2, **types, **options), _experts, _WHY
    )


CASES = [
    *(_gathered(kind) for kind in _SIZES),
    _gathered(8, output_dtype=10, tolerance=1e-3, note="float16"),
    *(by_formula(ms("MatMulPacked", of(np.float16, 2, 3, 64), packed(8, 5, 2), *others, K=64, N=5, packed_type=8, constant=(1,),
                    tolerance=3e-3, activation_type=name), _product, _WHY)
      for name, others in (("none", ()), ("silu", ()), ("none", (np.array(0.1, np.float32),)))),
    by_formula(ms("MatMulPacked", of(np.float16, 3, 32, low=-0.1, high=0.1), packed(8, 5, 1), K=32, N=5, packed_type=8,
                  constant=(1,), tolerance=3e-3, activation_type="relu2"), _product, _WHY),
    _mixture(note="logits"),
    _mixture(of(np.float32, 6, 3, low=0, high=1), routing_epsilon=0.1, routed_scaling_factor=2.0, note="shares"),
    _mixture(of(np.float32, 6, 3, low=0, high=1), normalize_routing_weights=0, note="shares as they are"),
]  # fmt: skip
