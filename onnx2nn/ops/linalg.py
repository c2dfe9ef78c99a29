"""Matrix products, determinants and attention."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.arithmetic import widened
from onnx2nn.table import op


def _is_weight(matrix: Any, other: Any) -> bool:
    """Whether `matrix` is known at import while `other` is not: then the product is a linear layer."""
    return matrix.ndim == 2 and matrix.is_floating_point() and type(matrix) is not type(other)


def _factor(value: float, like: Any) -> Any:
    """Returns an attribute that scales `like` as a number of its kind."""
    if like.is_floating_point():
        return value
    if value != int(value):
        raise OperatorError(f"a factor of {value} on integers; make it a whole number.")
    return int(value)


@op("MatMul", 1)
@widened
def matmul(F: Any, A: Any, B: Any) -> Any:
    if _is_weight(B, A):
        return F.nn.functional.linear(A, B.T)
    return A @ B


@op("Gemm", 11)
@widened
def gemm(
    F: Any,
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    """alpha * A B + beta * C; factors of constants are multiplied into them."""
    if C is not None and beta == 0:
        C = None
    A = A.T if transA else A
    if _is_weight(B, A):
        weight = B if transB else B.T
        weight = weight if alpha == 1 else weight * alpha
        constant = C is not None and type(C) is type(B)
        if C is None or (constant and (C.ndim <= 1 or C.shape[0] == 1)):
            return F.nn.functional.linear(A, weight, _bias(C, weight.shape[0], beta))
        Y = F.nn.functional.linear(A, weight)
        return Y + (C if beta == 1 else C * beta)
    B = B.T if transB else B
    if C is None:
        return A @ B if alpha == 1 else (A @ B) * _factor(alpha, A)
    return F.addmm(C, A, B, **_unless_one(beta=_factor(beta, A), alpha=_factor(alpha, A)))


def _bias(C: Any, size: int, beta: float) -> Any:
    if C is None:
        return None
    C = C if C.ndim == 1 else C.reshape(-1)
    C = C if C.shape[0] == size else C.expand(size).contiguous()
    return C if beta == 1 else C * beta


def _unless_one(**factors: Any) -> dict[str, Any]:
    return {name: value for name, value in factors.items() if value != 1}


@op("Gemm", 7)
def gemm_7(
    F: Any,
    A: Any,
    B: Any,
    C: Any,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    return gemm(F, A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)


@op("Gemm", 1)
def gemm_1(
    F: Any,
    A: Any,
    B: Any,
    C: Any,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    """`broadcast` only permits what later revisions always do."""
    return gemm(F, A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
