"""Creation of tensors, as torch defines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.dtypes import DType, as_dtype, flow, scalar_dtype
from oneflow_bridge.namespace.tensor import Tensor, constant, convert, from_array, ints, store
from oneflow_bridge.namespace.tensor import as_tensor as _as_tensor
from onnx2nn.errors import OperatorError


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of Python numbers, nested lists or a numpy array; floats become float32, ints int64."""
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(data, (Tensor, flow.Tensor)):
        result = _as_tensor(data)
        result = Tensor(result.value.clone(), result.dtype)
        return result if wanted is None else convert(result, wanted)
    if not isinstance(data, (np.ndarray, np.generic)):
        if isinstance(data, (bool, int, float)):
            return constant((), data, wanted or scalar_dtype(data), device)
        array = np.array(_numbers(data))
        if array.dtype.kind not in "biuf":
            raise OperatorError(f"OneFlow 0.9 has no tensors of {array.dtype}.")
        data = array.astype(np.float32) if array.dtype == np.float64 and wanted is not dtypes.float64 else array
    result = from_array(np.asarray(data), wanted, device)
    if requires_grad:
        result.value.requires_grad_()
    return result


def _numbers(data: Any) -> Any:
    """Nested sequences with 0-d tensors replaced by their values."""
    if isinstance(data, (list, tuple)):
        return [_numbers(item) for item in data]
    return data.item() if isinstance(data, Tensor) else data


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor as it is, anything else as `tensor` makes it."""
    if isinstance(data, (Tensor, flow.Tensor)):
        result = _as_tensor(data)
        return result if dtype is None else convert(result, as_dtype(dtype))
    return tensor(data, dtype=dtype, device=device)


asarray = as_tensor


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor with the values of an array."""
    return from_array(array)


def full(size: Sequence[int] | int, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of one number."""
    size = (size,) if isinstance(size, int) else ints((size,))
    if isinstance(fill_value, Tensor):
        value = fill_value if dtype is None else convert(fill_value, as_dtype(dtype))
        return Tensor(
            value.value.reshape([1] * len(size)).expand(*size) if size else value.value.reshape([]), value.dtype
        )
    wanted = scalar_dtype(fill_value) if dtype is None else as_dtype(dtype)
    return constant(size, _fitting(fill_value, wanted), wanted, device)


def _fitting(value: Any, dtype: DType) -> Any:
    if dtype.is_floating_point:
        return float(value)
    return int(value) if dtype.is_integer else bool(value)


def zeros(*size: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros, float32 unless `dtype` says otherwise."""
    return full(ints(size), 0, dtype=dtype or dtypes.float32, device=device)


def ones(*size: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones, float32 unless `dtype` says otherwise."""
    return full(ints(size), 1, dtype=dtype or dtypes.float32, device=device)


def empty(*size: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros, where torch leaves the elements undefined."""
    return zeros(*size, dtype=dtype, device=device)


def full_like(x: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`full` with the shape, type and device of x."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`zeros` with the shape, type and device of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`ones` with the shape, type and device of x."""
    return full_like(x, 1, dtype=dtype, device=device)


empty_like = zeros_like


def new_full(x: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`full` with the type and device of x."""
    return full(size, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def new_zeros(x: Tensor, *size: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`zeros` with the type and device of x."""
    return new_full(x, ints(size), 0, dtype=dtype, device=device)


def new_ones(x: Tensor, *size: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`ones` with the type and device of x."""
    return new_full(x, ints(size), 1, dtype=dtype, device=device)


new_empty = new_zeros


def new_tensor(x: Tensor, data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`tensor` with the type and device of x."""
    return tensor(data, dtype=dtype or x.dtype, device=device or x.device)


def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """start, start + step, ... below `end`; start + i * step exactly as torch computes it.

    Raises:
        OperatorError: the step is zero or leads away from `end`.
    """
    start, end = (0, start) if end is None else (start, end)
    start, end, step = (v.item() if isinstance(v, Tensor) else v for v in (start, end, step))
    if step == 0 or (end - start) / step < 0:
        raise OperatorError(f"No range from {start} to {end} by {step}.")
    integral = all(isinstance(v, (int, np.integer)) for v in (start, end, step))
    wanted = (dtypes.int64 if integral else dtypes.float32) if dtype is None else as_dtype(dtype)
    count = -((end - start) // -step) if integral else math.ceil((end - start) / step)
    if count == 0:
        return zeros(0, dtype=wanted, device=device)
    device = flow.device(device) if isinstance(device, str) else device or flow.device("cpu")
    index = flow.arange(0, int(count), 1, dtype=flow.int64, device=device)
    if wanted.is_integer:
        return store(index * int(step) + int(start), wanted)
    index = index.to(flow.float64) * float(step) + float(start)
    return store(index, wanted)


def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`steps` numbers from `start` to `end`, both included, counted from the nearer end."""
    start, end = (v.item() if isinstance(v, Tensor) else v for v in (start, end))
    wanted = dtypes.float32 if dtype is None else as_dtype(dtype)
    if steps == 1:
        return full((1,), start, dtype=wanted, device=device)
    index = arange(steps, device=device).value.to(flow.float64)
    step = (end - start) / (steps - 1) if steps else 0.0
    near, far = index * step + float(start), index * step + (float(end) - step * (steps - 1))
    return store(flow.where(index < steps // 2, near, far), wanted)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The unit matrix."""
    rows, columns = arange(n, device=device).value, arange(n if m is None else m, device=device).value
    return convert(Tensor(rows.unsqueeze(1) == columns.unsqueeze(0)), as_dtype(dtype or dtypes.float32))


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Rows and columns of the lower triangle, (2, count)."""
    return tensor(np.stack(np.tril_indices(row, offset, col)), dtype=dtype, device=device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Rows and columns of the upper triangle, (2, count)."""
    return tensor(np.stack(np.triu_indices(row, offset, col)), dtype=dtype, device=device)


def _random(kernel: Any, size: Any, dtype: Any, device: Any, generator: Any) -> Tensor:
    wanted = as_dtype(dtype or dtypes.float32)
    device = flow.device(device) if isinstance(device, str) else device or flow.device("cpu")
    return convert(Tensor(kernel(*ints(size), device=device, generator=generator)), wanted)


def rand(*size: Any, dtype: Any = None, device: Any = None, generator: Any = None) -> Tensor:
    """Uniform numbers of [0, 1)."""
    return _random(flow.rand, size, dtype, device, generator)


def randn(*size: Any, dtype: Any = None, device: Any = None, generator: Any = None) -> Tensor:
    """Normal numbers."""
    return _random(flow.randn, size, dtype, device, generator)


def rand_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`rand` with the shape, type and device of x."""
    return rand(*x.shape, dtype=dtype or x.dtype, device=device or x.device)


def randn_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`randn` with the shape, type and device of x."""
    return randn(*x.shape, dtype=dtype or x.dtype, device=device or x.device)


def bernoulli(x: Tensor, *, generator: Any = None) -> Tensor:
    """1 with the probabilities x, else 0."""
    chance = rand(*x.shape, device=x.device, generator=generator)
    return convert(Tensor(chance.value.to(x.dtype.compute) < x.value.to(x.dtype.compute)), x.dtype)


def multinomial(x: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Indices drawn with the weights in the last dim."""
    return Tensor(flow.multinomial(convert(x, dtypes.float32).value, num_samples, replacement, generator=generator))


def manual_seed(seed: int) -> Any:
    """Seed the random numbers."""
    return flow.manual_seed(seed)


def _cosine_window(terms: Sequence[float]) -> Callable[..., Tensor]:
    """The sum of terms[k] * cos(2 pi k n / N), the signs among the terms."""

    def function(window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None) -> Tensor:
        return _window(terms, int(window_length), periodic, dtype, device)

    return function


def _window(terms: Sequence[float], length: int, periodic: bool, dtype: Any, device: Any) -> Tensor:
    span = max(length if periodic else length - 1, 1)
    angles = 2 * np.pi * np.arange(length) / span
    values = sum(term * np.cos(k * angles) for k, term in enumerate(terms)) if length != 1 else np.ones(1)
    return tensor(values, dtype=dtypes.float32 if dtype is None else dtype, device=device)


hann_window = _cosine_window([0.5, -0.5])
blackman_window = _cosine_window([0.42, -0.5, 0.08])


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """alpha - beta * cos(2 pi n / N)."""
    return _window([alpha, -beta], int(window_length), periodic, dtype, device)
