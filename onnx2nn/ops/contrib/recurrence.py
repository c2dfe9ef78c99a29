"""Linear attention and causal convolutions of ONNX Runtime, which carry a state from call to call."""

from __future__ import annotations

import itertools
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED

_RULES = ("linear", "gated", "delta", "gated_delta")
_GATES = ("none", "softplus", "qwen", "sigmoid", "kda")


def _wide(F: Any, x: Any) -> Any:
    return x.to(F.promote_types(x.dtype, F.float32))


@op("LinearAttentionGate", 1, domain=MICROSOFT)
def linear_attention_gate(F: Any, a: Any, dt_bias: Any, decay_scale: Any, b: Any = None, *, _outputs: int = 1) -> Any:
    """The decay decay_scale * softplus(a + dt_bias), and the rate sigmoid(b), computed in float32."""
    decay = (decay_scale * F.nn.functional.softplus(_wide(F, a) + dt_bias)).to(a.dtype)
    if _outputs == 1:
        return decay
    if b is None:
        raise OperatorError("b is missing, which the output beta needs.")
    return decay, F.sigmoid(_wide(F, b)).to(a.dtype)


def _recurrence(
    F: Any, q: Any, k: Any, v: Any, state: Any, decay: Any, beta: Any, scale: float
) -> tuple[Any, list[Any]]:
    """Returns the outputs `(N, L, heads, value size)` and the state behind each token.

    Args:
        F: the namespace.
        q: queries, keys, values: `(N, L, heads, size)` of equally many heads, in float32 at least.
        k: see `q`.
        v: see `q`.
        state: `(N, heads, key size, value size)`.
        decay: factors of the state `(N, L, heads, key size or 1)`; None for 1.
        beta: rates `(N, L, heads or 1, 1)` at which what the state has under a key is replaced; None adds.
        scale: of the outputs.
    """
    outputs, states = [], []
    for t in range(q.shape[1]):
        key, value = k[:, t], v[:, t]
        if decay is not None:
            state = state * decay[:, t].unsqueeze(-1)
        if beta is not None:
            value = beta[:, t] * (value - (key.unsqueeze(-2) @ state).squeeze(-2))
        state = state + key.unsqueeze(-1) * value.unsqueeze(-2)
        states.append(state)
        outputs.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2) * scale)
    return F.stack(outputs, 1) if outputs else F.zeros_like(v), states


def _checked(update_rule: str, decay: Any, beta: Any) -> tuple[Any, Any]:
    """Returns the decay and the rate that the rule reads, None for those that it does not."""
    if update_rule not in _RULES:
        raise OperatorError(f"update_rule={update_rule!r} is none of {', '.join(_RULES)}.")
    gated, delta = update_rule.startswith("gated"), update_rule.endswith("delta")
    if (gated and decay is None) or (delta and beta is None):
        raise OperatorError(f"update_rule={update_rule!r} needs {'decay' if gated and decay is None else 'beta'}.")
    return decay if gated else None, beta if delta else None


def _results_of_linear(
    F: Any, query: Any, key: Any, value: Any, past_state: Any = None, *others: Any, kv_num_heads: int, q_num_heads: int,
    state_window: int = 0, **attributes: Any,
) -> Any:  # fmt: skip
    size = value.shape[2] // kv_num_heads
    state = [query.shape[0], kv_num_heads, query.shape[2] // q_num_heads, size]
    dtype = query.dtype if past_state is None else past_state.dtype
    return [
        ([query.shape[0], query.shape[1], max(q_num_heads, kv_num_heads) * size], query.dtype),
        ([state_window, *state] if state_window else state, dtype),
    ]


@op(
    "LinearAttention",
    1,
    choices={"update_rule": _RULES},
    domain=MICROSOFT,
    call="opaque",
    results=_results_of_linear,
    custom_op=True,
)
def linear_attention(
    F: Any,
    query: Any,
    key: Any,
    value: Any,
    past_state: Any = None,
    decay: Any = None,
    beta: Any = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
    _outputs: int = 2,
) -> tuple[Any, ...]:
    """Attention over a state `(N, kv_num_heads, key size, value size)` that each token's key and value update.

    query, key, value: `(N, L, heads * size)`. Of several queries a head, each reads the same state; of several states
    a query, each is an output. With a state_window the states behind the last tokens are returned, zeros behind none.
    chunk_size changes no result.
    """
    decay, beta = _checked(update_rule, decay, beta)
    size = query.shape[2] // q_num_heads
    q, k = (_wide(F, x).unflatten(2, (-1, size)) for x in (query, key))
    v = _wide(F, value).unflatten(2, (kv_num_heads, -1))
    heads = max(q_num_heads, kv_num_heads)
    if heads % kv_num_heads or heads % q_num_heads or kv_num_heads % k.shape[2]:
        raise OperatorError(
            f"{q_num_heads} queries, {k.shape[2]} keys and {kv_num_heads} values do not fit each other."
        )
    each = heads // kv_num_heads
    q = q.repeat_interleave(heads // q_num_heads, 2)
    k, v = k.repeat_interleave(heads // k.shape[2], 2), v.repeat_interleave(each, 2)
    dtype = query.dtype if past_state is None else past_state.dtype
    past = past_state[-1] if state_window and past_state is not None else past_state
    if past is None:
        past = F.zeros([query.shape[0], kv_num_heads, size, v.shape[3]], dtype=v.dtype, device=v.device)
    start = _wide(F, past).repeat_interleave(each, 1)
    if decay is not None:
        decay = _wide(F, decay).unflatten(2, (kv_num_heads, -1)).exp().repeat_interleave(each, 2)
    if beta is not None:
        beta = _wide(F, beta).unsqueeze(-1)
        beta = beta if beta.shape[2] == 1 else beta.repeat_interleave(each, 2)
    Y, states = _recurrence(F, q, k, v, start, decay, beta, scale or size**-0.5)
    kept = [state[:, ::each] for state in states]
    if state_window:
        none = F.zeros_like(start[:, ::each])
        present = F.stack([*[none] * (state_window - len(kept)), *kept[-state_window:]])
    else:
        present = kept[-1] if kept else start[:, ::each]
    return (Y.flatten(2).to(query.dtype), present.to(dtype))[:_outputs]


def _activated(F: Any, y: Any, activation: str) -> Any:
    if activation not in ("none", "silu", "swish"):
        raise OperatorError(f"activation={activation!r} is none of none, silu, swish.")
    return y if activation == "none" else F.nn.functional.silu(y)


@op("CausalConvWithState", 1, domain=MICROSOFT)
def causal_conv_with_state(
    F: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    past_state: Any = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    input_channel_offset: int = 0,
    input_channels: int = 0,
    ndim: int = 1,
    state_channels_last: int = -1,
    state_length: int = 0,
    state_update_capacity: int = 0,
    state_window: int = 0,
    _outputs: int = 2,
) -> Any:
    """A convolution of each channel over the current and earlier positions; the state holds the last positions.

    input: `(N, channels, L)`, or with channels_last `(N, L, *channels)`; weight: `(channels, 1, kernel)`. With a
    state_window the states behind the last positions are returned, zeros behind none. Several spatial dimensions are
    refused, as by ONNX Runtime's CPU.
    """
    if ndim != 1:
        raise OperatorError(f"ndim={ndim} is not supported: the padding of further dimensions is not documented.")
    if input_channel_offset or input_channels or state_channels_last != -1 or state_length or state_update_capacity:
        raise OperatorError(
            "input_channels, state_channels_last, state_length and state_update_capacity are not supported."
        )
    kept = (weight.shape[2] - 1) * dilation
    channels = input.shape[2:] if channels_last else None
    x = input.flatten(2).transpose(1, 2) if channels_last else input
    if past_state is None:
        full = F.nn.functional.pad(x, (kept, 0))
    else:
        past = past_state[-1] if state_window else past_state
        full = F.cat([past.flatten(2).transpose(1, 2) if channels_last else past, x], 2)
    y = F.nn.functional.conv1d(full, weight, bias, dilation=dilation, groups=weight.shape[0])
    y = _activated(F, y, activation)

    def placed(z: Any) -> Any:
        return z.transpose(-1, -2).unflatten(-1, channels) if channels_last else z

    if _outputs == 1:
        return placed(y)
    return placed(y), placed(_states(F, full, x.shape[2], kept, state_window) if state_window else _end(full, kept, 0))


def _end(full: Any, kept: Any, before: int) -> Any:
    """Returns the `kept` positions of `(N, channels, positions)` that end `before` positions before the last one."""
    return full.narrow(2, full.shape[2] - before - kept, kept)


def _states(F: Any, full: Any, length: Any, kept: Any, window: int) -> Any:
    """Returns the states behind the last `window` of `length` positions, `(window, N, channels, kept)`."""
    full = F.nn.functional.pad(full, (window, 0))
    states = F.stack([_end(full, kept, window - 1 - slot) for slot in range(window)])
    there = F.arange(window) >= window - length
    return F.where(there.reshape(-1, 1, 1, 1), states, 0.0)


def _bounds(cumulative: Any) -> list[tuple[int, int]]:
    """Returns start and end of each request's tokens."""
    ends = cumulative.tolist()
    return list(itertools.pairwise(ends))


def _results_of_varlen(
    F: Any, input: Any, weight: Any, cumulative_sequence_length: Any, bias: Any = None, initial_state: Any = None,
    *others: Any, state_update_capacity: int = 0, **attributes: Any,
) -> Any:  # fmt: skip
    update = [initial_state.shape[0], state_update_capacity, input.shape[1]]
    return [([*input.shape], input.dtype), ([*initial_state.shape], input.dtype), (update, input.dtype)]


@op(
    "VarlenCausalConvWithState",
    1,
    choices={"activation": ("none", "silu", "swish")},
    domain=MICROSOFT,
    call="opaque",
    results=_results_of_varlen,
    custom_op=True,
)
def varlen_causal_conv_with_state(
    F: Any,
    input: Any,
    weight: Any,
    cumulative_sequence_length: Any,
    bias: Any = None,
    initial_state: Any = REQUIRED,
    capture_count: Any = None,
    kernel_delta: Any = None,
    previous_mask: Any = None,
    *,
    activation: str = "none",
    delta_offset: int = 0,
    dilation: int = 1,
    group_size: int = 1,
    state_update_capacity: int = 0,
    _outputs: int = 2,
) -> Any:
    """CausalConvWithState of requests whose tokens `(tokens, channels)` stand one behind the other.

    With kernel_delta `(tokens, taps, groups)` each token has a kernel of two taps of its own; the sums and products are
    rounded one by one, and previous_mask `(tokens, 1)` is a factor of the product of the previous token.
    """
    outputs, states = [], []
    update = F.zeros([initial_state.shape[0], state_update_capacity, input.shape[1]], dtype=input.dtype)
    kept = (weight.shape[2] - 1) * dilation
    for i, (start, end) in enumerate(_bounds(cumulative_sequence_length)):
        tokens = input[start:end]
        full = F.cat([initial_state[i : i + 1], tokens.t().unsqueeze(0)], 2)
        if kernel_delta is None:
            y = F.nn.functional.conv1d(full, weight, bias, dilation=dilation, groups=weight.shape[0])
            outputs.append(_activated(F, y, activation).squeeze(0).t())
        else:
            moved = kernel_delta[start:end, delta_offset : delta_offset + 2].repeat_interleave(group_size, 2)
            before, now = full.squeeze(0).t().unfold(0, 2, 1).unbind(-1)
            before = before * (weight[:, 0, 0] + moved[:, 1]) * previous_mask[start:end]
            outputs.append(now * (weight[:, 0, 1] + moved[:, 0]) + before)
        states.append(_end(full, kept, 0))
        if state_update_capacity:
            count = min(max(int(capture_count[i]), 0), state_update_capacity, end - start)
            update[i, :count] = tokens[:count]
    return (F.cat(outputs), F.cat(states), update)[:_outputs]


def _results_of_delta_net(
    F: Any, query: Any, key: Any = None, value: Any = None, cu_seqlens: Any = None, decay: Any = None, beta: Any = None,
    initial_state: Any = None, *others: Any, state_update_capacity: int = 0, **attributes: Any,
) -> Any:  # fmt: skip
    heads, rows, columns = initial_state.shape[1:] if key is None else (value.shape[-2], value.shape[-1], key.shape[-1])
    batch = cu_seqlens.shape[0] - 1 if cu_seqlens is not None else initial_state.shape[0]
    tokens = query.shape[:-1] if key is None else query.shape[:-2]
    return [
        ([*tokens, heads, rows], query.dtype),
        ([batch, heads, rows, columns], F.float32),
    ]


@op("GatedDeltaNet", 1, domain=MICROSOFT, call="opaque", results=_results_of_delta_net, custom_op=True)
def gated_delta_net(
    F: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    cu_seqlens: Any = None,
    decay: Any = None,
    beta: Any = None,
    initial_state: Any = None,
    a_log: Any = None,
    dt_bias: Any = None,
    capture_count: Any = None,
    state_update_active: Any = None,
    *,
    beta_activation: str = "none",
    chunk_size: int = 64,
    gate_activation: str = "none",
    gate_lower_bound: float = -5.0,
    qk_l2_norm: int = 0,
    scale: float = 0.0,
    state_update_capacity: int = 0,
    update_rule: str = "gated_delta",
    _outputs: int = 2,
) -> Any:
    """LinearAttention of requests whose tokens stand one behind the other; states are `(N, heads, values, keys)`.

    Captured transitions (state_update_capacity) are refused: their layout is that of one kernel.
    """
    if state_update_capacity:
        raise OperatorError(f"state_update_capacity={state_update_capacity} is not supported. Export it with 0.")
    if beta_activation not in ("none", "sigmoid") or gate_activation not in _GATES:
        raise OperatorError(f"beta_activation={beta_activation!r}, gate_activation={gate_activation!r} is not known.")
    if key is None:
        heads, rows, columns = initial_state.shape[1:]
        width = (query.shape[-1] - heads * rows) // 2
        query, key, value = query.split([width, width, heads * rows], -1)
        query, key = (x.unflatten(-1, (-1, columns)) for x in (query, key))
        value = value.unflatten(-1, (heads, rows))
    if beta is not None and beta_activation == "sigmoid":
        beta = F.sigmoid(_wide(F, beta))
    if gate_activation in ("softplus", "qwen"):
        decay = -_wide(F, a_log).exp() * F.nn.functional.softplus(_wide(F, decay) + dt_bias)
    elif gate_activation in ("sigmoid", "kda"):
        decay = gate_lower_bound * F.sigmoid(_wide(F, a_log).exp() * (_wide(F, decay) + dt_bias))
    decay, beta = _checked(update_rule, decay, beta)
    several = query.ndim == 4
    q, k, v = (_wide(F, x) for x in (query, key, value))
    if qk_l2_norm:
        q, k = (F.nn.functional.normalize(x, dim=-1, eps=1e-6) for x in (q, k))
    each = v.shape[-2] // q.shape[-2]
    q, k = (x.repeat_interleave(each, -2) for x in (q, k))
    if decay is not None:
        decay = _wide(F, decay).exp()
        decay = decay.unsqueeze(-1) if decay.ndim < q.ndim else decay
    beta = None if beta is None else _wide(F, beta).unsqueeze(-1)
    if not several:
        bounds = _bounds(cu_seqlens) if cu_seqlens is not None else _uniform(q.shape[0], initial_state.shape[0])
    else:
        bounds = [(i, i + 1) for i in range(q.shape[0])]
    outputs, states = [], []
    for i, (start, end) in enumerate(bounds):
        parts = [
            None if x is None else x[start:end] if several else x[start:end].unsqueeze(0)
            for x in (q, k, v, decay, beta)
        ]
        if initial_state is None:
            state = F.zeros([1, v.shape[-2], q.shape[-1], v.shape[-1]], device=v.device)
        else:
            state = initial_state[i : i + 1].mT
        Y, found = _recurrence(F, parts[0], parts[1], parts[2], state, parts[3], parts[4], scale or q.shape[-1] ** -0.5)
        outputs.append(Y if several else Y.squeeze(0))
        states.append((found[-1] if found else state).mT)
    Y = F.cat(outputs).to(query.dtype)
    return (Y, F.cat(states).contiguous())[:_outputs] if _outputs > 1 else Y


def _uniform(tokens: int, batch: int) -> list[tuple[int, int]]:
    each = tokens // batch
    return [(i * each, (i + 1) * each) for i in range(batch)]
