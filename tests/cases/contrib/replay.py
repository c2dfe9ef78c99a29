"""Cases of ONNX Runtime's operators that repeat or verify steps of a recurrent state."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from tests.cases import Case, by_formula, f32, of
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"


def _conv_replay(source: Any, capture: Any, destination: Any, metadata: Any) -> Any:
    a, b, c, batch, channels, width, capacity, kept = metadata.tolist()
    size, out = source.itemsize, destination.copy()
    for n in range(batch):
        for channel in range(channels):
            for p in range(width):
                if p + kept < width:
                    value = source[a // size + (n * channels + channel) * width + p + kept]
                else:
                    value = capture[c // size + (n * capacity + p + kept - width) * channels + channel]
                out[b // size + (n * channels + channel) * width + p] = value
    return out


def _delta_replay(source: Any, capsule: Any, destination: Any, metadata: Any) -> Any:
    a, b, decay, key, delta, Hv, Dv, Dk, Hk, capacity, kept = metadata.tolist()
    wide, out = key - decay == capacity * Hv * Dk, destination.copy()
    for h, v, i in np.ndindex(Hv, Dv, Dk):
        s = source[a + (h * Dv + v) * Dk + i]
        for t in range(kept):
            s *= capsule[decay + ((t * Hv + h) * Dk + i if wide else t * Hv + h)]
            s += capsule[key + (t * Hk + h * Hk // Hv) * Dk + i] * capsule[delta + (t * Hv + h) * Dv + v]
        out[b + (h * Dv + v) * Dk + i] = s
    return out


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def _mamba(
    projection: Any, conv_state: Any, ssm_state: Any, weight: Any, bias: Any, dt_bias: Any, A: Any, D: Any, norm: Any,
    row: Any, *, heads: int, n_groups: int, head_dim: int, d_state: int, epsilon: float = 1e-5,
    time_step_min: float = 0.001,
) -> Any:  # fmt: skip
    R, inner, slots = len(projection), heads * head_dim, len(conv_state)
    x32 = projection.astype(np.float32)
    histories, states = conv_state.copy(), ssm_state.copy()
    Y, xbcs, readouts = [], [], []
    start = int(row[0]) if 0 <= row[0] < slots else 0
    history, S = conv_state[start], ssm_state[start]
    for t in range(R):
        window = np.concatenate([history, projection[t, inner:-heads, None]], 1)
        history = window[:, 1:]
        xbc = _silu((window.astype(np.float32) * weight.reshape(-1, 4)).sum(1) + bias.astype(np.float32))
        xbc = xbc.astype(bfloat16)
        x, B, C = np.split(xbc.astype(np.float32), [inner, inner + n_groups * d_state])
        dt = np.maximum(np.log1p(np.exp(x32[t, -heads:] + dt_bias)), time_step_min)
        out, new = [], []
        for h in range(heads):
            group = slice(h * n_groups // heads * d_state, (h * n_groups // heads + 1) * d_state)
            xh = x[h * head_dim : (h + 1) * head_dim]
            new.append(np.exp(A[h] * dt[h]) * S[h] + np.outer(B[group], dt[h] * xh))
            out.append(D[h] * xh + C[group] @ new[-1])
        S, readout = np.stack(new), np.concatenate(out)
        gated = (readout * _silu(x32[t, :inner])).reshape(n_groups, -1)
        gated = (gated / np.sqrt((gated**2).mean(1, keepdims=True) + epsilon)).reshape(-1) * norm
        Y.append(gated.astype(bfloat16))
        xbcs.append(xbc)
        readouts.append(readout)
        if t >= max(R - slots, 0):
            histories[t - max(R - slots, 0)], states[t - max(R - slots, 0)] = history, S
    found = [np.stack(Y), histories, states, np.stack(xbcs), np.stack(readouts).astype(np.float32)]
    if not 0 <= row[0] < slots:
        for i in (0, 3, 4):
            found[i] = np.full_like(found[i], np.nan)
        histories[: min(R, slots)], states[: min(R, slots)] = np.nan, np.nan
    return tuple(found)


def _verified(tokens: int, slots: int, row: int, **options: Any) -> Case:
    heads, groups, size, keys = 4, 2, 3, 5
    inner, channels = heads * size, heads * size + 2 * groups * keys

    def half(*shape: int) -> Any:
        return of(bfloat16, *shape, low=-1, high=1)

    inputs = [half(tokens, inner + channels + heads), half(slots, channels, 3), f32(slots, heads, keys, size),
              half(channels, 4), half(channels), f32(heads), of(np.float32, heads, low=-2, high=-0.1), f32(heads),
              f32(inner), np.array([row], np.int32)]  # fmt: skip
    call = ms("Mamba2Verify", *inputs, heads=heads, n_groups=groups, head_dim=size, d_state=keys, outputs=5,
              tolerance=1e-2, **options)  # fmt: skip
    return by_formula(call, _mamba, _WHY)


def _conv(dtype: Any, kept: int) -> Case:
    size = np.dtype(dtype).itemsize
    metadata = np.array([2 * size, size, 3 * size, 2, 3, 4, 6, kept])
    inputs = (of(dtype, 30), of(dtype, 40), of(dtype, 27))
    return by_formula(ms("ConvStateReplay", *inputs, metadata, note=f"{size} bytes, {kept}"), _conv_replay, _WHY)


def _delta(kept: int, each: int) -> Case:
    heads, rows, columns, key_heads, capacity = 4, 3, 5, 2, 6
    key = 1 + capacity * heads * each
    delta = key + capacity * key_heads * columns
    metadata = np.array([2, 4, 1, key, delta, heads, rows, columns, key_heads, capacity, kept])
    inputs = (f32(70), f32(delta + capacity * heads * rows), f32(65))
    call = ms("GatedDeltaNetStateReplay", *inputs, metadata, note=f"{kept}, {each}", tolerance=1e-4)
    return by_formula(call, _delta_replay, _WHY)


CASES = [
    *(_conv(dtype, kept) for dtype, kept in ((np.float32, 0), (np.float32, 3), (np.float16, 4), (np.float16, 6))),
    *(_delta(kept, each) for kept, each in ((1, 1), (6, 1), (4, 5))),
    _verified(3, 4, 1, note="fewer tokens than slots"),
    _verified(5, 2, 0, epsilon=0.1, time_step_min=0.5, note="more tokens than slots"),
    _verified(3, 3, 3, note="no such slot"),
]
