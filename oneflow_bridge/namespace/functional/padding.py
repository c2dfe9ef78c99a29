"""torch.nn.functional: padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oneflow_bridge.namespace.creation import full
from oneflow_bridge.namespace.functional.geometry import pad_natively
from oneflow_bridge.namespace.shaping import cat, expand, flip, narrow
from oneflow_bridge.namespace.tensor import Tensor, store, widened
from onnx2nn.errors import OperatorError


def pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Dims made longer, the last first: `pad` holds (before, after) for each; negative numbers cut.

    Every mode works on any dims and types: OneFlow's own refuse circular, 3-d replicate and long lists.
    """
    amounts = [int(p) for p in pad]
    if len(amounts) % 2 or len(amounts) > 2 * x.ndim:
        raise OperatorError(f"{len(amounts)} pads for a tensor of rank {x.ndim}.")
    pairs = {x.ndim - 1 - i: (amounts[2 * i], amounts[2 * i + 1]) for i in range(len(amounts) // 2)}
    if mode == "constant":
        return _pad_constant(x, pairs, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise OperatorError(f"Padding mode {mode!r}; there are constant, reflect, replicate and circular.")
    for dim, (before, after) in pairs.items():
        if before or after:
            x = _pad_from_inside(x, dim, before, after, mode)
    return x


def _pad_constant(x: Tensor, pairs: dict[int, tuple[int, int]], value: Any) -> Tensor:
    for dim, (before, after) in pairs.items():
        start, stop = max(-before, 0), x.shape[dim] - max(-after, 0)
        if stop < start:
            raise OperatorError(f"Pads {before} and {after} of a dim of size {x.shape[dim]}.")
        x = narrow(x, dim, start, stop - start)
    added = {dim: (max(b, 0), max(a, 0)) for dim, (b, a) in pairs.items() if b > 0 or a > 0}
    if not added:
        return x
    if x.numel() and x.dtype.is_floating_point and isinstance(value, (int, float)) and x.ndim > 1:
        outermost = min(added)
        flat = [side for dim in range(x.ndim - 1, outermost - 1, -1) for side in added.get(dim, (0, 0))]
        if len(flat) < 2 * x.ndim:
            return store(pad_natively(widened(x), flat, float(value)), x.dtype)
    for dim, sides in added.items():
        edges = [[*x.shape[:dim], size, *x.shape[dim + 1 :]] for size in sides]
        first, last = (full(shape, value, dtype=x.dtype, device=x.device) for shape in edges)
        x = cat([first, x, last], dim)
    return x


def _pad_from_inside(x: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    """One dim made longer with its own elements."""
    size = x.shape[dim]
    limit = {"reflect": size - 1, "circular": size}.get(mode)
    if size == 0 or (limit is not None and max(before, after) > limit):
        raise OperatorError(f"{mode} padding by {max(before, after)} of a dim of size {size}.")
    if mode == "replicate":
        parts = [_edge(x, dim, 0, before), x, _edge(x, dim, size - 1, after)]
    elif mode == "reflect":
        parts = [flip(narrow(x, dim, 1, max(before, 0)), dim), x]
        parts.append(flip(narrow(x, dim, size - 1 - max(after, 0), max(after, 0)), dim))
    else:
        parts = [narrow(x, dim, size - max(before, 0), max(before, 0)), x, narrow(x, dim, 0, max(after, 0))]
    x = cat([part for part in parts if part.shape[dim]], dim)
    start = max(-before, 0)
    return narrow(x, dim, start, x.shape[dim] - start - max(-after, 0))


def _edge(x: Tensor, dim: int, index: int, count: int) -> Tensor:
    part = narrow(x, dim, index, 1)
    return expand(part, [max(count, 0) if d == dim else size for d, size in enumerate(x.shape)])
