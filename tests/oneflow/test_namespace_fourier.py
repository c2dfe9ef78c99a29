"""Fourier transforms and complex numbers of the namespace beside numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneflow_bridge.runtime import import_oneflow
from onnx2nn.errors import OperatorError

flow = import_oneflow()
from oneflow_bridge import namespace as F  # noqa: E402  # after OneFlow


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def complex_of(array: np.ndarray) -> object:
    return F.complex(F.tensor(array.real.copy()), F.tensor(array.imag.copy()))


def as_numpy(found: object) -> np.ndarray:
    parts = F.view_as_real(found).numpy()
    return parts[..., 0] + 1j * parts[..., 1]


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * max(1.0, float(np.abs(expected).max(initial=0))))


lengths = st.integers(1, 300) | st.sampled_from([400, 512, 1024, 509, 2048, 2 * 3 * 5 * 7 * 11])


@settings(max_examples=60)
@given(lengths, st.none() | lengths, st.sampled_from([0, 1, -1]), st.integers(0, 1000))
def test_transforms(size: int, n: int | None, dim: int, seed: int) -> None:
    """Any length, cut or padded, along each dim: the difference is rounding in float64."""
    shape = (size, 2) if dim == 0 else (2, size)
    real, z = values(seed, *shape), values(seed, *shape) + 1j * values(seed + 1, *shape)
    close(as_numpy(F.fft.rfft(F.tensor(real), n, dim)), np.fft.rfft(real, n, dim))
    close(as_numpy(F.fft.fft(F.tensor(real), n, dim)), np.fft.fft(real, n, dim))
    close(as_numpy(F.fft.fft(complex_of(z), n, dim)), np.fft.fft(z, n, dim))
    close(as_numpy(F.fft.ifft(complex_of(z), n, dim)), np.fft.ifft(z, n, dim))
    if n is not None or size > 1:
        close(F.fft.irfft(complex_of(z), n, dim).numpy(), np.fft.irfft(z, n, dim))


def test_transforms_of_several_dims() -> None:
    x = values(0, 3, 6, 8)
    spectrum = np.fft.rfftn(x, axes=(-2, -1))
    close(as_numpy(F.fft.rfftn(F.tensor(x), dim=[-2, -1])), spectrum)
    close(F.fft.irfftn(complex_of(spectrum), dim=[-2, -1]).numpy(), x)


def test_windows_and_products_of_complex_tensors() -> None:
    z, window = values(1, 2, 20) + 1j * values(2, 2, 20), values(3, 8)
    frames = np.lib.stride_tricks.sliding_window_view(z, 8, 1)[:, ::3]
    close(as_numpy(complex_of(z).unfold(1, 8, 3) * F.tensor(window)), frames * window)
    assert complex_of(z).is_complex() and complex_of(z).dtype is F.complex128 and complex_of(z).ndim == 2


def test_gradients_pass() -> None:
    """A transform is linear, and its gradient the transform of the gradient."""
    x = flow.tensor(values(4, 12), requires_grad=True)
    spectrum = F.fft.rfft(F.wrap(x))
    (spectrum.real * spectrum.real + spectrum.imag * spectrum.imag).sum().value.backward()
    step = np.eye(12) * 1e-6

    def power(v: np.ndarray) -> float:
        return float((np.abs(np.fft.rfft(v)) ** 2).sum())

    expected = [(power(x.detach().numpy() + d) - power(x.detach().numpy() - d)) / 2e-6 for d in step]
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5, atol=1e-4)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(OperatorError, match="prime factor 8191"):
        F.fft.fft(F.zeros(8191))
    with pytest.raises(OperatorError, match="length 0"):
        F.fft.fft(F.zeros(3), 0)
    with pytest.raises(OperatorError, match="complex numbers"):
        complex_of(np.zeros(2, complex)).abs()
