"""Calls of reductions, sums along an axis, softmaxes and searches."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import F32, F64, Call, Draw, call, i64


@call(*[f"Reduce{k}" for k in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")])
def _reduce(d: Draw, name: str) -> Call:
    t = d.one((F32, F32, F64, np.int32, np.int64))
    s = d.shape(0, 4)
    if name in ("ReduceMax", "ReduceMin") and d.flag(3):
        t = d.one((np.int8, np.uint8))
    if name in ("ReduceL2", "ReduceMean", "ReduceLogSum", "ReduceLogSumExp"):
        t = d.one((F32, F64))
    x = d.array(s, t, *((0.1, 3) if np.dtype(t).kind == "f" else (0 if np.dtype(t).kind == "u" else -5, 5)))
    if name == "ReduceProd":  # a product of integers that overflows is undefined
        x = np.clip(x, -1, 1) if x.dtype.kind == "i" else x
    a = {"keepdims": d.int(0, 1)} if d.flag() else {}
    new = d.flag()
    axes = d.axes(len(s)) if s else []
    if new:
        if d.flag(3):
            a["noop_with_empty_axes"] = d.int(0, 1)
        give = i64(*axes) if d.mostly(4) else None
        return Call(name, 18, [x, give], a, static=frozenset({1}))
    if name == "ReduceSum":
        if d.flag(3):
            a["noop_with_empty_axes"] = d.int(0, 1)
        return Call(name, 13, [x, i64(*axes) if d.mostly(4) else None], a, static=frozenset({1}))
    if axes and d.mostly(4):
        a["axes"] = axes
    return Call(name, 13, [x], a)


@call("ArgMax", "ArgMin")
def _arg_max(d: Draw, name: str) -> Call:
    t = d.one((F32, F64, np.int32, np.int8, np.uint8))
    s = d.shape(1, 4)
    x = d.array(s, t, *((-2, 2) if np.dtype(t).kind != "u" else (0, 2)))
    if d.flag():
        x = np.round(x).astype(t)
    return Call(
        name,
        13,
        [x],
        {
            k: v
            for k, v in dict(axis=d.axis(len(s)), keepdims=d.int(0, 1), select_last_index=d.int(0, 1)).items()
            if d.flag()
        },
    )


@call("Softmax", "LogSoftmax", "Hardmax")
def _softmax(d: Draw, name: str) -> Call:
    s = d.shape(1, 4)
    t = d.one((F32, F32, F64))
    return Call(name, d.one((11, 13)), [d.array(s, t)], {"axis": d.axis(len(s))} if d.flag() else {})


@call("TopK")
def _topk(d: Draw) -> Call:
    s = d.shape(1, 4)
    ax = d.axis(len(s))
    t = d.one((F32, F64, np.int64, np.int32))
    x = d.array(s, t)
    if d.flag():
        x = np.round(x).astype(t)
    k = d.int(0, s[ax])
    return Call(
        "TopK",
        11,
        [x, i64(k)],
        {
            **({"axis": ax} if ax not in (-1, len(s) - 1) or d.flag() else {}),
            **({"largest": d.int(0, 1)} if d.flag() else {}),
            **({"sorted": 1} if d.flag() else {}),
        },
        outputs=2,
        static=frozenset({1}),
    )
