"""Operators on sizes, which a traced program has where it chooses between sizes or demands something of them.

No file holds them. Under torch.jit.trace sizes are tensors.
"""

from __future__ import annotations

from typing import Any

from onnx2nn.optable.registry import op
from onnx2nn.optable.row import OWN


@op("SizeMin", 1, domain=OWN)
def size_min(F: Any, A: Any, B: Any) -> Any:
    """The smaller of two sizes, which are tensors under torch.jit.trace."""
    return F.sym_min(A, B) if not F.jit.is_tracing() else F.minimum(F.as_tensor(A), F.as_tensor(B))


@op("SizeMax", 1, domain=OWN)
def size_max(F: Any, A: Any, B: Any) -> Any:
    """The larger of two sizes."""
    return F.sym_max(A, B) if not F.jit.is_tracing() else F.maximum(F.as_tensor(A), F.as_tensor(B))


@op("SizeWhere", 1, domain=OWN)
def size_where(F: Any, condition: Any, A: Any, B: Any) -> Any:
    """`A` where a comparison of sizes that data decide holds, else `B`."""
    if F.jit.is_tracing():
        return F.where(F.as_tensor(condition), F.as_tensor(A), F.as_tensor(B))
    return F.sym_ite(condition, A, B)


@op("SizeIf", 1, domain=OWN)
def size_if(F: Any, condition: Any, A: Any, B: Any) -> Any:
    """`A` where a condition on sizes of inputs holds, else `B`; export and compilation hold both."""
    if F.jit.is_tracing():
        return F.where(F.as_tensor(condition), F.as_tensor(A), F.as_tensor(B))
    if F.compiler.is_compiling() and condition is not True and condition is not False:
        return B + (A - B) * F.sym_ite(condition, 1, 0)  # sym_ite takes no symbolic number beside a plain one
    return A if condition else B


@op("SizeNot", 1, domain=OWN)
def size_not(F: Any, A: Any) -> Any:
    """The negation of a condition on sizes; a trace would hold torch.sym_not of the example as a constant."""
    return F.sym_not(A) if not F.jit.is_tracing() else F.logical_not(F.as_tensor(A))


@op("SizeFloor", 1, domain=OWN)
def size_floor(F: Any, A: Any) -> Any:
    """The floor of a shape value that is not negative; torch.export cannot save math.floor."""
    return F.sym_int(A) if not F.jit.is_tracing() else F.as_tensor(A).to(F.int64)


@op("Require", 1, domain=OWN)
def require(F: Any, condition: Any, *sizes_0: Any, message: str, limit: bool = False, by_data: bool = False) -> None:
    """Raises ValueError where a condition on sizes is false; `sizes_0` are put into the message.

    Export and compilation keep the condition, as they keep the branch that a Python program takes; one on sizes that
    data decide (`by_data`) is checked when the program runs. They leave out a `limit` that only huge sizes exceed.
    torch.jit.trace holds no conditions.
    """
    if F.jit.is_tracing() or (limit and F.compiler.is_compiling()):
        return
    if by_data and F.compiler.is_compiling():
        F._check(condition)
    elif not condition:
        raise ValueError(message.format(*sizes_0))


@op("SizeAt", 1, domain=OWN)
def size_at(F: Any, sizes: Any, *, index: int) -> Any:
    """An element of a data-dependent vector of sizes."""
    return sizes[index].item() if not F.jit.is_tracing() else sizes[index]
