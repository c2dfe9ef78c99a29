"""Operators of ONNX Runtime for residual streams of several branches, and gated sums and norms around them.

float16 and bfloat16 are computed in float32 and rounded where the documentation says so.
"""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
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
def gated_add(F: Any, X: Any, Y: Any, gate: Any, gate_weight: Any = None) -> Any:
    """X + Y * gate; with gate_weight `(K, 1)` the gate is the sigmoid of a product, rounded after each step."""
    if gate_weight is not None:
        gate = F.sigmoid((_wide(F, gate) @ _wide(F, gate_weight)).to(X.dtype).to(F.float32)).to(X.dtype)
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


@op("HyperConnectionLowRankMix", 1, domain=MICROSOFT)
def hyper_connection_low_rank_mix(
    F: Any,
    streams: Any,
    norm_scale: Any,
    down_weight: Any,
    up_weight: Any,
    inject_weight: Any,
    prev_block_output: Any = None,
    prev_post_gate: Any = None,
    *,
    epsilon: float = 1e-05,
    gate_div: float = 1.0,
    gate_mul: float = 1.0,
    num_branches: int,
    reduction_scale: float = 1.0,
    silu_alpha: float = 1.0,
    _outputs: int = 2,
) -> tuple[Any, ...]:
    """Gates of low rank of the branches `(..., C * H)`: the next block's input, its gate, and the streams.

    The previous block's gated output is added first. Each step is computed in float32 and rounded to the streams' type.
    """

    def rounded(x: Any) -> Any:
        return _wide(F, x.to(streams.dtype))

    S = _wide(F, streams).unflatten(-1, (num_branches, -1))
    if prev_block_output is not None:
        S = rounded(S + _wide(F, prev_post_gate).unsqueeze(-1) * _wide(F, prev_block_output).unsqueeze(-2))
    hn = rounded(_normalised(F, S, epsilon) * _wide(F, norm_scale).unflatten(0, (num_branches, -1)))
    flat = hn.flatten(-2)
    Z = rounded(silu_alpha * rounded(flat @ _wide(F, down_weight)))
    hidden = rounded(Z * rounded(F.sigmoid(Z)))
    gates = rounded(F.sigmoid(rounded(hidden @ _wide(F, up_weight)))).unflatten(-1, (num_branches, -1))
    pre_output = (reduction_scale * (hn * gates).sum(-2)).to(streams.dtype)
    inject = rounded(flat @ _wide(F, inject_weight))
    post_gate = (rounded(F.sigmoid(rounded(inject / gate_div))) * gate_mul).to(streams.dtype)
    return (pre_output, post_gate, S.flatten(-2).to(streams.dtype))[:_outputs]


@op("SwiGLU", 1, domain=MICROSOFT)
def swiglu(
    F: Any,
    gate: Any,
    up: Any = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    limit: float = 0.0,
    round_activation: int = 0,
) -> Any:
    """The clamped gate times its sigmoid, times the clamped other half, which may stand behind the gate.

    Computed in float64, so that the tail of large negative gates is no zero, and rounded once.
    """
    if up is None:
        gate, up = gate.chunk(2, -1)
    G, L = gate.to(F.float64), up.to(F.float64)
    if limit > 0:
        G, L = G.clamp(max=limit), L.clamp(-limit, limit)
    activated = G * F.sigmoid(activation_alpha * G)
    if round_activation:
        activated = activated.to(gate.dtype).to(F.float64)
    return (activated * (L + activation_beta)).to(gate.dtype)


@op("RouterGateUpProj", 1, domain=MICROSOFT)
def router_gate_up_proj(
    F: Any,
    X: Any,
    W: Any,
    *,
    activation: str = "swiglu",
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    limit: float = 0.0,
    router_size: int,
) -> tuple[Any, ...]:
    """One product X @ W: the logits of a router, then the halves of SwiGLU, which is computed."""
    if activation != "swiglu":
        raise OperatorError(f"activation={activation!r} is not swiglu.")
    Y = (_wide(F, X) @ _wide(F, W)).to(X.dtype)
    both = Y[..., router_size:]
    options: Any = dict(activation_alpha=activation_alpha, activation_beta=activation_beta, limit=limit)
    return Y[..., :router_size], swiglu(F, both, **options)
