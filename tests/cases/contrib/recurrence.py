"""Cases of ONNX Runtime's linear attention and causal convolutions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.cases import Case, by_formula, f32, of
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; the recurrence of its documentation"
_WINDOW = "ONNX Runtime's CPU takes no state_window; the rule of its documentation"
_ENDS = np.array([0, 2, 7, 8], np.int32)


def _decays(*shape: int) -> Any:
    return of(np.float32, *shape, low=-1.0, high=-0.01)


def _rates(*shape: int) -> Any:
    return of(np.float32, *shape, low=0.1, high=0.9)


def _linear(q: int, kv: int, *others: Any, k: int | None = None, **options: Any) -> Case:
    inputs = [f32(2, 5, q * 4), f32(2, 5, (k or kv) * 4), f32(2, 5, kv * 3)]
    return ms("LinearAttention", *inputs, *others, q_num_heads=q, kv_num_heads=kv, outputs=2, tolerance=1e-4, **options)


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _convolved(full: np.ndarray, weight: np.ndarray, bias: Any, dilation: int, activation: str) -> np.ndarray:
    """full: `(positions, channels)`, as many positions before the first output as the kernel reaches back."""
    reach = (weight.shape[2] - 1) * dilation
    taps = [full[j * dilation : len(full) - reach + j * dilation] * weight[:, 0, j] for j in range(weight.shape[2])]
    y = np.sum(taps, 0) + (0 if bias is None else bias)
    return y if activation == "none" else _silu(y)


def _two_taps(
    x: Any, weight: Any, ends: Any, bias: Any, state: Any, count: Any, delta: Any, mask: Any, *, delta_offset: int,
    group_size: int,
) -> Any:  # fmt: skip
    Y, final = np.empty_like(x), state.copy()
    for i, (start, end) in enumerate(itertools.pairwise(ends)):
        before = state[i, :, 0]
        for t in range(start, end):
            d = delta[t].repeat(group_size, 1)
            past = before * (weight[:, 0, 0] + d[delta_offset + 1]) * mask[t]
            Y[t] = x[t] * (weight[:, 0, 1] + d[delta_offset]) + past
            before = x[t]
        final[i, :, 0] = before
    return Y, final


def _window_of_conv(x: Any, weight: Any, bias: Any, past: Any, *, state_window: int) -> Any:
    full = np.concatenate([past[-1], x], 2)
    kept = weight.shape[2] - 1
    y = np.stack([_convolved(item.T, weight, bias, 1, "none").T for item in full])
    states = np.zeros((state_window, *past.shape[1:]), np.float32)
    for slot in range(state_window):
        position = x.shape[2] - state_window + slot
        if position >= 0:
            states[slot] = full[:, :, position + 1 : position + 1 + kept]
    return y.astype(np.float32), states


def _tokens(q: Any, k: Any, v: Any, state: Any, decay: Any, beta: Any, rule: str, scale: float) -> Any:
    """q, k: `(L, heads, keys)`, v: `(L, heads, values)`, state: `(heads, keys, values)`."""
    outputs, states = [], []
    state = state.astype(np.float64)
    for t in range(len(q)):
        if rule.startswith("gated"):
            g = np.exp(decay[t].astype(np.float64))
            state = state * (g[:, None, None] if g.ndim == 1 else g[:, :, None])
        value = v[t]
        if rule.endswith("delta"):
            value = beta[t][:, None] * (value - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][:, :, None] * value[:, None]
        states.append(state)
        outputs.append(scale * np.einsum("hkv,hk->hv", state, q[t]))
    return np.stack(outputs), states


def _window_of_linear(query: Any, key: Any, value: Any, past: Any, decay: Any, beta: Any, *, q_num_heads: int, kv_num_heads: int, state_window: int) -> Any:  # fmt: skip
    outputs = []
    states = np.zeros((state_window, *past.shape[1:]), np.float32)
    for n in range(len(query)):
        rows = [x[n].reshape(x.shape[1], q_num_heads, -1) for x in (query, key, value)]
        Y, found = _tokens(*rows, past[-1][n], decay[n], beta[n], "gated_delta", query.shape[2] // q_num_heads)
        outputs.append(Y.reshape(len(Y), -1) / (query.shape[2] // q_num_heads) ** 1.5)
        for slot, state in zip(range(state_window - 1, -1, -1), reversed(found), strict=False):
            states[slot, n] = state
    return np.stack(outputs).astype(np.float32), states


def _net(*inputs: Any, **options: Any) -> Case:
    return ms("GatedDeltaNet", *inputs, outputs=2, tolerance=1e-4, **options)


_Q, _V = f32(8, 2, 4), f32(8, 4, 3)
_STATE = f32(3, 4, 3, 4)

CASES = [
    ms("LinearAttentionGate", f32(2, 3, 4), f32(4), f32(4)),
    ms("LinearAttentionGate", f32(2, 3, 4), f32(4), f32(4), f32(2, 3, 4), outputs=2),
    _linear(2, 2, update_rule="linear"),
    _linear(4, 2, f32(2, 2, 4, 3), _decays(2, 5, 2), update_rule="gated"),
    _linear(2, 2, None, _decays(2, 5, 8), update_rule="gated", scale=0.3),
    _linear(2, 2, None, None, _rates(2, 5, 2), update_rule="delta"),
    _linear(2, 2, f32(2, 2, 4, 3), _decays(2, 5, 2), _rates(2, 5, 1), note="gated delta"),
    _linear(2, 4, f32(2, 4, 4, 3), _decays(2, 5, 4), _rates(2, 5, 4), note="more values than queries"),
    _linear(2, 4, None, _decays(2, 5, 4), _rates(2, 5, 4), k=2, note="fewer keys"),
    *(
        by_formula(_linear(2, 2, f32(window, 2, 2, 4, 3), _decays(2, 5, 2), _rates(2, 5, 2), state_window=window),
                   _window_of_linear, _WINDOW)
        for window in (3, 7)
    ),
    ms("CausalConvWithState", f32(2, 3, 7), f32(3, 1, 4), f32(3), outputs=2, constant=(1, 2)),
    ms("CausalConvWithState", f32(2, 3, 7), f32(3, 1, 4), None, f32(2, 3, 3), activation="silu", outputs=2),
    ms("CausalConvWithState", f32(2, 3, 1), f32(3, 1, 4), f32(3), f32(2, 3, 3), activation="swish", outputs=2, note="token"),
    ms("CausalConvWithState", f32(2, 3, 7), f32(3, 1, 3), f32(3), f32(2, 3, 4), dilation=2, outputs=2),
    ms("CausalConvWithState", f32(2, 3, 7), f32(3, 1, 1), f32(3), outputs=2, note="kernel of one"),
    ms("CausalConvWithState", f32(2, 7, 3), f32(3, 1, 3), f32(3), f32(2, 2, 3), channels_last=1, outputs=2),
    ms("CausalConvWithState", f32(2, 7, 2, 3), f32(6, 1, 3), None, f32(2, 2, 2, 3), channels_last=1, outputs=2, note="axes"),
    *(
        by_formula(ms("CausalConvWithState", f32(2, 3, 5), f32(3, 1, 3), f32(3), f32(window, 2, 3, 2), outputs=2,
                      state_window=window), _window_of_conv, _WINDOW)
        for window in (2, 7)
    ),
    ms("VarlenCausalConvWithState", f32(8, 3), f32(3, 1, 3), _ENDS, f32(3), f32(3, 3, 2), outputs=2),
    ms("VarlenCausalConvWithState", f32(8, 3), f32(3, 1, 3), _ENDS, None, f32(3, 3, 4), np.array([5, 2, -1], np.int32),
       dilation=2, activation="silu", state_update_capacity=3, outputs=3),
    by_formula(ms("VarlenCausalConvWithState", *(of(np.float16, *shape, low=-2, high=2) for shape in ((8, 6), (6, 1, 2))), _ENDS,
                  None, of(np.float16, 3, 6, 1), None, of(np.float16, 8, 3, 3), of(np.float16, 8, 1), delta_offset=1,
                  group_size=2, outputs=2, tolerance=2e-3, note="kernels of tokens"), _two_taps, _WHY),
    _net(_Q, _Q, _V, _ENDS, _decays(8, 4), _rates(8, 4), _STATE, note="requests"),
    _net(f32(6, 2, 4), f32(6, 2, 4), f32(6, 4, 3), None, _decays(6, 4, 4), _rates(6, 4), _STATE, scale=0.3, note="uniform"),
    _net(_Q, _Q, _V, _ENDS, None, None, None, update_rule="linear"),
    _net(_Q, _Q, _V, _ENDS, _decays(8, 4), None, _STATE, update_rule="gated"),
    _net(_Q, _Q, _V, _ENDS, None, f32(8, 4), _STATE, update_rule="delta", beta_activation="sigmoid", qk_l2_norm=1),
    _net(f32(3, 5, 2, 4), f32(3, 5, 2, 4), f32(3, 5, 4, 3), None, f32(3, 5, 4), _rates(3, 5, 4), _STATE, f32(4), f32(4),
         gate_activation="qwen", note="batch"),
    _net(f32(3, 5, 2, 4), f32(3, 5, 2, 4), f32(3, 5, 4, 3), None, f32(3, 5, 4), _rates(3, 5, 4), _STATE, f32(4), f32(4),
         gate_activation="sigmoid", gate_lower_bound=-2.0, qk_l2_norm=1),
    _net(f32(8, 28), None, None, _ENDS, _decays(8, 4), _rates(8, 4), _STATE, note="packed"),
]  # fmt: skip
