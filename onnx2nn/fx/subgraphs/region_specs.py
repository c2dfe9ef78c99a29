"""Specs of the inputs, outputs and carried values of inner graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.sizes.expression import Number


def spec_of(value: Any) -> Spec | None:
    """Returns the spec of an input or output of an inner graph, None for a value that is no tensor."""
    if isinstance(value, torch.Tensor):
        return Spec(tuple(value.shape), value.dtype)
    return value.spec if isinstance(value, Tensor) else None


def outside(tracer: Tracer, spec: Spec | None) -> Spec | None:
    """Returns the spec of an inner graph's result in the enclosing program, where its own symbols are unknown."""
    if spec is None or spec.shape is None:
        return spec
    return Spec(tuple(size if _is_known(tracer, size) else tracer.symbols.fresh() for size in spec.shape), spec.dtype)


def _is_known(tracer: Tracer, size: Number) -> bool:
    return isinstance(size, int) or all(map(tracer.symbols.known, size.symbols))


def unify(tracer: Tracer, a: Spec | None, b: Spec | None) -> Spec | None:
    """Returns the common spec of two alternative values; dimensions in which they differ are unknown."""
    if a is None or b is None:
        return None
    dtype = a.dtype or b.dtype
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Spec(None, dtype)
    same = tracer.guards.facts.same
    shape = tuple(m if same(m, n) else _alternative(tracer, m) for m, n in zip(a.shape, b.shape, strict=True))
    return Spec(shape, dtype)


def _alternative(tracer: Tracer, size: Number) -> Number:
    """Returns a size of which nothing is known; one that nothing reads is such a size already."""
    return tracer.symbols.fresh() if _is_known(tracer, size) else size


def empty(spec: Spec | None) -> tuple[Sequence[int], torch.dtype]:
    """Returns shape and dtype of one slice of a scan output, with 0 for dimensions that are known only at run time."""
    if spec is None or spec.shape is None:
        return (), (spec and spec.dtype) or torch.float32
    return [size if isinstance(size, int) else 0 for size in spec.shape], spec.dtype or torch.float32


def stacked(tracer: Tracer, spec: Spec | None, axis: int, length: Number | None) -> Spec | None:
    """Returns the spec of slices stacked along a new `axis`; `length`: their number, None if unknown."""
    if spec is None or spec.shape is None:
        return spec
    shape, at = spec.shape, axis % (len(spec.shape) + 1)
    return Spec((*shape[:at], tracer.symbols.fresh() if length is None else length, *shape[at:]), spec.dtype)


def sliced(spec: Spec | None, axis: int) -> Spec | None:
    """Returns the spec of one slice along `axis`."""
    if spec is None or spec.shape is None:
        return spec
    shape: Shape = spec.shape[:axis] + spec.shape[axis + 1 :] if axis != -1 else spec.shape[:-1]
    return Spec(shape, spec.dtype)


def size_along(spec: Spec | None, axis: int) -> Number | None:
    """Returns a dimension, None where it is unknown."""
    return None if spec is None or spec.shape is None else spec.shape[axis]
