"""Matrix products, and decompositions built from them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import abs, add, mul, sub
from oneflow_bridge.namespace.comparison import eq, where
from oneflow_bridge.namespace.creation import arange, full
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.indexing import diagonal, gather
from oneflow_bridge.namespace.reduction import argmax, norm, sum
from oneflow_bridge.namespace.shaping import (
    expand,
    narrow,
    permute,
    reshape,
    select,
    squeeze,
    stack,
    unsqueeze,
)
from oneflow_bridge.namespace.tensor import Tensor, axis, broadcast_shapes, known, operand, result_type, store
from oneflow_bridge.namespace.transcendental import sqrt
from onnx2nn.errors import OperatorError


def _product_type(x: Tensor, y: Tensor) -> DType:
    dtype = result_type(x, y)
    if dtype is dtypes.bool_:
        raise OperatorError("matmul does not take bool tensors; convert them to integers.")
    return dtype


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """The matrix product with torch's rules for vectors and batches; integers exactly, wrapping around."""
    if x.ndim == 0 or y.ndim == 0:
        raise OperatorError("matmul of a 0-d tensor.")
    if x.ndim == 1:  # OneFlow ends the process on a vector times a batch
        return squeeze(matmul(unsqueeze(x, 0), y), -2 if y.ndim > 1 else 0)
    if y.ndim == 1:
        return squeeze(matmul(x, unsqueeze(y, 1)), -1)
    if x.shape[-1] != y.shape[-2]:
        raise OperatorError(f"matmul of shapes {tuple(x.shape)} and {tuple(y.shape)}.")
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    dtype = _product_type(x, y)
    if not (x.numel() and y.numel()):  # OneFlow leaves the sum over nothing undefined
        return full((*batch, x.shape[-2], y.shape[-1]), 0, dtype=dtype, device=x.device)
    if x.ndim != y.ndim and x.ndim > 2 and y.ndim > 2:
        x, y = (expand(v, *batch, *v.shape[-2:]) for v in (x, y))
    return bilinear(flow.matmul, operand(x, dtype), operand(y, dtype), x.shape[-1], dtype)


def bilinear(kernel: Callable[[Any, Any], Any], a: Any, b: Any, terms: int, dtype: DType) -> Tensor:
    """A product of two tensors that sums `terms` products for each element, exact for integers too.

    OneFlow has these kernels for floats alone, or computes integers in float32. In float64 an integer product is exact
    while no sum can reach 2**53; larger ones are put together from 16-bit digits.
    """
    if dtype.is_floating_point:
        return store(kernel(a, b), dtype)
    if terms * _largest(a, dtype) * _largest(b, dtype) < 2**53:
        return store(kernel(a.to(flow.float64), b.to(flow.float64)).to(flow.int64), dtype)
    left, right = _digits(a, dtype), _digits(b, dtype)
    total: Any = None
    for i, x in enumerate(left):
        for j, y in enumerate(right[: len(left) - i]):
            part = kernel(x, y).to(flow.int64) * 2 ** (16 * (i + j))
            total = part if total is None else total + part
    return store(total, dtype)


def _largest(value: Any, dtype: DType) -> int:
    """A bound of the absolute values; of the type where a graph is traced."""
    array = known(value)
    if array is None or dtype.bits <= 8:
        return 2 ** (dtype.bits - (dtype.kind == "i"))
    return max(builtins.abs(int(array.max())), builtins.abs(int(array.min())))


def _digits(value: Any, dtype: DType) -> list[Any]:
    """An int64 tensor as float64 digits to the base 2**16, the lowest first, the highest with the sign."""
    digits = []
    for _ in range(max(dtype.bits // 16, 1) - 1):
        rest = flow.fmod(value, 2**16)
        rest = rest + (rest < 0).to(flow.int64) * 2**16
        digits.append(rest.to(flow.float64))
        value = (value - rest) // 2**16
    return [*digits, value.to(flow.float64)]


def mm(x: Tensor, y: Tensor) -> Tensor:
    """The product of two matrices."""
    return matmul(x, y)


bmm = mv = mm


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of two vectors."""
    return sum(mul(x, y))


vdot = inner = dot


def outer(x: Tensor, y: Tensor) -> Tensor:
    """All products of two vectors."""
    return mul(unsqueeze(x, 1), unsqueeze(y, 0))


ger = outer


def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * x + alpha * (a @ b)."""
    product = matmul(a, b)
    product = product if alpha == 1 else mul(product, alpha)
    return product if beta == 0 else add(product, x if beta == 1 else mul(x, beta))


baddbmm = addmm


def tensordot(x: Tensor, y: Tensor, dims: Any = 2) -> Tensor:
    """The product summed over pairs of dims."""
    if isinstance(dims, int):
        dims = (range(x.ndim - dims, x.ndim), range(dims))
    left, right = ([axis(d, v.ndim) for d in part] for v, part in zip((x, y), dims, strict=True))
    rest_x = [d for d in range(x.ndim) if d not in left]
    rest_y = [d for d in range(y.ndim) if d not in right]
    count = 1
    for d in left:
        count *= x.shape[d]
    a = reshape(permute(x, [*rest_x, *left]), -1, count) if count else reshape(x, -1, count)
    b = reshape(permute(y, [*right, *rest_y]), count, -1)
    return reshape(matmul(a, b), [*(x.shape[d] for d in rest_x), *(y.shape[d] for d in rest_y)])


def einsum(equation: str, *operands: Any) -> Tensor:
    """Einstein summation: operands joined two at a time by one batched matrix product.

    Raises:
        OperatorError: the equation does not fit the operands.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    terms, output = einsum_terms(equation, [x.ndim for x in operands])
    parts = [_einsum_term(x, term) for x, term in zip(operands, terms, strict=True)]
    while len(parts) > 1:
        (x, a), (y, b) = parts.pop(0), parts.pop(0)
        later = set(output).union(*(term for _, term in parts))
        parts.insert(0, _einsum_pair(x, a, y, b, later))
    x, term = parts[0]
    gone = [i for i, letter in enumerate(term) if letter not in output]
    x = store(sum(x, gone).value, x.dtype) if gone else x
    kept = [letter for letter in term if letter in output]
    if sorted(kept) != sorted(output):
        raise OperatorError(f"einsum {equation!r}: an output index is in no operand.")
    return permute(x, [kept.index(letter) for letter in output])


def einsum_terms(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The index names of each operand and of the result; the dims of an ellipsis are numbered from the last.

    Raises:
        OperatorError: the equation does not fit operands of these ranks.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks):
        raise OperatorError(f"einsum {equation!r} of {len(ranks)} operands.")
    named = []
    for term, rank in zip(terms, ranks, strict=True):
        before, dots, after = term.partition("...")
        hidden = rank - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            raise OperatorError(f"einsum {equation!r}: operand of rank {rank} for {term!r}.")
        named.append([*before, *(f"...{i}" for i in range(hidden, 0, -1)), *after])
    widest = max(
        (sorted((n for n in term if n.startswith("...")), key=lambda n: -int(n[3:])) for term in named), key=len
    )
    if arrow:
        before, dots, after = output.partition("...")
        return named, [*before, *(widest if dots else []), *after]
    letters = [name for term in named for name in term if not name.startswith("...")]
    return named, [*widest, *sorted(name for name in set(letters) if letters.count(name) == 1)]


def _einsum_term(x: Tensor, term: list[str]) -> tuple[Tensor, list[str]]:
    """An operand whose repeated indices are replaced by their diagonal."""
    term = list(term)
    for name in dict.fromkeys(term):
        while term.count(name) > 1:
            first = term.index(name)
            second = term.index(name, first + 1)
            x = diagonal(x, 0, first, second)
            term = [n for i, n in enumerate(term) if i not in (first, second)] + [name]
    return x, term


def _einsum_pair(x: Tensor, a: list[str], y: Tensor, b: list[str], later: set[str]) -> tuple[Tensor, list[str]]:
    """Two operands as one: shared indices wanted later are the batch, the other shared ones are summed."""
    sizes = {name: size for term, v in ((a, x), (b, y)) for name, size in zip(term, v.shape, strict=True) if size != 1}
    size_of = lambda names: [sizes.get(name, 1) for name in names]  # noqa: E731
    shared = [name for name in a if name in b]
    batch = [name for name in shared if name in later]
    summed = [name for name in shared if name not in later]
    x, a = _einsum_sum(x, a, set(b) | later)
    y, b = _einsum_sum(y, b, set(a) | later)
    left, right = [name for name in a if name not in shared], [name for name in b if name not in shared]
    x = expand(permute(x, [a.index(n) for n in (*batch, *left, *summed)]), size_of([*batch, *left, *summed]))
    y = expand(permute(y, [b.index(n) for n in (*batch, *summed, *right)]), size_of([*batch, *summed, *right]))
    count = 1
    for size in size_of(summed):
        count *= size
    product = lambda names: _product(size_of(names))  # noqa: E731
    x = reshape(x, product(batch), product(left), count)
    y = reshape(y, product(batch), count, product(right))
    result = mul(x, y) if count == 1 else matmul(x, y)
    return reshape(result, size_of([*batch, *left, *right])), [*batch, *left, *right]


def _product(sizes: list[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def _einsum_sum(x: Tensor, term: list[str], wanted: set[str]) -> tuple[Tensor, list[str]]:
    gone = [i for i, name in enumerate(term) if name not in wanted]
    return (store(sum(x, gone).value, x.dtype) if gone else x), [name for name in term if name in wanted]


def trace(x: Tensor) -> Tensor:
    """The sum of the diagonal."""
    return sum(diagonal(x))


def kron(x: Tensor, y: Tensor) -> Tensor:
    """The Kronecker product."""
    rank = max(x.ndim, y.ndim)
    x, y = (reshape(v, [*(1,) * (rank - v.ndim), *v.shape]) for v in (x, y))
    wide = mul(
        reshape(x, [size for dim in x.shape for size in (dim, 1)]),
        reshape(y, [size for dim in y.shape for size in (1, dim)]),
    )
    return reshape(wide, [a * b for a, b in zip(x.shape, y.shape, strict=True)])


def cross(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """The cross product of vectors of 3."""
    a, b = ([select(v, dim, i) for i in range(3)] for v in (x, y))
    return stack([sub(mul(a[i - 2], b[i - 1]), mul(a[i - 1], b[i - 2])) for i in range(3)], dim)


def cdist(x: Tensor, y: Tensor, p: float = 2.0, **_: Any) -> Tensor:
    """Distances of all pairs of rows, by their differences."""
    return norm(sub(unsqueeze(x, -2), unsqueeze(y, -3)), p, -1)


def det(x: Tensor) -> Tensor:
    """The determinant, by elimination with the largest pivot of each column."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or not x.dtype.is_floating_point:
        raise OperatorError(f"The determinant of {x.dtype} {tuple(x.shape)}.")
    batch, n = x.shape[:-2], x.shape[-1]
    matrix = reshape(x, -1, n, n)
    result = full((matrix.shape[0],), 1.0, dtype=x.dtype, device=x.device)
    for step in range(n):
        size = n - step
        pivot = reshape(argmax(abs(select(matrix, 2, 0)), 1), -1, 1, 1)
        pivot_row = gather(matrix, 1, expand(pivot, -1, 1, size))
        first_row = narrow(matrix, 1, 0, 1)
        at_pivot = eq(reshape(arange(size, device=x.device), 1, -1, 1), pivot)
        matrix = where(at_pivot, first_row, matrix)
        head = reshape(narrow(pivot_row, 2, 0, 1), -1)
        sign = where(eq(reshape(pivot, -1), 0), 1.0, -1.0)
        result = mul(result, mul(head, sign))
        if size > 1:
            safe = reshape(where(eq(head, 0), 1.0, head), -1, 1, 1)
            below = narrow(matrix, 1, 1, size - 1)
            factor = Tensor(narrow(below, 2, 0, 1).value / safe.value)
            matrix = narrow(sub(below, mul(factor, pivot_row)), 2, 1, size - 1)
    return reshape(result, batch)


def inv(x: Tensor) -> Tensor:
    """The inverse of a matrix."""
    return store(flow._C.inv(operand(x, x.dtype)), x.dtype)


inverse = inv


def matrix_norm(x: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Tensor:
    """The Frobenius norm of matrices."""
    if ord != "fro":
        raise OperatorError(f"matrix_norm with ord {ord!r}; 'fro' is there.")
    return sqrt(sum(mul(x, x), dim, keepdim))


def matrix_power(x: Tensor, n: int) -> Tensor:
    """A matrix multiplied with itself."""
    result = x
    for _ in range(n - 1):
        result = matmul(result, x)
    return result
