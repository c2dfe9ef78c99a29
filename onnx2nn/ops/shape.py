"""Shapes: reading them, changing them, joining and cutting tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2nn.table import op


def _host_shape(data: Any, *, start: int = 0, end: int | None = None) -> Any:
    return np.array(list(data.shape[start:end]), dtype=object)


@op("Shape", 15, host=_host_shape, reads_shape=True)
def shape(F: Any, data: Any, *, start: int = 0, end: int | None = None) -> Any:
    return F.tensor(list(data.shape[start:end]), dtype=F.int64)


@op("Shape", 1, host=_host_shape, reads_shape=True)
def shape_1(F: Any, data: Any) -> Any:
    return shape(F, data)


def _target(dims: Sequence[Any], current: Sequence[Any], allowzero: int) -> list[Any]:
    """Returns the target of a Reshape with every 0 replaced by the dimension it copies."""
    return [current[i] if not allowzero and isinstance(d, int) and d == 0 else d for i, d in enumerate(dims)]


def _host_reshape(data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    return data.reshape([int(d) for d in _target(shape.tolist(), data.shape, allowzero)])


@op("Reshape", 14, static=["shape"], host=_host_reshape)
def reshape(F: Any, data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    return data.reshape(_target(shape, data.shape if 0 in shape else (), allowzero))


@op("Flatten", 1)
def flatten(F: Any, input: Any, *, axis: int = 1) -> Any:
    if axis == 1 and input.ndim > 1:
        return input.flatten(1)
    axis = axis + input.ndim if axis < 0 else axis
    return input.reshape([math.prod(input.shape[:axis]), math.prod(input.shape[axis:])])
