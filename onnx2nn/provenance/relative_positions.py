"""The table behind a window's relative position bias (Swin Transformer), which exporters fold into the bias.

Attention inside a window of W by W places adds a number for every head and pair of places, which depends only on how
far the two are apart: a table has (2 W - 1)^2 rows of them, read by an index made of W (Liu et al. 2021, 3.2).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def window_index(size: int) -> Array:
    """Returns the row of the table for each pair of places of a window, int64 (size^2, size^2)."""
    places = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij")).reshape(2, -1)
    apart = places[:, :, None] - places[:, None, :] + size - 1
    index: Array = apart[0] * (2 * size - 1) + apart[1]
    return index.astype(np.int64)


def unfold(values: Array) -> tuple[Array, Array] | None:
    """Returns the table (rows, heads) and the index of what was read from it; None for anything else.

    Args:
        values: (places^2, heads), or the bias that is made of it, (1, heads, places, places). Every number of it is
            found in the table again.
    """
    if values.ndim == 4 and values.shape[0] == 1 and values.shape[2] == values.shape[3]:
        values = values[0].reshape(values.shape[1], -1).T
    places = math.isqrt(len(values)) if values.ndim == 2 else 0
    size = math.isqrt(places)
    if size < 2 or size**4 != len(values):
        return None
    index = window_index(size)
    table = np.empty(((2 * size - 1) ** 2, values.shape[1]), values.dtype)
    table[index.ravel()] = values
    return (table, index) if np.array_equal(table[index.ravel()], values) else None
