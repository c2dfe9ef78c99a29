"""Shape rules of Fourier transforms along one axis: `fft`, `ifft`, `rfft`, `irfft`."""

from __future__ import annotations

from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import axis_of, is_number, put, shape_of
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import less

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {wide: real for real, wide in _COMPLEX.items()}
_KINDS: dict[str, dict[Any, torch.dtype]] = {
    "half": {**_COMPLEX},
    "full": {**_COMPLEX, **{wide: wide for wide in _REAL}},
    "real": {**_REAL},
}
"""The dtypes of results by the dtypes of operands, by what the result is."""


def _transform(sizes: Sizes, input: Spec, n: Any, dim: Any, *, result: str) -> Result:
    """Returns the spectrum or signal along one axis; `n` is the length of the signal.

    Args:
        sizes: the sizes.
        input: a real or complex signal, or a spectrum.
        n: the length to which the signal is cut or padded, None for its own.
        dim: the axis.
        result: `"half"`, a spectrum of the frequencies up to half the sampling rate; `"full"`; `"real"`, a signal.
    """
    shape = shape_of(input)
    axis, kept = axis_of(dim, len(shape)), _KINDS[result].get(input.dtype)
    if kept is None or not (n is None or is_number(n)):
        raise Uncovered
    length = n if n is not None else 2 * (shape[axis] - 1) if result == "real" else shape[axis]
    sizes.require(less(0, length), "the length of a Fourier transform")
    return Spec(put(shape, axis, length // 2 + 1 if result == "half" else length), kept)


@rule(torch.fft.rfft)
def _rfft(sizes: Sizes, input: Spec, n: Any = None, dim: Any = -1, norm: Any = None) -> Result:
    return _transform(sizes, input, n, dim, result="half")


@rule(torch.fft.irfft)
def _irfft(sizes: Sizes, input: Spec, n: Any = None, dim: Any = -1, norm: Any = None) -> Result:
    return _transform(sizes, input, n, dim, result="real")


@rule(torch.fft.fft, torch.fft.ifft)
def _fft(sizes: Sizes, input: Spec, n: Any = None, dim: Any = -1, norm: Any = None) -> Result:
    return _transform(sizes, input, n, dim, result="full")
