"""Mixtures of experts of ONNX Runtime (com.microsoft), as its CPU kernels compute them."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.contrib.packed_weights import unpacked
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")


def _routes(F: Any, router: Any, weights: Any, k: int, normalized: int | bool) -> tuple[Any, Any]:
    """Returns the `k` experts of each token and their shares, both `(tokens, k)`; of equal ones, the last comes first.

    `weights`, `(tokens, experts)`, holds the shares where the router only chooses.
    """
    router = router.to(F.float32)
    shares = F.softmax(router, -1)
    order = shares.flip(-1).argsort(dim=-1, descending=True, stable=True)
    experts = (router.shape[1] - 1 - order)[:, :k]
    shares = (shares if weights is None else weights.to(F.float32)).gather(1, experts)
    return experts, shares / shares.sum(-1, keepdim=True) if normalized else shares


def _activated(
    F: Any, y: Any, gated: Any, kind: str, fusion: int, alpha: float, beta: float, limit: float | None, after: int
) -> Any:
    """Returns the activated features `y`; `gated` holds the features of a third matrix, None for no such matrix.

    The limit clamps the gate before its activation, or `after` it.
    """
    if kind == "swiglu":
        if fusion:
            gate, linear = (y[..., 0::2], y[..., 1::2]) if fusion == 1 else y.chunk(2, -1)
        else:
            gate, linear = y, gated
        if limit is not None:
            gate, linear = gate if after else gate.clamp(max=limit), linear.clamp(-limit, limit)
        gate = gate * F.sigmoid(alpha * gate)
        return (gate.clamp(max=limit) if after and limit is not None else gate) * (linear + beta)
    if kind == "gelu":
        y = F.nn.functional.gelu(y, approximate="tanh")
    elif kind != "identity":
        y = F.nn.functional.silu(y) if kind == "silu" else F.relu(y)
    return y if gated is None else y * gated


def _mixed(F: Any, input: Any, experts: Any, shares: Any, count: int, run: Any) -> Any:
    """Returns the sum over its experts of each token's results, times their shares.

    Args:
        F: the namespace.
        input: `(..., features)`.
        experts: `(tokens, k)`.
        shares: `(tokens, k)`.
        count: the number of experts.
        run: `run(expert, rows)` returns an expert's results.
    """
    rows = input.flatten(0, -2).to(F.float32)
    total = F.zeros_like(rows)
    for expert in range(count):
        token, place = (experts == expert).nonzero(as_tuple=True)
        if token.numel():
            total = total.index_add(0, token, run(expert, rows[token]) * shares[token, place].unsqueeze(1))
    return total.reshape(input.shape).to(input.dtype)


def _check(activation_type: str, swiglu_fusion: int, use_sparse_mixer: int, third: bool) -> None:
    if activation_type not in _ACTIVATIONS:
        raise OperatorError(f"activation_type={activation_type!r} is none of {', '.join(_ACTIVATIONS)}.")
    if swiglu_fusion not in (0, 1, 2):
        raise OperatorError(f"swiglu_fusion={swiglu_fusion} is none of 0, 1, 2.")
    if use_sparse_mixer:
        raise OperatorError("use_sparse_mixer=1 is not supported: its routing is not documented.")
    if activation_type == "swiglu" and third == bool(swiglu_fusion):
        raise OperatorError(f"swiglu_fusion={swiglu_fusion} does not fit {'a' if third else 'no'} third matrix.")


def _results(F: Any, input: Any, *others: Any, **attributes: Any) -> Any:
    return [([*input.shape], input.dtype)]


def _linear(F: Any, x: Any, weight: Any, bias: Any, expert: int) -> Any:
    return F.nn.functional.linear(x, weight, None if bias is None else bias[expert].to(x.dtype))


@op(
    "MoE",
    1,
    choices={"activation_type": _ACTIVATIONS},
    domain=MICROSOFT,
    call="opaque",
    results=_results,
    custom_op=True,
)
def moe(
    F: Any,
    input: Any,
    router_probs: Any,
    fc1_experts_weights: Any,
    fc1_experts_bias: Any = None,
    fc2_experts_weights: Any = REQUIRED,
    fc2_experts_bias: Any = None,
    fc3_experts_weights: Any = None,
    fc3_experts_bias: Any = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Any:
    """Each token's k best experts, mixed by their probabilities; input: `(..., features)`, computed in float32.

    router_probs: `(tokens, experts)`, from which softmax makes probabilities. A third matrix's features are a factor of
    the activated ones.
    """
    _check(activation_type, swiglu_fusion, use_sparse_mixer, fc3_experts_weights is not None)
    experts, shares = _routes(F, router_probs, None, k, normalize_routing_weights)
    shape = (activation_alpha, activation_beta, swiglu_limit, swiglu_limit_after_activation)

    def run(expert: int, x: Any) -> Any:
        y = _linear(F, x, fc1_experts_weights[expert].to(x.dtype), fc1_experts_bias, expert)
        gated = None
        if fc3_experts_weights is not None:
            gated = _linear(F, x, fc3_experts_weights[expert].to(x.dtype), fc3_experts_bias, expert)
        y = _activated(F, y, gated, activation_type, swiglu_fusion, *shape)
        return _linear(F, y, fc2_experts_weights[expert].to(x.dtype), fc2_experts_bias, expert)

    return _mixed(F, input, experts, shares, router_probs.shape[1], run)


def _whole(F: Any, weight: Any, scales: Any, zero_points: Any, bits: int) -> Any:
    """Returns an expert's weights of few bits `(rows, columns)`; scales: one a row, or one a block of a row."""
    if bits not in (2, 4, 8):
        raise OperatorError(f"a weight of {bits} bits is none of 2, 4, 8.")
    x = unpacked(F, weight, bits).to(F.float32)
    rows = x.shape[0]
    scales = scales.to(F.float32).reshape(rows, -1)
    blocks = scales.shape[1]
    if zero_points is None:
        offset: Any = float(1 << (bits - 1))
    elif blocks == 1 and zero_points.ndim == 1:
        offset = unpacked(F, zero_points, bits)[:rows].to(F.float32).reshape(rows, 1, 1)
    else:
        offset = unpacked(F, zero_points.reshape(rows, -1), bits)[:, :blocks].to(F.float32).unsqueeze(-1)
    return ((x.unflatten(1, (blocks, -1)) - offset) * scales.unsqueeze(-1)).flatten(1)


def _of_float8(F: Any, weight: Any, scales: Any, factor: Any, block: int) -> Any:
    """Returns an expert's float8 weights `(rows, columns)`, scaled by squares of `block`, or by one factor."""
    x = weight.to(F.float32)
    if block <= 0:
        return x * factor
    scales = scales.to(F.float32).repeat_interleave(block, 0).repeat_interleave(block, 1)
    return x * scales[: x.shape[0], : x.shape[1]]


@op(
    "QMoE",
    1,
    choices={"activation_type": _ACTIVATIONS},
    domain=MICROSOFT,
    call="opaque",
    results=_results,
    custom_op=True,
)
def qmoe(
    F: Any,
    input: Any,
    router_probs: Any,
    fc1_experts_weights: Any,
    fc1_scales: Any = None,
    fc1_experts_bias: Any = None,
    fc2_experts_weights: Any = REQUIRED,
    fc2_scales: Any = None,
    fc2_experts_bias: Any = None,
    fc3_experts_weights: Any = None,
    fc3_scales: Any = None,
    fc3_experts_bias: Any = None,
    fc1_zero_points: Any = None,
    fc2_zero_points: Any = None,
    fc3_zero_points: Any = None,
    router_weights: Any = None,
    fc1_global_scale: Any = None,
    fc2_global_scale: Any = None,
    fc1_act_scale: Any = None,
    fc2_act_scale: Any = None,
    fc1_act_block_scale: Any = None,
    fc2_act_block_scale: Any = None,
    *,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int | None = None,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
) -> Any:
    """MoE with weights of 2, 4 or 8 bits, or float8, with scales; an expert's weights become floats when it is used.

    Where router_weights do not give the shares, they are softmax over the chosen experts alone, as in ONNX Runtime's
    CPU: normalize_routing_weights then changes nothing.

    `accuracy_level` permits ONNX Runtime to round activations, and its CPU always does for blocks of 8 bits; here they
    are never rounded. weights_prepacked=-1 is the plain layout, as on its CPU.
    """
    _check(activation_type, swiglu_fusion, use_sparse_mixer, fc3_experts_weights is not None)
    if weights_prepacked == 1:
        raise OperatorError("weights_prepacked=1 is a layout of one kind of GPU. Export it with 0.")
    if quant_type not in ("int", "fp8"):
        raise OperatorError(f"quant_type={quant_type!r} is not supported: the layout of its weights is not documented.")
    acts = (fc1_act_scale, fc2_act_scale, fc1_act_block_scale, fc2_act_block_scale)
    if any(scale is not None for scale in acts):
        raise OperatorError("scales of activations are not supported: where activations are rounded is not documented.")
    normalized = normalize_routing_weights or router_weights is None
    experts, shares = _routes(F, router_probs, router_weights, k, normalized)

    def matrix(weights: Any, scales: Any, zero_points: Any, factors: Any, bits: int | None, expert: int) -> Any:
        if quant_type == "fp8":
            scale, factor = (None if x is None else x[expert] for x in (scales, factors))
            return _of_float8(F, weights[expert], scale, factor, block_size or 0)
        zero_point = None if zero_points is None else zero_points[expert]
        bits = expert_weight_bits if bits is None else bits
        return _whole(F, weights[expert], scales[expert], zero_point, bits)

    shape = (activation_alpha, activation_beta, swiglu_limit, swiglu_limit_after_activation)

    def run(expert: int, x: Any) -> Any:
        first = (fc1_experts_weights, fc1_scales, fc1_zero_points, fc1_global_scale, fc1_expert_weight_bits)
        y = _linear(F, x, matrix(*first, expert), fc1_experts_bias, expert)
        gated = None
        if fc3_experts_weights is not None:
            third = (fc3_experts_weights, fc3_scales, fc3_zero_points, fc1_global_scale, fc3_expert_weight_bits)
            gated = _linear(F, x, matrix(*third, expert), fc3_experts_bias, expert)
        y = _activated(F, y, gated, activation_type, swiglu_fusion, *shape)
        second = (fc2_experts_weights, fc2_scales, fc2_zero_points, fc2_global_scale, fc2_expert_weight_bits)
        return _linear(F, y, matrix(*second, expert), fc2_experts_bias, expert)

    return _mixed(F, input, experts, shares, router_probs.shape[1], run)


@op("MoEGroupRouter", 1, domain=MICROSOFT)
def moe_group_router(
    F: Any,
    logits: Any,
    expert_bias: Any,
    projection_weight: Any = None,
    *,
    group_topk: int = 2,
    n_group: int = 1,
    router_sentinel: float = -10000.0,
    top_k: int,
    topk_group: int = 1,
    _outputs: int = 1,
) -> Any:
    """The logarithms of the sigmoids of the best experts in the best groups, router_sentinel elsewhere.

    A group is as good as the sum of its group_topk best biased sigmoids. Of equal ones the first comes first. The
    other two outputs are the biased and the plain sigmoids `(tokens, experts)` in float32.
    """
    x = logits.to(F.float32).flatten(0, -2)
    share = F.sigmoid(x if projection_weight is None else x @ projection_weight.to(F.float32).mT)
    biased = share + expert_bias
    if _outputs > 1:
        return None, biased, share
    groups = biased.unflatten(1, (n_group, -1))
    worth = groups.sort(-1, descending=True)[0][..., :group_topk].sum(-1)
    kept = _best(F, worth, topk_group).unsqueeze(-1).expand(groups.shape).flatten(1)
    chosen = _best(F, F.where(kept, biased, -float("inf")), top_k)
    return F.where(chosen, share.clamp(min=1e-20).log(), router_sentinel).to(logits.dtype)


def _best(F: Any, x: Any, k: int) -> Any:
    """Returns which are the `k` largest of each row; of equal ones the first come first."""
    order = x.argsort(dim=-1, descending=True, stable=True)[..., :k]
    return F.zeros_like(x, dtype=F.bool).scatter(-1, order, True)
