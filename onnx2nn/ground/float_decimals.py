"""The decimals that a person writes for a float32."""

from __future__ import annotations

import numpy as np

_LARGEST = float(np.finfo(np.float32).max)


def shortest_float32(value: float) -> float:
    """Returns the shortest decimal that is rounded to the same float32, as it stands in the author's source: 0.1.

    That of the largest float32 is larger than it, which torch refuses as a number beside a tensor: this one stays.
    """
    shortest = float(str(np.float32(value)))
    return shortest if abs(shortest) <= _LARGEST else value
