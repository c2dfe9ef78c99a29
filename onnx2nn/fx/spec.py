"""Specs: the known shape and dtype of a recorded tensor."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch


class Spec(NamedTuple):
    """The shape of a tensor at every sample point, None for an unknown rank, and its dtype."""

    shapes: tuple[tuple[int, ...], ...] | None
    dtype: torch.dtype | None


class Known(NamedTuple):
    """The result of `Tracer.infer`: one spec or a nested tuple of specs."""

    specs: Any

    @property
    def numel(self) -> int:
        """The number of elements of a single result at its largest sample point."""
        return max(math.prod(shape) for shape in self.specs.shapes)
