"""Shape rules of products of matrices and other sums of products."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import (
    axes_of,
    axis_of,
    broadcast,
    common_dtype,
    equal_shapes,
    expand_into,
    positive,
    shape_of,
)
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.sizes.expression import Number

_SUMMED = "the dimensions of a matrix product"
_BATCH = "the batch dimensions of a matrix product"
_TERM = re.compile(r"[A-Za-z]*(?:\.\.\.[A-Za-z]*)?")


def _dtype(*specs: Spec | None) -> torch.dtype:
    """Returns the dtype that all given operands have; bools have no products."""
    dtype = common_dtype(*specs)
    if dtype is torch.bool:
        raise Uncovered
    return dtype


@rule(torch.matmul, operator.matmul, "matmul", "__matmul__")
def _matmul(sizes: Sizes, input: Spec, other: Spec) -> Result:
    dtype, x, y = _dtype(input, other), shape_of(input), shape_of(other)
    if not x or not y:
        raise Uncovered
    sizes.equal(x[-1], y[-1] if len(y) == 1 else y[-2], _SUMMED)
    lead = broadcast(sizes, [x[:-2], y[:-2]], _BATCH)
    return Spec((*lead, *(x[-2:-1] if len(x) > 1 else ()), *(y[-1:] if len(y) > 1 else ())), dtype)


def _of_rank(sizes: Sizes, rank: int, first: Spec, second: Spec) -> Shape:
    """Returns the shape of a product of two matrices, or of two batches of as many matrices."""
    _dtype(first, second)
    x, y = shape_of(first, rank), shape_of(second, rank)
    sizes.equal(x[-1], y[-2], _SUMMED)
    return (*equal_shapes(sizes, x[:-2], y[:-2], _BATCH), x[-2], y[-1])


@rule(torch.mm, "mm")
def _mm(sizes: Sizes, input: Spec, mat2: Spec) -> Result:
    return Spec(_of_rank(sizes, 2, input, mat2), input.dtype)


@rule(torch.bmm, "bmm")
def _bmm(sizes: Sizes, input: Spec, mat2: Spec) -> Result:
    return Spec(_of_rank(sizes, 3, input, mat2), input.dtype)


@rule(torch.mv, "mv")
def _mv(sizes: Sizes, input: Spec, vec: Spec) -> Result:
    shape_of(input, 2), shape_of(vec, 1)
    return _matmul(sizes, input, vec)


@rule(torch.dot, "dot")
def _dot(sizes: Sizes, input: Spec, tensor: Spec) -> Result:
    shape_of(input, 1), shape_of(tensor, 1)
    return _matmul(sizes, input, tensor)


def _added(sizes: Sizes, input: Spec, product: Shape, dtype: torch.dtype) -> Result:
    expand_into(sizes, shape_of(input), product, "a matrix that is added to a product")
    return Spec(product, dtype)


@rule(torch.addmm, "addmm")
def _addmm(sizes: Sizes, input: Spec, mat1: Spec, mat2: Spec, *, beta: Any = 1, alpha: Any = 1) -> Result:
    dtype = _dtype(input, mat1, mat2)
    return _added(sizes, input, _of_rank(sizes, 2, mat1, mat2), dtype)


@rule(torch.baddbmm, "baddbmm")
def _baddbmm(sizes: Sizes, input: Spec, batch1: Spec, batch2: Spec, *, beta: Any = 1, alpha: Any = 1) -> Result:
    dtype = _dtype(input, batch1, batch2)
    return _added(sizes, input, _of_rank(sizes, 3, batch1, batch2), dtype)


@rule(torch.addbmm, "addbmm")
def _addbmm(sizes: Sizes, input: Spec, batch1: Spec, batch2: Spec, *, beta: Any = 1, alpha: Any = 1) -> Result:
    dtype = _dtype(input, batch1, batch2)
    return _added(sizes, input, _of_rank(sizes, 3, batch1, batch2)[1:], dtype)


@rule(torch.outer, "outer")
def _outer(sizes: Sizes, input: Spec, vec2: Spec) -> Result:
    return Spec((*shape_of(input, 1), *shape_of(vec2, 1)), _dtype(input, vec2))


@rule(F.linear)
def _linear(sizes: Sizes, input: Spec, weight: Spec, bias: Spec | None = None) -> Result:
    dtype, x, w = _dtype(input, weight, bias), shape_of(input), shape_of(weight, 2)
    added = None if bias is None else shape_of(bias, 1)
    if not x:
        raise Uncovered
    sizes.equal(x[-1], w[1], "the features of a linear map")
    shape = (*x[:-1], w[0])
    if added is not None:
        expand_into(sizes, added, shape, "the bias of a linear map")
    return Spec(shape, dtype)


@rule(torch.bilinear)
def _bilinear(sizes: Sizes, input1: Spec, input2: Spec, weight: Spec, bias: Spec | None = None) -> Result:
    dtype, x, y, w = _dtype(input1, input2, weight, bias), shape_of(input1), shape_of(input2), shape_of(weight, 3)
    if not x or not y:
        raise Uncovered
    lead = equal_shapes(sizes, x[:-1], y[:-1], "the batch of a bilinear map")
    sizes.equal(x[-1], w[1], "the first features of a bilinear map")
    sizes.equal(y[-1], w[2], "the second features of a bilinear map")
    positive(sizes, (x[-1], y[-1]), "an operand of a bilinear map that is not empty")
    if bias is not None:
        equal_shapes(sizes, shape_of(bias), w[:1], "the bias of a bilinear map")
    return Spec((*lead, w[0]), dtype)


@rule(torch.einsum)
def _einsum(sizes: Sizes, equation: str, *operands: Any) -> Result:
    if len(operands) == 1 and type(operands[0]) in (list, tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str):
        raise Uncovered
    dtype, shapes = _dtype(*operands), [shape_of(operand) for operand in operands]
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise Uncovered
    found: dict[str | int, Number] = {}
    for term, shape in zip(terms, shapes, strict=True):
        own: dict[str | int, Number] = {}
        for label, size in zip(_labels(term, len(shape)), shape, strict=True):
            known = own.get(label, size)
            own[label] = size if known is size else sizes.equal(known, size, f"the diagonal {label!r} of einsum")
        for label, size in own.items():
            both = [[found.get(label, 1)], [size]]
            (found[label],) = broadcast(sizes, both, f"the dimension {label!r} of einsum")
    covered = sum(type(label) is int for label in found)
    if not arrow:
        right = "..." + "".join(letter for letter in sorted(set(left) - set(",.")) if left.count(letter) == 1)
    labels = _labels(right, len(right.replace("...", "")) + (covered if "..." in right else 0))
    if len(set(labels)) != len(labels) or not set(labels) <= set(found):
        raise Uncovered
    return Spec(tuple(found[label] for label in labels), dtype)


def _labels(term: str, rank: int) -> list[str | int]:
    """Returns the label of each dimension of a term of einsum: its letter; a negative number in an ellipsis."""
    if not _TERM.fullmatch(term):
        raise Uncovered
    first, ellipsis, last = term.partition("...")
    covered = rank - len(first) - len(last)
    if covered < 0 or (covered and not ellipsis):
        raise Uncovered
    return [*first, *range(-covered, 0), *last]


@rule(torch.tensordot)
def _tensordot(sizes: Sizes, a: Spec, b: Spec, dims: Any = 2, out: Any = None) -> Result:
    dtype, x, y = _dtype(a, b), shape_of(a), shape_of(b)
    if out is not None:
        raise Uncovered
    if type(dims) is int:
        if not 0 <= dims <= min(len(x), len(y)):
            raise Uncovered
        dims = list(range(len(x) - dims, len(x))), list(range(dims))
    if not isinstance(dims, (list, tuple)) or len(dims) != 2 or not all(isinstance(d, (list, tuple)) for d in dims):
        raise Uncovered
    left, right = axes_of(dims[0], len(x)), axes_of(dims[1], len(y))
    if len(left) != len(right) or not x or not y:
        raise Uncovered
    broadcast(sizes, [[x[axis] for axis in left], [y[axis] for axis in right]], "the dimensions of a tensor product")
    kept = [size for axis, size in enumerate(x) if axis not in left]
    return Spec((*kept, *(size for axis, size in enumerate(y) if axis not in right)), dtype)


@rule(torch.kron, "kron")
def _kron(sizes: Sizes, input: Spec, other: Spec) -> Result:
    dtype, x, y = _dtype(input, other), shape_of(input), shape_of(other)
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y
    return Spec(tuple(m * n for m, n in zip(x, y, strict=True)), dtype)


@rule(torch.linalg.cross)
def _cross(sizes: Sizes, input: Spec, other: Spec, dim: Any = -1) -> Result:
    dtype, x = _dtype(input, other), shape_of(input)
    y, axis = shape_of(other, len(x)), axis_of(dim, len(x))
    for shape in (x, y):
        sizes.equal(shape[axis], 3, "the axis of a cross product")
    return Spec(broadcast(sizes, [x, y], "the operands of a cross product"), dtype)


@rule(torch.cross, "cross")
def _cross_over(sizes: Sizes, input: Spec, other: Spec, dim: Any = None) -> Result:
    """torch looks for an axis of size 3 where none is given."""
    if dim is None:
        raise Uncovered
    return _cross(sizes, input, other, dim)


def _square(sizes: Sizes, matrices: Spec) -> Shape:
    shape = shape_of(matrices)
    if len(shape) < 2 or matrices.dtype not in (torch.float32, torch.float64):
        raise Uncovered
    sizes.equal(shape[-1], shape[-2], "the rows and columns of a square matrix")
    return shape


@rule(torch.linalg.inv, torch.inverse, "inverse")
def _inv(sizes: Sizes, A: Spec) -> Result:
    return Spec(_square(sizes, A), A.dtype)


@rule(torch.linalg.det, torch.det, "det")
def _det(sizes: Sizes, A: Spec) -> Result:
    return Spec(_square(sizes, A)[:-2], A.dtype)
