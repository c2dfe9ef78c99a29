"""Why a body cannot be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.optable.row import NeedsValues


class TraceError(NeedsValues):
    """A body cannot be recorded here; it is then called as one function at run time."""


class ShapeMismatch(TraceError):
    """A recorded call fails on the shapes it gets at a sample point; the text is torch's own, `values` what it got.

    `point` is the first such point, 0 where that is not known.
    """

    def __init__(self, reason: str, values: Sequence[Any], point: int = 0):
        super().__init__(reason)
        self.values, self.point = values, point


class NeedsSamples(Exception):
    """A dimension depends on data, but the one sample point of a model of fixed shapes cannot show that it varies."""
