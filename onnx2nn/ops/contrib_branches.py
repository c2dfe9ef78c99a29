"""Operators of ONNX Runtime for residual streams of several branches, and gated sums and norms around them.

float16 and bfloat16 are computed in float32 and rounded where the documentation says so.
"""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib_fused import MICROSOFT
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import NeedsValues


def _wide(F: Any, x: Any) -> Any:
    return x.to(F.promote_types(x.dtype, F.float32))


def _normalised(F: Any, x: Any, epsilon: float) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()


def _same(size: Any, other: Any) -> bool:
    """Returns whether two sizes are equal, by which the meaning of a dimension is told."""
    if not (isinstance(size, int) and isinstance(other, int)):
        raise NeedsValues("the meaning of a dimension of dynamic size")
    return size == other


@op("GatedAdd", 1, domain=MICROSOFT)
def gated_add(F: Any, X: Any, Y: Any, gate: Any) -> Any:
    return X + Y * gate


@op("ScaledSiLU", 1, domain=MICROSOFT)
def scaled_silu(F: Any, X: Any, scale: Any = None, *, alpha: float = 1.0) -> Any:
    Z = (_wide(F, X) * (alpha if scale is None else _wide(F, scale))).to(X.dtype)
    return Z * F.sigmoid(Z)


@op("GatedRMSNorm", 1, domain=MICROSOFT)
def gated_rms_norm(F: Any, X: Any, scale: Any, gate: Any, *, activation: str = "silu", epsilon: float = 1e-05) -> Any:
    """RMS normalisation of each group of as many elements as the scale has, times the activated gate."""
    if activation not in ("silu", "swish", "sigmoid"):
        raise OperatorError(f"activation={activation!r} is none of silu, swish, sigmoid.")
    x = _normalised(F, _wide(F, X).unflatten(-1, (-1, scale.shape[0])), epsilon) * _wide(F, scale)
    z = _wide(F, gate)
    return (x.flatten(-2) * (F.sigmoid(z) if activation == "sigmoid" else F.nn.functional.silu(z))).to(X.dtype)


@op("BranchwiseRMSNorm", 1, domain=MICROSOFT)
def branchwise_rms_norm(F: Any, X: Any, scale: Any = None, *, epsilon: float = 1e-05, num_branches: int = 0) -> Any:
    """X: `(..., C, H)`, or `(..., C * H)` with num_branches; each branch is normalised on its own."""
    grouped = X.unflatten(-1, (num_branches, -1)) if num_branches else X
    Y = _normalised(F, _wide(F, grouped), epsilon)
    if scale is not None:
        factor = _wide(F, scale)
        # A vector is one number a feature, or one number a feature and branch.
        if factor.ndim == 1 and not _same(factor.shape[0], grouped.shape[-1]):
            factor = factor.reshape([grouped.shape[-2], grouped.shape[-1]])
        Y = Y * factor
    return (Y.flatten(-2) if num_branches else Y).to(X.dtype)


def _gates(F: Any, gates: Any, streams: Any) -> Any:
    """Returns gates that broadcast to grouped streams `(..., C, H)`, from `(..., C)`, `(..., C, 1 or H)` or flat."""
    gates = _wide(F, gates)
    if gates.ndim == streams.ndim:
        return gates
    branches = streams.shape[-2]
    return gates.unsqueeze(-1) if _same(gates.shape[-1], branches) else gates.unflatten(-1, (branches, -1))


@op("HyperConnectionPreMix", 1, domain=MICROSOFT)
def hyper_connection_pre_mix(
    F: Any, streams: Any, pre_mix: Any, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Any:
    """The sum of the branches `(..., C, H)`, or `(..., C * H)` with num_branches, times their gates."""
    x = _wide(F, streams.unflatten(-1, (num_branches, -1)) if num_branches else streams)
    return ((x * _gates(F, pre_mix, x)).sum(-2) * reduction_scale).to(streams.dtype)


@op("HyperConnectionPostMix", 1, domain=MICROSOFT)
def hyper_connection_post_mix(
    F: Any, streams: Any, block_output: Any, post_mix: Any, stream_mix: Any = None, *, num_branches: int = 0
) -> Any:
    """The branches mixed by stream_mix `(..., C, C)`, from the first index to the second, plus the gated output."""
    x = _wide(F, streams.unflatten(-1, (num_branches, -1)) if num_branches else streams)
    mixed = x if stream_mix is None else _wide(F, stream_mix).mT @ x
    Y = mixed + _gates(F, post_mix, x) * _wide(F, block_output).unsqueeze(-2)
    return (Y.flatten(-2) if num_branches else Y).to(streams.dtype)


@op("EngramGate", 1, domain=MICROSOFT)
def engram_gate(
    F: Any,
    key: Any,
    query: Any,
    value: Any,
    key_norm_scale: Any,
    query_norm_scale: Any,
    conv_norm_scale: Any = None,
    *,
    epsilon: float = 1e-05,
    _outputs: int = 1,
) -> Any:
    """key, query: `(N, L, branches, size)`; value `(N, L, size)` is gated for each branch.

    The gate is the sigmoid of the signed root of the cosine-like product of normalised keys and queries.
    """
    k, q = (
        _normalised(F, _wide(F, x), epsilon) * _wide(F, scale)
        for x, scale in ((key, key_norm_scale), (query, query_norm_scale))
    )
    product = (k * q).sum(-1, keepdim=True) / float(key.shape[-1]) ** 0.5
    gate = F.sigmoid(F.sign(product) * product.abs().clamp(min=1e-6).sqrt())
    Y = gate * _wide(F, value).unsqueeze(2)
    if _outputs == 1:
        return Y.to(key.dtype)
    if conv_norm_scale is None:
        raise OperatorError("conv_norm_scale is missing, which the output gated_value_normed needs.")
    return Y.to(key.dtype), (_normalised(F, Y, epsilon) * _wide(F, conv_norm_scale)).to(key.dtype)
