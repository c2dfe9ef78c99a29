"""Cases of ONNX Runtime's mixtures of experts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.cases import Case, by_formula, f32, of
from tests.cases.contrib.fused import ms
from tests.cases.contrib.quantized import positive, u8

_WHY = (
    "ONNX Runtime's CPU takes neither a third matrix nor halves one behind the other; the formula of its documentation"
)
_EXACT = "ONNX Runtime's CPU rounds activations with blocks of 8 bits; the formula of its documentation"


def _moe(
    *, width: int = 6, biased: bool = False, shape: tuple[int, ...] = (5, 4), third: bool = False, **options: Any
) -> Case:
    fused = 2 * width if options.get("swiglu_fusion") else width
    tokens = math.prod(shape[:-1])
    inputs = [f32(*shape), f32(tokens, 3), f32(3, fused, 4), f32(3, fused) if biased else None, f32(3, 4, width)]
    inputs += [f32(3, 4) if biased else None, f32(3, width, 4) if third else None]
    return ms("MoE", *inputs, constant=(2, 3, 4, 5, 6), tolerance=1e-4, **options)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _formula(
    x: Any, router: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any = None, *, activation_type: str = "relu", k: int = 1,
    swiglu_fusion: int = 0, activation_alpha: float = 1.0, activation_beta: float = 0.0, swiglu_limit: float = math.inf,
    normalize_routing_weights: int = 0, swiglu_limit_after_activation: int = 0, **others: Any,
) -> Any:  # fmt: skip
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    shares = np.exp(router) / np.exp(router).sum(-1, keepdims=True)
    out = np.zeros_like(rows)
    for t, row in enumerate(rows):
        chosen = np.argsort(-router[t])[:k]
        total = shares[t][chosen].sum() if normalize_routing_weights else 1
        for e in chosen:
            y = w1[e] @ row + (0 if b1 is None else b1[e])
            if activation_type == "swiglu":
                g, linear = np.split(y, 2) if swiglu_fusion == 2 else (y, w3[e] @ row)
                late = swiglu_limit_after_activation
                g, linear = g if late else np.minimum(g, swiglu_limit), np.clip(linear, -swiglu_limit, swiglu_limit)
                g = g * _sigmoid(activation_alpha * g)
                y = (np.minimum(g, swiglu_limit) if late else g) * (linear + activation_beta)
            else:
                y = {"silu": y * _sigmoid(y), "relu": np.maximum(y, 0), "identity": y}[activation_type]
                y = y if w3 is None else y * (w3[e] @ row)
            out[t] += shares[t][e] / total * (w2[e] @ y + (0 if b2 is None else b2[e]))
    return out.reshape(x.shape).astype(np.float32)


def _qmoe(
    bits: int, *, block: int = 0, zero: bool = False, biased: bool = False, hidden: int = 32, width: int = 32, shape: Any = None,
    router: bool = False, **options: Any,
) -> Case:  # fmt: skip
    fused = 2 * width if options.get("swiglu_fusion") else width
    shape = shape or (5, hidden)
    tokens = math.prod(shape[:-1])

    def scales(rows: int, columns: int) -> Any:
        return positive(3, rows, columns // block) if block else positive(3, rows)

    def zeros(rows: int, columns: int) -> Any:
        return u8(3, rows, columns // block * bits // 8) if block else u8(3, rows * bits // 8)

    inputs = [f32(*shape), f32(tokens, 3), u8(3, fused, hidden * bits // 8), scales(fused, hidden)]
    inputs += [f32(3, fused) if biased else None, u8(3, hidden, width * bits // 8), scales(hidden, width)]
    inputs += [f32(3, hidden) if biased else None, None, None, None]
    inputs += [zeros(fused, hidden), zeros(hidden, width), None] if zero else [None, None, None]
    inputs += [of(np.float32, tokens, 3, low=0.1, high=1.0)] if router else []
    options = {"expert_weight_bits": bits, **({"block_size": block} if block else {}), **options}
    return ms("QMoE", *inputs, constant=(2, 3, 4, 5, 6, 7, 11, 12), tolerance=2e-4, **options)


def _whole(weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return ((weight.astype(np.float32) - 128).reshape(*scales.shape, -1) * scales[..., None]).reshape(weight.shape)


def _of_bytes(
    x: Any, router: Any, w1: Any, s1: Any, b1: Any, w2: Any, s2: Any, b2: Any, *others: Any, **options: Any
) -> Any:
    return _formula(x, router, _whole(w1, s1), b1, _whole(w2, s2), b2, normalize_routing_weights=1, **options)


CASES = [
    *(_moe(activation_type=name, k=2) for name in ("relu", "gelu", "silu", "identity")),
    _moe(biased=True, normalize_routing_weights=1, k=2, shape=(2, 3, 4), note="batch"),
    _moe(activation_type="swiglu", swiglu_fusion=1, biased=True, k=2, activation_alpha=1.7, activation_beta=1.0,
         swiglu_limit=0.8),
    _moe(activation_type="swiglu", swiglu_fusion=1, normalize_routing_weights=1, k=3, note="all experts"),
    by_formula(_moe(activation_type="swiglu", swiglu_fusion=2, biased=True, k=2, activation_beta=1.0, swiglu_limit=0.8),
               _formula, _WHY),
    by_formula(_moe(activation_type="swiglu", swiglu_fusion=2, k=2, swiglu_limit=0.3, swiglu_limit_after_activation=1),
               _formula, _WHY),
    by_formula(_moe(activation_type="swiglu", third=True, k=2, activation_alpha=1.7), _formula, _WHY),
    by_formula(_moe(activation_type="silu", third=True, k=2, normalize_routing_weights=1, note="third"), _formula, _WHY),
    _qmoe(4, activation_type="silu", k=2),
    _qmoe(4, zero=True, biased=True, k=2, normalize_routing_weights=1, shape=(2, 3, 32), note="zero points"),
    _qmoe(8, activation_type="gelu", k=2),
    _qmoe(8, zero=True, activation_type="identity", note="bytes with zero points"),
    _qmoe(4, block=16, activation_type="swiglu", swiglu_fusion=1, biased=True, k=2, activation_alpha=1.7, swiglu_limit=0.8),
    _qmoe(4, block=16, zero=True, k=2, note="blocks with zero points"),
    _qmoe(4, router=True, k=2, note="chosen apart"),
    _qmoe(2, block=16, k=2, note="two bits"),
    by_formula(_qmoe(8, block=16, activation_type="silu", k=2), _of_bytes, _EXACT),
    ms("MoEGroupRouter", f32(5, 8), f32(8), top_k=3),
    ms("MoEGroupRouter", f32(2, 3, 8), f32(8), top_k=2, n_group=4, topk_group=2, group_topk=1, router_sentinel=-50.0),
    ms("MoEGroupRouter", np.zeros((2, 8), np.float32), np.zeros(8, np.float32), top_k=2, n_group=2, note="equal ones"),
    ms("MoEGroupRouter", np.float32([[-90, -200, 3, 100]]), f32(4), top_k=4, note="tail"),
    ms("MoEGroupRouter", f32(5, 8), f32(8), top_k=3, outputs=3, absent=(0,), note="scores"),
    ms("MoEGroupRouter", f32(5, 256), f32(8), f32(8, 256), top_k=3, outputs=3, absent=(0,), note="projected"),
]  # fmt: skip
