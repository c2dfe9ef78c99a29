"""Shared by convolutions, pools and padding: one number for each spatial dim, and OneFlow's own padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow_bridge.namespace.dtypes import flow
from onnx2nn.errors import OperatorError


def for_each_dim(value: Any, count: int) -> tuple[int, ...]:
    """One number for each spatial dim."""
    values = [value] * count if isinstance(value, (int, np.integer)) else list(value)
    values = values * count if len(values) == 1 else values
    if len(values) != count:
        raise OperatorError(f"{len(values)} numbers were given for {count} spatial dims.")
    return tuple(int(v) for v in values)


def pad_natively(value: Any, amounts: Sequence[int], number: float) -> Any:
    """Pads a OneFlow tensor with a number by OneFlow's own kernel, which takes few ranks and types."""
    return flow.nn.functional.pad(value, list(amounts), mode="constant", value=number)
