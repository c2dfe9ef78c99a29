"""Calls of ONNX Runtime's own operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.drawn.draw import CALLS, CONTRIB, F32, Call, Draw, call, i64, window


def ms(op: str, inputs: list[Any], attributes: dict[str, Any] | None = None, **options: Any) -> Call:
    """Returns a call of an operator of ONNX Runtime's."""
    return Call(op, 1, inputs, attributes or {}, domain=CONTRIB, **{"open_": frozenset({0}), **options})


def standard(d: Draw, name: str) -> Call:
    """Returns a call of an operator of the standard, as one of ONNX Runtime's operators."""
    drawn = CALLS["", name](d)
    drawn.domain, drawn.opset = CONTRIB, 1
    return drawn


def _open(mask: np.ndarray | None) -> dict[str, Any]:
    """Returns options: the dimensions are numbers where the number of lengths in a mask says what they are."""
    return {"rtol": 1e-3, "open_": frozenset() if mask is not None and mask.ndim == 1 else frozenset({0})}


def _mask(d: Draw, b: int, s: int, total: int) -> np.ndarray | None:
    """Returns a mask of keys, lengths, or a mask of queries and keys; None in two of five times."""
    kind = d.r.randrange(5)
    if kind == 2:
        return d.np.integers(1, total + 1, (b,)).astype(np.int32)
    if kind not in (1, 3):
        return None
    mask = d.np.integers(0, 2, (b, total) if kind == 1 else (b, s, total)).astype(np.int32)
    mask[..., 0] = 1
    return mask


@call("MultiHeadAttention", domain=CONTRIB)
def _multi_head_attention(d: Draw) -> Call:
    b, s, t, n, h, v = d.int(1, 2), d.int(1, 4), d.int(1, 5), d.one((1, 2)), d.one((2, 4)), d.one((2, 4))
    a = {"num_heads": n}
    if d.flag(3):
        a["scale"] = 0.4
    if d.flag(4):
        a["mask_filter_value"] = -5000.0
    kind = d.r.randrange(4)
    q, k, vv = d.array([b, s, n * h]), d.array([b, t, n * h]), d.array([b, t, n * v])
    bias = d.array([n * (2 * h + v)]) if d.flag() else None
    if kind == 2:  # cross: k, v 4-D
        k, vv = d.array([b, n, t, h]), d.array([b, n, t, v])
        bias = None
    past = None
    T = t
    if kind == 3:
        p = d.int(0, 3)
        past = (d.array([b, n, p, h]), d.array([b, n, p, v]))
        T = p + t
    m = _mask(d, b, s, T)
    ab = d.array([d.one((1, b)), d.one((1, n)), s, T]) if d.flag(3) else None
    if d.flag(4):
        a["unidirectional"] = 1
    outs = 3 if past is not None or d.flag(4) else 1
    return ms("MultiHeadAttention", [q, k, vv, bias, m, ab, *(past or (None, None))], a, outputs=outs, **_open(m))


@call("Attention", domain=CONTRIB)
def _attention(d: Draw) -> Call:
    b, s, n, h = d.int(1, 2), d.int(1, 4), d.one((1, 2)), d.one((2, 4))
    H = n * h
    W = d.int(2, 5)
    a = {"num_heads": n}
    if d.flag():
        a["unidirectional"] = 1
    if d.flag(3):
        a["scale"] = 0.4
    if d.flag(4):
        a["mask_filter_value"] = -500.0
    if d.flag(6):
        a["do_rotary"] = 1
    v = H
    if d.flag(4):
        v = n * d.one((2, 4))
        a["qkv_hidden_sizes"] = [H, H, v]
    p = None
    T = s
    if d.flag(3) and v == H:
        k = d.int(0, 3)
        p = d.array([2, b, n, k, h])
        T = s + k
    m = _mask(d, b, s, T)
    if m is None and d.flag(3):
        end = d.np.integers(1, T + 1, (b,))
        start = np.minimum(d.np.integers(0, T, (b,)), end - 1)
        m = np.concatenate([end, start]).astype(np.int32)
    ab = d.array([d.one((1, b)), d.one((1, n)), s, T]) if d.flag(4) else None
    return ms(
        "Attention",
        [d.array([b, s, W]), d.array([W, 2 * H + v]), d.array([2 * H + v]) if d.mostly(4) else None, m, p, ab],
        a,
        outputs=2 if p is not None or (v == H and d.flag(4)) else 1,
        **_open(m),
    )


@call("RotaryEmbedding", domain=CONTRIB)
def _rotary_embedding(d: Draw) -> Call:
    b, s, n, h = d.int(1, 2), d.int(1, 4), d.one((1, 2)), d.one((4, 8))
    a = {}
    r = h
    if d.flag(3):
        r = h // 2
        a["rotary_embedding_dim"] = r
        a["num_heads"] = n
    elif d.flag():
        a["num_heads"] = n
    if d.flag():
        a["interleaved"] = d.int(0, 1)
    if d.flag(5):
        a["scale"] = 1.0
    four = d.flag()
    x = d.array([b, n, s, h] if four else [b, s, n * h])
    pos = d.np.integers(0, 8, (b, s)) if d.flag() else i64(d.int(0, 3))
    return ms("RotaryEmbedding", [x, pos.astype(np.int64), d.array([8, r // 2]), d.array([8, r // 2])], a)


@call("GroupQueryAttention", domain=CONTRIB)
def _group_query_attention(d: Draw) -> Call:
    b, n, kv, h = d.int(1, 2), 4, d.one((4, 2, 1)), d.one((8, 16))
    first = d.flag()
    s = d.int(1, 4) if first or (b == 1 and d.flag(3)) else 1
    past = 0 if first else d.int(1, 4)
    a = {"num_heads": n, "kv_num_heads": kv}
    if d.flag(3):
        a["scale"] = 0.2
    if d.flag(3):
        a["local_window_size"] = d.int(1, 4)
    if d.flag(4):
        a["softcap"] = 3.0
    if d.flag(5):
        a["smooth_softmax"] = 1
    rot = d.flag()
    T = past + s
    lens = np.full(b, T - 1, np.int32)
    if b > 1 and d.flag() and "local_window_size" not in a:  # else a token behind the end of a prompt sees none
        lens = np.array([d.int(max(s - 1, 0) if not first else 0, T - 1) for _ in range(b)], np.int32)
        lens[0] = T - 1
    cos = sin = None
    if rot:
        a["do_rotary"] = 1
        if d.flag():
            a["rotary_interleaved"] = d.int(0, 1)
        cos, sin = d.array([16, h // 2], F32, -1, 1), d.array([16, h // 2], F32, -1, 1)
    packed = d.flag(3)
    q = d.array([b, s, (n + 2 * kv) * h]) if packed else d.array([b, s, n * h])
    k, v = (None, None) if packed else (d.array([b, s, kv * h]), d.array([b, s, kv * h]))
    pk, pv = d.array([b, kv, past, h]), d.array([b, kv, past, h])
    return ms("GroupQueryAttention", [q, k, v, pk, pv, lens, np.array(T, np.int32), cos, sin], a, outputs=3, rtol=1e-3)


@call("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=CONTRIB)
def _skip_layer_normalization(d: Draw, name: str) -> Call:
    b, s, h = d.int(1, 2), d.int(1, 3), d.int(1, 6)
    three = d.mostly(4)
    sh = [b, s, h] if three else [s, h]
    skip = sh if d.mostly(3) else ([1, s, h] if three and d.flag() else [s, h])
    ins = [d.array(sh), d.array(skip), d.array([h])]
    if name == "SkipLayerNormalization":
        ins.append(d.array([h]) if d.flag() else None)
    ins.append(d.array([h]) if d.flag() else None)
    return ms(name, ins, {"epsilon": 1e-3} if d.flag() else {}, outputs=d.one((1, 4)))


@call("EmbedLayerNormalization", domain=CONTRIB)
def _embed_layer_normalization(d: Draw) -> Call:
    b, s, h = d.int(1, 2), d.int(1, 4), d.int(1, 5)
    seg = d.flag()
    m = d.np.integers(0, 2, (b, s)).astype(np.int32) if d.flag() else None
    return ms(
        "EmbedLayerNormalization",
        [
            d.np.integers(0, 7, (b, s)).astype(np.int32),
            d.np.integers(0, 2, (b, s)).astype(np.int32) if seg else None,
            d.array([7, h]),
            d.array([6, h]),
            d.array([2, h]) if seg else None,
            d.array([h]),
            d.array([h]),
            m,
            d.np.integers(0, 6, (d.one((1, b)), s)).astype(np.int32) if d.flag(3) else None,
        ],
        {"epsilon": 1e-3} if d.flag() else {},
        outputs=d.one((2, 2, 3)),
    )


@call("BiasGelu", "FastGelu", "QuickGelu", "Gelu", domain=CONTRIB)
def _bias_gelu(d: Draw, name: str) -> Call:
    h = d.int(1, 5)
    x = d.array([*d.shape(1, 2, (1, 2, 3)), h])
    ins = [x] if name in ("QuickGelu", "Gelu") else [x, d.array([h]) if name == "BiasGelu" or d.flag() else None]
    given = {"alpha": 1.5} if name == "QuickGelu" and d.flag() else {}
    return ms(name, ins, given, rtol=1e-3)  # ONNX Runtime's erf cancels where the result is near 0


@call("FusedMatMul", domain=CONTRIB)
def _fused_mat_mul(d: Draw) -> Call:
    a = {k: 1 for k in ("transA", "transB", "transBatchA", "transBatchB") if d.flag(3)}
    if d.flag():
        a["alpha"] = 0.5
    m, k, n, bt = d.int(1, 3), d.int(1, 4), d.int(1, 3), d.int(1, 3)
    x, y = [bt, m, k], [bt, k, n]
    if a.get("transA"):
        x[-1], x[-2] = x[-2], x[-1]
    if a.get("transB"):
        y[-1], y[-2] = y[-2], y[-1]

    def tb(s):
        return [s[1], s[0], s[2]]

    if a.get("transBatchA"):
        x = tb(x)
    if a.get("transBatchB"):
        y = tb(y)
    if not any("Batch" in q for q in a) and d.flag():
        y = y[1:]
    return ms("FusedMatMul", [d.array(x), d.array(y)], a)


ACT = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")


@call("FusedConv", domain=CONTRIB)
def _fused_conv(d: Draw) -> Call:
    g = d.one((1, 2))
    k = [d.int(1, 3), d.int(1, 3)]
    a = window(d, 2)
    a["group"] = g
    act = d.one(ACT)
    a["activation"] = act
    if act == "LeakyRelu":
        a["activation_params"] = [0.1]
    if act in ("Clip", "HardSigmoid"):
        a["activation_params"] = [0.1, 0.6]
    x, w = [2, 2 * g, 6, 7], [2 * g, 2, *k]
    c = ms("FusedConv", [d.array(x), d.array(w), d.array([2 * g]) if d.flag() else None], a)
    return c


@call("FusedGemm", domain=CONTRIB)
def _fused_gemm(d: Draw) -> Call:
    c = standard(d, "Gemm")
    c.op = "FusedGemm"
    act = d.one(("Relu", "Tanh", "Sigmoid", "LeakyRelu"))
    c.attributes["activation"] = act
    c.inputs = [None if i is None else np.asarray(i).astype(F32) for i in c.inputs]
    if act == "LeakyRelu":
        c.attributes["activation_alpha"] = 0.2
    return c


@call("QAttention", domain=CONTRIB)
def _q_attention(d: Draw) -> Call:
    b, s, n, h, W = d.int(1, 2), d.int(1, 4), d.one((1, 2)), 4, d.int(2, 5)
    H = n * h
    w = d.one((np.int8, np.uint8))
    per = d.flag(3)
    a = {"num_heads": n}
    if d.flag():
        a["unidirectional"] = 1
    m = None
    k = d.r.randrange(3)
    if k == 1:
        m = d.np.integers(0, 2, (b, s)).astype(np.int32)
        m[:, 0] = 1
    elif k == 2:
        m = d.np.integers(1, s + 1, (b,)).astype(np.int32)
    ws = [3 * H] if per else []
    return ms(
        "QAttention",
        [
            d.full([b, s, W], np.uint8),
            d.weights([W, 3 * H], w),
            d.array([3 * H]),
            d.array([], F32, 0.01, 0.02),
            d.array(ws, F32, 0.01, 0.02),
            m,
            d.full([], np.uint8),
            d.full(ws, w),
        ],
        a,
        static=frozenset({1, 2, 3, 4, 6, 7}),
        **_open(m),
    )


def _q(d: Draw, t: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns a scale and a zero point."""
    return d.array([], F32, 0.02, 0.1), d.full([], t)


@call("QLinearAdd", "QLinearMul", domain=CONTRIB)
def _qlinear_add(d: Draw, name: str) -> Call:
    t = d.one((np.uint8, np.int8))
    s = d.shape(1, 3)
    a, b, c = _q(d, t), _q(d, t), _q(d, t)
    x, y = s, d.broadcastable(s)
    if d.flag():
        x, y = y, x
    return ms(
        name,
        [d.full(x, t), *a, d.full(y, t), *b, c[0] * np.float32(d.one((1, 5))), c[1]],
        static=frozenset({1, 2, 4, 5, 6, 7}),
    )


@call("QLinearConcat", domain=CONTRIB)
def _qlinear_concat(d: Draw) -> Call:
    t = d.one((np.uint8, np.int8))
    s = [max(1, k) for k in d.shape(1, 3)]
    ax = d.axis(len(s))
    ins = [*_q(d, t)]
    for _ in range(d.int(1, 3)):
        q = list(s)
        q[ax] = d.int(1, 3)
        ins += [d.full(q, t), *_q(d, t)]
    return ms("QLinearConcat", ins, {"axis": ax}, static=frozenset(i for i in range(30) if i % 3 != 2))


@call("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=CONTRIB)
def _qlinear_sigmoid(d: Draw, name: str) -> Call:
    t = d.one((np.uint8, np.int8))
    s = [max(1, k) for k in d.shape(1, 3)]
    a, b = _q(d, t), _q(d, t)
    at = {"alpha": d.one((0.1, 0.5))} if name == "QLinearLeakyRelu" and d.flag() else {}
    if name == "QLinearSoftmax":
        at = {"opset": d.one((11, 13)), "axis": d.axis(len(s))}
        b = (np.float32(1 / 256), np.array(0 if t == np.uint8 else -128, t))
    return ms(name, [d.full(s, t), *a, np.asarray(b[0], F32), b[1]], at, static=frozenset({1, 2, 3, 4}))


@call("QLinearGlobalAveragePool", "QLinearAveragePool", domain=CONTRIB)
def _qlinear_global_average_pool(d: Draw, name: str) -> Call:
    t = d.one((np.uint8, np.int8))
    last = d.flag(3)
    sh = [1, 5, 6, 2] if last else [1, 2, 5, 6]
    a = {"channels_last": 1} if last else {}
    if name == "QLinearAveragePool":
        k = [d.int(1, 3), d.int(1, 3)]
        a.update(window(d, 2, dilations=False, most=[q - 1 for q in k]))
        a["kernel_shape"] = k
        if d.flag():
            a["count_include_pad"] = 1
        if d.flag(3):
            a["ceil_mode"] = 1
    p, q = _q(d, t), _q(d, t)
    return ms(name, [d.full(sh, t), *p, *q], a, static=frozenset({1, 2, 3, 4}))


@call("QLinearWhere", domain=CONTRIB)
def _qlinear_where(d: Draw) -> Call:
    t = d.one((np.uint8, np.int8))
    s = d.shape(1, 3)
    return ms(
        "QLinearWhere",
        [d.array(s, bool), d.full(s, t), *_q(d, t), d.full(d.broadcastable(s), t), *_q(d, t), *_q(d, t)],
        constant=frozenset({2, 3, 5, 6, 7, 8}),  # ONNX Runtime ends the process where they are inputs
    )


@call("QGemm", domain=CONTRIB)
def _q_gemm(d: Draw) -> Call:
    t = d.one((np.uint8, np.int8))
    w = t if t == np.int8 else d.one((np.uint8, np.int8))
    m, k, n = d.int(1, 3), d.int(1, 5), d.int(1, 4)
    ta, tb = d.int(0, 1), d.int(0, 1)
    per = d.flag(3)
    bs = [n] if per else []
    out = d.flag()
    return ms(
        "QGemm",
        [
            d.full([k, m] if ta else [m, k], t),
            d.array([], F32, 0.01, 0.1),
            d.full([], t),
            d.weights([n, k] if tb else [k, n], w),
            d.array(bs, F32, 0.01, 0.1),
            d.full(bs, w),
            d.array([n], np.int32, -99, 99) if d.flag() else None,
            d.array([], F32, 0.1, 0.9) if out else None,
            d.full([], t) if out else None,
        ],
        {"transA": ta, "transB": tb, "alpha": d.one((1.0, 0.5))},
        static=frozenset({1, 2, 3, 4, 5, 6, 7, 8}),
    )


@call("MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=CONTRIB)
def _mat_mul_integer_to_float(d: Draw, name: str) -> Call:
    t, w = d.one((np.uint8, np.int8)), d.one((np.uint8, np.int8))
    m, k, n = d.int(1, 3), d.int(1, 5), d.int(1, 4)
    per = d.flag()
    bs = [n] if per else []
    x = [*([2] if d.flag(3) else []), m, k]
    st = frozenset({1, 2, 3, 4, 5, 6})
    zb = d.full(bs, w) if d.flag() else None
    bias = d.array([n]) if d.flag() else None
    if name == "DynamicQuantizeMatMul":
        return ms(
            name,
            [d.array(x), d.weights([k, n], w), d.array(bs, F32, 0.01, 0.1), zb, bias],
            static=frozenset({1, 2, 3, 4}),
        )
    return ms(
        name,
        [
            d.full(x, t),
            d.weights([k, n], w),
            d.array([], F32, 0.01, 0.1),
            d.array(bs, F32, 0.01, 0.1),
            d.full([], t) if d.flag() else None,
            zb,
            bias,
        ],
        static=st,
    )


@call("MatMulNBits", domain=CONTRIB)
def _mat_mul_nbits(d: Draw) -> Call:
    bits = d.one((4, 4, 8, 2))
    bl = d.one((16, 32))
    K = d.one((16, 32, 48, 40, 64))
    N = d.int(1, 4)
    nb = -(-K // bl)
    blob = bl * bits // 8
    a = dict(K=K, N=N, bits=bits, block_size=bl)
    if d.flag(3):
        a["accuracy_level"] = d.one((0, 1))
    zp = d.np.integers(0, 255, (N, -(-nb * bits // 8))).astype(np.uint8) if d.flag() else None
    return ms(
        "MatMulNBits",
        [
            d.array([*([2] if d.flag() else []), d.int(1, 3), K]),
            d.np.integers(0, 256, (N, nb, blob)).astype(np.uint8),
            d.array([N, nb], F32, 0.01, 0.1),
            zp,
            None,
            d.array([N]) if d.flag(3) else None,
        ],
        a,
        static=frozenset({1, 2, 3, 5}),
        rtol=1e-3,
    )


@call("GatherBlockQuantized", domain=CONTRIB)
def _gather_block_quantized(d: Draw) -> Call:
    bits = d.one((4, 8))
    bl = 16
    C = d.one((16, 32))
    R = d.int(2, 5)
    w = d.np.integers(0, 256, (R, C * bits // 8)).astype(np.uint8)
    nb = C // bl
    zp = d.np.integers(0, 255, (R, nb * bits // 8 if bits == 8 else -(-nb // 2))).astype(np.uint8) if d.flag() else None
    return ms(
        "GatherBlockQuantized",
        [
            w,
            d.np.integers(0, R, d.shape(1, 2, (1, 2, 3))).astype(d.one((np.int64, np.int32))),
            d.array([R, nb], F32, 0.01, 0.1),
            zp,
        ],
        dict(gather_axis=0, quantize_axis=1, block_size=bl, bits=bits),
        static=frozenset({0, 2, 3}),
    )


@call("DynamicQuantizeLSTM", domain=CONTRIB)
def _dynamic_quantize_lstm(d: Draw) -> Call:
    dr = d.one(("forward", "reverse", "bidirectional"))
    n = 2 if dr == "bidirectional" else 1
    T, B, W, H = d.int(1, 4), d.int(1, 3), d.int(1, 4), d.int(1, 4)
    w = d.one((np.int8, np.uint8))
    per = d.flag(3)
    per_gate = [n, 4 * H] if per else [n]
    scales = [d.array(per_gate, F32, 0.002, 0.01) for _ in range(2)]
    zeros = [np.full(per_gate, 3, w) if per else d.full(per_gate, w) for _ in range(2)]
    return ms(
        "DynamicQuantizeLSTM",
        [
            d.array([T, B, W], F32, -0.7, 0.7),
            d.weights([n, W, 4 * H], w),
            d.weights([n, H, 4 * H], w),
            d.array([n, 8 * H], F32, -0.7, 0.7) if d.flag() else None,
            d.array([B], np.int32, 1, T) if d.flag(3) else None,
            d.array([n, B, H], F32, -0.7, 0.7) if d.flag() else None,
            d.array([n, B, H], F32, -0.7, 0.7) if d.flag() else None,
            d.array([n, 3 * H], F32, -0.7, 0.7) if d.flag(4) else None,
            scales[0],
            zeros[0],
            scales[1],
            zeros[1],
        ],
        {
            "hidden_size": H,
            "direction": dr,
            **({"input_forget": 1} if d.flag(6) else {}),
            **({"clip": 0.4} if d.flag(5) else {}),
        },
        outputs=3,
        static=frozenset({1, 2, 3, 7, 8, 9, 10, 11}),
        rtol=5e-3,
    )


@call("MatMulBnb4", domain=CONTRIB)
def _mat_mul_bnb4(d: Draw) -> Call:
    bl = d.one((16, 32))
    K = d.one((16, 32))
    N = d.int(1, 4)
    tot = K * N
    return ms(
        "MatMulBnb4",
        [
            d.array([d.int(1, 3), K]),
            d.np.integers(0, 256, ((tot + 1) // 2,)).astype(np.uint8),
            d.array([-(-tot // bl)], F32, 0.01, 1),
        ],
        dict(K=K, N=N, block_size=bl, quant_type=d.int(0, 1)),
        static=frozenset({1, 2}),
        rtol=1e-3,
    )


@call("NGramRepeatBlock", domain=CONTRIB)
def _n_gram_repeat_block(d: Draw) -> Call:
    b, s, v = d.int(1, 2), d.int(1, 8), d.int(2, 4)
    return ms(
        "NGramRepeatBlock", [d.np.integers(0, v, (b, s)).astype(np.int64), d.array([b, v])], {"ngram_size": d.int(1, 3)}
    )


@call("Inverse", domain=CONTRIB)
def _inverse(d: Draw) -> Call:
    k = d.int(1, 3)
    return ms("Inverse", [d.array([*d.shape(0, 2, (1, 2)), k, k]) + 3 * np.eye(k, dtype=F32)], rtol=1e-3)


@call("CropAndResize", domain=CONTRIB)
def _crop_and_resize(d: Draw) -> Call:
    n = d.int(1, 3)
    b = d.int(1, 2)
    return ms(
        "CropAndResize",
        [
            d.array([b, 2, 5, 6]),
            np.sort(d.np.uniform(-0.2, 1.2, (n, 2, 2)), 1).reshape(n, 4).astype(F32),
            d.np.integers(0, b, n).astype(np.int32),
            np.array([d.int(1, 4), d.int(1, 4)], np.int32),
        ],
        {
            **({"mode": d.one(("bilinear", "nearest"))} if d.flag() else {}),
            **({"extrapolation_value": 1.5} if d.flag() else {}),
        },
        rtol=1e-3,
        static=frozenset({3}),
    )


@call("QuantizeLinear", "DequantizeLinear", domain=CONTRIB)
def _quantize_linear(d: Draw, name: str) -> Call:
    return standard(d, name)


@call("MoE", domain=CONTRIB)
def _experts(d: Draw) -> Call:
    r, h, i, e = d.int(1, 4), 4, 4, d.int(2, 4)
    sw = d.flag(4)
    act = "swiglu" if sw else d.one(("relu", "gelu", "silu", "identity"))
    a = {"k": d.int(1, 2), "activation_type": act, **({"normalize_routing_weights": 1} if d.flag() else {})}
    if sw:
        a["swiglu_fusion"] = 1
    w = 2 * i if sw else i
    return ms(
        "MoE",
        [
            d.array([r, h]),
            d.array([r, e]),
            d.array([e, w, h]),
            d.array([e, w]) if d.flag() else None,
            d.array([e, h, i]),
            d.array([e, h]) if d.flag() else None,
        ],
        a,
        rtol=1e-3,
    )


@call("Unique", domain=CONTRIB)
def _unique(d: Draw) -> Call:
    return ms("Unique", [np.round(d.array([d.int(1, 6)], F32, -2, 2))], outputs=3)


@call("ExpandDims", domain=CONTRIB)
def _expand_dims(d: Draw) -> Call:
    shape = d.shape(0, 3)
    axis = np.array(d.int(-len(shape) - 1, len(shape)), np.int32)
    return ms("ExpandDims", [d.array(shape), axis], static=frozenset({1}))


@call("LayerNormalization", "SimplifiedLayerNormalization", domain=CONTRIB)
def _layer_normalization(d: Draw, name: str) -> Call:
    s = d.shape(1, 3, (1, 2, 3))
    ax = d.axis(len(s))
    t = s[ax:] if d.mostly() else [d.one((1, size)) for size in s[d.int(0, len(s)) :]]
    c = Call(name, 17 if name == "LayerNormalization" else 1, [d.array(s), d.array(t)], {"axis": ax, "epsilon": 1e-3})
    c.domain = ""
    return c


@call("NhwcMaxPool", domain=CONTRIB)
def _nhwc_pool(d: Draw) -> Call:
    kernel = [d.int(1, 3), d.int(1, 3)]
    given = window(d, 2, most=[size - 1 for size in kernel]) | {"kernel_shape": kernel} | d.some(ceil_mode=1)
    given.pop("auto_pad", None)
    return ms("NhwcMaxPool", [d.full([1, 6, 7, 2], d.one((np.uint8, np.int8)))], given)


@call("QLinearConv", domain=CONTRIB)
def _qlinear_conv(d: Draw) -> Call:
    drawn = standard(d, "QLinearConv")
    drawn.constant = frozenset(range(1, 8))
    if d.flag():
        drawn.inputs[0] = np.moveaxis(drawn.inputs[0], 1, -1).copy()
        drawn.attributes["channels_last"] = 1
    return drawn


@call("Pad", "GridSample", "Trilu", "GatherND", domain=CONTRIB)
def _as_the_standard(d: Draw, name: str) -> Call:
    drawn = standard(d, name)
    while drawn.attributes.pop("batch_dims", 0):  # the domain's GatherND has none
        drawn = standard(d, name)
    drawn.inputs = drawn.inputs[: 3 if name == "Pad" else None]
    if name == "Pad":
        drawn.inputs[0] = drawn.inputs[0].astype(F32)
        drawn.inputs[2] = None if drawn.inputs[2] is None else drawn.inputs[2].astype(F32)
    return drawn


@call("CDist", domain=CONTRIB)
def _distances(d: Draw) -> Call:
    width = d.int(1, 4)
    given = {"metric": d.one(("euclidean", "sqeuclidean"))}
    return ms("CDist", [d.array([d.int(1, 4), width]), d.array([d.int(1, 4), width])], given, rtol=1e-3)


@call("TransposeMatMul", domain=CONTRIB)
def _transposed(d: Draw) -> Call:
    drawn = CALLS[CONTRIB, "FusedMatMul"](d)
    drawn.op = "TransposeMatMul"
    if any("Batch" in name for name in drawn.attributes):
        drawn.op = "FusedMatMul"
    return drawn


@call("MaxpoolWithMask", domain=CONTRIB)
def _masked_pool(d: Draw) -> Call:
    kernel = [d.int(1, 3), d.int(1, 3)]
    given = {"kernel_shape": kernel, **d.some(strides=[d.int(1, 2), d.int(1, 2)])}
    mask = d.np.integers(0, 2, (1, 1, 5, 6)).astype(np.int32)
    return ms("MaxpoolWithMask", [d.array([1, 2, 5, 6]), mask], given)


@call("UnfoldTensor", domain=CONTRIB)
def _unfold(d: Draw) -> Call:
    shape = d.filled(1, 3, (3, 4, 5))
    given = {"dim": d.int(-len(shape), len(shape) - 1), "size": d.int(1, 3), "step": d.int(1, 3)}
    return ms("UnfoldTensor", [d.array(shape)], given)


@call("DynamicTimeWarping", domain=CONTRIB)
def _warping(d: Draw) -> Call:
    return ms("DynamicTimeWarping", [d.array([1, d.int(1, 5), d.int(1, 6)])])


@call("QEmbedLayerNormalization", domain=CONTRIB)
def _quantised_embedding(d: Draw) -> Call:
    batch, length, width = d.int(1, 2), d.int(1, 4), d.int(1, 5)
    kind, segments = d.one((np.uint8, np.int8)), d.flag()
    scales, zeros = [d.array([], F32, 0.01, 0.1) for _ in range(5)], [d.full([], kind) for _ in range(5)]
    ids = d.np.integers(0, 7, (batch, length)).astype(np.int32)
    of_segments = d.np.integers(0, 2, (batch, length)).astype(np.int32) if segments else None
    mask = d.np.integers(0, 2, (batch, length)).astype(np.int32) if d.flag() else None
    tables = [d.full([7, width], kind), d.full([6, width], kind), d.full([2, width], kind) if segments else None]
    norms = [d.full([width], kind), d.full([width], kind)]
    if not segments:
        scales[2] = zeros[2] = None
    inputs = [ids, of_segments, *tables, *norms, mask, *scales, *zeros]
    constant = frozenset({*range(2, 7), *range(8, 18)})
    return ms("QEmbedLayerNormalization", inputs, d.some(epsilon=1e-3), outputs=2, constant=constant, rtol=1e-3)
