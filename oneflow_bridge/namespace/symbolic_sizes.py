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


def is_tracing() -> bool:
    """Whether sizes are tensors, as torch.jit.trace has them: never."""
    return False


def sym_int(number: Any) -> Any:
    """A size as an integer, truncated."""
    return int(number)
