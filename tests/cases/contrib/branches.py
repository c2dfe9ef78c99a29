"""Cases of ONNX Runtime's operators for residual streams of several branches."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from tests.cases import by_formula, f32, of
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"
_HALF = of(np.float16, 2, 3, 4)


def _brain(*shape: int) -> Any:
    return of(bfloat16, *shape, low=-2, high=2)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _projected(X: Any, Y: Any, gate: Any, weight: Any) -> Any:
    gate = _sigmoid((gate.astype(np.float32) @ weight.astype(np.float32)).astype(bfloat16).astype(np.float32))
    return X + Y * gate.astype(bfloat16)


def _swiglu(
    gate: Any, up: Any = None, *, limit: float = 0.0, activation_alpha: float = 1.0, activation_beta: float = 0.0,
    round_activation: int = 0,
) -> Any:  # fmt: skip
    gate, up = np.split(gate, 2, -1) if up is None else (gate, up)
    G, L = gate.astype(np.float64), up.astype(np.float64)
    if limit > 0:
        G, L = np.minimum(G, limit), np.clip(L, -limit, limit)
    y = G * _sigmoid(activation_alpha * G)
    y = y.astype(gate.dtype).astype(np.float64) if round_activation else y
    return (y * (L + activation_beta)).astype(gate.dtype)


def _router(X: Any, W: Any, *, router_size: int, **options: Any) -> Any:
    Y = (X.astype(np.float32) @ W.astype(np.float32)).astype(X.dtype)
    return Y[..., :router_size], _swiglu(Y[..., router_size:], **options)


def _low_rank(
    streams: Any, norm: Any, down: Any, up: Any, inject: Any, block: Any = None, gate: Any = None, *, num_branches: int,
    epsilon: float = 1e-5, gate_div: float = 1.0, gate_mul: float = 1.0, reduction_scale: float = 1.0,
    silu_alpha: float = 1.0,
) -> Any:  # fmt: skip
    def cast(x: Any) -> Any:
        return x.astype(streams.dtype).astype(np.float32)

    C, wide = num_branches, [None if x is None else x.astype(np.float32) for x in (norm, down, up, inject, block, gate)]
    norm, down, up, inject, block, gate = wide
    S = streams.astype(np.float32).reshape(*streams.shape[:-1], C, -1)
    if block is not None:
        S = cast(S + gate[..., None] * block[..., None, :])
    hn = cast(S / np.sqrt((S**2).mean(-1, keepdims=True) + epsilon) * norm.reshape(C, -1))
    flat = hn.reshape(streams.shape)
    Z = cast(silu_alpha * cast(flat @ down))
    g = cast(_sigmoid(cast(cast(Z * cast(_sigmoid(Z))) @ up))).reshape(S.shape)
    post = cast(_sigmoid(cast(cast(flat @ inject) / gate_div))) * gate_mul
    found = (reduction_scale * (hn * g).sum(-2), post, S.reshape(streams.shape))
    return tuple(x.astype(streams.dtype) for x in found)


_MIX = (f32(2, 5, 12), f32(12), f32(12, 3), f32(3, 12), f32(12, 4))

CASES = [
    ms("GatedAdd", f32(2, 3, 4), f32(2, 3, 4), f32(2, 3, 1)),
    ms("GatedAdd", _HALF, _HALF, of(np.float16, 2, 3, 1), note="float16", tolerance=1e-3),
    ms("ScaledSiLU", f32(2, 3, 4)),
    ms("ScaledSiLU", f32(2, 3, 4), alpha=0.3),
    ms("ScaledSiLU", f32(2, 3, 4), np.array(1.7, np.float32), note="scale"),
    ms("ScaledSiLU", _HALF, np.array(1.7, np.float32), note="float16", tolerance=1e-3),
    *(ms("GatedRMSNorm", f32(2, 3, 8), f32(8), f32(2, 3, 8), activation=name) for name in ("silu", "swish", "sigmoid")),
    ms("GatedRMSNorm", f32(2, 3, 8), f32(4), f32(2, 3, 8), epsilon=0.1, note="heads"),
    ms("BranchwiseRMSNorm", f32(2, 3, 4)),
    ms("BranchwiseRMSNorm", f32(2, 3, 4), f32(4), note="features"),
    ms("BranchwiseRMSNorm", f32(2, 3, 4), f32(3, 4), epsilon=0.1, note="branches"),
    ms("BranchwiseRMSNorm", f32(2, 5, 12), f32(12), num_branches=3, note="flat"),
    ms("BranchwiseRMSNorm", f32(2, 5, 12), f32(4), num_branches=3, note="flat, features"),
    ms("BranchwiseRMSNorm", _HALF, f32(4), tolerance=1e-3, note="float16"),
    ms("HyperConnectionPreMix", f32(2, 5, 3, 4), f32(2, 5, 3)),
    ms("HyperConnectionPreMix", f32(2, 5, 3, 4), f32(2, 5, 3, 1), reduction_scale=0.5),
    ms("HyperConnectionPreMix", f32(2, 5, 3, 4), f32(2, 5, 3, 4), note="features"),
    ms("HyperConnectionPreMix", f32(2, 5, 12), f32(2, 5, 12), num_branches=3, note="flat"),
    ms("HyperConnectionPreMix", f32(2, 5, 12), f32(2, 5, 3), num_branches=3, note="flat, branches"),
    ms("HyperConnectionPostMix", f32(2, 5, 3, 4), f32(2, 5, 4), f32(2, 5, 3)),
    ms("HyperConnectionPostMix", f32(2, 5, 3, 4), f32(2, 5, 4), f32(2, 5, 3, 1), f32(2, 5, 3, 3), note="mixed"),
    ms("HyperConnectionPostMix", f32(2, 5, 12), f32(2, 5, 4), f32(2, 5, 3, 4), f32(2, 5, 3, 3), num_branches=3),
    ms("EngramGate", f32(2, 5, 3, 4), f32(2, 5, 3, 4), f32(2, 5, 4), f32(3, 4), f32(3, 4)),
    ms("EngramGate", f32(2, 5, 3, 4), f32(2, 5, 3, 4), f32(2, 5, 4), f32(3, 4), f32(3, 4), f32(3, 4), epsilon=0.1, outputs=2),
    by_formula(ms("GatedAdd", _brain(2, 3, 4), _brain(2, 3, 4), _brain(2, 3, 6), _brain(6, 1), tolerance=1e-2,
                  note="projected"), _projected, _WHY),
    *(by_formula(ms("SwiGLU", f32(2, 3, 4), f32(2, 3, 4), **options), _swiglu, _WHY)
      for options in ({}, {"limit": 0.5, "activation_beta": 1.0, "activation_alpha": 1.702})),
    by_formula(ms("SwiGLU", f32(2, 3, 8), note="halves"), _swiglu, _WHY),
    by_formula(ms("SwiGLU", np.float32([-87, -90, -100, -102]), f32(4), note="tail"), _swiglu, _WHY),
    by_formula(ms("SwiGLU", _HALF, _HALF, round_activation=1, tolerance=1e-3), _swiglu, _WHY),
    by_formula(ms("RouterGateUpProj", _HALF, of(np.float16, 4, 13, low=-1, high=1), router_size=3, limit=2.0, outputs=2,
                  tolerance=2e-3), _router, _WHY),
    by_formula(ms("HyperConnectionLowRankMix", *_MIX, num_branches=4, outputs=3), _low_rank, _WHY),
    by_formula(ms("HyperConnectionLowRankMix", *_MIX, f32(2, 5, 3), f32(2, 5, 4), num_branches=4, outputs=3, epsilon=0.1,
                  gate_div=2.0, gate_mul=3.0, reduction_scale=0.5, silu_alpha=0.7, note="prologue"), _low_rank, _WHY),
    by_formula(ms("HyperConnectionLowRankMix", *(_brain(*shape) for shape in ((5, 12), (12,), (12, 3), (3, 12), (12, 4))),
                  num_branches=4, outputs=3, tolerance=1e-2, note="bfloat16"), _low_rank, _WHY),
]  # fmt: skip
