"""Fourier transforms, windows and mel filters."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.axes import from_front
from onnx2nn.ops.cast import element_of
from onnx2nn.ops.shape import fixed, scalar
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision


def _widened(F: Any, x: Any) -> Any:
    """Returns `x` in float64, in which transforms are computed.

    Processors and numbers of threads get different kernels, which add in different orders. In float32 the results
    differ by units in the last place of the largest one, which is more than a frequency that cancels out has left. In
    float64 they differ by 1e-16 of it, and are rounded once.
    """
    return x.to(F.float64)


def _signal(F: Any, input: Any) -> Any:
    """Returns a real or complex signal; the last dimension of `input` holds its real, or real and imaginary, part."""
    x = _widened(F, input)
    return x[..., 0] if x.shape[-1] == 1 else F.complex(x[..., 0], x[..., 1])


def _forward(F: Any, x: Any, length: Any, axis: int, onesided: int) -> Any:
    """Returns the transform of `x`; `onesided` keeps the frequencies up to half the sampling rate."""
    if onesided and not x.is_complex():
        return F.fft.rfft(x, length, axis)
    spectrum = F.fft.fft(x, length, axis)
    return spectrum.narrow(axis, 0, spectrum.shape[axis] // 2 + 1) if onesided else spectrum


@op("DFT", 20, static=["dft_length", "axis"])
def dft(F: Any, input: Any, dft_length: Any = None, axis: Any = None, *, inverse: int = 0, onesided: int = 0) -> Any:
    """The inverse of a one-sided transform is real: its last dimension has size 1."""
    position = from_front(-2 if axis is None else scalar(axis), input.ndim)
    if position == input.ndim - 1:
        raise OperatorError(f"axis={position} is the last dimension, which holds the real and imaginary parts.")
    x, length = _signal(F, input), scalar(dft_length)
    if inverse and onesided:
        return F.fft.irfft(x, length, position).unsqueeze(-1).to(input.dtype)
    spectrum = F.fft.ifft(x, length, position) if inverse else _forward(F, x, length, position, onesided)
    return F.view_as_real(spectrum).to(input.dtype)


revision(dft, 17, as_attributes=["axis"], defaults={"axis": 1})


@op("STFT", 17, static=["frame_step", "frame_length"])
def stft(
    F: Any, signal: Any, frame_step: Any, window: Any = None, frame_length: Any = None, *, onesided: int = 1
) -> Any:
    """The signal is `(N, length, 1 or 2)`, the result `(N, frames, bins, 2)`; the signal is not padded.

    A real signal may lack its last dimension, as in ONNX Runtime and in torch's exports.
    """
    length = scalar(frame_length)
    if length is None:
        length = signal.shape[1] if window is None else window.shape[0]
    if window is not None and window.shape[0] != length:
        raise OperatorError(f"its window has {window.shape[0]} elements and a frame has {length}.")
    samples = _widened(F, signal) if signal.ndim == 2 else _signal(F, signal)
    frames = samples.unfold(1, length, scalar(frame_step))
    frames = frames if window is None else frames * _widened(F, window)
    return F.view_as_real(_forward(F, frames, None, 2, onesided)).to(signal.dtype)


def _window(F: Any, size: Any, make: Any, cosines: Sequence[float], periodic: int, output_datatype: int) -> Any:
    """Returns a window in the output's type, computed in float64 where that is not float32.

    Args:
        F: torch.
        size: its number of samples.
        make: torch's function. It gives 1 for one sample, where the standard divides by 1 or, if not periodic, by 0.
        cosines: the coefficients of the cosines of 0, 1 and more periods, whose sum the window is.
        periodic: whether a period has as many samples; else the last sample is the first of the next period.
        output_datatype: ONNX's number of the type.
    """
    dtype, size = getattr(F, element_of(output_datatype).dtype), scalar(size)
    if fixed(size) and size != 1:
        if dtype in (F.float32, F.float64):
            return make(size, periodic=bool(periodic), dtype=dtype)
        return make(size, periodic=bool(periodic), dtype=F.float64).to(dtype)
    phase = F.arange(size, dtype=F.float64) * (2 * math.pi) / (size if periodic else size - 1)
    return sum(weight * F.cos(order * phase) for order, weight in enumerate(cosines)).to(dtype)


@op("HannWindow", 17, static=["size"])
def hann_window(F: Any, size: Any, *, output_datatype: int = 1, periodic: int = 1) -> Any:
    return _window(F, size, F.hann_window, (0.5, -0.5), periodic, output_datatype)


@op("HammingWindow", 17, static=["size"])
def hamming_window(F: Any, size: Any, *, output_datatype: int = 1, periodic: int = 1) -> Any:
    """The coefficients are 25/46 and 21/46; torch's defaults are 0.54 and 0.46."""
    make = functools.partial(F.hamming_window, alpha=25 / 46, beta=21 / 46)
    return _window(F, size, make, (25 / 46, -21 / 46), periodic, output_datatype)


@op("BlackmanWindow", 17, static=["size"])
def blackman_window(F: Any, size: Any, *, output_datatype: int = 1, periodic: int = 1) -> Any:
    return _window(F, size, F.blackman_window, (0.42, -0.5, 0.08), periodic, output_datatype)


def _mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def _hertz(mel: float) -> float:
    return 700 * (10 ** (mel / 2595) - 1)


@op(
    "MelWeightMatrix",
    17,
    static=["num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz"],
)
def mel_weight_matrix(
    F: Any,
    num_mel_bins: Any,
    dft_length: Any,
    sample_rate: Any,
    lower_edge_hertz: Any,
    upper_edge_hertz: Any,
    *,
    output_datatype: int = 1,
) -> Any:
    """Each column is a triangle over the bins of a spectrum, which spans three neighbouring mel frequencies."""
    mels, length, rate = (int(scalar(v)) for v in (num_mel_bins, dft_length, sample_rate))
    low, high = _mel(scalar(lower_edge_hertz)), _mel(scalar(upper_edge_hertz))
    step = (high - low) / (mels + 2)
    corners = [math.floor((length + 1) * _hertz(low + step * i) / rate) for i in range(mels + 2)]
    bins = length // 2 + 1
    if corners[0] < 0 or corners[-1] > bins:
        raise OperatorError(f"its mel bands reach beyond the {bins} bins of the spectrum.")
    matrix = F.zeros(bins, mels, dtype=F.float64)
    for band, (left, center, right) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
        if left == center:
            matrix[center, band] = 1
        else:
            matrix[left : center + 1, band] = F.arange(center - left + 1, dtype=F.float64) / (center - left)
        if center < right:
            matrix[center:right, band] = F.arange(right - center, 0, -1, dtype=F.float64) / (right - center)
    return matrix.to(getattr(F, element_of(output_datatype).dtype))
