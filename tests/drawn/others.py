"""Calls of transforms, losses, attention and what is in no other file."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import F32, Call, Draw, call


@call("DFT")
def _dft(d: Draw) -> Call:
    s = [2, d.int(2, 6), d.int(2, 5), d.one((1, 2))]
    a = {}
    ax = d.one((1, 2, -2, -3))
    ins = [d.array(s, F32), None, None]
    k = d.r.randrange(3)
    if k == 1 and s[3] == 1:
        a["onesided"] = 1
    if k == 2 and s[3] == 2:
        a["inverse"] = 1
    if d.flag():
        ins[1] = np.array(d.int(2, 8), np.int64)
    if d.flag():
        return Call("DFT", 17, ins[:2], {**a, "axis": ax % 4}, static=frozenset({1}), rtol=1e-3, open_=frozenset())
    ins[2] = np.array(ax, np.int64)
    return Call("DFT", 20, ins, a, static=frozenset({1, 2}), rtol=1e-3, open_=frozenset())


@call("STFT")
def _stft(d: Draw) -> Call:
    n = d.int(8, 20)
    f = d.one((4, 5, 8))
    st = d.int(1, 4)
    k = d.r.randrange(3)
    win = d.array([f], F32, 0, 1) if k else None
    return Call(
        "STFT",
        17,
        [d.array([2, n, 1], F32), np.array(st, np.int64), win, np.array(f, np.int64) if k != 1 else None],
        {"onesided": d.int(0, 1)} if d.flag() else {},
        static=frozenset({1, 3}),
        rtol=1e-3,
        open_=frozenset(),
    )


@call("HannWindow", "HammingWindow", "BlackmanWindow")
def _hann_window(d: Draw, name: str) -> Call:
    attributes = d.some(periodic=d.int(0, 1), output_datatype=d.one((1, 11)))
    size = np.array(d.int(1, 12), np.int64)
    return Call(name, 17, [size], attributes, static=frozenset({0}), rtol=1e-3)  # ONNX Runtime computes in float32


@call("MelWeightMatrix")
def _mel_weight_matrix(d: Draw) -> Call:
    return Call(
        "MelWeightMatrix",
        17,
        [
            np.array(d.int(2, 8), np.int64),
            np.array(d.one((16, 32, 64)), np.int64),
            np.array(d.one((8000, 16000)), np.int64),
            np.array(d.one((0.0, 20.0)), F32),
            np.array(d.one((4000.0, 3000.0)), F32),
        ],
        static=frozenset(range(5)),
    )


@call("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def _loss(d: Draw, name: str) -> Call:
    c = d.int(2, 4)
    sp = [d.int(1, 3) for _ in range(d.int(0, 2))]
    a = {}
    if d.flag():
        a["reduction"] = d.one(("none", "mean", "sum"))
    if d.flag():
        a["ignore_index"] = d.int(0, c - 1)
    return Call(
        name,
        13,
        [
            d.array([2, c, *sp], F32),
            d.array([2, *sp], np.int64, 0, c - 1),
            d.array([c], F32, 0.1, 2) if d.flag() else None,
        ],
        a,
        outputs=d.int(1, 2) if name.startswith("Soft") else 1,
    )


@call("Det")
def _det_call(d: Draw) -> Call:
    k = d.int(1, 4)
    return Call("Det", 11, [d.array([*d.shape(0, 2, (1, 2)), k, k], F32)], rtol=1e-3)


@call("Dropout")
def _dropout(d: Draw) -> Call:
    return Call("Dropout", 13, [d.array(d.shape(), F32), np.array(0.5, F32) if d.flag() else None], outputs=d.int(1, 2))


@call("Attention")
def _attention(d: Draw) -> Call:
    b, hq, q, k, e, v = d.int(1, 2), 4, d.int(1, 4), d.int(1, 5), d.one((2, 4)), d.one((2, 4))
    hk = d.one((4, 2, 1))
    a = {}
    t = F32
    three = d.flag(3)
    Q, K, V = ([b, hq, q, e], [b, hk, k, e], [b, hk, k, v])
    if three:
        Q, K, V = [b, q, hq * e], [b, k, hk * e], [b, k, hk * v]
        a.update(q_num_heads=hq, kv_num_heads=hk)
    if d.flag():
        a["is_causal"] = d.int(0, 1)
    if d.flag(3):
        a["scale"] = 0.3
    if d.flag(3):
        a["softcap"] = 2.0
    mask = None if d.flag() else d.array(d.one(([q, k], [b, 1, q, k], [b, hq, q, k], [1, 1, q, k])), d.one((F32, bool)))
    if mask is not None and mask.dtype == bool:
        mask[..., 0] = True
    return Call("Attention", 23, [d.array(Q, t), d.array(K, t), d.array(V, t), mask], a, rtol=1e-3, open_=frozenset())


@call("RotaryEmbedding")
def _rotary(d: Draw) -> Call:
    b, h, s, e = d.int(1, 2), 2, d.int(1, 4), d.one((4, 6))
    a = {}
    rot = e
    if d.flag(3) and e == 6:
        rot = 4
        a["rotary_embedding_dim"] = 4
    if d.flag():
        a["interleaved"] = d.int(0, 1)
    four = d.flag()
    ids = d.flag()
    if not four:
        a["num_heads"] = h
    x = d.array([b, h, s, e] if four else [b, s, h * e], F32)
    if ids:
        return Call(
            "RotaryEmbedding",
            23,
            [x, d.array([8, rot // 2], F32), d.array([8, rot // 2], F32), d.array([b, s], np.int64, 0, 7)],
            a,
        )
    return Call("RotaryEmbedding", 23, [x, d.array([b, s, rot // 2], F32), d.array([b, s, rot // 2], F32)], a)
