"""torch.fft and the complex numbers that come out of it: OneFlow has neither, real matrix products give both.

A complex tensor is a pair of real ones (`Complex`) and has the few methods that operators need between a transform and
`view_as_real`. A transform of length n multiplies by the matrix of its roots of unity. Where n is a product, the
transforms of its factors are combined (Cooley and Tukey 1965), so that a matrix has the size of a prime factor, or at
most `_DIRECT` rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow_bridge.namespace import arithmetic, linalg, shaping
from oneflow_bridge.namespace.dtypes import DType, complex64, complex128, float32
from oneflow_bridge.namespace.names import MissingNameError
from oneflow_bridge.namespace.shaping import axis, movedim, narrow, reshape, stack, transpose
from oneflow_bridge.namespace.tensor import Size, Tensor, constant, from_array
from onnx2nn.errors import OperatorError

_DIRECT = 64
"""Length up to which a transform is one product with a matrix."""

_LARGEST_PRIME = 4096
"""The largest prime factor of a length: its matrix has as many rows and columns, 128 MB."""


class Complex:
    """A complex tensor: what torch's has of it that the op table uses, each method as torch's.

    Attributes:
        real: the real part, a float tensor.
        imag: the imaginary part, of the same shape and type.
    """

    __slots__ = ("imag", "real")

    def __init__(self, real: Any, imag: Any):
        self.real, self.imag = real, imag

    @property
    def shape(self) -> Size:
        """The dims."""
        return Size(self.real.shape)

    @property
    def ndim(self) -> int:
        """The rank."""
        return len(self.real.shape)

    @property
    def dtype(self) -> DType:
        """complex64 or complex128."""
        return complex64 if self.real.dtype is float32 else complex128

    def is_complex(self) -> bool:
        """Always."""
        return True

    def is_floating_point(self) -> bool:
        """Never."""
        return False

    def narrow(self, dim: int, start: int, length: int) -> Complex:
        """`length` elements of a dim from `start`."""
        return self._both(lambda part: narrow(part, dim, start, length))

    def unfold(self, dimension: int, size: int, step: int) -> Complex:
        """Windows of a dim along a new last dim."""
        return self._both(lambda part: shaping.unfold(part, dimension, size, step))

    def __mul__(self, other: Tensor) -> Complex:
        return self._both(lambda part: arithmetic.mul(part, other))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingNameError(f"complex.{name}")

    def _both(self, function: Callable[[Any], Any]) -> Complex:
        return Complex(function(self.real), function(self.imag))


def make_complex(real: Tensor, imag: Tensor) -> Complex:
    """torch.complex."""
    return Complex(real, imag)


def view_as_real(x: Complex) -> Tensor:
    """The real and imaginary parts along a new last dim."""
    return stack([x.real, x.imag], x.ndim)


def fft(x: Any, n: int | None = None, dim: int = -1) -> Complex:
    """The transform of a real or complex tensor along a dim, cut or padded with zeros to length n."""
    return _along(x, n, dim, -1)


def ifft(x: Any, n: int | None = None, dim: int = -1) -> Complex:
    """The inverse transform, divided by its length."""
    found = _along(x, n, dim, 1)
    length = found.shape[axis(dim, found.ndim)]
    return found._both(lambda part: arithmetic.div(part, length))


def rfft(x: Tensor, n: int | None = None, dim: int = -1) -> Complex:
    """The transform of a real tensor at the frequencies from 0 to half the sampling rate."""
    return _one_sided(fft(x, n, dim), dim)


def irfft(x: Any, n: int | None = None, dim: int = -1) -> Tensor:
    """The real inverse of a one-sided transform, of length n, by default an even one."""
    place = axis(dim, x.ndim)
    length = 2 * (x.shape[place] - 1) if n is None else int(n)
    return ifft(_two_sided(x, length, place), length, place).real


def rfftn(x: Tensor, dim: Sequence[int]) -> Complex:
    """`rfft` along the last of some dims, then `fft` along the others."""
    *others, last = dim
    return functools.reduce(lambda part, place: fft(part, None, place), others, rfft(x, None, last))


def irfftn(x: Complex, dim: Sequence[int]) -> Tensor:
    """The inverse of `rfftn`."""
    *others, last = dim
    return irfft(functools.reduce(lambda part, place: ifft(part, None, place), others, x), None, last)


def _one_sided(x: Complex, dim: int) -> Complex:
    place = axis(dim, x.ndim)
    return x.narrow(place, 0, x.shape[place] // 2 + 1)


def _two_sided(x: Any, length: int, place: int) -> Complex:
    """Returns the spectrum of a real signal at all frequencies: those above half the rate are conjugates.

    The imaginary parts at 0 and at half the rate do not count, as in torch.
    """
    bins = length // 2 + 1
    fitted = _fitted(_as_complex(x), bins, place)
    mirrored = [length - k for k in range(bins, length)]
    order = from_array(np.asarray([*range(bins), *mirrored], dtype=np.int64))
    sign = np.asarray([1.0] * bins + [-1.0] * len(mirrored))
    sign[0] = 0.0
    if length % 2 == 0:
        sign[bins - 1] = 0.0
    real, imag = (part.index_select(place, order) for part in (fitted.real, fitted.imag))
    shape = [1] * place + [length] + [1] * (fitted.ndim - place - 1)
    return Complex(real, arithmetic.mul(imag, from_array(sign.reshape(shape), imag.dtype)))


def _as_complex(x: Any) -> Complex:
    return x if isinstance(x, Complex) else Complex(x, constant(x.shape, 0, x.dtype, x.device))


def _fitted(x: Any, length: int, place: int) -> Any:
    """Returns a tensor whose dim is cut, or padded with zeros, to a length."""
    if isinstance(x, Complex):
        return x._both(lambda part: _fitted(part, length, place))
    size = x.shape[place]
    if size >= length:
        return narrow(x, place, 0, length)
    missing = constant((*x.shape[:place], length - size, *x.shape[place + 1 :]), 0, x.dtype, x.device)
    return shaping.cat([x, missing], place)


def _along(x: Any, n: Any, dim: int, sign: int) -> Complex:
    """Returns the sum over t of `x[t] * exp(sign * 2j * pi * k * t / n)` for each k."""
    place = axis(dim, x.ndim)
    length = x.shape[place] if n is None else int(n)
    if length < 1:
        raise OperatorError(f"a Fourier transform of length {length}.")
    factors = _factors(length)
    if factors[-1] > _LARGEST_PRIME:
        raise OperatorError(
            f"a Fourier transform of length {length}, whose prime factor {factors[-1]} exceeds {_LARGEST_PRIME}. "
            f"OneFlow 0.9 has no Fourier transforms, and the matrix in their place is too large."
        )
    fitted = _fitted(x, length, place)
    parts = (fitted.real, fitted.imag) if isinstance(fitted, Complex) else (fitted, None)
    real, imag = (None if part is None else movedim(part, place, -1) for part in parts)
    found = _transform(real, imag, length, sign)
    return found._both(lambda part: movedim(part, -1, place))


def _transform(real: Any, imag: Any, length: int, sign: int) -> Complex:
    """Returns the transform of the last dim; `imag` is None for a real signal."""
    factors = _factors(length)
    if length <= _DIRECT or len(factors) == 1:
        roots = np.outer(np.arange(length), np.arange(length)) % length
        return _product(linalg.matmul, real, imag, _roots(roots, length, sign, real))
    first = _leading(factors)
    second = length // first
    # With t = second * t1 + t2 and k = k1 + first * k2: over t1, times the roots of k1 * t2, then over t2.
    real, imag = (
        None if part is None else transpose(reshape(part, *part.shape[:-1], first, second), -1, -2)
        for part in (real, imag)
    )
    inner = _transform(real, imag, first, sign)  # (..., t2, k1)
    twiddles = np.outer(np.arange(second), np.arange(first)) % length
    turned = _product(arithmetic.mul, inner.real, inner.imag, _roots(twiddles, length, sign, real))
    swapped = turned._both(lambda part: transpose(part, -1, -2))  # (..., k1, t2)
    outer = _transform(swapped.real, swapped.imag, second, sign)  # (..., k1, k2)
    return outer._both(lambda part: reshape(transpose(part, -1, -2), *part.shape[:-2], length))


def _product(multiply: Callable[[Any, Any], Any], real: Any, imag: Any, roots: Complex) -> Complex:
    """Returns a product with roots of unity, by an elementwise or matrix product of real tensors."""
    if imag is None:
        return Complex(multiply(real, roots.real), multiply(real, roots.imag))
    return Complex(
        arithmetic.sub(multiply(real, roots.real), multiply(imag, roots.imag)),
        arithmetic.add(multiply(real, roots.imag), multiply(imag, roots.real)),
    )


def _roots(powers: np.ndarray, length: int, sign: int, like: Tensor) -> Complex:
    """Returns roots of unity, `exp(sign * 2j * pi * powers / length)`, for powers below `length`."""
    table = np.exp(sign * 2j * np.pi * np.arange(length) / length)
    chosen = table[powers]
    return Complex(*(from_array(part.copy(), like.dtype, like.device) for part in (chosen.real, chosen.imag)))


@functools.cache
def _factors(length: int) -> tuple[int, ...]:
    """Returns the prime factors of a length, the largest last; 1 for 1."""
    factors, divisor = [], 2
    while divisor * divisor <= length:
        while length % divisor == 0:
            factors.append(divisor)
            length //= divisor
        divisor += 1
    return tuple([*factors, length] if length > 1 or not factors else factors)


def _leading(factors: Sequence[int]) -> int:
    """Returns the largest product of the last factors that a matrix of `_DIRECT` rows transforms; at least the last."""
    product = 1
    for factor in reversed(factors):
        if product > 1 and product * factor > _DIRECT:
            continue
        product *= factor
    return product
