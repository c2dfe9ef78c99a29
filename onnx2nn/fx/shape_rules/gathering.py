"""Rules of functions with index tensors: gather, scatter, index_select, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.indexing import indexed
from onnx2nn.fx.shape_rules.rule import Result, Sizes
from onnx2nn.fx.shape_rules.terms import Uncovered, axis_of, broadcast, is_number, partial_rule, put, shape_of
from onnx2nn.fx.spec import Shape, Spec
from onnx2nn.sizes.conditions import at_least_zero, at_most, conjunction, disjunction, equal, less
from onnx2nn.sizes.expression import Number, product

_INDICES = frozenset({torch.int64, torch.int32})


def _index_shape(index: Any, dtypes: frozenset[torch.dtype] = _INDICES) -> Shape:
    shape = shape_of(index)
    if index.dtype not in dtypes:
        raise Uncovered
    return shape


def _require_within(sizes: Sizes, index: Shape, others: Sequence[tuple[Number, Number]], what: str) -> None:
    """Requires that no first size exceeds the second one, unless the index tensor has no elements."""
    within = conjunction([at_most(a, b) for a, b in others])
    sizes.require(disjunction([equal(product(index), 0), within]), f"the sizes of the index and of {what}")


def _beside(shape: Shape, index: Shape, axis: int) -> list[tuple[Number, Number]]:
    return [(a, b) for other, (a, b) in enumerate(zip(index, shape, strict=True)) if other != axis]


@partial_rule(torch.gather, "gather")
def _gather(sizes: Sizes, input: Spec, dim: Any, index: Spec) -> Result:
    shape, at = shape_of(input), _index_shape(index)
    if len(shape) != len(at) or not shape:
        return None
    _require_within(sizes, at, _beside(shape, at, axis_of(dim, len(shape))), "the tensor that it gathers from")
    return Spec(at, input.dtype)


@partial_rule(torch.scatter, torch.scatter_add, torch.scatter_reduce, "scatter", "scatter_add", "scatter_reduce")
def _scatter(sizes: Sizes, input: Spec, dim: Any, index: Spec, src: Any = None, *args: Any, **options: Any) -> Result:
    shape, at = shape_of(input), _index_shape(index)
    value = options.get("value", src)
    if len(shape) != len(at) or not shape or isinstance(options.get("value"), Spec):
        return None
    pairs = _beside(shape, at, axis_of(dim, len(shape)))
    if isinstance(value, Spec):
        new = shape_of(value)
        if value.dtype != input.dtype or len(new) != len(at):
            return None
        pairs += zip(at, new, strict=True)
    elif value is None:
        return None
    _require_within(sizes, at, pairs, "the tensors of scatter")
    return Spec(shape, input.dtype)


@partial_rule(torch.index_select, "index_select")
def _index_select(sizes: Sizes, input: Spec, dim: Any, index: Spec) -> Result:
    shape, at = shape_of(input), _index_shape(index)
    if not shape or len(at) > 1:
        return None
    return Spec(put(shape, axis_of(dim, len(shape)), at[0] if at else 1), input.dtype)


@partial_rule(torch.index_add, "index_add")
def _index_add(sizes: Sizes, input: Spec, dim: Any, index: Spec, source: Spec, *, alpha: Any = 1) -> Result:
    shape, at, new = shape_of(input), _index_shape(index), shape_of(source)
    if len(at) != 1 or len(new) != len(shape) or not shape or source.dtype != input.dtype or alpha != 1:
        return None
    wanted = put(shape, axis_of(dim, len(shape)), at[0])
    for a, b in zip(new, wanted, strict=True):
        sizes.equal(a, b, "the sizes of what index_add adds")
    return Spec(shape, input.dtype)


@partial_rule(torch.index_put, "index_put")
def _index_put(sizes: Sizes, input: Spec, indices: Any, values: Spec, accumulate: bool = False) -> Result:
    if values.dtype != input.dtype or not all(isinstance(index, Spec) for index in indices):
        return None
    place, new = indexed(sizes, shape_of(input), tuple(indices)), shape_of(values)
    if len(new) > len(place):
        return None
    for a, b in zip(new, place[len(place) - len(new) :], strict=True):
        sizes.require(disjunction([equal(a, b), equal(a, 1)]), "the sizes of what index_put puts")
    return Spec(shape_of(input), input.dtype)


@partial_rule(torch.take_along_dim, "take_along_dim")
def _take_along_dim(sizes: Sizes, input: Spec, indices: Spec, dim: Any = None) -> Result:
    shape, at = shape_of(input), _index_shape(indices, frozenset({torch.int64}))
    if dim is None:
        return Spec((product(at),), input.dtype)
    if len(shape) != len(at) or not shape:
        return None
    axis = axis_of(dim, len(shape))
    beside = broadcast(sizes, [put(shape, axis, 1), put(at, axis, 1)], "a tensor and the indices along one dimension")
    return Spec(put(beside, axis, at[axis]), input.dtype)


@partial_rule(torch.take, "take")
def _take(sizes: Sizes, input: Spec, index: Spec) -> Result:
    at = _index_shape(index, frozenset({torch.int64}))
    some = disjunction([equal(product(at), 0), less(0, product(shape_of(input)))])
    sizes.require(some, "the size of a tensor that elements are taken from")
    return Spec(at, input.dtype)


@partial_rule(F.embedding)
def _embedding(sizes: Sizes, input: Spec, weight: Spec, padding_idx: Any = None, max_norm: Any = None) -> Result:
    rows = shape_of(weight)
    if len(rows) != 2 or max_norm is not None or padding_idx is not None:
        return None
    return Spec((*_index_shape(input), rows[1]), weight.dtype)


@partial_rule(F.one_hot)
def _one_hot(sizes: Sizes, tensor: Spec, num_classes: Any = -1) -> Result:
    if not is_number(num_classes) or tensor.dtype is not torch.int64 or num_classes == -1:
        return None
    sizes.require(at_least_zero(num_classes - 1), "the number of classes")
    return Spec((*shape_of(tensor), num_classes), torch.int64)
