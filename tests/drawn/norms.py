"""Calls of normalisations."""

from __future__ import annotations

from tests.drawn.draw import F32, F64, Call, Draw, call, spatial


@call("BatchNormalization")
def _batch_normalization(d: Draw) -> Call:
    c = d.int(1, 3)
    s = [2, c, *spatial(d, d.int(0, 3), (1, 2, 3))]
    t = d.one((F32, F64))
    a = {"epsilon": d.one((1e-5, 1e-3, 0.1))} if d.flag() else {}
    n = 1
    if d.flag(4):
        a["training_mode"] = 1
        n = 3
        a.update({"momentum": 0.7} if d.flag() else {})
    return Call(
        "BatchNormalization",
        15,
        [d.array(s, t), d.array([c], t), d.array([c], t), d.array([c], t), d.array([c], t, 0.1, 2)],
        a,
        outputs=n,
    )


@call("InstanceNormalization")
def _instance_normalization(d: Draw) -> Call:
    c = d.int(1, 3)
    return Call(
        "InstanceNormalization",
        6 + d.one((7, 16)),
        [d.array([2, c, *spatial(d, d.int(1, 3), (2, 3))], F32), d.array([c], F32), d.array([c], F32)],
        {"epsilon": d.one((1e-5, 1e-3, 0.1))} if d.flag() else {},
    )


@call("LayerNormalization")
def _layer_normalization(d: Draw) -> Call:
    s = d.shape(1, 4, (1, 2, 3, 4))
    ax = d.axis(len(s))
    t = d.one((F32, F32, F64))
    tail = s[ax:]
    return Call(
        "LayerNormalization",
        17,
        [d.array(s, t), d.array(tail, t), d.array(tail, t) if d.flag() else None],
        {
            **({"axis": ax} if ax != -1 or d.flag() else {}),
            **({"epsilon": d.one((1e-5, 1e-3, 0.1))} if d.flag() else {}),
        },
        outputs=d.one((1, 1, 3)),
    )


@call("RMSNormalization")
def _rms_normalization(d: Draw) -> Call:
    s = d.shape(1, 4, (1, 2, 3, 4))
    ax = d.axis(len(s))
    tail = s[ax:]
    return Call(
        "RMSNormalization",
        23,
        [d.array(s, F32), d.array(tail, F32)],
        {
            **({"axis": ax} if ax != -1 or d.flag() else {}),
            **({"epsilon": d.one((1e-5, 1e-3, 0.1))} if d.flag() else {}),
        },
    )


@call("GroupNormalization")
def _group_normalization(d: Draw) -> Call:
    g = d.int(1, 3)
    c = g * d.int(1, 2)
    new = d.flag()
    k = c if new else g
    return Call(
        "GroupNormalization",
        21 if new else 18,
        [d.array([2, c, *spatial(d, d.int(1, 2), (2, 3))], F32), d.array([k], F32), d.array([k], F32)],
        {"num_groups": g, **({"epsilon": 1e-3} if d.flag() else {})},
        rtol=1e-2,  # both oracles cancel where the elements of a group are nearly equal
    )


@call("LRN")
def _lrn_call(d: Draw) -> Call:
    return Call(
        "LRN",
        13,
        [d.array([2, d.int(1, 6), 3, 3], F32)],
        {"size": d.one((1, 3, 5)), **{k: v for k, v in dict(alpha=0.5, beta=0.6, bias=2.0).items() if d.flag()}},
    )


@call("MeanVarianceNormalization")
def _mean_variance_normalization(d: Draw) -> Call:
    s = [d.int(2, 3) for _ in range(4)]
    return Call(
        "MeanVarianceNormalization",
        13,
        [d.array(s, F32)],
        {"axes": sorted(a % 4 for a in d.axes(4, 1))} if d.flag() else {},
    )


@call("LpNormalization")
def _lp_normalization(d: Draw) -> Call:
    s = d.shape(1, 4, (1, 2, 3))
    return Call(
        "LpNormalization",
        13,
        [d.array(s, d.one((F32, F64)))],
        {**({"axis": d.axis(len(s))} if d.flag() else {}), **({"p": d.int(1, 2)} if d.flag() else {})},
    )
