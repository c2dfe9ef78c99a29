"""Operators into which ONNX Runtime's optimiser fuses the parts of diffusion models, as its documentation has them."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops import activation as activations
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.optable.registry import op


@op("BiasAdd", 1, domain=MICROSOFT)
def bias_add(F: Any, X: Any, bias: Any, skip: Any) -> Any:
    return X + bias + skip


@op("BiasSplitGelu", 1, domain=MICROSOFT)
def bias_split_gelu(F: Any, X: Any, bias: Any) -> Any:
    """The left half of X + bias times Gelu of the right half."""
    left, right = (X + bias).chunk(2, -1)
    return left * activations.gelu(F, right)


def _normalised(
    F: Any, X: Any, gamma: Any, beta: Any, activation: int, channels_last: int, epsilon: float, groups: int
) -> Any:
    """Returns the group normalisation of X with its activation, computed in float32 at least."""
    if activation not in (0, 1):
        raise OperatorError(f"activation={activation} is none of 0 (none), 1 (SiLU).")
    dtype = X.dtype
    wide = dtype if dtype == F.float64 else F.float32
    # torch's kernel for memory with the channels last subtracts squares, and loses the digits of a large mean.
    x = (X.movedim(-1, 1).contiguous() if channels_last else X).to(wide)
    Y = F.nn.functional.group_norm(x, groups, gamma.to(wide), beta.to(wide), epsilon)
    Y = F.nn.functional.silu(Y) if activation else Y
    return (Y.movedim(1, -1) if channels_last else Y).to(dtype)


@op("GroupNorm", 1, domain=MICROSOFT)
def group_norm(
    F: Any,
    X: Any,
    gamma: Any,
    beta: Any,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-05,
    groups: int,
) -> Any:
    return _normalised(F, X, gamma, beta, activation, channels_last, epsilon, groups)


@op("SkipGroupNorm", 1, domain=MICROSOFT)
def skip_group_norm(
    F: Any,
    X: Any,
    gamma: Any,
    beta: Any,
    skip: Any,
    bias: Any = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-05,
    groups: int,
    _outputs: int = 1,
) -> Any:
    """Group normalisation of X + skip + bias, which is the second output; a skip `(N, C)` is the same at each pixel."""
    if skip.ndim == 2:
        skip = skip.unsqueeze(1).unsqueeze(1) if channels_last else skip.unsqueeze(2).unsqueeze(3)
    S = X + skip
    if bias is not None:
        S = S + (bias if channels_last else bias.reshape(-1, 1, 1))
    Y = _normalised(F, S, gamma, beta, activation, channels_last, epsilon, groups)
    return Y if _outputs == 1 else (Y, S)
