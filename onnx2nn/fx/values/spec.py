"""Specs: the known shape and dtype of a recorded tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from onnx2nn.sizes.expression import Number

Shape = tuple[Number, ...]


class Spec(NamedTuple):
    """The shape of a tensor, in which a dynamic dimension is a `Size`; None for an unknown rank; and its dtype."""

    shape: Shape | None
    dtype: torch.dtype | None


class Known(NamedTuple):
    """The result of `Tracer.infer`: one spec or a nested tuple of specs."""

    specs: Any
