"""Cases of ONNX Runtime's products with weights of float8, float4 and few bits in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import float8_e4m3fn

from tests.cases import by_formula, f32, of
from tests.cases.contrib.fused import ms
from tests.cases.contrib.quantized import positive, q, u8

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_RNG = np.random.default_rng(5)
_WEIGHT = _RNG.uniform(-4, 4, (6, 40)).astype(float8_e4m3fn)
_SCALES = _RNG.uniform(0.01, 1, (6, 3)).astype(float8_e4m3fn).view(np.uint8)


def _half(*shape: int) -> Any:
    return of(np.float16, *shape)


def _blob(rows: int, columns: int, zero_point: bool) -> np.ndarray:
    blocks = columns * -(-rows // 32)
    parts = [_RNG.uniform(0.1, 1, (blocks, 1)).astype(np.float32).view(np.uint8)]
    parts += [_RNG.integers(0, 16, (blocks, 1), np.uint8)] if zero_point else []
    return np.concatenate([*parts, _RNG.integers(0, 256, (blocks, 16), np.uint8)], 1).reshape(-1)


def _along(scales: np.ndarray, block: int, columns: int) -> np.ndarray:
    return scales.repeat(block, 1)[:, :columns]


def _float8(A: Any, B: Any, scale: Any, a_scale: Any = None, bias: Any = None, *, block_size: int = 128) -> np.ndarray:
    x = A.astype(np.float32)
    if a_scale is not None:
        x = (x / a_scale).astype(float8_e4m3fn).astype(np.float32) * a_scale
    y = x @ (B.astype(np.float32) * _along(scale, block_size, B.shape[1])).T
    return (y + (0 if bias is None else bias)).astype(A.dtype)


def _float4(
    A: Any, B: Any, scale: Any, scale_2: Any, input_scale: Any = None, bias: Any = None, *, block_size: int = 16
) -> Any:
    codes = np.stack([B & 15, B >> 4], -1).reshape(len(B), -1)
    weight = np.where(codes > 7, -1, 1) * _E2M1[codes & 7] * scale_2
    weight = weight * _along(scale.view(float8_e4m3fn).astype(np.float32), block_size, weight.shape[1])
    y = A.astype(np.float32) @ weight.astype(A.dtype).astype(np.float32).T
    return (y + (0 if bias is None else bias)).astype(A.dtype)


def _gemm(A: Any, B: Any, C: Any = None, a: Any = None, b: Any = None, **options: Any) -> np.ndarray:
    x, y = A.astype(np.float32) * (1 if a is None else a), B.astype(np.float32) * (1 if b is None else b)
    y = (x.T if options.get("transA") else x) @ (y.T if options.get("transB") else y) * options.get("alpha", 1.0)
    y = y + (0 if C is None else C.astype(np.float32) * options.get("beta", 0.0))
    y = np.maximum(y, 0) if options.get("activation") == "RELU" else y
    return y.astype(np.float16 if options.get("dtype") == 10 else np.float32)


def _nbits(x: np.ndarray, weight: np.ndarray, scales: np.ndarray, bias: Any) -> np.ndarray:
    codes = np.stack([weight & 15, weight >> 4], -1).reshape(*weight.shape[:2], -1).astype(np.float32) - 8
    matrix = (codes * scales.reshape(*weight.shape[:2], 1)).reshape(len(weight), -1)[:, : x.shape[-1]]
    return x @ matrix.T + (0 if bias is None else bias)


def _normal(A: Any, skip: Any, scale: Any, epsilon: float) -> Any:
    total = A if skip is None else A + skip
    if scale is None:
        return total, total
    return total / np.sqrt((total.astype(np.float64) ** 2).mean(-1, keepdims=True) + epsilon) * scale, total


def _mlp(A: Any, skip: Any, scale: Any, gate_B: Any, gate_s: Any, gate_b: Any, up_B: Any, up_s: Any, up_b: Any = None, *, epsilon: float = 1e-5, **options: Any) -> Any:  # fmt: skip
    x, total = _normal(A, skip, scale, epsilon)
    gate = _nbits(x, gate_B, gate_s, gate_b)
    Y = (gate / (1 + np.exp(-gate)) * _nbits(x, up_B, up_s, up_b)).astype(np.float32)
    return Y if skip is None else (Y, total)


def _qkv(A: Any, skip: Any, scale: Any, *parts: Any, epsilon: float = 1e-6, **options: Any) -> Any:
    x, total = _normal(A, skip, scale, epsilon)
    parts = (*parts, *[None] * (9 - len(parts)))
    found = tuple(_nbits(x, *parts[i : i + 3]).astype(np.float32) for i in (0, 3, 6))
    return found if skip is None else (*found, total)


def _few_bits(X: Any, W: Any, scales: Any, K: int, bits: int, block: int) -> Any:
    numbers = np.stack([W & 15, W >> 4], -1) if bits == 4 else W
    numbers = numbers.reshape(*W.shape[:2], -1)[:, :, :block].astype(np.float32) - (1 << (bits - 1))
    return X @ (numbers * scales[..., None]).reshape(len(W), -1)[:, :K].T


def _adapted(
    X: Any, W: Any, scales: Any, A: Any, A_scales: Any, B: Any, B_scales: Any, *, K: int, N: int, block_size: int,
    lora_block_size: int,
) -> Any:  # fmt: skip
    Y = _few_bits(X, W, scales, K, 4, block_size)
    if not B.size:
        return Y
    down = _few_bits(X, A, A_scales, K, 8, lora_block_size) if A.size else np.zeros((*X.shape[:-1], 5), np.float32)
    return Y + _few_bits(down, B, B_scales, 5, 8, lora_block_size)


CASES = [
    ms("MatMulFpQ4", f32(4, 70), _blob(70, 3, True), np.array([70, 3]), constant=(1, 2), tolerance=1e-4),
    ms("MatMulFpQ4", f32(2, 4, 64), _blob(64, 5, False), np.array([64, 5]), constant=(1, 2), blk_quant_type=0, tolerance=1e-4),
    by_formula(ms("MatMulBlockQuantizedFp8Weight", _half(3, 40), _WEIGHT, positive(6, 3), block_size=16, constant=(1, 2),
                  tolerance=1e-3), _float8, _WHY),
    by_formula(ms("MatMulBlockQuantizedFp8Weight", _half(2, 3, 40), _WEIGHT, positive(6, 1), q(0.02), _half(6), constant=(1, 2),
                  tolerance=1e-3), _float8, _WHY),
    by_formula(ms("MatMulBlockQuantizedFp4Weight", _half(2, 3, 40), u8(6, 20), _SCALES, q(0.3), constant=(1, 2, 3),
                  tolerance=1e-3), _float4, _WHY),
    by_formula(ms("MatMulBlockQuantizedFp4Weight", _half(3, 40), u8(6, 20), _SCALES[:, :2].copy(), q(0.3), q(0.1), _half(6),
                  block_size=32, constant=(1, 2, 3), tolerance=1e-3), _float4, _WHY),
    by_formula(ms("GemmFloat8", f32(3, 40), _WEIGHT, f32(6), q(0.5), q(0.25), transB=1, alpha=2.0, beta=0.5), _gemm, _WHY),
    by_formula(ms("GemmFloat8", f32(4, 3), f32(4, 5), transA=1, activation="RELU", dtype=10, types={0: np.float16},
                  tolerance=1e-3), _gemm, _WHY),
    by_formula(ms("MatMulNBitsMlp", f32(2, 3, 40), None, None, u8(6, 3, 8), positive(18), None, u8(6, 3, 8), positive(18), f32(6),
                  K=40, N=6, block_size=16, activation="silu", constant=(3, 4, 6, 7), tolerance=1e-4), _mlp, _WHY),
    by_formula(ms("MatMulNBitsMlp", f32(3, 32), f32(3, 32), f32(32), u8(6, 1, 16), positive(6), f32(6), u8(6, 1, 16), positive(6),
                  K=32, N=6, block_size=32, activation="silu", outputs=2, constant=(3, 4, 6, 7), tolerance=1e-4), _mlp, _WHY),
    by_formula(ms("MatMulNBitsQkv", f32(3, 32), None, f32(32), u8(6, 1, 16), positive(6), f32(6), u8(4, 1, 16), positive(4), None,
                  u8(4, 1, 16), positive(4), K=32, Nq=6, Nkv=4, block_size=32, outputs=3, constant=(3, 4, 6, 7, 9, 10),
                  tolerance=1e-4), _qkv, _WHY),
    by_formula(ms("MatMulNBitsQkv", f32(2, 3, 32), f32(2, 3, 32), f32(32), u8(6, 1, 16), positive(6), None, u8(4, 1, 16),
                  positive(4), f32(4), u8(4, 1, 16), positive(4), f32(4), K=32, Nq=6, Nkv=4, block_size=32, outputs=4,
                  constant=(3, 4, 6, 7, 9, 10), epsilon=0.1, tolerance=1e-4), _qkv, _WHY),
    *(by_formula(ms("MatMulNBitsQLoRA", f32(2, 3, 40), u8(6, 2, 16), positive(6, 2), u8(5 if a else 0, 3, 16), positive(5, 3),
                    u8(6, 1 if b else 0, 16), positive(6, 1), K=40, N=6, block_size=32, lora_block_size=16,
                    constant=(1, 2, 3, 4, 5, 6), tolerance=1e-4, note=f"{a}, {b}"), _adapted, _WHY)
      for a, b in ((True, True), (False, True), (True, False))),
]  # fmt: skip
