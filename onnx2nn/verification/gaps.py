"""Measures how far apart two values of one tensor are: absolute, relative and in representable numbers (ULP)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx2nn.verification.value_comparison import SMALLEST_SCALE, OutputComparison, compare, to_array


@dataclass(frozen=True)
class Gap:
    """The difference of two values of one tensor.

    Attributes:
        max_abs: largest absolute difference of an element; infinite where the two cannot be compared.
        max_rel: largest difference of an element relative to the expected element, where that is not 0.
        ulp: largest distance in representable numbers of the tensor's own type; None for types other than float16,
            bfloat16, float32 and float64.
        ok: whether it is within the threshold, or within the noise.
        reason: why the two cannot be compared number by number; empty where they can.
        noise: largest change of an element of the oracle's own value where the node's inputs are moved by `noise_ulps`;
            None where it was not measured.
        noise_ulps: the smallest move in ULP that explains the difference, the largest that was tried where none does.
    """

    max_abs: float
    max_rel: float
    ulp: int | None
    ok: bool
    reason: str = ""
    noise: float | None = None
    noise_ulps: int = 0

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        ulp = "" if self.ulp is None else f", {self.ulp} ULP"
        noise = "" if self.noise is None else f", the node's own noise {self.noise:.3g} ({self.noise_ulps} ULP)"
        return f"max abs {self.max_abs:.3g}, max rel {self.max_rel:.3g}{ulp}{noise}"


def gap(name: str, actual: Any, expected: Any, tolerance: float | None = None) -> Gap:
    """Compares two values of one tensor, or of a sequence or map of tensors (the worst element counts).

    Args:
        name: the value's name.
        actual: tensor or array.
        expected: tensor or array of the same shape and dtype.
        tolerance: as for `verify_nodes`.
    """
    parts = compare([name], [actual], [expected])
    reason = next((part.reason for part in parts if part.reason), "")
    if reason:
        return Gap(math.inf, math.inf, None, False, reason)
    ok = all(part.ok if tolerance is None else _within(part, tolerance) for part in parts)
    worst = max((part.max_difference for part in parts), default=0.0)
    if isinstance(expected, (list, tuple, Mapping)) or any(
        not part.dtype.startswith(("float", "bf")) for part in parts
    ):
        return Gap(worst, math.nan if worst else 0.0, None, ok)
    ours, theirs = to_array(actual), to_array(expected)
    return Gap(worst, _relative(ours, theirs), _ulp(ours, theirs, parts[0].dtype) if parts else 0, ok)


def _within(part: OutputComparison, tolerance: float) -> bool:
    return part.max_difference <= tolerance * max(part.scale, SMALLEST_SCALE)


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    finite = np.isfinite(ours) & np.isfinite(theirs) & (theirs != 0)
    left, right = ours[finite].astype(np.float64), theirs[finite].astype(np.float64)
    return float(np.max(np.abs(left - right) / np.abs(right), initial=0.0))


_CARRIERS: dict[str, tuple[Any, Any]] = {
    "float16": (np.float16, np.int16),
    "float32": (np.float32, np.int32),
    "float64": (np.float64, np.int64),
}


def _ulp(ours: np.ndarray, theirs: np.ndarray, dtype: str) -> int | None:
    """Returns the largest count of representable numbers between two finite elements."""
    if dtype == "bfloat16":  # the upper half of a float32
        both = [np.ascontiguousarray(a, np.float32).view(np.int32) >> 16 for a in (ours, theirs)]
        low = -(1 << 15)
    elif dtype in _CARRIERS:
        kind, carrier = _CARRIERS[dtype]
        both = [np.ascontiguousarray(a, kind).view(carrier) for a in (ours, theirs)]
        low = int(np.iinfo(carrier).min)
    else:
        return None
    finite = np.isfinite(ours) & np.isfinite(theirs)
    # Negative floats count down from the smallest integer; Python ints, as the distance may exceed int64.
    left, right = (np.where(bits < 0, low - bits.astype(np.int64), bits.astype(np.int64)) for bits in both)
    left, right = left.reshape(finite.shape)[finite], right.reshape(finite.shape)[finite]
    if not left.size:
        return 0
    high, lower = np.maximum(left, right), np.minimum(left, right)
    return int((high.astype(np.uint64) - lower.astype(np.uint64)).max())
