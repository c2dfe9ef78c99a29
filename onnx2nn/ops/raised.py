"""Operators of raised graphs alone: what several nodes of a file are together and no ONNX operator is.

`onnx2nn.rewrite` puts them in place before the import; no file holds them.
"""

from __future__ import annotations

from typing import Any

from onnx2nn.table import OWN, op


@op("Linear", 1, domain=OWN)
def linear(F: Any, X: Any, weight: Any, bias: Any) -> Any:
    """X: `(..., in)`, weight: `(in, out)` as MatMul has it, bias: `(out,)`."""
    return F.nn.functional.linear(X, weight.T, bias)


@op("LayerNorm", 1, domain=OWN)
def layer_norm(F: Any, X: Any, *, dims: int, epsilon: float) -> Any:
    """Over the last `dims` dimensions, without weights."""
    return F.nn.functional.layer_norm(X, X.shape[-dims:], eps=epsilon)


@op("RMSNorm", 1, domain=OWN)
def rms_norm(F: Any, X: Any, *, dims: int, epsilon: float) -> Any:
    """Over the last `dims` dimensions, without weights."""
    return F.nn.functional.rms_norm(X, X.shape[-dims:], eps=epsilon)


@op("GroupNorm", 1, domain=OWN)
def group_norm(F: Any, X: Any, *, num_groups: int, epsilon: float) -> Any:
    return F.nn.functional.group_norm(X, num_groups, eps=epsilon)


@op("InstanceNorm", 1, domain=OWN)
def instance_norm(F: Any, X: Any, *, epsilon: float) -> Any:
    return F.nn.functional.instance_norm(X, eps=epsilon)


@op("Normalize", 1, domain=OWN)
def normalize(F: Any, X: Any, *, p: float, axis: int, epsilon: float) -> Any:
    """X over its norm, or over epsilon where that is larger."""
    return F.nn.functional.normalize(X, p, axis, epsilon)


@op("PixelUnshuffle", 1, domain=OWN)
def pixel_unshuffle(F: Any, X: Any, *, factor: int) -> Any:
    return F.nn.functional.pixel_unshuffle(X, factor)


@op("ChannelShuffle", 1, domain=OWN)
def channel_shuffle(F: Any, X: Any, *, groups: int) -> Any:
    return F.nn.functional.channel_shuffle(X, groups)


@op("RepeatInterleave", 1, domain=OWN)
def repeat_interleave(F: Any, X: Any, *, repeats: int, axis: int) -> Any:
    return F.repeat_interleave(X, repeats, axis)


@op("ScaledDotProductAttention", 1, domain=OWN)
def scaled_dot_product_attention(
    F: Any,
    Q: Any,
    K: Any,
    V: Any,
    mask: Any = None,
    *,
    is_causal: int = 0,
    scale: float | None = None,
    transposed: int = 0,
    grouped: int = 0,
) -> Any:
    """Q: `(..., queries, size)`, K and V: `(..., keys, size)`; K `(..., size, keys)` where it is transposed.

    A bool mask is True where a query attends, a float mask is added. With `grouped`, several heads of Q share one of K.
    """
    options: dict[str, Any] = {"is_causal": True} if is_causal else {}
    if mask is not None:
        options["attn_mask"] = mask
    if scale is not None:
        options["scale"] = scale
    if grouped:
        options["enable_gqa"] = True
    return F.nn.functional.scaled_dot_product_attention(Q, K.mT if transposed else K, V, **options)
