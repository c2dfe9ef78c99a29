"""Shape rules of products of matrices and other sums of products."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import axis_of, broadcast_dimensions, equal_shapes, is_spec, positive
from onnx2nn.fx.shape_rules.rule import Result, Sizes, rule
from onnx2nn.fx.spec import Shape, Spec
from onnx2nn.sizes.conditions import disjunction, equal
from onnx2nn.sizes.expression import Number

_SUMMED = "the dimensions of a matrix product"
_BATCH = "the batch dimensions of a matrix product"


def _same_dtype(*specs: Any) -> torch.dtype | None:
    """Returns the dtype of specs of one, None where they have several; bools have no products."""
    if not is_spec(*specs) or len({spec.dtype for spec in specs}) > 1 or specs[0].dtype == torch.bool:
        return None
    return specs[0].dtype  # type: ignore[no-any-return]  # of a spec, which is passed as any operand


def product_shape(sizes: Sizes, x: Shape, y: Shape) -> Shape | None:
    """Returns the shape of `x @ y`, None for a scalar operand."""
    if not x or not y:
        return None
    sizes.equal(x[-1], y[-1] if len(y) == 1 else y[-2], _SUMMED)
    lead = broadcast_dimensions(sizes, x[:-2], y[:-2], _BATCH)
    return (*lead, *(x[-2:-1] if len(x) > 1 else ()), *(y[-1:] if len(y) > 1 else ()))


@rule(torch.matmul, operator.matmul, "matmul", "__matmul__")
def _matmul(sizes: Sizes, input: Spec, other: Spec) -> Result:
    dtype = _same_dtype(input, other)
    shape = None if dtype is None else product_shape(sizes, input.shape or (), other.shape or ())
    return None if shape is None else Spec(shape, dtype)


def _of_rank(sizes: Sizes, rank: int, x: Spec, y: Spec, *others: Spec) -> Shape | None:
    if _same_dtype(x, y, *others) is None or len(x.shape or ()) != rank or len(y.shape or ()) != rank:
        return None
    assert x.shape is not None and y.shape is not None
    sizes.equal(x.shape[-1], y.shape[-2], _SUMMED)
    return (*equal_shapes(sizes, x.shape[:-2], y.shape[:-2], _BATCH), x.shape[-2], y.shape[-1])


@rule(torch.mm, "mm")
def _mm(sizes: Sizes, input: Spec, mat2: Spec) -> Result:
    shape = _of_rank(sizes, 2, input, mat2)
    return None if shape is None else Spec(shape, input.dtype)


@rule(torch.bmm, "bmm")
def _bmm(sizes: Sizes, input: Spec, mat2: Spec) -> Result:
    shape = _of_rank(sizes, 3, input, mat2)
    return None if shape is None else Spec(shape, input.dtype)


@rule(torch.mv, "mv")
def _mv(sizes: Sizes, input: Spec, vec: Spec) -> Result:
    if _same_dtype(input, vec) is None or len(input.shape or ()) != 2 or len(vec.shape or ()) != 1:
        return None
    return _matmul(sizes, input, vec)


@rule(torch.dot, "dot")
def _dot(sizes: Sizes, input: Spec, tensor: Spec) -> Result:
    if _same_dtype(input, tensor) is None or len(input.shape or ()) != 1 or len(tensor.shape or ()) != 1:
        return None
    return _matmul(sizes, input, tensor)


def expand_into(sizes: Sizes, shape: Shape, wanted: Shape, reason: str) -> bool:
    """Requires that a tensor expands to a shape; returns whether its rank allows it."""
    if len(shape) > len(wanted):
        return False
    for size, target in zip(reversed(shape), reversed(wanted), strict=False):
        if size is not target:
            sizes.require(disjunction([equal(size, target), equal(size, 1)]), reason)
    return True


def _added(sizes: Sizes, input: Spec, shape: Shape | None) -> Result:
    if shape is None or not expand_into(sizes, input.shape or (), shape, "a matrix that is added to a product"):
        return None
    return Spec(shape, input.dtype)


@rule(torch.addmm, "addmm")
def _addmm(sizes: Sizes, input: Spec, mat1: Spec, mat2: Spec, *, beta: Any = 1, alpha: Any = 1) -> Result:
    if not is_spec(input, mat1, mat2):
        return None
    return _added(sizes, input, _of_rank(sizes, 2, mat1, mat2, input))


@rule(torch.baddbmm, "baddbmm")
def _baddbmm(sizes: Sizes, input: Spec, batch1: Spec, batch2: Spec, *, beta: Any = 1, alpha: Any = 1) -> Result:
    if not is_spec(input, batch1, batch2):
        return None
    return _added(sizes, input, _of_rank(sizes, 3, batch1, batch2, input))


@rule(torch.addbmm, "addbmm")
def _addbmm(sizes: Sizes, input: Spec, batch1: Spec, batch2: Spec, *, beta: Any = 1, alpha: Any = 1) -> Result:
    if not is_spec(input, batch1, batch2):
        return None
    shape = _of_rank(sizes, 3, batch1, batch2, input)
    return _added(sizes, input, shape[1:] if shape is not None else None)


@rule(torch.outer, "outer")
def _outer(sizes: Sizes, input: Spec, vec2: Spec) -> Result:
    if _same_dtype(input, vec2) is None or len(input.shape or ()) != 1 or len(vec2.shape or ()) != 1:
        return None
    return Spec((*(input.shape or ()), *(vec2.shape or ())), input.dtype)


@rule(F.linear)
def _linear(sizes: Sizes, input: Spec, weight: Spec, bias: Spec | None = None) -> Result:
    x, w = input.shape, weight.shape
    dtype = _same_dtype(input, weight, *(() if bias is None else (bias,)))
    if dtype is None or not x or w is None or len(w) != 2 or (bias is not None and len(bias.shape or ()) != 1):
        return None
    sizes.equal(x[-1], w[1], "the features of a linear map")
    shape = (*x[:-1], w[0])
    if bias is not None:
        expand_into(sizes, bias.shape or (), shape, "the bias of a linear map")
    return Spec(shape, dtype)


@rule(F.bilinear, torch.bilinear)
def _bilinear(sizes: Sizes, input1: Spec, input2: Spec, weight: Spec, bias: Spec | None = None) -> Result:
    x, y, w = input1.shape, input2.shape, weight.shape
    dtype = _same_dtype(input1, input2, weight, *(() if bias is None else (bias,)))
    if dtype is None or not x or not y or w is None or len(w) != 3 or len(x) != len(y):
        return None
    lead = equal_shapes(sizes, x[:-1], y[:-1], "the batch of a bilinear map")
    sizes.equal(x[-1], w[1], "the first features of a bilinear map")
    sizes.equal(y[-1], w[2], "the second features of a bilinear map")
    positive(sizes, (x[-1], y[-1]), "an operand of a bilinear map that is not empty")
    if bias is not None:
        if len(bias.shape or ()) != 1:
            return None
        sizes.equal((bias.shape or ())[0], w[0], "the bias of a bilinear map")
    return Spec((*lead, w[0]), dtype)


@rule(torch.einsum)
def _einsum(sizes: Sizes, equation: str, *operands: Any) -> Result:
    if len(operands) == 1 and not is_spec(operands[0]) and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or not operands or _same_dtype(*operands) is None:
        return None
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in left or len(terms) != len(operands) or not left.replace(",", "").isalpha():
        return None
    found: dict[str, Number] = {}
    for term, operand in zip(terms, operands, strict=True):
        if len(term) != len(operand.shape):
            return None
        own: dict[str, Number] = {}
        for letter, size in zip(term, operand.shape, strict=True):
            own[letter] = (
                sizes.equal(own[letter], size, f"the diagonal {letter!r} of einsum") if letter in own else size
            )
        for letter, size in own.items():
            known = found.get(letter, 1)
            found[letter] = broadcast_dimensions(sizes, [known], [size], f"the dimension {letter!r} of einsum")[0]
    if not arrow:
        right = "".join(letter for letter in sorted(set(left) - {","}) if left.count(letter) == 1)
    if len(set(right)) != len(right) or not set(right) <= set(found):
        return None
    return Spec(tuple(found[letter] for letter in right), operands[0].dtype)


@rule(torch.tensordot)
def _tensordot(sizes: Sizes, a: Spec, b: Spec, dims: Any = 2, out: Any = None) -> Result:
    if _same_dtype(a, b) is None or out is not None:
        return None
    x, y = a.shape or (), b.shape or ()
    if type(dims) is int:
        if not 0 <= dims <= min(len(x), len(y)):
            return None
        dims = list(range(len(x) - dims, len(x))), list(range(dims))
    if not isinstance(dims, (list, tuple)) or len(dims) != 2 or not all(isinstance(d, (list, tuple)) for d in dims):
        return None
    left = [axis_of(axis, len(x)) for axis in dims[0]]
    right = [axis_of(axis, len(y)) for axis in dims[1]]
    if len(left) != len(right) or None in left or None in right or not x or not y:
        return None
    if len(set(left)) != len(left) or len(set(right)) != len(right):
        return None
    for i, j in zip(left, right, strict=True):
        assert i is not None and j is not None
        broadcast_dimensions(sizes, [x[i]], [y[j]], "the dimensions of a tensor product")
    kept = [size for axis, size in enumerate(x) if axis not in left]
    return Spec((*kept, *(size for axis, size in enumerate(y) if axis not in right)), a.dtype)


@rule(torch.kron, "kron")
def _kron(sizes: Sizes, input: Spec, other: Spec) -> Result:
    if _same_dtype(input, other) is None:
        return None
    x, y = input.shape or (), other.shape or ()
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y
    return Spec(tuple(m * n for m, n in zip(x, y, strict=True)), input.dtype)


@rule(torch.linalg.cross)
def _cross(sizes: Sizes, input: Spec, other: Spec, dim: Any = -1) -> Result:
    if _same_dtype(input, other) is None or len(input.shape or ()) != len(other.shape or ()) or not input.shape:
        return None
    axis = axis_of(dim, len(input.shape))
    if axis is None:
        return None
    for spec in (input, other):
        sizes.equal((spec.shape or ())[axis], 3, "the axis of a cross product")
    shape = broadcast_dimensions(sizes, input.shape, other.shape or (), "the operands of a cross product")
    return Spec(shape, input.dtype)


@rule(torch.cross, "cross")
def _cross_over(sizes: Sizes, input: Spec, other: Spec, dim: Any = None) -> Result:
    """torch looks for an axis of size 3 where none is given."""
    return None if dim is None else _cross(sizes, input, other, dim)


def _square(sizes: Sizes, A: Spec) -> Shape | None:
    shape = A.shape
    if shape is None or len(shape) < 2 or A.dtype not in (torch.float32, torch.float64):
        return None
    sizes.equal(shape[-1], shape[-2], "the rows and columns of a square matrix")
    return shape


@rule(torch.linalg.inv, torch.inverse, "inverse")
def _inv(sizes: Sizes, A: Spec) -> Result:
    shape = _square(sizes, A)
    return None if shape is None else Spec(shape, A.dtype)


@rule(torch.linalg.det, torch.det, "det")
def _det(sizes: Sizes, A: Spec) -> Result:
    shape = _square(sizes, A)
    return None if shape is None else Spec(shape[:-2], A.dtype)
