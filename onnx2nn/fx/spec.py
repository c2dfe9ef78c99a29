"""What is known of a recorded tensor before the program runs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch


class Spec(NamedTuple):
    """What is known of a tensor: its shape at every sample point (None: not even the rank), and its dtype."""

    shapes: tuple[tuple[int, ...], ...] | None
    dtype: torch.dtype | None


class Known(NamedTuple):
    """A result of `Tracer.infer`: one spec or a nested tuple of them."""

    specs: Any

    @property
    def numel(self) -> int:
        """Elements of a single result at its largest sample point."""
        return max(math.prod(shape) for shape in self.specs.shapes)
