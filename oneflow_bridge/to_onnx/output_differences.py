"""Measures how far ONNX Runtime's outputs are from OneFlow's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-4
"""Largest accepted difference of an output, relative to its largest magnitude, in float32 and float64."""

HALF_TOLERANCE = 1e-2
"""The same in half precision."""


@dataclass(frozen=True)
class OutputDifference:
    """One output at one input size.

    Attributes:
        name: output name.
        shape: its shape.
        difference: the largest absolute difference; infinite where shape, or NaN and infinity, differ.
        scale: the largest finite magnitude in OneFlow's output.
        tolerance: the largest accepted `difference / scale`, unless rounding explains more.
        noise: largest change of an element of ONNX Runtime's output where inputs and weights are moved by `noise_ulps`;
            None where it was not measured.
        noise_ulps: the smallest move in units in the last place that explains the difference, the largest that was
            tried where none does.
        within_noise: whether the noise explains the difference, and file and model agree in float64.
        reason: why file and model are not known to agree in float64; empty where they agree, or need not be compared.
    """

    name: str
    shape: tuple[int, ...]
    difference: float
    scale: float
    tolerance: float
    noise: float | None = None
    noise_ulps: int = 0
    within_noise: bool = False
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the difference is within the tolerance, or within the model's own noise."""
        return self.relative <= self.tolerance or self.within_noise

    @property
    def relative(self) -> float:
        """Difference over scale; the difference itself for an output of zeros."""
        return self.difference / self.scale if self.scale else self.difference

    def __str__(self) -> str:
        noise = "" if self.noise is None else f", the model's own noise {self.noise:.3g} ({self.noise_ulps} ULP)"
        reason = f", {self.reason}" if self.reason else ""
        return f"{self.name} {list(self.shape)}: {self.difference:.3g} of {self.scale:.3g}{noise}{reason}"


def difference(name: str, expected: np.ndarray, actual: np.ndarray) -> OutputDifference:
    """Returns the difference of two arrays; integers and booleans must be equal."""
    exact = expected.dtype.kind not in "fV"
    half = expected.dtype.itemsize == 2 and not exact
    tolerance = 0.0 if exact else HALF_TOLERANCE if half else TOLERANCE
    wide = [array.astype(np.float64) for array in (expected, actual)]
    finite = np.isfinite(wide[0])
    scale = float(np.abs(wide[0][finite]).max(initial=0))
    if (
        expected.shape != actual.shape
        or expected.dtype != actual.dtype
        or not np.array_equal(finite, np.isfinite(wide[1]))
    ):
        return OutputDifference(name, expected.shape, np.inf, scale, tolerance)
    if not np.array_equal(wide[0][~finite], wide[1][~finite], equal_nan=True):
        return OutputDifference(name, expected.shape, np.inf, scale, tolerance)
    apart = np.abs(wide[0][finite] - wide[1][finite]).max(initial=0)
    return OutputDifference(name, expected.shape, float(apart), scale, tolerance)


__all__ = ["HALF_TOLERANCE", "TOLERANCE", "OutputDifference", "difference"]
