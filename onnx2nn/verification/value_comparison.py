"""Compares two values number by number: tensors, arrays, sequences and maps, each with the tolerance of its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnx2nn.errors import VerificationError

MSE_TOLERANCE = 1e-7
"""Mean squared error below which an output of ordinary size counts as equal."""

RELATIVE_TOLERANCE = 1e-4
"""Largest difference of one element, relative to the largest magnitude; an average hides one bad element."""

RELATIVE_RMS = 1e-5
"""For outputs far from 1 (pixel coordinates, logits in the thousands): float32 rounding alone exceeds the MSE there."""

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}
"""Spacing of the short float types at 1: an output agrees at best up to the rounding of its own type, or of the type of
the values that it is computed from."""

SMALLEST_SCALE = 2.5e-3
"""Outputs below this magnitude are compared as if they had it: they consist of the rounding of larger numbers.

ONNX Runtime's Sigmoid, for one, is computed next to 0.5: up to 1.3e-7 is left of it where it should be 0.
"""


@dataclass(frozen=True)
class OutputComparison:
    """The difference of one output of two runs.

    Attributes:
        name: the output's name in the file; elements of a sequence are `name[0]`, `name[1]` ...
        shape: the shape expected.
        mse: mean squared error; infinite where the two cannot be compared.
        max_difference: largest absolute difference of an element.
        scale: largest finite magnitude expected.
        mean_square: mean of the squares expected.
        dtype: the element type expected.
        computed_in: a shorter float type of the values that the output is computed from, `""` without such values.
        reason: why the two cannot be compared number by number (another shape or dtype); empty where they can.
    """

    name: str
    shape: tuple[int, ...]
    mse: float
    max_difference: float
    scale: float = 0.0
    mean_square: float = 0.0
    dtype: str = ""
    reason: str = ""
    computed_in: str = ""

    @property
    def below_mse(self) -> bool:
        """Whether the plain mean squared error is below `MSE_TOLERANCE`."""
        return self.mse < MSE_TOLERANCE

    @property
    def ok(self) -> bool:
        """Whether the outputs agree: on average, and in every single element; integers, booleans and text exactly."""
        if self.reason:
            return False
        if not _is_float(self.dtype):
            return self.max_difference == 0
        epsilon = max(EPSILON.get(kind, 0.0) for kind in (self.dtype, self.computed_in))
        average = self.mse < max(MSE_TOLERANCE, max(RELATIVE_RMS, epsilon) ** 2 * self.mean_square)
        largest = max(RELATIVE_TOLERANCE, 2 * epsilon) * max(self.scale, SMALLEST_SCALE)
        return average and self.max_difference <= largest

    def __str__(self) -> str:
        head = f"{self.name}: shape {list(self.shape)}"
        if self.reason:
            return f"{head}, {self.reason}"
        return f"{head}, mse {self.mse:.3g}, max abs difference {self.max_difference:.3g}"


def compare(
    names: Sequence[str], actual: Sequence[Any], expected: Sequence[Any], short: Mapping[str, str] | None = None
) -> list[OutputComparison]:
    """Compares two runs' outputs one by one; sequences and maps element by element.

    `short`: as `short_floats` gives it for the model that ran.

    Raises:
        VerificationError: the numbers of outputs differ.
    """
    if len(actual) != len(expected):
        raise VerificationError(f"The module gives {len(actual)} outputs where the model has {len(expected)}.")
    comparisons: list[OutputComparison] = []
    for name, ours, theirs in zip(names, actual, expected, strict=True):
        left, right = dict(_flatten(name, ours)), dict(_flatten(name, theirs))
        if left.keys() != right.keys():
            reason = f"{len(left)} elements where {len(right)} are expected"
            comparisons.append(OutputComparison(name, (), np.inf, np.inf, reason=reason))
            continue
        computed_in = (short or {}).get(name, "")
        found = [_compare_values(key, left[key], right[key]) for key in right]
        comparisons += [replace(one, computed_in=computed_in) for one in found] if computed_in else found
    return comparisons


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _flatten(f"{name}[{key!r}]", value[key])
    elif isinstance(value, list | tuple):
        for index, element in enumerate(value):
            yield from _flatten(f"{name}[{index}]", element)
    elif value is not None:
        yield name, value if hasattr(value, "dtype") else np.asarray(value)


def _compare_values(name: str, actual: Any, expected: Any) -> OutputComparison:
    """Compares two tensors or arrays: shape and dtype first, then the numbers."""
    shape, dtype = tuple(expected.shape), _dtype_name(expected)
    if tuple(actual.shape) != shape:
        return _incomparable(name, shape, f"but the module gives shape {list(actual.shape)}")
    if _dtype_name(actual) != dtype:
        return _incomparable(name, shape, f"dtype {dtype}, but the module gives {_dtype_name(actual)}")
    ours, theirs = to_array(actual), to_array(expected)
    if theirs.size == 0:
        return OutputComparison(name, shape, 0.0, 0.0, dtype=dtype)
    if dtype == "string":
        different = np.asarray(ours.astype(str) != theirs.astype(str))
        return OutputComparison(name, shape, float(different.mean()), float(different.any()), dtype=dtype)
    if not _is_float(dtype):  # in long double: int64 above 2**53 does not survive a float64
        gap = np.where(ours == theirs, 0, np.abs(ours.astype(np.longdouble) - theirs.astype(np.longdouble)))
        return OutputComparison(name, shape, float(np.mean(gap**2)), float(gap.max()), dtype=dtype)
    return _compare_floats(name, ours, theirs, dtype)


def _compare_floats(name: str, actual: np.ndarray, expected: np.ndarray, dtype: str) -> OutputComparison:
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    ours, theirs = actual.astype(wide), expected.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(ours - theirs)
        gap = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, gap)
        gap = np.where(np.isnan(gap), np.inf, gap)  # a NaN or an infinity on one side only
        magnitudes = np.abs(theirs[np.isfinite(theirs)])
        return OutputComparison(
            name,
            expected.shape,
            mse=float(np.mean(gap**2)),
            max_difference=float(gap.max()),
            scale=float(magnitudes.max(initial=0.0)),
            mean_square=float(np.mean(magnitudes**2)) if magnitudes.size else 0.0,
            dtype=dtype,
        )


def _incomparable(name: str, shape: tuple[int, ...], reason: str) -> OutputComparison:
    return OutputComparison(name, shape, np.inf, np.inf, reason=reason)


def to_array(value: Any) -> np.ndarray:
    """Returns a tensor or array as an array; the short float types as float32, which holds them exactly."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.dtype.is_floating_point and value.dtype.itemsize < 4:
            value = value.float()  # exact; NumPy itself has no bfloat16 and float8
        return np.asarray(value.numpy())
    return np.asarray(value)


def _dtype_name(value: Any) -> str:
    name = str(value.dtype).removeprefix("torch.")
    return "string" if name == "object" or name.startswith(("<U", "|S", "StringDType")) else name


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))
