"""torch.nn.functional: linear layers, and sums of rows of a table."""

from __future__ import annotations

from oneflow_bridge.namespace.arithmetic import add
from oneflow_bridge.namespace.indexing import embedding
from oneflow_bridge.namespace.linalg import einsum, matmul
from oneflow_bridge.namespace.reduction import cumsum, mean
from oneflow_bridge.namespace.shaping import select, transpose
from oneflow_bridge.namespace.tensor import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias."""
    product = matmul(x, transpose(weight, 0, 1) if weight.ndim == 2 else weight)
    return product if bias is None else add(product, bias)


def bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight @ y for each output feature."""
    product = einsum("...i,oij,...j->...o", x, weight, y)
    return product if bias is None else add(product, bias)


def embedding_bag(index: Tensor, weight: Tensor, *, mode: str = "mean") -> Tensor:
    """The rows of `weight` (N, D) at each row of `index` (bags, items), added in order or averaged: (bags, D)."""
    rows = embedding(index, weight)
    return select(cumsum(rows, 1), 1, -1) if mode == "sum" else mean(rows, 1)
