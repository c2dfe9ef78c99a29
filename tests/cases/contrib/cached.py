"""Cases of ONNX Runtime's attention over caches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnxruntime

from tests import onnxnode
from tests.cases import Case, by_formula, f32, of
from tests.cases.contrib.fused import ms

_WHY = "ONNX Runtime has no CPU kernel; the formula of its documentation"
_MASK = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]], np.int32)
_ROWS = np.array([[0, 1, 3, 5, 8], [0, 1, 3, 6, 9]], np.int32)
_COLUMNS = np.array([[0, 0, 1, 1, 2, 1, 2, 3, -1], [0, 0, 1, 0, 1, 2, 0, 2, 3]], np.int32)
"""The layouts in the documentation."""


def _int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def _token(*inputs: Any, **options: Any) -> Case:
    return ms("DecoderMaskedMultiHeadAttention", *inputs, num_heads=2, tolerance=1e-4, **options)


def _cached(*others: Any, **options: Any) -> Case:
    rows = [f32(2, 1, 8), f32(2, 1, 8), f32(2, 1, 8)]
    return _token(*rows, *others, past_present_share_buffer=1, constant=(7,), **{"outputs": 3, **options})


def _softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def _self(
    x: Any, weights: Any, bias: Any, mask: Any, past: Any, added: Any, length: Any, *, num_heads: int, scale: Any = None
) -> Any:
    q, k, v = (
        part.reshape(len(x), 1, num_heads, -1).transpose(0, 2, 1, 3) for part in np.split(x @ weights + bias, 3, 2)
    )
    present = np.stack([np.concatenate([past[i], new], 2) for i, new in enumerate((k, v))])
    scores = q @ present[0].transpose(0, 1, 3, 2) * (scale or q.shape[3] ** -0.5)
    scores = scores + (0 if mask is None else (1 - mask)[:, None, None] * -10000.0) + (0 if added is None else added)
    return (_softmax(scores) @ present[1]).transpose(0, 2, 1, 3).reshape(len(x), 1, -1).astype(np.float32), present


def _run_in_place(*arrays: Any, **attributes: Any) -> Any:
    """Returns what ONNX Runtime computes where a past and its present are one buffer, which its kernel demands."""
    call = ms("SparseAttention", *arrays, outputs=3, **attributes)
    model, feeds = onnxnode.model_of(call, 1)
    binding = (session := onnxruntime.InferenceSession(model.SerializeToString())).io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("out0")
    binding.bind_ortvalue_output("out1", values["in3"])
    binding.bind_ortvalue_output("out2", values["in4"])
    session.run_with_iobinding(binding)
    return tuple(binding.copy_outputs_to_cpu())


def _run_each(*arrays: Any, **attributes: Any) -> Any:
    """Runs each sequence alone: of a batch of unequal lengths ONNX Runtime's CPU reads the weights at wrong places."""
    found = []
    for n, end in enumerate(arrays[8]):
        own = [x[n : n + 1] if i in (0, 1, 2, 3, 4, 8) and x is not None else x for i, x in enumerate(arrays)]
        own[7] = np.array([end], np.int32)
        found.append(_run_in_place(*own, **attributes))
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def _sparse(
    length: int, total: int, ends: tuple[int, ...], *, packed: bool = False, rotary: bool = False, **options: Any
) -> Case:
    heads = {"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16}
    rows = [f32(2, length, 128), None, None] if packed else [f32(2, length, 64), f32(2, length, 32), f32(2, length, 32)]
    inputs = [*rows, f32(2, 2, 64, 16), f32(2, 2, 64, 16), _ROWS, _COLUMNS, _int32(total), _int32(*ends)]
    inputs += [f32(64, 8), f32(64, 8)] if rotary else []
    call = ms("SparseAttention", *inputs, outputs=3, tolerance=1e-4, do_rotary=int(rotary), **heads, **options)
    return by_formula(call, _run_each, "ONNX Runtime runs it with past and present in one buffer, which is done here")


def _rotated(x: np.ndarray, cos: Any, sin: Any, positions: Any) -> np.ndarray:
    a, b = np.split(x.astype(np.float32), 2, -1)
    c, s = cos[positions][:, None].astype(np.float32), sin[positions][:, None].astype(np.float32)
    return np.concatenate([a * c - b * s, b * c + a * s], -1).astype(x.dtype)


def _paged(
    query: Any, key: Any, value: Any, keys: Any, values: Any, ends: Any, pasts: Any, table: Any, cos: Any = None, sin: Any = None,
    slot_mapping: Any = None, sink: Any = None, q_norm: Any = None, k_norm: Any = None, *, num_heads: int, kv_num_heads: int,
    do_rotary: int = 0, is_causal: int = 1, local_window_size: int = -1, scale: Any = None, softcap: float = 0.0,
) -> Any:  # fmt: skip
    block, size = keys.shape[1], keys.shape[3]
    if key is None:
        query, key, value = np.split(query, [num_heads * size, (num_heads + kv_num_heads) * size], 1)
    q, k, v = (x.reshape(len(x), -1, size) for x in (query, key, value))
    if q_norm is not None:
        q, k = (
            (x.astype(np.float32) / np.sqrt((x.astype(np.float32) ** 2).mean(-1, keepdims=True) + 1e-6) * w).astype(
                x.dtype
            )
            for x, w in ((q, q_norm), (k, k_norm))
        )
    keys, values, out = keys.copy(), values.copy(), []
    for i, (a, b) in enumerate(itertools.pairwise(ends)):
        positions = np.arange(pasts[i], pasts[i] + b - a)
        Q, K = q[a:b], k[a:b]
        if do_rotary:
            Q, K = _rotated(Q, cos, sin, positions), _rotated(K, cos, sin, positions)
        for t, position in enumerate(positions):
            slot = (
                table[i, position // block] * block + position % block if slot_mapping is None else slot_mapping[a + t]
            )
            if slot >= 0:
                keys[slot // block, slot % block], values[slot // block, slot % block] = K[t], v[a + t]
        for t, position in enumerate(positions):
            seen = [p for p in range(positions[-1] + 1) if not is_causal or p <= position]
            seen = [p for p in seen if local_window_size < 0 or p >= position - local_window_size]
            at = [(table[i, p // block], p % block) for p in seen]
            for head in range(num_heads):
                group = head // (num_heads // kv_num_heads)
                scores = np.array([keys[x, y, group].astype(np.float32) @ Q[t, head].astype(np.float32) for x, y in at])
                scores = scores * (scale or size**-0.5)
                scores = np.tanh(scores / softcap) * softcap if softcap else scores
                if sink is None:
                    weights = _softmax(scores)
                else:
                    weights = _softmax(np.concatenate([[sink[head]], scores]).astype(np.float32))[1:]
                out.append(weights @ np.stack([values[x, y, group] for x, y in at]).astype(np.float32))
    return np.concatenate(out).reshape(len(q), -1).astype(query.dtype), keys, values


def _half(*shape: int) -> Any:
    return of(np.float16, *shape, low=-2, high=2)


def _pages(*others: Any, packed: bool = False, **options: Any) -> Case:
    rows = [_half(6, 32), None, None] if packed else [_half(6, 16), _half(6, 8), _half(6, 8)]
    caches = [_half(7, 4, 2, 4), _half(7, 4, 2, 4)]
    inputs = [
        *rows,
        *caches,
        _int32(0, 1, 4, 6),
        _int32(5, 0, 3),
        np.array([[2, 0], [4, 5], [6, 1]], np.int32),
        *others,
    ]
    call = ms("PagedAttention", *inputs, num_heads=4, kv_num_heads=2, outputs=3, tolerance=2e-3, **options)
    return by_formula(call, _paged, _WHY)


CASES = [
    _token(f32(2, 1, 8), f32(2, 2, 5, 4), f32(2, 2, 5, 4), note="cross"),
    _token(f32(2, 1, 8), f32(2, 2, 5, 4), f32(2, 2, 5, 4), _MASK, note="cross, mask"),
    _cached(None, None, f32(2, 2, 9, 4), f32(2, 2, 9, 4), _int32(4), note="buffer"),
    _cached(_MASK, f32(2, 2, 1, 5), f32(2, 2, 9, 4), f32(2, 2, 9, 4), _int32(4), note="buffer, mask, bias of scores", scale=0.3),
    _cached(None, None, f32(2, 2, 9, 4), f32(2, 2, 9, 4), _int32(4), None, None, f32(24), note="buffer, bias"),
    by_formula(ms("DecoderMaskedSelfAttention", f32(2, 1, 6), f32(6, 24), f32(24), None, f32(2, 2, 2, 4, 4), None, _int32(4),
                  num_heads=2, outputs=2, tolerance=1e-4), _self, _WHY),
    by_formula(ms("DecoderMaskedSelfAttention", f32(2, 1, 6), f32(6, 24), f32(24), _MASK, f32(2, 2, 2, 4, 4), f32(1, 2, 1, 5),
                  _int32(4), num_heads=2, scale=0.3, outputs=2, tolerance=1e-4), _self, _WHY),
    _sparse(40, 40, (40, 40), note="prompt"),
    _sparse(1, 41, (41, 30), note="token"),
    _sparse(3, 50, (50, 20), scale=0.3, note="tokens"),
    _sparse(40, 40, (40, 40), rotary=True, note="rotary"),
    _sparse(1, 41, (41, 30), packed=True, rotary=True, rotary_interleaved=1, note="packed"),
    _pages(note="plain"),
    _pages(packed=True, note="packed", scale=0.3, is_causal=0),
    _pages(_half(16, 2), _half(16, 2), note="rotary", do_rotary=1, local_window_size=2),
    _pages(None, None, _int32(5, 16, 17, -1, 27, 4), _half(4), note="slots", softcap=2.0),
    _pages(None, None, None, None, _half(4), _half(4), note="norms"),
]  # fmt: skip
