"""Shape values: numbers computed from shapes, which an import keeps as numbers instead of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx2nn.optable.row import Row, Typed


@dataclass(frozen=True, eq=False)
class Host:
    """Numbers computed from shapes: an object array of Python or symbolic numbers, and their ONNX dtype."""

    array: np.ndarray[Any, Any]
    dtype: np.dtype[Any]


def evaluate(
    row: Row, arrays: Sequence[np.ndarray[Any, Any] | None], dtypes: Sequence[Any], attributes: dict[str, Any]
) -> Any:
    """Evaluates `row.host`; returns a `Host` or a tuple of them.

    Args:
        row: a row with a `host`.
        arrays: its inputs as object arrays, None where absent.
        dtypes: their numpy dtypes.
        attributes: those of the node.

    Raises:
        NeedsValues: the row reads a number that is unknown at import.
    """
    assert row.host is not None
    if row.host_takes_dtype:
        attributes = {**attributes, "_dtype": dtypes[0]}
    results = row.host(*arrays, **attributes)
    if row.reads_shape:
        return Host(results, np.dtype(np.int64))
    if isinstance(results, tuple) and not isinstance(results, Typed):
        return tuple(_host(array, dtypes) for array in results)
    return _host(results, dtypes)


def _host(array: Any, dtypes: Sequence[Any]) -> Host:
    if isinstance(array, Typed):
        return Host(np.asarray(array.array, dtype=object), array.dtype)
    array = np.asarray(array)
    if array.dtype != object:
        return Host(array.astype(object), array.dtype)
    first = next((getattr(v, "values", (v,))[0] for v in array.flat), 0)  # a symbolic number has sample values
    if isinstance(first, (bool, np.bool_)):
        return Host(array, np.dtype(bool))
    dtype = next(d for d in dtypes if d is not None and d != np.dtype(bool))
    if np.issubdtype(dtype, np.integer) and isinstance(first, float):
        dtype = np.dtype(np.float32)
    return Host(array, dtype)
