"""torch.nn.functional: linear layers."""

from __future__ import annotations

from oneflow_bridge.namespace.arithmetic import add
from oneflow_bridge.namespace.linalg import einsum, matmul
from oneflow_bridge.namespace.shaping import transpose
from oneflow_bridge.namespace.tensor import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias."""
    product = matmul(x, transpose(weight, 0, 1) if weight.ndim == 2 else weight)
    return product if bias is None else add(product, bias)


def bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight @ y for each output feature."""
    product = einsum("...i,oij,...j->...o", x, weight, y)
    return product if bias is None else add(product, bias)
