"""Shape values: numbers computed from shapes, which an import keeps as numbers instead of tensors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx2nn.optable.row import NeedsValues, Row, Typed

MAX_NUMBERS = 4096
"""The most shape values in one array: each is a Python object. More are computed as tensors, at run time."""

_MAX_MADE = 1 << 16
"""The most elements of a result of arrays that are not too long themselves, by their numbers of elements."""


def sized(sizes: Sequence[int]) -> Sequence[int]:
    """Returns the shape of an array that is made as large as numbers say.

    Raises:
        NeedsValues: it has more than `MAX_NUMBERS` elements.
    """
    if math.prod(map(abs, sizes)) > MAX_NUMBERS:
        raise NeedsValues("a large array")
    return sizes


@dataclass(frozen=True, eq=False)
class ShapeValues:
    """Numbers computed from shapes: an object array of Python or symbolic numbers, and their ONNX dtype."""

    array: np.ndarray[Any, Any]
    dtype: np.dtype[Any]

    def mapped(self, function: Callable[[Any], Any]) -> ShapeValues:
        """Returns the results of `function` for each number, of the same dtype."""
        made = np.empty_like(self.array)
        for index, number in np.ndenumerate(self.array):
            made[index] = function(number)
        return ShapeValues(made, self.dtype)


def evaluate(
    row: Row, arrays: Sequence[np.ndarray[Any, Any] | None], dtypes: Sequence[Any], attributes: dict[str, Any]
) -> Any:
    """Evaluates `row.on_shape_values`; returns a `ShapeValues` or a tuple of them.

    Args:
        row: a row with a `on_shape_values`.
        arrays: its inputs as object arrays, None where absent.
        dtypes: their numpy dtypes.
        attributes: the node's.

    Raises:
        NeedsValues: the row reads a number that is unknown at import, or there are too many numbers.
    """
    assert row.on_shape_values is not None
    _check_count(row, [array for array in arrays if array is not None])
    if row.takes_dtype:
        attributes = {**attributes, "_dtype": dtypes[0]}
    results = row.on_shape_values(*arrays, **attributes)
    if row.reads_shape:
        return ShapeValues(results, np.dtype(np.int64))
    if isinstance(results, tuple) and not isinstance(results, Typed):
        return tuple(_shape_values(array, dtypes[row.type_position]) for array in results)
    return _shape_values(results, dtypes[row.type_position])


def _check_count(row: Row, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Refuses arrays whose concatenation, broadcast or choice of elements may be large."""
    counts = [array.size for array in arrays]
    made = sum(counts) if row.variadic else math.prod(count or 1 for count in counts)
    if row.variadic:
        with contextlib.suppress(ValueError):  # they are concatenated
            made = max(made, math.prod(np.broadcast_shapes(*(array.shape for array in arrays))))
    if max(counts, default=0) > MAX_NUMBERS or made > _MAX_MADE:
        raise NeedsValues("large arrays")


def _shape_values(array: Any, dtype: np.dtype[Any]) -> ShapeValues:
    if isinstance(array, Typed):
        return ShapeValues(np.asarray(array.array, dtype=object), array.dtype)
    array = np.asarray(array)
    if array.dtype != object:
        return ShapeValues(array.astype(object), array.dtype)
    kinds = {kind_of(number) for number in array.flat}
    if kinds == {"b"}:
        return ShapeValues(array, np.dtype(bool))
    if np.issubdtype(dtype, np.integer) and "f" in kinds:
        dtype = np.dtype(np.float32)
    return ShapeValues(array, dtype)


def kind_of(number: Any) -> str:
    """Returns the kind of a shape value, a Python or a symbolic number: `"b"`, `"i"` or `"f"`; `"O"` for a string."""
    if isinstance(number, (bool, np.bool_)) or getattr(number, "is_truth", False):
        return "b"
    if isinstance(number, str):
        return "O"
    whole = isinstance(number, (int, np.integer)) or hasattr(number, "is_truth")
    return "i" if whole else "f"
