"""The element types of the OneFlow namespace, and comparisons of its tensors with numpy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

TYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip


def same(result: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """`result` has the dtype, shape and values of `expected`; NaN equals NaN."""
    expected = np.asarray(expected)
    assert result.dtype.name == expected.dtype.name
    assert tuple(result.shape) == expected.shape
    np.testing.assert_allclose(result.numpy(), expected, rtol=rtol, atol=atol)


def near(result: Any, expected: Any, tolerance: float) -> None:
    """As `same`, with one number as the relative and the absolute tolerance."""
    same(result, expected, tolerance, tolerance)
