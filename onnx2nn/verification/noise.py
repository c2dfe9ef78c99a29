"""How far rounding alone moves a result: values moved by units in the last place, and what such moves explain.

Two correct runtimes round differently. In an ill-conditioned model the difference of their results is as large as the
change that inputs moved by a unit in the last place (ULP) make to the results of one of them: the *noise*. The
functions here take and return NumPy arrays and know no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnx2nn.verification.value_comparison import RELATIVE_TOLERANCE, SMALLEST_SCALE, differences

AMPLITUDES = (1, 4, 16)
"""Units in the last place by which values are moved, one after the other until a difference is explained.

More than one, as a runtime rounds an element of a sum once for each term.
"""

FACTOR = 2.0
"""How much larger than the change a difference may be: each runtime is off by one of them, in opposite directions."""

ROUNDING_ULPS = 64
"""What a node may differ from ONNX Runtime, in ULP of its output's largest magnitude, before its noise is measured.
Of 2,566 nodes of right imports, convolutions and attention among them, 99 % are within 14 and the worst is at 62."""

SMALLEST_WEIGHT = 16
"""Elements from which a float constant counts as a weight and is moved. Lists of scales, such as Resize's, are shorter:
they may decide shapes."""

_INFINITY = {2: 0x7F80, 4: 0x7F800000, 8: 0x7FF0 << 48}
"""The bits of infinity of bfloat16, float32, float64; float16 has its own."""

TRIALS = 6
"""Runs for each of `AMPLITUDES`."""


def moved(array: np.ndarray, ulps: int, trial: int) -> np.ndarray:
    """Returns a float array whose elements are moved by `ulps` representable numbers, up or down.

    Zeros (masks and padding), infinities and NaN stay. Equal elements are moved equally, so that what depends on exact
    ties, such as the order of equal keys, stays as it is; only ties up to rounding are decided anew.

    Args:
        array: float16, bfloat16, float32, float64 or complex; any other array is returned as it is.
        ulps: how many representable numbers.
        trial: 0 moves all magnitudes up, 1 all down; any other number draws the direction of each value.
    """
    if array.dtype.kind == "c":
        parts = np.ascontiguousarray(array).view(array.real.dtype)
        return moved(parts, ulps, trial).view(array.dtype).reshape(array.shape)
    if array.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        return array
    infinity = 0x7C00 if array.dtype.name == "float16" else _INFINITY[array.dtype.itemsize]
    bits = np.ascontiguousarray(array).view(f"i{array.dtype.itemsize}")
    return moved_bits(bits, infinity, ulps, trial).view(array.dtype).reshape(array.shape)


def moved_bits(bits: np.ndarray, infinity: int, ulps: int, trial: int) -> np.ndarray:
    """`moved` on the bits of floats as signed integers, of which `infinity` are those of positive infinity."""
    if not bits.ndim:  # NumPy makes a scalar of the result, and warns where a scalar's product wraps
        return moved_bits(bits.reshape(1), infinity, ulps, trial).reshape(())
    magnitude = bits & bits.dtype.type(np.iinfo(bits.dtype).max)
    steady = (magnitude <= ulps) | (magnitude >= infinity - ulps)
    if trial < 2:
        sign = np.full(bits.shape, 1 - 2 * trial, bits.dtype)
    else:  # the top bit of a product with an odd number depends on all bits below it (multiplicative hashing)
        mixed = (magnitude.astype(np.uint64) + np.uint64(trial)) * np.uint64(0x9E3779B97F4A7C15)
        sign = np.where(mixed >> np.uint64(63), 1, -1).astype(bits.dtype)
    return np.where(steady, bits, bits + sign * bits.dtype.type(ulps))


def sketch(difference: np.ndarray) -> np.ndarray:
    """Returns the 1st, 2nd, 4th, 8th ... largest element, float64: the distribution of differences in a few numbers."""
    ordered = np.sort(difference, axis=None)[::-1]
    return ordered[[(1 << k) - 1 for k in range(int(ordered.size).bit_length())]].astype(np.float64)


def explains(change: np.ndarray, difference: np.ndarray, floor: float) -> bool:
    """Whether changes by rounding are as large as differences.

    The k-th largest difference must not exceed `FACTOR` times the k-th largest change: one noisy element does not
    excuse many wrong ones. Positions are not compared, as rounding changes the order of results.

    Args:
        change: the largest change of each element.
        difference: the difference of each element.
        floor: difference that needs no explanation.
    """
    if change.shape != difference.shape:
        return False
    return bool(np.all(sketch(difference) <= np.maximum(FACTOR * sketch(change), floor)))


def quiet_agree(change: np.ndarray, difference: np.ndarray, floor: float) -> bool:
    """Whether elements that no move changes by more than `floor` differ by no more than `FACTOR` times `floor`.

    In a long recurrence the last steps may be noise alone; the first steps are not, and show an error.
    """
    return bool(np.all(difference[change <= floor] <= FACTOR * floor))


def rounding_floor(expected: np.ndarray) -> float:
    """Returns the difference that a single node may have without a measurement, `ROUNDING_ULPS` of its output."""
    kind = expected.dtype if expected.dtype.kind == "f" and expected.dtype.itemsize >= 4 else np.dtype(np.float32)
    finite = np.abs(expected[np.isfinite(expected)]) if expected.dtype.kind in "fc" else np.zeros(0)
    least = RELATIVE_TOLERANCE * SMALLEST_SCALE
    return max(float(ROUNDING_ULPS * np.finfo(kind).eps * finite.max(initial=0.0)), least)


@dataclass
class Changes:
    """The largest change of each element of some values, over runs whose inputs were moved.

    Attributes:
        ulps: the largest move so far.
        largest: value name → largest absolute change of each element, an array of the value's shape.
        reshaped: names of values whose shape changed in a run.
    """

    ulps: int = 0
    largest: dict[str, np.ndarray] = field(default_factory=dict)
    reshaped: set[str] = field(default_factory=set)

    def add(self, names: Sequence[str], changed: Sequence[Any], base: Sequence[Any]) -> None:
        """Takes one more run into account; `base` are the values of the run whose inputs were not moved."""
        for name, change in differences(names, changed, base).items():
            if change is None:
                self.reshaped.add(name)
            else:
                known = self.largest.get(name)
                self.largest[name] = np.asarray(change if known is None else np.maximum(known, change))  # no scalar

    def noise(self, name: str) -> float:
        """The largest change of a value's elements; infinite where its shape changes, 0 where it was never moved."""
        if name in self.reshaped:
            return float("inf")
        return float(self.largest[name].max(initial=0.0)) if name in self.largest else 0.0

    def explain(self, name: str, difference: np.ndarray | None, floor: float) -> bool:
        """Whether the changes explain a value's differences, None for another shape."""
        if difference is None:
            return name in self.reshaped
        return name in self.largest and explains(self.largest[name], difference, floor)


def growing_changes(
    run: Callable[[int, int], Sequence[Any] | None],
    names: Sequence[str],
    exact: Callable[[], Sequence[Any] | None] | None = None,
) -> Iterator[Changes]:
    """Yields what moves of 1, then 4, then 16 ULP change, all runs until then together.

    Args:
        run: called with ULP and the number of a trial, ULP 0 for a run without moves; gives the values, None where it
            fails.
        names: names of the values.
        exact: gives the values of a run without moves in a wider type, None where it fails. What rounding within the
            run does, be it more than moves of its inputs do, is the difference from these.
    """
    base, changes = run(0, 0), Changes()
    wide = exact() if exact is not None and base is not None else None
    if wide is not None and base is not None:
        changes.add(names, [_as(value, other) for value, other in zip(wide, base, strict=True)], base)
    for ulps in AMPLITUDES if base is not None else ():
        changes.ulps = ulps
        for trial in range(TRIALS):
            values = run(ulps, trial)
            if values is not None and base is not None:
                changes.add(names, values, base)
        yield changes


def _as(value: Any, other: Any) -> Any:
    """Returns an array in the type of another."""
    return value.astype(other.dtype) if isinstance(value, np.ndarray) and isinstance(other, np.ndarray) else value


def moved_feeds(feeds: Mapping[str, Any], ulps: int, trial: int) -> dict[str, Any]:
    """Returns a model's inputs moved, see `moved`; inputs that are no arrays stay."""
    return {key: moved(value, ulps, trial) if isinstance(value, np.ndarray) else value for key, value in feeds.items()}
