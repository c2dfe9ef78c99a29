"""Specs of the inputs, outputs and carried values of inner graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnx2nn.fx.spec import Spec
from onnx2nn.fx.tensor import Tensor
from onnx2nn.fx.tracer import Tracer


def spec_of(value: Any, tracer: Tracer) -> Spec | None:
    """Returns the spec of an input or output of an inner graph, None for a value that is no tensor."""
    if isinstance(value, torch.Tensor):
        return Spec((tuple(value.shape),) * tracer.points, value.dtype)
    return value.spec if isinstance(value, Tensor) else None


def unify(tracer: Tracer, a: Spec | None, b: Spec | None) -> Spec | None:
    """Returns the common spec of two alternative values; dimensions in which they differ are unknown."""
    if a is None or b is None:
        return None
    dtype = a.dtype or b.dtype
    if a.shapes is None or b.shapes is None or len(a.shapes[0]) != len(b.shapes[0]):
        return Spec(None, dtype)
    columns = [
        m if m == n or len(set(m)) > 1 else tracer.fresh_dimension()
        for m, n in zip(zip(*a.shapes, strict=True), zip(*b.shapes, strict=True), strict=True)
    ]
    return Spec(tuple(zip(*columns, strict=True)) if columns else a.shapes, dtype)


def empty(spec: Spec | None) -> tuple[Sequence[int], torch.dtype]:
    """Returns shape and dtype of one slice of a scan output, with 0 for dimensions that are known only at run time."""
    if spec is None or spec.shapes is None:
        return (), (spec and spec.dtype) or torch.float32
    columns = zip(*spec.shapes, strict=True)
    return [column[0] if len(set(column)) == 1 else 0 for column in columns], spec.dtype or torch.float32


def stacked(tracer: Tracer, spec: Spec | None, axis: int, length: tuple[int, ...] | None) -> Spec | None:
    """Returns the spec of slices stacked along a new `axis`; `length`: their number at each point, None if unknown."""
    if spec is None or spec.shapes is None:
        return spec
    lengths = length or tracer.fresh_dimension()
    shapes = []
    for shape, size in zip(spec.shapes, lengths, strict=True):
        at = axis % (len(shape) + 1)
        shapes.append((*shape[:at], size, *shape[at:]))
    return Spec(tuple(shapes), spec.dtype)


def sliced(spec: Spec | None, axis: int) -> Spec | None:
    """Returns the spec of one slice along `axis`."""
    if spec is None or spec.shapes is None:
        return spec
    return Spec(tuple(shape[:axis] + shape[axis + 1 :] for shape in spec.shapes), spec.dtype)


def sizes_along(spec: Spec | None, axis: int) -> tuple[int, ...] | None:
    """Returns the size of a dimension at each sample point, None where it is unknown."""
    return None if spec is None or spec.shapes is None else tuple(shape[axis] for shape in spec.shapes)
