"""Cases of `onnx2nn.ops.contrib.attention`, `group_attention` and `standard`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from tests import onnxnode
from tests.cases import Case, by_formula, f32, i64, of
from tests.cases.contrib.fused import ms

_Q, _K, _V = f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8)
_LENGTHS = np.array([5, 2], np.int32)
_MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32)
_ANGLES = f32(7, 2)
_BOXES = np.array(
    [[0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9], [-0.2, 0.1, 1.3, 0.7], [0.9, 0.8, 0.1, 0.2], [0.5, 0.5, 0.5, 0.5]], np.float32
)
"""Regions: the whole image, a part, one beyond the boundary, a mirrored one, a point."""
_TURNS = f32(12, 8)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False) -> np.ndarray:
    """Returns attention of `(N, L, heads, size)`, heads concatenated: the expected result of the packed forms."""
    scores = np.einsum("nqhs,nkhs->nhqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return np.einsum("nhqk,nkhs->nqhs", weights, v).reshape(*q.shape[:2], -1).astype(np.float32)


_BEAMS = np.random.default_rng(2).integers(0, 2, (2, 2, 9)).astype(np.int32)
_TOKENS = np.random.default_rng(3).standard_normal((2, 2, 6)).astype(np.float32)
_WEIGHTS = np.random.default_rng(4).standard_normal((6, 24)).astype(np.float32)
_ROOM = np.random.default_rng(5).standard_normal((2, 2, 2, 8, 4)).astype(np.float32)
_PACKED = np.random.default_rng(0).standard_normal((2, 5, 2, 3, 4)).astype(np.float32)
_PACKED_WHY = "ONNX Runtime has no CPU kernel; what the unpacked form gives, computed with numpy"


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def _group(
    batch: int,
    new: int,
    past: int,
    lengths: tuple[int, ...],
    *extra: Any,
    size: int = 8,
    packed: bool = False,
    quantised: int = 0,
    **options: Any,
) -> Case:
    """4 heads of queries, 2 of keys and values; `lengths`: of the sequences; `extra`: the inputs from cos_cache on.

    A cache may be `quantised` to so many bits.
    """
    widths = [4 * size, 2 * size, 2 * size]
    tokens = [f32(batch, new, sum(widths)), None, None] if packed else [f32(batch, new, width) for width in widths]
    cache: list[Any] = [f32(batch, 2, past, size)] * 2 if past else [None, None]
    if quantised:
        cache = [
            of(
                *((np.int8, batch, 2, past, size), (np.uint8, batch, 2, past, size // 2))[quantised == 4],
                low=0,
                high=127,
            )
        ] * 2
    total = np.array(max(lengths), np.int32)
    counts = [np.array(lengths, np.int32) - 1, total]
    options = {"constant": (6,), "outputs": 3, **options}
    return ms("GroupQueryAttention", *tokens, *cache, *counts, *extra, num_heads=4, kv_num_heads=2, **options)


def _chunk(lengths: tuple[int, ...], valid: tuple[int, ...], **options: Any) -> Case:
    """A chunk of four tokens of each sequence, of which some are padding."""
    rotary = [f32(16, 8), f32(16, 8)] if options.get("do_rotary") else [None, None]
    options = {"size": 16, "tolerance": 1e-4, **options}
    call = _group(len(valid), 4, 16, lengths, *rotary, *[None] * 7, i32(*valid), **options)
    return by_formula(
        call, _without_padding, "ONNX Runtime says nothing of padding; here each sequence runs without it"
    )


def _without_padding(query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
    *caches, counts, _, cos, sin = others[:6]
    Y, presents = np.zeros_like(query), [np.zeros_like(cache) for cache in caches]
    for n, valid in enumerate(others[-1]):
        end = counts[n] + 1
        tokens, own = slice(n, n + 1), [cache[n : n + 1] for cache in caches]
        if valid:
            rows = [x[tokens, :valid] for x in (query, key, value)]
            call = ms(
                "GroupQueryAttention",
                *rows,
                *own,
                counts[tokens],
                np.array(end, np.int32),
                cos,
                sin,
                outputs=3,
                **options,
            )
            model, feeds = onnxnode.model_of(call, 1)
            Y[tokens, :valid], *own = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
        for present, cache in zip(presents, own, strict=True):
            present[tokens, :, :end] = cache[:, :, :end]
    return Y, *presents


def _scales(kind: str, bits: int, size: int = 8) -> list[Any]:
    """Scales of a quantised cache, at which some numbers saturate."""
    count = (1,) if kind == "PER_TENSOR" else (1, 2, 1, size)
    width = 2.0 ** (2 - bits)
    return [of(np.float32, *count, low=width, high=1.5 * width)] * 2


def _with_room() -> list[np.ndarray]:
    """Returns causal attention of 2 rows behind a past of 4 in a buffer of 8 rows, and the buffer with the new rows."""
    heads = (_TOKENS @ _WEIGHTS).reshape(2, 2, 3, 2, 4).transpose(2, 0, 3, 1, 4)  # (3, N, heads, L, size)
    present = _ROOM.copy()
    present[:, :, :, 4:6] = heads[1:]
    keys, values = present[:, :, :, :6]
    scores = heads[0] @ keys.swapaxes(2, 3) / 2
    scores[:, :, 0, 5] = -np.inf
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return [(weights @ values).transpose(0, 2, 1, 3).reshape(2, 2, 8).astype(np.float32), present]


def _normed() -> Case:
    """Queries and keys that are normalised per head."""
    rng = np.random.default_rng(1)
    query, key, value = (rng.standard_normal((1, 3, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
    weights = [rng.uniform(0.5, 2, 8).astype(np.float32) for _ in range(2)]
    normed = [
        x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-3) * weight
        for x, weight in zip((query, key), weights, strict=True)
    ]
    answer = _attention(normed[0], normed[1].repeat(2, 2), value.repeat(2, 2), causal=True)
    presents = [x.transpose(0, 2, 1, 3) for x in (normed[1], value)]
    tokens = [x.reshape(1, 3, -1) for x in (query, key, value)]
    inputs = (*tokens, None, None, i32(2), np.array(3, np.int32), *[None] * 7, *weights)
    return ms(
        "GroupQueryAttention", *inputs, num_heads=4, kv_num_heads=2, qk_norm_epsilon=1e-3, constant=(6,), outputs=3,
        expected=[answer, *presents], note="norms", why="ONNX Runtime's CPU has no norms; its schema's text with numpy",
    )  # fmt: skip


def _distances(both: int) -> Case:
    """T5's bias of 8 buckets up to distance 16: one head has the bucket's number, the other the number plus 100."""
    edges = [0, 1, 2, 6] if both else [0, 1, 2, 3, 4, 6, 8, 12]  # where buckets begin: from half of them on, by powers

    def bucket(behind: int) -> int:
        distance = abs(behind) if both else max(behind, 0)
        return sum(edge <= distance for edge in edges) - 1 + (4 if both and behind < 0 else 0)

    found = np.array([[bucket(query - key) for key in range(20)] for query in range(20)], np.float32)
    table = np.stack([np.arange(8, dtype=np.float32), np.arange(100, 108, dtype=np.float32)])
    return ms(
        "RelativePositionBias", table.reshape(8, 2), np.array(20), np.array(20), is_bidirectional=both, max_distance=16,
        constant=(1, 2), expected=[np.stack([found, found + 100])[None]], note=f"bidirectional={both}",
        why="ONNX Runtime has no CPU kernel; T5's own buckets, by hand",
    )  # fmt: skip


CASES = [
    *map(_distances, (0, 1)),
    ms("MultiHeadAttention", _Q, _K, _V, num_heads=2),
    ms("MultiHeadAttention", _Q, _K, _V, num_heads=2, scale=0.3, note="scale"),
    ms("MultiHeadAttention", _Q, _K, _V, f32(24), _MASK, num_heads=2, note="bias, mask"),
    ms("MultiHeadAttention", _Q, _K, _V, None, _LENGTHS, num_heads=2, note="lengths"),
    ms("MultiHeadAttention", _Q, _K, _V, None, None, f32(1, 4, 3, 5), num_heads=4, note="attention bias"),
    ms("MultiHeadAttention", _Q, f32(2, 2, 5, 4), f32(2, 2, 5, 4), num_heads=2, note="heads apart"),
    ms("MultiHeadAttention", _Q, _Q, _Q, num_heads=2, unidirectional=1),
    ms(
        "MultiHeadAttention", _Q, _Q, _Q, None, None, None, f32(2, 2, 4, 4), f32(2, 2, 4, 4),
        num_heads=2, outputs=3, unidirectional=1, note="past",
    ),
    *(
        ms("MultiHeadAttention", *inputs, num_heads=2, outputs=4, types={3: np.float32}, note=f"scores, {note}", **options)
        for note, inputs, options in (
            ("plain", (_Q, _K, _V), {}),
            ("scale, bias", (_Q, _K, _V, f32(24), None, f32(1, 2, 3, 5)), {"scale": 0.3}),
            ("small mask", (_Q, _K, _V, None, _MASK), {"mask_filter_value": -2.0}),
            ("mask", (_Q, _K, _V, None, _MASK, f32(2, 1, 3, 5)), {}),
            ("causal", (_Q, _Q, _Q), {"unidirectional": 1}),
            ("past", (_Q, _Q, _Q, None, None, None, f32(2, 2, 4, 4), f32(2, 2, 4, 4)), {"unidirectional": 1}),
            ("no presents", (_Q, _K, _V), {"absent": (1, 2)}),
        )
    ),
    ms("MultiHeadAttention", _Q, _K, _V, num_heads=2, unidirectional=1, note="causal, more keys than queries"),
    ms("MultiHeadAttention", _K, _Q, _Q, num_heads=2, unidirectional=1, note="causal, more queries than keys"),
    ms("MultiHeadAttention", _Q, _K, _V, None, i32(5, 2, 0, 3, 6, 0, 5, 10), num_heads=2, note="lengths and sums"),
    *(
        ms("MultiHeadAttention", tokens, tokens, tokens, None, None, None, *[f32(4, 2, 9, 4)] * 2, i32(5), *beams,
           num_heads=2, note=note, **{"outputs": 3, "constant": (8,), **options})
        for tokens, beams, note, options in (
            (f32(4, 1, 8), (), "token, cache with room", {}),
            (f32(4, 3, 8), (), "tokens, cache with room", {"unidirectional": 1}),
            (f32(4, 1, 8), (_BEAMS,), "token of beams", {}),
            (f32(4, 3, 8), (_BEAMS,), "tokens of beams", {}),
            (f32(4, 1, 8), (_BEAMS,), "token of beams, scores", {"outputs": 4, "types": {3: np.float32}}),
            (f32(4, 1, 8), (_BEAMS,), "token of beams, run time", {"constant": ()}),
        )
    ),
    ms("MultiHeadAttention", *[f32(4, 1, 8)] * 3, None, None, None, *[f32(4, 2, 9, 4)] * 2, None, _BEAMS,
       num_heads=2, outputs=3, note="beams of a cache without room"),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), num_heads=2, constant=(1, 2)),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), i32(5, 2, 0, 5, 10, 0, 5, 7), num_heads=2, constant=(1, 2), note="lengths and sums"),
    ms("Attention", f32(2, 3, 6), f32(6, 24), f32(24), None, f32(2, 2, 2, 4, 4), None, i32(1), num_heads=2, outputs=2, note="idle length"),
    ms("Attention", _TOKENS, _WEIGHTS, None, None, _ROOM, None, i32(4), num_heads=2, outputs=2, unidirectional=1,
       past_present_share_buffer=1, constant=(1, 6), note="cache with room", expected=_with_room(),
       why="ONNX Runtime's CPU refuses it; MultiHeadAttention's meaning of it, computed with numpy"),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), _MASK, num_heads=2, constant=(1, 2), note="mask"),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), _LENGTHS, num_heads=2, constant=(1, 2), note="lengths"),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), num_heads=2, unidirectional=1, constant=(1, 2)),
    ms("Attention", f32(2, 5, 6), f32(6, 20), f32(20), qkv_hidden_sizes=[8, 8, 4], num_heads=2, constant=(1, 2)),
    ms(
        "Attention", f32(2, 3, 6), f32(6, 24), f32(24), None, f32(2, 2, 2, 4, 4),
        num_heads=2, unidirectional=1, outputs=2, constant=(1, 2), note="past",
    ),
    ms("Attention", f32(2, 5, 6), f32(6, 24), f32(24), i32(5, 4, 0, 2), num_heads=2, constant=(1, 2), note="ends, starts"),
    ms("MultiHeadAttention", _PACKED, num_heads=2, note="packed", why=_PACKED_WHY,
       expected=[_attention(*np.moveaxis(_PACKED, 3, 0))]),
    ms("MultiHeadAttention", _PACKED[:, :3, :, 0].reshape(2, 3, 8), np.ascontiguousarray(_PACKED[:, :, :, 1:]),
       num_heads=2, note="packed keys", why=_PACKED_WHY,
       expected=[_attention(_PACKED[:, :3, :, 0], _PACKED[:, :, :, 1], _PACKED[:, :, :, 2])]),
    _group(2, 5, 0, (5, 5), note="prompt"),
    _group(2, 5, 0, (5, 5), packed=True, outputs=1, note="packed"),
    _group(2, 5, 0, (5, 5), constant=(), note="run time"),
    _group(2, 1, 6, (7, 7), note="token"),
    _group(2, 1, 6, (7, 4), note="token, lengths"),
    _group(2, 1, 9, (7, 4), constant=(5, 6), note="token, shared cache"),
    _group(1, 3, 6, (9,), constant=(), note="tokens, run time"),
    _group(1, 3, 12, (9,), note="tokens, shared cache"),
    _group(1, 5, 0, (5,), local_window_size=2),
    _group(1, 1, 6, (7,), local_window_size=3),
    _group(2, 5, 0, (5, 5), None, None, None, f32(1, 4, 5, 5), softcap=1.5, note="softcap, bias"),
    _group(2, 1, 6, (7, 4), None, None, None, f32(2, 1, 1, 7), note="token, bias"),
    _group(2, 5, 0, (5, 5), None, None, None, None, f32(4), scale=0.3, note="sink"),
    _group(2, 5, 0, (5, 5), smooth_softmax=1),
    _group(2, 1, 6, (7, 4), causal=0),
    _group(2, 5, 0, (5, 5), _TURNS, _TURNS, do_rotary=1, constant=(6, 7, 8), size=16),
    _group(2, 1, 6, (7, 4), _TURNS, _TURNS, do_rotary=1, constant=(6, 7, 8), rotary_interleaved=1, packed=True, size=16),
    _group(2, 1, 6, (7, 4), _TURNS, _TURNS, np.array([[5], [2]]), do_rotary=1, constant=(6, 7, 8), size=16, note="positions"),
    _group(1, 5, 0, (5,), _TURNS, _TURNS, np.array([[2, 0, 0, 0, 0]]), do_rotary=1, constant=(6, 7, 8), size=16, note="prompt, positions"),
    _group(1, 5, 0, (5,), _TURNS, _TURNS, do_rotary=1, constant=(6, 7, 8), size=32, note="half turned"),
    *(
        _group(*sizes, *extra, outputs=4, qk_output=asked, note=f"{('scores', 'weights')[asked - 1]}, {note}", **options)
        for note, sizes, extra, asked, options in (
            ("prompt", (2, 5, 0, (5, 5)), (), 1, {"local_window_size": 2, "softcap": 1.5}),
            ("prompt", (2, 5, 0, (5, 5)), (), 2, {"local_window_size": 2, "softcap": 1.5}),
            ("token", (2, 1, 9, (7, 7)), (), 2, {"scale": 0.3}),
            ("sink, bias", (1, 3, 6, (9,)), (None, None, None, f32(1, 4, 3, 9), f32(4)), 1, {}),
            ("sink, bias", (1, 3, 6, (9,)), (None, None, None, f32(1, 4, 3, 9), f32(4)), 2, {}),
            ("smooth", (1, 3, 6, (9,)), (), 1, {"smooth_softmax": 1, "causal": 0}),
        )
    ),
    *(
        _group(*sizes, *extra, *[None] * (5 - len(extra)), *_scales(kind, bits, options.get("size", 8)), quantised=bits,
               k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits, note=f"{kind} of {bits} bits, {note}",
               **{"constant": (6, 12, 13), **options})
        for kind, bits, note, sizes, extra, options in (
            ("PER_TENSOR", 8, "prompt", (2, 5, 0, (5, 3)), (), {}),
            ("PER_TENSOR", 4, "token", (2, 1, 6, (7, 4)), (), {}),
            ("PER_TENSOR", 8, "weights", (1, 3, 6, (9,)), (), {"outputs": 4, "qk_output": 2}),
            ("PER_CHANNEL", 8, "token", (2, 1, 6, (7, 4)), (), {"constant": ()}),
            ("PER_CHANNEL", 4, "prompt", (2, 5, 0, (5, 3)), (), {}),
            ("PER_CHANNEL", 4, "turned", (1, 3, 6, (9,)), (_TURNS, _TURNS),
             {"do_rotary": 1, "constant": (6, 7, 8, 12, 13), "size": 16}),
            ("PER_CHANNEL", 8, "shared cache", (2, 1, 9, (7, 4)), (None, None, None, f32(1, 4, 1, 7), f32(4)),
             {"local_window_size": 3}),
            *(
                ("PER_CHANNEL", bits, "windowed", (1, 3, 6, (9,)), (),
                 {"local_window_size": 4, "sliding_window_cache": 1, "size": 32})
                for bits in (8, 4)
            ),
        )
    ),
    *(
        _group(*sizes, *extra, local_window_size=4, sliding_window_cache=1, note=f"windowed cache, {note}", **options)
        for note, sizes, extra, options in (
            ("no slack", (2, 1, 4, (9, 6)), (), {}),
            ("bias, sink", (2, 1, 6, (9, 12)), (None, None, None, f32(1, 4, 1, 12), f32(4)), {"constant": ()}),
            ("turned", (2, 1, 6, (9, 12)), (_TURNS, _TURNS), {"do_rotary": 1, "constant": (6, 7, 8), "size": 16}),
            ("long prompt", (1, 9, 6, (9,)), (), {}),
            ("more tokens than rows", (1, 7, 6, (12,)), (), {}),
            ("fresh", (2, 1, 6, (6, 6)), (), {}),
        )
    ),
    _normed(),
    ms("RotaryEmbedding", f32(2, 3, 8), np.array([[0, 1, 2], [4, 5, 6]]), _ANGLES, _ANGLES, constant=(2, 3)),
    ms("RotaryEmbedding", f32(2, 3, 8), i64(2), _ANGLES, _ANGLES, scale=2.0, constant=(2, 3)),
    ms("RotaryEmbedding", f32(1, 9, 8), np.array([[0, 1, 2, 3, 0, 1, 0, 1, 2]]), _ANGLES, _ANGLES, is_packed_batching=1, constant=(2, 3)),
    ms("RotaryEmbedding", f32(2, 3, 8), i64(2), _ANGLES, _ANGLES, interleaved=1, constant=(2, 3)),
    ms("RotaryEmbedding", f32(3, 6, 5, 4), i64(1), _ANGLES, _ANGLES, constant=(2, 3)),
    ms("Pad", f32(2, 3), i64(1, 0, 2, 1), np.array([0.5], np.float32), constant=(1, 2)),
    ms("Pad", f32(4, 5), i64(1, 0, 2, 1), mode="reflect", constant=(1,)),
    ms("Range", np.int64(2), np.int64(9), np.int64(3), constant=(2,)),
    ms("Range", np.float32(1), np.float32(4)),
    ms("Unique", np.array([2, 1, 1, 3, 4, 3], np.float32), outputs=3),
    ms("Trilu", f32(3, 4), np.array(1), constant=(1,)),
    ms("Trilu", f32(2, 3, 4), upper=0),
    ms("GridSample", f32(1, 2, 4, 5), lambda rng: rng.uniform(-1.2, 1.2, (1, 3, 3, 2)).astype(np.float32)),
    *(
        ms("CropAndResize", f32(2, 3, 5, 6), _BOXES, i32(0, 1, 1, 0, 1), i32(*size), mode=mode, extrapolation_value=2.5,
           constant=(3,), note=f"{mode} {size}")
        for mode in ("bilinear", "nearest") for size in ((4, 5), (1, 3), (9, 1))
    ),
    ms("CropAndResize", f32(2, 3, 5, 6), _BOXES, i32(0, 1, 1, 0, 1), i32(3, 2), note="run time"),
    *(ms("CropAndResize", f32(1, 2, *image), np.float32([box]), i32(0), i32(*size), mode="nearest", constant=(3,),
         note=f"samples a last bit beside a half, {image}")
      for image, size, box in (
          ((6, 10), (5, 5), [-0.1, 5 / 18, 0, 1 / 18]),
          ((4, 11), (7, 5), [-1 / 6, 0.3, 7 / 6, 0.4]),
          ((10, 4), (1, 4), [5 / 6, 0.5, -1 / 18, 0]),
          ((2, 7), (7, 1), [1.5, 0.25, 1, -1 / 12]),
      )),
    ms("Inverse", f32(2, 3, 3), tolerance=1e-4),
    _chunk((7, 6), (4, 2), note="padded chunk"),
    _chunk((3, 9), (3, 1), do_rotary=1, note="padded chunk, rotary"),
    _chunk((3, 9), (2, 0), local_window_size=3, note="padded chunk, local_window_size, idle"),
]  # fmt: skip
