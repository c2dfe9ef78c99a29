"""Torch's functions of symbolic sizes. On OneFlow sizes are Python numbers, also while a graph is traced."""

from __future__ import annotations

from typing import Any


def sym_max(a: Any, b: Any) -> Any:
    """The larger of two sizes."""
    return max(a, b)


def sym_min(a: Any, b: Any) -> Any:
    """The smaller of two sizes."""
    return min(a, b)


def sym_ite(condition: Any, a: Any, b: Any) -> Any:
    """`a` where a comparison of sizes holds, else `b`."""
    return a if condition else b


def sym_not(condition: Any) -> Any:
    """The negation of a comparison of sizes."""
    return not condition


def is_tracing() -> bool:
    """Whether sizes are tensors, as torch.jit.trace has them: never."""
    return False


def is_dynamo_compiling() -> bool:
    """Whether a compiler of Python runs the code, which OneFlow does not have."""
    return False


def is_compiling() -> bool:
    """Whether a program is exported or compiled, in which sizes are symbols: never."""
    return False


def require(condition: Any) -> None:
    """Raises RuntimeError where a comparison of sizes is false."""
    if not condition:
        raise RuntimeError("a condition on sizes is false")


def sym_int(number: Any) -> Any:
    """A size as an integer, truncated."""
    return int(number)
