"""Compares two values number by number: tensors, arrays, sequences and maps, each with the tolerance of its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnx2nn.errors import VerificationError, shown_name

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
        noise: largest change of an element where every value of the run is moved by `noise_ulps`; infinite where its
            shape changes; None where it was not measured, as the outputs agree or the module is known to be wrong.
        noise_ulps: the smallest move in units in the last place (ULP) that explains the difference, the largest that
            was tried where none does.
        within_noise: whether the difference, too large by itself, is explained by the noise; every node of the module
            was then compared, and agrees within its own noise.
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
    noise: float | None = None
    noise_ulps: int = 0
    within_noise: bool = False

    @property
    def below_mse(self) -> bool:
        """Whether the plain mean squared error is below `MSE_TOLERANCE`."""
        return self.mse < MSE_TOLERANCE

    @property
    def ok(self) -> bool:
        """Whether the outputs agree, or differ by no more than the model's own noise."""
        return self.agrees or self.within_noise

    @property
    def agrees(self) -> bool:
        """Whether the outputs agree: on average, and in every single element; integers, booleans and text exactly."""
        if self.reason:
            return False
        if not _is_float(self.dtype):
            return self.max_difference == 0
        average = self.mse < max(MSE_TOLERANCE, max(RELATIVE_RMS, self._epsilon) ** 2 * self.mean_square)
        return average and self.max_difference <= self.tolerance

    @property
    def tolerance(self) -> float:
        """The largest difference of an element that needs no explanation by noise; 0 for other types than floats."""
        if not _is_float(self.dtype):
            return 0.0
        return max(RELATIVE_TOLERANCE, 2 * self._epsilon) * max(self.scale, SMALLEST_SCALE)

    @property
    def _epsilon(self) -> float:
        return max(EPSILON.get(kind, 0.0) for kind in (self.dtype, self.computed_in))

    def __str__(self) -> str:
        head = f"{shown_name(self.name)}: shape {list(self.shape)}"
        tail = "" if self.noise is None else f", the model's own noise {self.noise:.3g} ({self.noise_ulps} ULP)"
        if self.reason:
            return f"{head}, {self.reason}{tail}"
        return f"{head}, mse {self.mse:.3g}, max abs difference {self.max_difference:.3g}{tail}"


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


def differences(names: Sequence[str], actual: Sequence[Any], expected: Sequence[Any]) -> dict[str, np.ndarray | None]:
    """Returns the absolute difference of every element of every value, None where shape or dtype differ.

    Equal elements, infinities and NaN among them, differ by 0; NaN or infinity on one side only by infinity. Texts
    differ by 1. Elements of sequences and maps have the names that `compare` gives them.
    """
    found: dict[str, np.ndarray | None] = {}
    for name, ours, theirs in zip(names, actual, expected, strict=True):
        left, right = dict(_flatten(name, ours)), dict(_flatten(name, theirs))
        for key in left.keys() | right.keys():
            same = key in left and key in right and _comparable(left[key], right[key])
            found[key] = _differences(to_array(left[key]), to_array(right[key])) if same else None
    return found


def _comparable(actual: Any, expected: Any) -> bool:
    return tuple(actual.shape) == tuple(expected.shape) and _dtype_name(actual) == _dtype_name(expected)


def _differences(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    if not _is_float(_dtype_name(expected)):
        if _dtype_name(expected) == "string":
            return np.asarray(actual.astype(str) != expected.astype(str)).astype(np.float64)
        # In long double: int64 above 2**53 does not survive a float64.
        gap = np.abs(actual.astype(np.longdouble) - expected.astype(np.longdouble))
        return np.where(actual == expected, 0.0, gap.astype(np.float64))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    ours, theirs = actual.astype(wide), expected.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(ours - theirs)
    gap = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, gap)
    return np.where(np.isnan(gap), np.inf, gap)  # a NaN or an infinity on one side only


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
        return _incomparable(name, shape, f"found with shape {list(actual.shape)}")
    if _dtype_name(actual) != dtype:
        return _incomparable(name, shape, f"dtype {dtype}, found with dtype {_dtype_name(actual)}")
    ours, theirs = to_array(actual), to_array(expected)
    if theirs.size == 0:
        return OutputComparison(name, shape, 0.0, 0.0, dtype=dtype)
    gap = _differences(ours, theirs)
    if np.isinf(gap).any() and (reason := _not_finite(ours, theirs, gap)):
        return _incomparable(name, shape, reason)
    if not _is_float(dtype):
        return OutputComparison(name, shape, float(np.mean(gap**2)), float(gap.max()), dtype=dtype)
    with np.errstate(over="ignore"):
        magnitudes = np.abs(
            theirs[np.isfinite(theirs)].astype(np.complex128 if theirs.dtype.kind == "c" else np.float64)
        )
        return OutputComparison(
            name,
            shape,
            mse=float(np.mean(gap**2)),
            max_difference=float(gap.max()),
            scale=float(magnitudes.max(initial=0.0)),
            mean_square=float(np.mean(magnitudes**2)) if magnitudes.size else 0.0,
            dtype=dtype,
        )


def _not_finite(ours: np.ndarray, theirs: np.ndarray, gap: np.ndarray) -> str:
    """Returns where NaN or an infinity stands on one side only, empty where it does nowhere."""
    places = np.argwhere(np.isinf(gap) & ~(np.isfinite(ours) & np.isfinite(theirs)))
    if not len(places):
        return ""
    first = tuple(places[0])
    index = f" at {list(map(int, first))}" if first else ""
    return (
        f"NaN or infinity on one side only in {len(places)} of {theirs.size} elements,"
        f" first{index}: {ours[first]:.3g} where {theirs[first]:.3g} is expected"
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
