"""Cases of ONNX Runtime's operators on weights that are packed in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import int4, uint4

from tests.cases import Case, f32, of
from tests.cases.contrib.fused import ms
from tests.cases.contrib.quantized import positive, u8

_GROUPS = np.random.default_rng(0).permutation(np.arange(64) // 16).clip(0, 2).astype(np.int32)


def nbits(
    n: int,
    k: int,
    block: int,
    bits: int,
    *,
    zero_points: Any = None,
    groups: Any = None,
    bias: Any = None,
    **options: Any,
) -> Case:
    blocks = -(-k // block)
    inputs = [f32(3, k), u8(n, blocks, block * bits // 8), positive(n, blocks), zero_points, groups, bias]
    options = {"constant": (1, 2, 3, 4, 5), **options}
    return ms("MatMulNBits", *inputs, K=k, N=n, bits=bits, block_size=block, **options)


CASES = [
    nbits(5, 32, 32, 4),
    nbits(5, 40, 16, 4, zero_points=u8(5, 2), bias=f32(5), note="zero points, ragged"),
    nbits(5, 64, 16, 8, zero_points=u8(5, 4), note="8 bits"),
    nbits(5, 64, 32, 2, zero_points=u8(5, 1), note="2 bits"),
    nbits(5, 64, 32, 4, zero_points=f32(5, 2), note="float zero points"),
    nbits(5, 64, 32, 4, constant=(), note="run time"),
    nbits(5, 40, 16, 4, groups=_GROUPS[:40], bias=f32(5), note="groups, ragged"),
    nbits(5, 64, 16, 4, groups=_GROUPS, zero_points=f32(5, 4), constant=(), note="groups, float zero points"),
    *(nbits(5, 88, block, bits, zero_points=zero_points, accuracy_level=4, note="int8 activations where there are kernels")
      for bits in (2, 4, 8) for block in (16, 32)
      for zero_points in (None, u8(5, -(88 // -block * bits // 8)))),
    nbits(5, 64, 32, 4, zero_points=f32(5, 2), accuracy_level=4, note="float zero points, level 4"),
    nbits(5, 64, 32, 4, groups=_GROUPS // 2, accuracy_level=4, note="groups, level 4"),
    nbits(5, 64, 32, 4, constant=(), accuracy_level=4, note="run time, level 4"),
    nbits(5, 64, 32, 4, bias=f32(5), accuracy_level=1, note="level 1"),
    *(
        ms("MatMulBnb4", f32(3, 32), u8(5 * 32 // 2), positive(5 * 32 // 16), K=32, N=5, block_size=16, quant_type=kind,
           constant=(1, 2))
        for kind in (0, 1)
    ),
    ms("MatMulBnb4", f32(2, 3, 48), u8(7 * 48 // 2), positive(11), K=48, N=7, block_size=32, quant_type=1, constant=(1, 2),
       note="ragged"),
    *(
        ms("GatherBlockQuantized", of(dtype, 6, 32, low=0, high=7), np.array([[1, -2], [5, 0]]), f32(6, 2),
           of(dtype, 6, 2, low=0, high=7), block_size=16, constant=(0, 2, 3), note=f"{np.dtype(dtype)}")
        for dtype in (int4, uint4)
    ),
    ms("GatherBlockQuantized", of(uint4, 6, 32, low=0, high=7), np.array([1, 6, -7, -6]), f32(6, 2), block_size=16,
       constant=(0, 2), note="out of range"),
    ms("GatherBlockQuantized", of(uint4, 4, 6, 32, low=0, high=15), np.array([1, 5]), f32(4, 6, 2), block_size=16,
       gather_axis=1, quantize_axis=2, constant=(0, 2), note="no zero points"),
    ms("GatherBlockQuantized", of(int4, 32, 6, low=0, high=7), np.array([31, 3, 17]), f32(2, 6), of(int4, 2, 6),
       block_size=16, gather_axis=0, quantize_axis=0, constant=(0, 2, 3), note="one axis"),
    *(
        ms("GatherBlockQuantized", u8(6, 32 * bits // 8), np.array([1, 5], np.int32), f32(6, 2), zero_points,
           block_size=16, bits=bits, constant=(0, 2, 3), note=f"uint8 of {bits} bits" + " zero points" * (zero_points is not None))
        for bits in (2, 4, 8) for zero_points in (None, u8(6, -(-2 * bits // 8)))
    ),
]  # fmt: skip
