"""Errors of recording, which lead to an opaque call, to other sample sizes, or to an error of the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.optable.row import NeedsValues


class TraceError(NeedsValues):
    """A body cannot be recorded; its node becomes an opaque call."""


class ShapeMismatch(TraceError):
    """torch refuses the shapes in a recorded call at a sample point; the text is torch's own.

    Attributes:
        values: the arguments of the call.
        point: the first such sample point, 0 where it is unknown.
    """

    def __init__(self, reason: str, values: Sequence[Any], point: int = 0):
        super().__init__(reason)
        self.values, self.point = values, point


class NeedsSamples(Exception):
    """A dimension is data-dependent, but a model of fixed shapes has one sample point only, where nothing varies."""
