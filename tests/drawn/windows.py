"""Calls of convolutions, pools and operators on images."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import F32, F64, Call, Draw, call, i64, spatial, window


@call("Conv")
def _conv(d: Draw) -> Call:
    rank = d.one((1, 2, 2, 3))
    g = d.one((1, 1, 2, 3))
    ci, co = g * d.int(1, 2), g * d.int(1, 2)
    if d.flag(5):
        g = ci
        co = ci * d.int(1, 2)
    k = [d.int(1, 3) for _ in range(rank)]
    sp = spatial(d, rank, (5, 6, 7, 8))
    t = d.one((F32, F32, F64))
    a = window(d, rank)
    if d.flag():
        a["kernel_shape"] = k
    if g > 1 or d.flag():
        a["group"] = g
    return Call(
        "Conv",
        d.one((11, 22)),
        [
            d.array([d.int(0, 2) if d.flag(8) else 2, ci, *sp], t),
            d.array([co, ci // g, *k], t),
            d.array([co], t) if d.flag() else None,
        ],
        a,
        open_=frozenset({0}),
    )


@call("ConvTranspose")
def _conv_transpose(d: Draw) -> Call:
    rank = d.one((1, 2, 2, 3))
    g = d.one((1, 1, 2))
    ci, co = g * d.int(1, 2), d.int(1, 2)
    k = [d.int(1, 3) for _ in range(rank)]
    sp = spatial(d, rank, (2, 3, 4))
    a = {}
    st = [d.int(1, 3) for _ in range(rank)]
    if d.flag():
        a["strides"] = st
    else:
        st = [1] * rank
    if d.flag(3):
        a["dilations"] = [d.int(1, 2) for _ in range(rank)]
    m = d.r.randrange(5)
    if m == 1:
        a["auto_pad"] = d.one(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif m == 2:
        a["output_shape"] = [
            (n - 1) * s_ + ((kk - 1) * (a.get("dilations", [1] * rank)[i]) + 1) - d.int(0, 1)
            for i, (n, s_, kk) in enumerate(zip(sp, st, k, strict=True))
        ]
    elif m >= 3:
        a["pads"] = [d.int(0, 1) for _ in range(2 * rank)]
    if m != 2 and d.flag(3):
        a["output_padding"] = [d.int(0, s_ - 1) for s_ in st]
    if d.flag():
        a["kernel_shape"] = k
    if g > 1:
        a["group"] = g
    return Call(
        "ConvTranspose",
        11,
        [d.array([2, ci, *sp], F32), d.array([ci, co, *k], F32), d.array([co * g], F32) if d.flag() else None],
        a,
        open_=frozenset({0}),
    )


@call("MaxPool")
def _maxpool(d: Draw) -> Call:
    rank = d.one((1, 2, 2, 3))
    k = [d.int(1, 3) for _ in range(rank)]
    sp = spatial(d, rank, (5, 6, 7, 8))
    a = window(d, rank, most=[max(0, kk - 1) for kk in k])
    a["kernel_shape"] = k
    if d.flag():
        a["ceil_mode"] = d.int(0, 1)
    n = d.int(1, 2)
    if n == 2 and d.flag():
        a["storage_order"] = d.int(0, 1)
    return Call("MaxPool", 12, [d.array([2, 2, *sp], d.one((F32, F32, F64, np.int8, np.uint8)))], a, outputs=n)


@call("AveragePool")
def _avgpool(d: Draw) -> Call:
    rank = d.one((1, 2, 2, 3))
    k = [d.int(1, 3) for _ in range(rank)]
    sp = spatial(d, rank, (5, 6, 7, 8))
    new = d.flag()
    a = window(d, rank, dilations=new, most=[max(0, kk - 1) for kk in k])
    if "auto_pad" in a:
        a.pop("dilations", None)
    a["kernel_shape"] = k
    if d.flag():
        a["ceil_mode"] = d.int(0, 1)
    if d.flag():
        a["count_include_pad"] = d.int(0, 1)
    return Call("AveragePool", 19 if new else 11, [d.array([2, 2, *sp], F32)], a)


@call("LpPool")
def _lppool(d: Draw) -> Call:
    rank = d.one((1, 2, 2))
    k = [d.int(1, 3) for _ in range(rank)]
    sp = spatial(d, rank, (5, 6, 7, 8))
    a = window(d, rank, dilations=True, most=[max(0, kk - 1) for kk in k])
    a["kernel_shape"] = k
    if d.flag():
        a["ceil_mode"] = d.int(0, 1)
    if d.flag():
        a["p"] = d.int(1, 3)
    return Call("LpPool", 18, [d.array([2, 2, *sp], F32)], a)


@call("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global(d: Draw, name: str) -> Call:
    return Call(
        name,
        13,
        [
            d.array(
                [2, d.int(1, 3), *spatial(d, d.int(1, 3))], d.one((F32, F32, F64)) if name != "GlobalLpPool" else F32
            )
        ],
        {"p": d.int(1, 3)} if name == "GlobalLpPool" and d.flag() else {},
    )


@call("Resize")
def _resize(d: Draw) -> Call:
    rank = d.int(1, 4) if d.flag() else 4
    s = [d.int(1, 6) for _ in range(rank)]
    mode = d.one(("nearest", "linear", "cubic"))
    if mode != "nearest":
        rank = 4
        s = [1, d.int(1, 2), d.int(1, 6), d.int(1, 6)]
    a = {"mode": mode}
    if d.mostly(4):
        a["coordinate_transformation_mode"] = d.one(
            (
                "half_pixel",
                "half_pixel_symmetric",
                "pytorch_half_pixel",
                "align_corners",
                "asymmetric",
                "tf_crop_and_resize",
            )
        )
    if mode == "nearest" and d.flag():
        a["nearest_mode"] = d.one(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic" and d.flag():
        a["cubic_coeff_a"] = d.one((-0.5, -0.75))
    if mode != "nearest" and d.flag(4):
        a["exclude_outside"] = 1 if mode == "cubic" else 0
    if mode != "nearest" and d.flag(4):
        a["antialias"] = 1
    roi = None
    if a.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        lo = d.np.uniform(0, 0.4, rank)
        hi = d.np.uniform(0.6, 1.2, rank)
        if mode != "nearest":
            lo[:2] = 0
            hi[:2] = 1
        roi = np.concatenate([lo, hi]).astype(F32)
        if d.flag():
            a["extrapolation_value"] = d.one((0.0, 1.5))
        a.pop("antialias", None)
    fix = 2 if mode != "nearest" else 0
    if d.flag():
        sizes = [k if i < fix else d.int(1, 9) for i, k in enumerate(s)]
        return Call("Resize", 19, [d.array(s, F32), roi, None, i64(*sizes)], a, static=frozenset({1, 2, 3}), rtol=1e-3)
    sc = [1.0 if i < fix else d.one((0.5, 0.6, 1.0, 1.5, 2.0, 2.3, 3.0, 0.8)) for i in range(rank)]
    return Call(
        "Resize", 19, [d.array(s, F32), roi, np.array(sc, F32), None], a, static=frozenset({1, 2, 3}), rtol=1e-3
    )


@call("GridSample")
def _grid(d: Draw) -> Call:
    n, c = d.int(1, 2), d.int(1, 2)
    a = {}
    if d.flag():
        a["mode"] = d.one(("linear", "nearest", "cubic"))
    if d.flag():
        a["padding_mode"] = d.one(("zeros", "border", "reflection"))
    if d.flag():
        a["align_corners"] = d.int(0, 1)
    if a.get("mode") != "cubic" and d.flag(4):
        return Call(
            "GridSample", 20, [d.array([n, c, 3, 4, 3], F32), d.array([n, 2, 3, 2, 3], F32, -1.3, 1.3)], a, rtol=1e-3
        )
    return Call(
        "GridSample",
        20,
        [d.array([n, c, d.int(2, 5), d.int(2, 5)], F32), d.array([n, 3, 4, 2], F32, -1.3, 1.3)],
        a,
        rtol=1e-3,
    )


@call("AffineGrid")
def _affine(d: Draw) -> Call:
    two = d.flag()
    n = d.int(1, 2)
    return Call(
        "AffineGrid",
        20,
        [d.array([n, 2, 3] if two else [n, 3, 4], F32), i64(n, 2, *[d.int(1, 4) for _ in range(2 if two else 3)])],
        {"align_corners": d.int(0, 1)} if d.flag() else {},
        static=frozenset({1}),
    )


@call("RoiAlign")
def _roi(d: Draw) -> Call:
    n = d.int(1, 3)
    b = d.int(1, 2)
    xy = d.np.uniform(0, 4, (n, 2))
    wh = d.np.uniform(0.2, 5, (n, 2))
    a = {
        k: v
        for k, v in dict(
            output_height=d.int(1, 3),
            output_width=d.int(1, 3),
            sampling_ratio=d.int(0, 3),
            spatial_scale=d.one((1.0, 0.5)),
            mode=d.one(("avg", "max")),
            coordinate_transformation_mode=d.one(("half_pixel", "output_half_pixel")),
        ).items()
        if d.flag()
    }
    return Call(
        "RoiAlign",
        16,
        [d.array([b, 2, 6, 7], F32), np.concatenate([xy, xy + wh], 1).astype(F32), d.array([n], np.int64, 0, b - 1)],
        a,
        rtol=1e-3,
    )


@call("NonMaxSuppression")
def _non_max_suppression(d: Draw) -> Call:
    b, n, c = d.int(1, 2), d.int(1, 8), d.int(1, 3)
    p = d.np.uniform(0, 5, (b, n, 2))
    q = p + d.np.uniform(-3, 3, (b, n, 2))
    a = {"center_point_box": d.int(0, 1)} if d.flag() else {}
    boxes = np.concatenate([p, q if not a.get("center_point_box") else np.abs(q) + 0.1], -1).astype(F32)
    return Call(
        "NonMaxSuppression",
        11,
        [
            boxes,
            d.array([b, c, n], F32, 0, 1),
            i64(d.int(0, 4)) if d.mostly(4) else None,
            np.array([d.one((0.0, 0.3, 0.5, 1.0))], F32) if d.flag() else None,
            np.array([d.one((0.0, 0.3, 0.6))], F32) if d.flag() else None,
        ],
        a,
    )


@call("Col2Im")
def _col2im(d: Draw) -> Call:
    rank = 2
    img = [d.int(4, 7) for _ in range(rank)]
    blk = [d.int(1, 3) for _ in range(rank)]
    dil = [d.int(1, 2) for _ in range(rank)]
    pads = [d.int(0, 1) for _ in range(2 * rank)]
    st = [d.int(1, 2) for _ in range(rank)]
    ls = [(img[i] + pads[i] + pads[i + rank] - (dil[i] * (blk[i] - 1) + 1)) // st[i] + 1 for i in range(rank)]
    return Call(
        "Col2Im",
        18,
        [d.array([2, 2 * int(np.prod(blk)), int(np.prod(ls))], F32), i64(*img), i64(*blk)],
        dict(dilations=dil, pads=pads, strides=st),
        static=frozenset({1, 2}),
    )


@call("MaxUnpool")
def _unpool(d: Draw) -> Call:
    x = d.array([1, 2, 2, 3], F32)
    k = [2, 2]
    idx = np.zeros((1, 2, 2, 3), np.int64)
    for c in range(2):
        for i in range(2):
            for j in range(3):
                idx[0, c, i, j] = c * 24 + (2 * i + d.int(0, 1)) * 6 + 2 * j + d.int(0, 1)
    return Call("MaxUnpool", 11, [x, idx], dict(kernel_shape=k, strides=[2, 2]))


@call("DeformConv")
def _deform(d: Draw) -> Call:
    groups, of_offsets, kernel = d.one((1, 2)), d.one((1, 2)), [d.int(1, 3), d.int(1, 3)]
    channels, image = 2 * groups, [d.int(4, 6), d.int(4, 6)]
    strides, pads = [d.int(1, 2), d.int(1, 2)], [d.int(0, 1) for _ in range(4)]
    dilations = [d.int(1, 2), d.int(1, 2)]
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    out = [(image[i] + pads[i] + pads[i + 2] - spans[i]) // strides[i] + 1 for i in range(2)]
    area = kernel[0] * kernel[1]
    mask = d.array([2, of_offsets * area, *out], F32, 0, 1) if d.flag() else None
    return Call(
        "DeformConv",
        d.one((19, 22)),
        [
            d.array([2, channels, *image]),
            d.array([2 * groups, channels // groups, *kernel]),
            d.array([2, of_offsets * 2 * area, *out]),
            d.array([2 * groups]) if d.flag() else None,
            mask,
        ],
        {"group": groups, "offset_group": of_offsets, "strides": strides, "pads": pads, "dilations": dilations},
        rtol=1e-3,
        open_=frozenset({0}),
    )


@call("MaxRoiPool")
def _roi_pool(d: Draw) -> Call:
    rois, images = d.int(1, 3), d.int(1, 2)
    corners = np.sort(d.np.integers(0, 7, (rois, 2, 2)), 1).reshape(rois, 4)
    boxes = np.concatenate([d.np.integers(0, images, (rois, 1)), corners], 1).astype(F32)
    given = {"pooled_shape": [d.int(1, 3), d.int(1, 3)], **d.some(spatial_scale=d.one((0.5, 1.0)))}
    return Call("MaxRoiPool", 1, [d.array([images, 2, 6, 7]), boxes], given)


@call("Upsample")
def _upsample(d: Draw) -> Call:
    scales = np.array([1, 1, d.one((1.0, 1.5, 2.0, 3.0)), d.one((1.0, 2.0, 2.5))], F32)
    image = d.array([1, d.int(1, 2), d.int(1, 4), d.int(1, 4)])
    return Call("Upsample", 9, [image, scales], d.some(mode=d.one(("nearest", "linear"))), static=frozenset({1}))
