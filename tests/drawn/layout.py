"""Calls of operators that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.drawn.draw import F16, F32, F64, Call, Draw, call, i64


def _axis(d: Draw, axis: int) -> dict[str, int]:
    """Returns the attribute `axis`, left out in two times where it is the default."""
    return {"axis": axis} if axis != 0 or d.flag() else {}


@call("Transpose")
def _transpose(d: Draw) -> Call:
    s = d.shape(0, 5)
    return Call(
        "Transpose",
        13,
        [d.array(s, d.number())],
        {"perm": d.shuffled(range(len(s)))} if d.mostly(4) and s else {},
    )


@call("Reshape")
def _reshape(d: Draw) -> Call:
    s = d.shape(0, 4)
    n = int(np.prod(s))
    a = {}
    if n == 0:
        if d.flag():
            a["allowzero"] = 1
            t = d.shuffled(s)
        else:
            t = s
    else:
        t = []
        rest = n
        for _ in range(d.int(0, 3)):
            divs = [k for k in range(1, rest + 1) if rest % k == 0]
            k = d.one(divs)
            t.append(k)
            rest //= k
        t.append(rest)
        t = d.shuffled(t)
        if d.flag():
            t[d.r.randrange(len(t))] = -1
        if d.flag(3):
            for i in range(min(len(t), len(s))):
                if t[i] == s[i]:
                    t[i] = 0
    return Call("Reshape", 14, [d.array(s, d.number()), i64(*t)], a, static=frozenset({1}))


@call("Squeeze", "Unsqueeze")
def _squeeze(d: Draw, name: str) -> Call:
    if name == "Squeeze":
        s = [d.one((1, 1, 2, 3)) for _ in range(d.int(0, 4))]
        ones = [i for i, k in enumerate(s) if k == 1]
        chosen = [i - len(s) if d.flag() else i for i in d.r.sample(ones, d.int(0, len(ones)))]
        if d.flag():
            return Call(name, 13, [d.array(s, d.number()), i64(*chosen) if chosen else None], static=frozenset({1}))
        return Call(name, 11, [d.array(s, d.number())], {"axes": chosen} if chosen else {})
    s = d.shape(0, 3)
    n = d.int(1, 3)
    r = len(s) + n
    chosen = [i - r if d.flag() else i for i in d.r.sample(range(r), n)]
    if d.flag():
        return Call(name, 13, [d.array(s, d.number()), i64(*chosen)], static=frozenset({1}))
    return Call(name, 11, [d.array(s, d.number())], {"axes": chosen})


@call("Flatten")
def _flatten(d: Draw) -> Call:
    s = d.shape(0, 4)
    return (
        Call("Flatten", 13, [d.array(s, d.number())], {"axis": d.int(-len(s), len(s))} if d.mostly(4) else {})
        if len(s)
        else Call("Flatten", 13, [d.array(s, F32)], {"axis": 0})
    )


@call("Concat")
def _concat(d: Draw) -> Call:
    s = d.shape(1, 4)
    ax = d.axis(len(s))
    t = d.number()
    xs = []
    for _ in range(d.int(1, 4)):
        q = list(s)
        q[ax] = d.int(0, 4)
        xs.append(d.array(q, t))
    return Call("Concat", 13, xs, {"axis": ax})


@call("Split")
def _split(d: Draw) -> Call:
    s = d.shape(1, 4, (2, 3, 4, 5, 7))
    ax = d.axis(len(s))
    a = {"axis": ax} if ax not in (0, -len(s)) or d.flag() else {}
    x = d.array(s, d.number())
    if d.flag():
        n = d.int(1, max(1, min(4, s[ax])))
        return Call("Split", 18, [x], {**a, "num_outputs": n}, outputs=n)
    parts = []
    rest = s[ax]
    for _ in range(d.int(0, 2)):
        k = d.int(0, rest)
        parts.append(k)
        rest -= k
    parts.append(rest)
    if d.flag():
        return Call("Split", d.one((13, 18)), [x, i64(*parts)], a, outputs=len(parts), static=frozenset({1}))
    return Call("Split", 11, [x], {**a, "split": parts}, outputs=len(parts))


@call("Slice")
def _slice(d: Draw) -> Call:
    s = d.shape(1, 4)
    axes = d.axes(len(s), 1)
    big = (np.iinfo(np.int64).max, np.iinfo(np.int64).min, 1000, -1000, np.iinfo(np.int32).max)
    starts = [d.one(big) if d.flag(6) else d.int(-6, 6) for _ in axes]
    ends = [d.one(big) if d.flag(4) else d.int(-6, 6) for _ in axes]
    steps = [d.one((1, 1, 2, 3, -1, -1, -2, -3, 100)) for _ in axes]
    t = d.one((np.int64, np.int32))

    def c(numbers: Any) -> np.ndarray:
        return np.clip(np.array(numbers, object), np.iinfo(t).min, np.iinfo(t).max).astype(t)

    give_axes = c(axes) if d.mostly(4) else None
    if give_axes is None:
        starts, ends, steps = starts, ends, steps
    return Call(
        "Slice",
        13,
        [d.array(s, d.number()), c(starts), c(ends), give_axes, c(steps) if d.mostly(3) else None],
        static=frozenset({1, 2, 3, 4}),
    )


@call("Pad")
def _pad(d: Draw) -> Call:
    s = d.shape(1, 4, (2, 3, 4, 5))
    t = d.one((F32, F64, np.int32, np.int64, np.uint8, F16))
    mode = d.one(("constant", "constant", "reflect", "edge", "wrap"))
    a = {"mode": mode} if mode != "constant" or d.flag() else {}
    axes = d.axes(len(s), 1) if d.flag() else None
    idx = range(len(s)) if axes is None else axes

    def amount(i):
        k = s[i]
        return d.int(-1 if mode != "wrap" else 0, 3 if mode in ("constant", "edge") else max(k - 1, 0))

    pads = [amount(i) for i in idx] + [amount(i) for i in idx]
    for j, i in enumerate(idx):
        if pads[j] < 0 and pads[j + len(list(idx))] < 0 and s[i] < 3:
            pads[j] = 0
    if d.mostly(3):
        pads = [max(p, 0) for p in pads]
    value = d.array([], t) if mode == "constant" and d.flag() else None
    return Call(
        "Pad",
        19 if mode == "wrap" else d.one((18, 19)),
        [d.array(s, t), i64(*pads), value, None if axes is None else i64(*axes)],
        a,
        static=frozenset({1, 3}),
    )


@call("Tile")
def _tile(d: Draw) -> Call:
    s = d.shape(0, 4, (1, 2, 3))
    return Call("Tile", 13, [d.array(s, d.number()), i64(*[d.int(0, 3) for _ in s])], static=frozenset({1}))


@call("Expand")
def _expand(d: Draw) -> Call:
    s = d.shape(0, 4)
    x = d.broadcastable(s)
    t = [1 if d.flag(4) and i < len(s) else k for i, k in enumerate(s)]
    return Call("Expand", 13, [d.array(x, d.number()), i64(*t)], static=frozenset({1}))


@call("Gather")
def _gather(d: Draw) -> Call:
    s = d.shape(1, 3)
    ax = d.axis(len(s))
    k = s[ax]
    ishape = d.shape(0, 3, (1, 2, 3)) if k else [0]
    return Call(
        "Gather",
        13,
        [d.array(s, d.number()), d.array(ishape, d.one((np.int64, np.int32)), -k, max(k - 1, -k))],
        _axis(d, ax),
    )


@call("GatherElements")
def _gather_elements(d: Draw) -> Call:
    s = d.shape(1, 3)
    ax = d.axis(len(s))
    k = s[ax]
    q = [d.int(0, m) for m in s]
    q[ax] = d.int(0, 4) if k else 0
    return Call(
        "GatherElements",
        13,
        [d.array(s, d.number()), d.array(q, d.one((np.int64, np.int32)), -k, max(k - 1, -k))],
        _axis(d, ax),
    )


@call("GatherND")
def _gather_nd(d: Draw) -> Call:
    s = d.filled(1, 4, (1, 2, 3))
    b = d.int(0, len(s) - 1)
    depth = d.int(1, len(s) - b)
    q = s[:b] + [d.int(1, 3) for _ in range(d.int(0 if b else 1, 2))]
    idx = np.stack([d.array(q, np.int64, -s[b + i], s[b + i] - 1) for i in range(depth)], -1)
    return Call("GatherND", 13, [d.array(s, d.number()), idx], {"batch_dims": b} if b or d.flag() else {})


@call("ScatterElements")
def _scatter_elements(d: Draw) -> Call:
    s = d.shape(1, 3, (1, 2, 3, 4))
    ax = d.axis(len(s))
    t = d.one((F32, F64, np.int32, np.int64))
    red = d.one(("none", "add", "mul", "max", "min"))
    q = [d.int(0 if k == 0 else 1, k) for k in s]
    k = s[ax]
    idx = d.array(q, np.int64, -k, max(k - 1, -k))
    if red == "none" and idx.size:
        idx = np.argsort(d.np.random(s), axis=ax)[tuple(slice(0, m) for m in q)].astype(np.int64)
        idx = np.where(d.np.random(idx.shape) < 0.5, idx - k, idx)
    return Call(
        "ScatterElements",
        18,
        [d.array(s, t), idx, d.array(q, t)],
        {**({"axis": ax} if ax != 0 or d.flag() else {}), **({"reduction": red} if red != "none" else {})},
    )


@call("ScatterND")
def _scatter_nd(d: Draw) -> Call:
    s = [max(k, 1) for k in d.shape(1, 3, (1, 2, 3, 4))]
    t = d.one((F32, F64, np.int32, np.int64))
    depth = d.int(1, len(s))
    red = d.one(("none", "add", "mul", "max", "min"))
    n = d.int(1, 3)
    total = int(np.prod(s[:depth]))
    if red == "none":
        n = min(n, total)
        flat = d.np.permutation(total)[:n]
    else:
        flat = d.np.integers(0, total, n)
    idx = np.stack(np.unravel_index(flat, s[:depth]), -1).astype(np.int64)
    neg = d.np.random(idx.shape) < 0.4
    idx = np.where(neg, idx - np.array(s[:depth]), idx)
    return Call(
        "ScatterND", 18, [d.array(s, t), idx, d.array([n, *s[depth:]], t)], {"reduction": red} if red != "none" else {}
    )


@call("OneHot")
def _onehot(d: Draw) -> Call:
    s = d.shape(0, 3, (1, 2, 3))
    depth = d.int(1, 5)
    t = d.one((np.int64, np.int32, F32))
    idx = d.array(s, np.int64, -depth, depth + 1).astype(t)
    v = d.one((F32, np.int64, np.int32))
    return Call(
        "OneHot",
        11,
        [idx, np.array(depth, np.int64) if d.flag() else i64(depth), d.array([2], v)],
        {"axis": d.int(-len(s) - 1, len(s))} if d.flag() else {},
        static=frozenset({1}),
    )


@call("Trilu")
def _trilu(d: Draw) -> Call:
    s = d.shape(2, 4)
    return Call(
        "Trilu",
        14,
        [d.array(s, d.number()), np.array(d.int(-6, 6), np.int64) if d.mostly(3) else None],
        {"upper": d.int(0, 1)} if d.flag() else {},
        static=frozenset({1}),
    )


@call("EyeLike")
def _eye_like(d: Draw) -> Call:
    return Call(
        "EyeLike",
        9,
        [d.array(d.shape(2, 2), d.one((F32, np.int32, F64)))],
        {**({"k": d.int(-5, 5)} if d.flag() else {}), **({"dtype": d.one((1, 6, 7, 11))} if d.flag() else {})},
    )


@call("DepthToSpace")
def _depth_to_space(d: Draw) -> Call:
    b = d.int(1, 3)
    return Call(
        "DepthToSpace",
        13,
        [d.array([d.int(1, 2), b * b * d.int(1, 3), d.int(1, 3), d.int(1, 3)], F32)],
        {"blocksize": b, **({"mode": d.one(("DCR", "CRD"))} if d.flag() else {})},
    )


@call("SpaceToDepth")
def _space_to_depth(d: Draw) -> Call:
    b = d.int(1, 3)
    return Call(
        "SpaceToDepth",
        13,
        [d.array([d.int(1, 2), d.int(1, 3), b * d.int(1, 3), b * d.int(1, 3)], F32)],
        {"blocksize": b},
    )


@call("ReverseSequence")
def _reverse_sequence(d: Draw) -> Call:
    s = [max(k, 1) for k in d.shape(2, 4)]
    b = d.int(0, 1)
    return Call(
        "ReverseSequence",
        10,
        [d.array(s, d.number()), d.array([s[b]], np.int64, 1, s[1 - b])],
        {"batch_axis": b, "time_axis": 1 - b},
    )


@call("Compress")
def _compress(d: Draw) -> Call:
    s = d.shape(1, 3)
    ax = d.axis(len(s)) if d.flag() else None
    n = int(np.prod(s)) if ax is None else s[ax]
    return Call(
        "Compress", 11, [d.array(s, d.number()), d.array([d.int(0, n)], bool)], {} if ax is None else {"axis": ax}
    )


@call("NonZero")
def _nonzero(d: Draw) -> Call:
    t = d.one((F32, np.int32, np.int64, bool, np.uint8))
    x = d.array(d.shape(0, 3), t)
    if t is not bool:
        x = np.round(x).astype(t)
    return Call("NonZero", 13, [x])


@call("Unique")
def _unique(d: Draw) -> Call:
    s = [max(k, 1) for k in d.shape(1, 3)]
    x = np.round(d.array(s, d.one((F32, np.int64, np.int8, F64)), -2, 2))
    a = {}
    if d.flag():
        a["axis"] = d.axis(len(s))
    if d.flag():
        a["sorted"] = d.int(0, 1)
    return Call("Unique", 11, [x], a, outputs=4)


@call("CenterCropPad")
def _center_crop_pad(d: Draw) -> Call:
    s = d.shape(1, 4)
    axes = d.axes(len(s), 1) if d.flag() else None
    n = len(s) if axes is None else len(axes)
    return Call(
        "CenterCropPad",
        18,
        [d.array(s, d.one((F32, np.int64))), i64(*[d.int(0, 7) for _ in range(n)])],
        {} if axes is None else {"axes": axes},
        static=frozenset({1}),
    )


@call("Range")
def _range(d: Draw) -> Call:
    t = d.one((np.int32, np.int64, F32, F64))
    st = d.one((1, 2, 3, -1, -2)) if np.dtype(t).kind == "i" else d.one((0.5, 1.0, 0.3, -0.7))
    return Call(
        "Range",
        11,
        [np.array(d.int(-5, 5), t), np.array(d.int(-8, 8), t), np.array(st, t)],
        static=frozenset({0, 1, 2}),
    )


@call("ConstantOfShape")
def _constant_of_shape(d: Draw) -> Call:
    v = d.array([1], d.number())
    return Call(
        "ConstantOfShape",
        9,
        [i64(*d.shape(0, 4))],
        {"value": numpy_helper.from_array(v)} if d.flag() else {},
        static=frozenset({0}),
    )


@call("Shape", "Size")
def _shape(d: Draw, name: str) -> Call:
    given = d.some(start=d.int(-5, 5), end=d.int(-5, 5)) if name == "Shape" else {}
    return Call(name, d.one((15, 19)) if name == "Shape" else 13, [d.array(d.shape(), d.number())], given)


@call("TensorScatter")
def _tensor_scatter(d: Draw) -> Call:
    batch, length, step = d.int(1, 2), d.int(3, 6), d.int(1, 3)
    given = d.some(mode=d.one(("linear", "circular")))
    most = length - 1 if given.get("mode") == "circular" else length - step
    where = d.np.integers(0, most + 1, batch).astype(np.int64) if d.flag() else None
    shape = [batch, 2, length, 3] if d.flag() else [batch, length, 3]
    update = [*shape[:-2], step, 3]
    return Call("TensorScatter", 24, [d.array(shape), d.array(update), where], given)
