"""torch.nn.functional: losses and distances."""

from __future__ import annotations

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.arithmetic import abs, add, div, mul, neg, rsub, square, sub
from oneflow_bridge.namespace.comparison import clamp, eq, logical_not, maximum, where
from oneflow_bridge.namespace.creation import tensor
from oneflow_bridge.namespace.functional.activation import log_softmax
from oneflow_bridge.namespace.functional.half_precision import computed_in_float32
from oneflow_bridge.namespace.indexing import index_select, take_along_dim
from oneflow_bridge.namespace.reduction import mean, norm, sum
from oneflow_bridge.namespace.shaping import reshape, squeeze, unsqueeze
from oneflow_bridge.namespace.tensor import Tensor, convert
from oneflow_bridge.namespace.transcendental import exp, log, log1p, sqrt
from onnx2nn.errors import OperatorError


@computed_in_float32
def cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors."""
    product = sum(mul(x, y), dim)
    lengths = maximum(mul(sum(square(x), dim), sum(square(y), dim)), eps * eps)
    return div(product, sqrt(lengths))


@computed_in_float32
def pairwise_distance(x: Tensor, y: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x - y + eps."""
    return norm(add(sub(x, y), eps), p, -1, keepdim)


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise OperatorError(f"reduction {reduction!r} is unknown; none, mean and sum exist.")
    return loss if reduction == "none" else mean(loss) if reduction == "mean" else sum(loss)


@computed_in_float32
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """The negative of x (N, C, *) at the target (N, *), weighted by class; ignored targets count nothing."""
    dim = 1 if x.ndim > 1 else 0
    kept = logical_not(eq(target, ignore_index))
    safe = where(kept, target, convert(tensor(0, device=target.device), target.dtype))
    picked = neg(squeeze(take_along_dim(x, unsqueeze(convert(safe, dtypes.int64), dim), dim), dim))
    counts = convert(kept, x.dtype)
    if weight is not None:
        chosen = reshape(index_select(weight, 0, convert(reshape(safe, -1), dtypes.int64)), safe.shape)
        counts = mul(counts, chosen)
    loss = where(kept, mul(picked, counts), 0.0)
    return div(sum(loss), sum(counts)) if reduction == "mean" else _reduced(loss, reduction)


@computed_in_float32
def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`nll_loss` of log_softmax."""
    if label_smoothing or target.dtype.is_floating_point:
        raise OperatorError("cross_entropy with class probabilities or label smoothing is not supported on OneFlow.")
    return nll_loss(log_softmax(x, 1 if x.ndim > 1 else 0), target, weight, ignore_index, reduction)


@computed_in_float32
def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Squared differences."""
    return _reduced(square(sub(x, target)), reduction)


@computed_in_float32
def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Absolute differences."""
    return _reduced(abs(sub(x, target)), reduction)


@computed_in_float32
def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """-(t log x + (1 - t) log(1 - x)), logarithms at least -100."""
    first, second = clamp(log(x), min=-100.0), clamp(log(rsub(x, 1.0)), min=-100.0)
    loss = neg(add(mul(target, first), mul(rsub(target, 1.0), second)))
    return _reduced(loss if weight is None else mul(loss, weight), reduction)


@computed_in_float32
def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None
) -> Tensor:
    """`binary_cross_entropy` of sigmoid(x)."""
    soft = add(log1p(exp(neg(abs(x)))), clamp(neg(x), min=0.0))
    factor = soft if pos_weight is None else mul(soft, add(mul(sub(pos_weight, 1.0), target), 1.0))
    loss = add(mul(rsub(target, 1.0), x), factor)
    return _reduced(loss if weight is None else mul(loss, weight), reduction)
