"""Cases of ONNX Runtime's operators that are close to operators of ai.onnx."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import by_formula, f32, of
from tests.cases.contrib.fused import ms

_NO_KERNEL = "ONNX Runtime has no CPU kernel; its documentation"
_MASK = (np.arange(24).reshape(1, 1, 4, 6) % 5 != 3).astype(np.int32)
_LINE = (np.arange(9).reshape(1, 1, 9) % 4 != 2).astype(np.int32)


def _complex(x: np.ndarray) -> np.ndarray:
    return x[..., 0].astype(np.float64) + 1j * x[..., 1]


def _parts(x: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    return np.stack([x.real, x.imag], -1).astype(dtype)


def _axes(signal_ndim: int) -> tuple[int, ...]:
    return tuple(range(-signal_ndim, 0))


CASES = [
    ms("ExpandDims", f32(3, 4), np.array(1, np.int32), constant=(1,)),
    ms("ExpandDims", f32(3, 4), np.array([-1], np.int32), constant=(1,)),
    ms("ExpandDims", of(np.int64, 3), np.array(0, np.int32), note="run time"),
    ms("SampleOp", f32(3, 4)),
    by_formula(ms("SampleOp", of(np.int64, 5)), lambda x: x, "ONNX Runtime has a kernel for float32 alone"),
    ms("GatherND", f32(3, 4, 2), np.array([[0, 1], [2, 3]], np.int64)),
    ms("GatherND", f32(3, 4, 2), np.array([[[2]], [[0]]], np.int32), note="int32"),
    ms("UnfoldTensor", f32(3, 8), size=3),
    ms("UnfoldTensor", f32(3, 8, 2), dim=1, size=4, step=2),
    ms("UnfoldTensor", of(np.int64, 9), dim=0, size=2, step=3),
    ms("MaxpoolWithMask", f32(2, 3, 9), _LINE, kernel_shape=[3], pads=[1, 1], strides=[2]),
    ms("MaxpoolWithMask", f32(1, 1, 9), _LINE, kernel_shape=[1], note="nothing"),
    ms("MaxpoolWithMask", f32(2, 3, 4, 6), _MASK, kernel_shape=[2, 3], strides=[1, 2]),
    ms("MaxpoolWithMask", f32(1, 2, 4, 6), 1 - _MASK, kernel_shape=[3, 3], pads=[1, 1, 1, 1], note="first"),
    ms("MaxpoolWithMask", f32(1, 2, 3, 4, 5), (np.arange(60).reshape(1, 1, 3, 4, 5) % 7 != 4).astype(np.int32),
       kernel_shape=[2, 2, 3]),
    ms("DynamicTimeWarping", of(np.float32, 4, 6, low=0)),
    ms("DynamicTimeWarping", of(np.float32, 1, 7, 3, low=0), note="three dimensions"),
    ms("DynamicTimeWarping", np.zeros((3, 4), np.float32), note="equal"),
    by_formula(ms("ComplexMul", f32(3, 4, 2), f32(4, 2)), lambda a, b: _parts(_complex(a) * _complex(b)), _NO_KERNEL),
    by_formula(ms("ComplexMulConj", f32(3, 4, 2), f32(3, 4, 2)), lambda a, b: _parts(_complex(a) * _complex(b).conj()),
               _NO_KERNEL),
    *(
        by_formula(ms("Rfft", of(dtype, 3, 4, 6), signal_ndim=count),
                   lambda x, signal_ndim: _parts(np.fft.rfftn(x.astype(np.float64), axes=_axes(signal_ndim)), x.dtype),
                   _NO_KERNEL)
        for dtype, count in ((np.float32, 1), (np.float64, 2), (np.float32, 3))
    ),
    *(
        by_formula(ms("Irfft", of(np.float32, 3, 4, 5, 2), signal_ndim=count),
                   lambda x, signal_ndim: np.fft.irfftn(_complex(x), axes=_axes(signal_ndim)).astype(np.float32),
                   _NO_KERNEL)
        for count in (1, 2)
    ),
]  # fmt: skip
