"""Calls of matrix products and of operators on quantised numbers."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import F32, F64, Call, Draw, call, window


@call("MatMul")
def _matmul(d: Draw) -> Call:
    t = d.one((F32, F32, F64, np.int32, np.int64))
    m, k, n = d.int(1, 4), d.int(0, 4) if d.flag(6) else d.int(1, 4), d.int(1, 4)
    batch = d.shape(0, 2, (1, 2, 3))
    x, y = [*d.broadcastable(batch), m, k], [*d.broadcastable(batch), k, n]
    if d.flag(5):
        x = [k]
    if d.flag(5):
        y = [k]
    return Call("MatMul", 13, [d.array(x, t), d.array(y, t)])


@call("Gemm")
def _gemm(d: Draw) -> Call:
    t = d.one((F32, F32, F64))
    m, k, n = d.int(1, 4), d.int(1, 4), d.int(1, 4)
    ta, tb = d.int(0, 1), d.int(0, 1)
    c = None if d.flag(3) else d.array(d.one(([m, n], [n], [1, n], [m, 1], [1], [], [1, 1])), t)
    return Call(
        "Gemm",
        13,
        [d.array([k, m] if ta else [m, k], t), d.array([n, k] if tb else [k, n], t), c],
        {
            k_: v
            for k_, v in dict(transA=ta, transB=tb, alpha=d.one((0.5, 2.0, 0.0)), beta=d.one((0.5, 2.0, 0.0))).items()
            if (k_ in ("transA", "transB") and v) or (d.flag() and not k_.startswith("trans"))
        },
    )


@call("MatMulInteger")
def _mat_mul_integer(d: Draw) -> Call:
    ta, tb = d.one((np.uint8, np.int8)), d.one((np.uint8, np.int8))
    m, k, n = d.int(1, 4), d.int(1, 5), d.int(1, 4)
    za = None if d.flag() else d.full([], ta)
    zb = None if d.flag() else d.full([n] if d.flag() else [], tb)
    return Call("MatMulInteger", 10, [d.full([*([2] if d.flag(3) else []), m, k], ta), d.weights([k, n], tb), za, zb])


@call("QuantizeLinear")
def _quantize_linear(d: Draw) -> Call:
    s = d.shape(1, 4, (1, 2, 3, 4))
    t = d.one((np.uint8, np.int8))
    ax = d.axis(len(s))
    per = d.flag()
    n = [s[ax]] if per else []
    zp = d.array(n, t, 0 if t == np.uint8 else -20, 20) if d.mostly(3) else None
    return Call(
        "QuantizeLinear",
        d.one((13, 19)),
        [d.array(s, F32) * d.one((1, 10, 300)), d.array(n, F32, 0.01, 2), zp],
        {"axis": ax} if per and (ax != 1 or d.flag()) else ({"axis": 0} if per else {}) if per else {},
    )


@call("DequantizeLinear")
def _dequantize_linear(d: Draw) -> Call:
    s = d.shape(1, 4, (1, 2, 3, 4))
    t = d.one((np.uint8, np.int8, np.int32))
    ax = d.axis(len(s))
    per = d.flag()
    n = [s[ax]] if per else []
    least, most = max(np.iinfo(t).min, -1000), min(np.iinfo(t).max, 1000)
    zp = None if d.flag(3) else (np.zeros(n, t) if t == np.int32 else d.array(n, t, least, most))
    return Call(
        "DequantizeLinear",
        d.one((13, 19)),
        [d.array(s, t, least, most), d.array(n, F32, 0.01, 2), zp],
        {"axis": ax} if per else {},
    )


@call("DynamicQuantizeLinear")
def _dynamic_quantize_linear(d: Draw) -> Call:
    return Call(
        "DynamicQuantizeLinear",
        11,
        [d.array([max(k, 1) for k in d.shape(1, 3)], F32) * np.float32(d.one((1, 100, 0.01)))],
        outputs=3,
    )


@call("QLinearMatMul")
def _qlinear_mat_mul(d: Draw) -> Call:
    t = d.one((np.uint8, np.int8))
    m, k, n = d.int(1, 4), d.int(1, 5), d.int(1, 4)
    x, y, z = (d.array([], F32, 0.01, 0.3) for _ in range(3))
    return Call(
        "QLinearMatMul",
        10,
        [
            d.full([m, k], t),
            x,
            d.full([], t),
            d.weights([k, n], t),
            y,
            d.full([], t),
            z * np.float32(30),
            d.full([], t),
        ],
    )


@call("QLinearConv")
def _qlinear_conv(d: Draw) -> Call:
    t = d.one((np.uint8, np.int8))
    w = d.one((np.int8, np.uint8)) if t == np.uint8 else np.int8
    g = d.one((1, 2))
    ci, co = 2 * g, 2 * g
    k = [d.int(1, 3) for _ in range(2)]
    a = window(d, 2)
    a["group"] = g
    a["kernel_shape"] = k
    ws = d.array([co] if d.flag() else [], F32, 0.001, 0.02)
    wz = np.zeros_like(ws, dtype=w) if w == np.int8 else d.full([], w)
    if w == np.uint8:
        ws = ws.reshape(-1)[:1].reshape([])
    return Call(
        "QLinearConv",
        10,
        [
            d.full([1, ci, 6, 7], t),
            d.array([], F32, 0.01, 0.1),
            d.full([], t),
            d.weights([co, ci // g, *k], w),
            ws,
            wz,
            d.array([], F32, 0.1, 0.5),
            d.full([], t),
            d.array([co], np.int32, -500, 500) if d.flag() else None,
        ],
        a,
    )


@call("ConvInteger")
def _conv_integer(d: Draw) -> Call:
    g = d.one((1, 2))
    k = [d.int(1, 3) for _ in range(2)]
    a = window(d, 2)
    a["group"] = g
    return Call(
        "ConvInteger",
        10,
        [
            d.full([1, 2 * g, 6, 7], np.uint8),
            d.full([2 * g, 2, *k], np.uint8),
            None if d.flag() else d.full([], np.uint8),
            None if d.flag() else d.full([], np.uint8),
        ],
        a,
    )


@call("Einsum")
def _einsum(d: Draw) -> Call:
    eq, shapes = d.one(
        [
            ("ij,jk->ik", ([2, 3], [3, 4])),
            ("bij,bjk->bik", ([2, 2, 3], [2, 3, 2])),
            ("ij->ji", ([2, 3],)),
            ("ii->i", ([3, 3],)),
            ("ij->", ([2, 3],)),
            ("i,j->ij", ([2], [3])),
            ("...ij,...jk->...ik", ([2, 2, 3], [3, 2])),
            ("bhqd,bhkd->bhqk", ([1, 2, 3, 4], [1, 2, 5, 4])),
            ("ij,ij->i", ([2, 3], [2, 3])),
            ("ij,jk", ([2, 3], [3, 2])),
            ("abc,cd,de->abe", ([2, 2, 3], [3, 2], [2, 2])),
            ("ii", ([3, 3],)),
            ("b...,b...->b...", ([2, 3, 2], [2, 3, 2])),
            ("...->...", ([2, 3],)),
            (" i j , j k -> i k ", ([2, 3], [3, 2])),
        ]
    )
    return Call("Einsum", 12, [d.array(s, d.one((F32, F32))) for s in shapes], {"equation": eq})
