"""Shape rules of functions with index tensors: gather, scatter, index_select, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.indexing import indexed
from onnx2nn.fx.shape_rules.operands import axis_of, broadcast, equal_shapes, expand_into, is_number, put, shape_of
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Shape, Spec
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


@rule(torch.gather, "gather")
def _gather(sizes: Sizes, input: Spec, dim: Any, index: Spec) -> Result:
    shape, at = shape_of(input), _index_shape(index)
    if len(shape) != len(at) or not shape:
        raise Uncovered
    _require_within(sizes, at, _beside(shape, at, axis_of(dim, len(shape))), "the tensor that it gathers from")
    return Spec(at, input.dtype)


@rule(torch.scatter, torch.scatter_add, torch.scatter_reduce, "scatter", "scatter_add", "scatter_reduce")
def _scatter(sizes: Sizes, input: Spec, dim: Any, index: Spec, src: Any = None, *args: Any, **options: Any) -> Result:
    shape, at = shape_of(input), _index_shape(index)
    value = options.get("value", src)
    if len(shape) != len(at) or not shape or isinstance(options.get("value"), Spec):
        raise Uncovered
    pairs = _beside(shape, at, axis_of(dim, len(shape)))
    if isinstance(value, Spec):
        new = shape_of(value)
        if value.dtype != input.dtype or len(new) != len(at):
            raise Uncovered
        pairs += zip(at, new, strict=True)
    elif value is None:
        raise Uncovered
    _require_within(sizes, at, pairs, "the tensors of scatter")
    return Spec(shape, input.dtype)


@rule(torch.index_select, "index_select")
def _index_select(sizes: Sizes, input: Spec, dim: Any, index: Spec) -> Result:
    shape, at = shape_of(input), _index_shape(index)
    if not shape or len(at) > 1:
        raise Uncovered
    return Spec(put(shape, axis_of(dim, len(shape)), at[0] if at else 1), input.dtype)


@rule(torch.index_add, "index_add")
def _index_add(sizes: Sizes, input: Spec, dim: Any, index: Spec, source: Spec, *, alpha: Any = 1) -> Result:
    shape, at, new = shape_of(input), _index_shape(index), shape_of(source)
    if len(at) != 1 or len(new) != len(shape) or not shape or source.dtype != input.dtype or alpha != 1:
        raise Uncovered
    wanted = put(shape, axis_of(dim, len(shape)), at[0])
    equal_shapes(sizes, new, wanted, "the sizes of what index_add adds")
    return Spec(shape, input.dtype)


@rule(torch.index_put, "index_put")
def _index_put(sizes: Sizes, input: Spec, indices: Any, values: Spec, accumulate: bool = False) -> Result:
    if values.dtype != input.dtype or not all(isinstance(index, Spec) for index in indices):
        raise Uncovered
    place = indexed(sizes, shape_of(input), tuple(indices))
    expand_into(sizes, shape_of(values), place, "the sizes of what index_put puts")
    return Spec(shape_of(input), input.dtype)


@rule(torch.take_along_dim, "take_along_dim")
def _take_along_dim(sizes: Sizes, input: Spec, indices: Spec, dim: Any = None) -> Result:
    shape, at = shape_of(input), _index_shape(indices, frozenset({torch.int64}))
    if dim is None:
        return Spec((product(at),), input.dtype)
    if len(shape) != len(at) or not shape:
        raise Uncovered
    axis = axis_of(dim, len(shape))
    beside = broadcast(sizes, [put(shape, axis, 1), put(at, axis, 1)], "a tensor and the indices along one dimension")
    return Spec(put(beside, axis, at[axis]), input.dtype)


@rule(torch.take, "take")
def _take(sizes: Sizes, input: Spec, index: Spec) -> Result:
    at = _index_shape(index, frozenset({torch.int64}))
    some = disjunction([equal(product(at), 0), less(0, product(shape_of(input)))])
    sizes.require(some, "the size of a tensor that elements are taken from")
    return Spec(at, input.dtype)


@rule(F.embedding)
def _embedding(sizes: Sizes, input: Spec, weight: Spec, padding_idx: Any = None, max_norm: Any = None) -> Result:
    rows = shape_of(weight, 2)
    if max_norm is not None or padding_idx is not None:
        raise Uncovered
    return Spec((*_index_shape(input), rows[1]), weight.dtype)


@rule(F.embedding_bag)
def _embedding_bag(sizes: Sizes, input: Spec, weight: Spec, *, mode: str = "mean") -> Result:
    """The last dimension of `input` is a bag."""
    bags, rows = _index_shape(input), shape_of(weight, 2)
    if len(bags) != 2 or mode not in ("sum", "mean"):
        raise Uncovered
    sizes.require(less(0, bags[1]), "bags that have indices")
    return Spec((bags[0], rows[1]), weight.dtype)


@rule(F.one_hot)
def _one_hot(sizes: Sizes, tensor: Spec, num_classes: Any = -1) -> Result:
    if not is_number(num_classes) or tensor.dtype is not torch.int64 or num_classes == -1:
        raise Uncovered
    sizes.require(at_least_zero(num_classes - 1), "the number of classes")
    return Spec((*shape_of(tensor), num_classes), torch.int64)
