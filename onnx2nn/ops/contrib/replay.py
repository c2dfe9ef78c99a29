"""Operators of ONNX Runtime that repeat or verify some steps of a speculative decoder's recurrent state."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.optable.registry import op


def _results_of_replay(F: Any, source_backing: Any, capture: Any, destination_backing: Any, metadata: Any) -> Any:
    return [([*destination_backing.shape], destination_backing.dtype)]


def _view(backing: Any, offset: int, *shape: int) -> Any:
    """Returns a tensor that stands in a one-dimensional buffer from `offset` on."""
    count = 1
    for size in shape:
        count *= size
    if offset < 0 or offset + count > backing.shape[0]:
        raise OperatorError(f"{count} elements from {offset} on are not in a buffer of {backing.shape[0]} elements.")
    return backing[offset : offset + count].reshape(shape)


def _written(destination: Any, offset: int, values: Any) -> Any:
    """Returns a copy of a buffer with `values` from `offset` on."""
    copy = destination.clone()
    _view(copy, offset, values.numel()).copy_(values.flatten())
    return copy


@op("ConvStateReplay", 1, domain=MICROSOFT, call="opaque", results=_results_of_replay, custom_op=True)
def conv_state_replay(
    F: Any, source_backing: Any, capture_backing: Any, destination_backing: Any, metadata: Any
) -> Any:
    """The history `(N, channels, width)` of a convolution behind the first of its captured inputs, in a buffer.

    metadata: offsets of source, destination and capture in bytes; batch, channels, width, capacity, and the number of
    inputs that are kept.
    """
    numbers = metadata.tolist()
    if len(numbers) != 8 or min(numbers) < 0 or numbers[7] > numbers[6]:
        raise OperatorError(f"metadata={numbers} is not eight numbers, the last at most as large as the one before.")
    source, destination, capture = (offset // source_backing.element_size() for offset in numbers[:3])
    batch, channels, width, capacity, kept = numbers[3:]
    old = _view(source_backing, source, batch, channels, width)
    new = _view(capture_backing, capture, batch, capacity, channels)[:, :kept].transpose(1, 2)
    return _written(destination_backing, destination, F.cat([old, new], 2)[:, :, kept:])


@op("GatedDeltaNetStateReplay", 1, domain=MICROSOFT, call="opaque", results=_results_of_replay, custom_op=True)
def gated_delta_net_state_replay(
    F: Any, source_backing: Any, capsule_backing: Any, destination_backing: Any, metadata: Any
) -> Any:
    """The state `(heads, values, keys)` of GatedDeltaNet behind the first of its captured transitions, in a buffer.

    metadata: offsets of source, destination, decay, key and delta; the heads of values, the sizes of values and keys,
    the heads of keys, the capacity, and the number of transitions that are kept.
    """
    numbers = metadata.tolist()
    if len(numbers) != 11 or min(numbers) < 0 or numbers[10] > numbers[9]:
        raise OperatorError(f"metadata={numbers} is not eleven numbers, the last at most as large as the one before.")
    source, destination, decay_at, key_at, delta_at, heads, rows, columns, key_heads, capacity, kept = numbers
    state = _view(source_backing, source, heads, rows, columns)
    each = columns if key_at - decay_at == capacity * heads * columns else 1
    decay = _view(capsule_backing, decay_at, capacity, heads, 1, each)
    key = _view(capsule_backing, key_at, capacity, key_heads, 1, columns).repeat_interleave(heads // key_heads, 1)
    delta = _view(capsule_backing, delta_at, capacity, heads, rows, 1)
    for t in range(kept):
        state = state * decay[t] + key[t] * delta[t]
    return _written(destination_backing, destination, state)


def _results_of_mamba(
    F: Any, projection: Any, conv_state: Any, ssm_state: Any, *others: Any, heads: int, head_dim: int = 64,
    **attributes: Any,
) -> Any:  # fmt: skip
    inner = [projection.shape[0], heads * head_dim]
    states = [([*state.shape], state.dtype) for state in (conv_state, ssm_state)]
    channels = [projection.shape[0], conv_state.shape[1]]
    return [(inner, projection.dtype), *states, (channels, projection.dtype), (inner, F.float32)]


@op("Mamba2Verify", 1, domain=MICROSOFT, call="opaque", results=_results_of_mamba, custom_op=True)
def mamba2_verify(
    F: Any,
    projection: Any,
    conv_state: Any,
    ssm_state: Any,
    conv_weight: Any,
    conv_bias: Any,
    dt_bias: Any,
    A_negative: Any,
    D: Any,
    norm_weight: Any,
    state_row: Any,
    *,
    d_state: int = 128,
    epsilon: float = 1e-05,
    head_dim: int = 64,
    heads: int,
    n_groups: int,
    time_step_min: float = 0.001,
    _outputs: int = 3,
) -> tuple[Any, ...]:
    """A convolution, a selective recurrence and a gated normalisation of one sequence, with the states behind tokens.

    projection: `(L, 2 * inner + 2 * n_groups * d_state + heads)`, the gate, the convolved channels and the time steps.
    conv_state: `(slots, channels, 3)`; ssm_state: `(slots, heads, d_state, head_dim)`. The last states replace the
    first rows of both. A state_row that is no slot gives NaN.
    """
    inner, dtype = heads * head_dim, projection.dtype
    tokens, slots = projection.shape[0], conv_state.shape[0]
    gate, channels, raw = projection.split([inner, inner + 2 * n_groups * d_state, heads], 1)
    row, first = int(state_row.flatten()[0]), max(tokens - slots, 0)
    known = 0 <= row < slots
    history, state = (x[row if known else 0] for x in (conv_state, ssm_state))
    full = F.cat([history, channels.t()], 1)
    y = F.nn.functional.conv1d(
        full.to(F.float32).unsqueeze(0),
        conv_weight.reshape(-1, 1, 4).to(F.float32),
        conv_bias.to(F.float32),
        groups=full.shape[0],
    )
    xbc = F.nn.functional.silu(y).squeeze(0).t().to(dtype)
    x, B, C = xbc.to(F.float32).split([inner, n_groups * d_state, n_groups * d_state], 1)
    x = x.unflatten(1, (heads, 1, head_dim))
    B, C = (z.reshape(tokens, n_groups, d_state).repeat_interleave(heads // n_groups, 1) for z in (B, C))
    dt = F.nn.functional.softplus(raw.to(F.float32) + dt_bias).clamp(min=time_step_min)
    decay = (A_negative * dt).exp().reshape(tokens, heads, 1, 1)
    histories, states, outputs = conv_state.clone(), ssm_state.clone(), []
    for t in range(tokens):
        state = state * decay[t] + (dt[t].reshape(heads, 1, 1) * x[t]) * B[t].unsqueeze(2)
        outputs.append(D.unsqueeze(1) * x[t].squeeze(1) + (C[t].unsqueeze(1) @ state).squeeze(1))
        if t >= first:
            histories[t - first], states[t - first] = full[:, t + 1 : t + 4], state
    readout = F.stack(outputs).flatten(1)
    gated = (readout * F.nn.functional.silu(gate.to(F.float32))).unflatten(1, (n_groups, -1))
    normalised = (gated / (gated.square().mean(-1, keepdim=True) + epsilon).sqrt()).flatten(1)
    Y = (normalised * norm_weight).to(dtype)
    if not known:
        nothing = float("nan")
        histories[: tokens - first], states[: tokens - first] = nothing, nothing
        Y, xbc, readout = (F.full_like(z, nothing) for z in (Y, xbc, readout))
    return (Y, histories, states, xbc, readout)[:_outputs]
