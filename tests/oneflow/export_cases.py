"""One call or more for every OneFlow op that the exporter writes.

A case is (op type, call, setup, reference): `call` is evaluated on the tensors of `INPUTS` that it names, which become
graph inputs; `mod` in it is the module or tensor that `setup` makes; `reference` is what to compare with where OneFlow
has no CPU kernel for the op itself (it must not run it: that ends the process).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def _inputs() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(size=shape).astype(np.float32)

    return {
        "x": normal(2, 3, 8, 8),
        "x1": normal(2, 3, 8),
        "x3": normal(2, 3, 6, 6, 6),
        "x4": normal(2, 4, 5, 5),
        "m": normal(3, 4),
        "n": normal(3, 4),
        "m2": normal(4, 5),
        "p": generator.uniform(0.05, 0.95, (3, 4)).astype(np.float32),
        "q": generator.uniform(1.1, 3.0, (3, 4)).astype(np.float32),
        "v": normal(5),
        "w": normal(4),
        "B": normal(2, 3, 4),
        "C": normal(2, 4, 5),
        "s": normal(1),
        "sq": normal(2, 4, 4),
        "att": normal(2, 2, 5, 4),
        "hidden": normal(5, 2, 24),
        "i": generator.integers(-9, 9, (3, 4)),
        "k": generator.choice([-3, -2, 2, 3, 5], (3, 4)),
        "i32": generator.integers(-9, 9, (3, 4)).astype(np.int32),
        "u8": generator.integers(0, 9, (3, 4)).astype(np.uint8),
        "d": normal(3, 4).astype(np.float64),
        "b": generator.random((3, 4)) > 0.5,
        "c": generator.random((3, 4)) > 0.5,
        "idx": np.array([0, 2, 1]),
        "ids": np.array([2, 0, 2]),
        "gi": np.array([[0, 1], [2, 0], [3, 3]]),
        "g0": np.array([[0, 1, 2, 0], [2, 0, 1, 1]]),
        "gn": np.array([[0, 1], [2, 3]]),
        "t": np.array([[1, 4], [9, 0]]),
        "half": np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.4, -3.7], dtype=np.float32),
        "odd": np.array([np.nan, np.inf, -np.inf, 1, 0], dtype=np.float32),
        "grid": generator.uniform(-1.2, 1.2, (2, 5, 6, 2)).astype(np.float32),
        "theta": normal(2, 2, 3),
        "gates": normal(3, 16),
        "gates2": normal(3, 16),
        "g3": normal(3, 12),
        "g3b": normal(3, 12),
        "wide": normal(3, 300),
        "boxes": np.array([[0, 0, 4, 4], [0, 0, 4, 4.2], [3, 3, 6, 6], [0, 5, 2, 8]], dtype=np.float32),
        "rois": np.array([[0, 0.5, 0.5, 5, 6], [1, 1, 2, 6, 7.5]], dtype=np.float32),
        "labels": np.array([1, 3, 0]),
        "offset": normal(2, 18, 6, 6),
    }


INPUTS = _inputs()


@dataclass(frozen=True)
class Case:
    """See the module."""

    op: str
    call: str
    setup: str = ""
    reference: str = ""

    def __str__(self) -> str:
        return f"{self.op}: {self.call}" + (f" of {self.setup}" if self.setup else "")


_UNARY = {
    "T.{}(m)": "abs atan ceil cos cosh erf erfc exp expm1 floor log1p sigmoid sign sin sinh square tan tanh trunc",
    "T.{}(p)": "acos asin atanh erfinv log log2 log10 rsqrt sqrt lgamma",
    "T.{}(q)": "acosh reciprocal lgamma",
    "T.{}(half)": "round floor ceil trunc sign abs expm1 log1p",
    "T.{}(odd)": "isnan isinf isfinite",
    "T._C.{}(m)": "quick_gelu fast_gelu identity",
    "F.{}(m)": "relu gelu silu mish selu softsign hardsigmoid hardswish",
}

CASES = [
    *(Case(op, call.format(op)) for call, ops in _UNARY.items() for op in ops.split()),
    Case("asinh", "T.asinh(m)"),
    Case("rint", "T._C.rint(half)"),
    Case("negative", "T.neg(m)"),
    Case("reciprocal_no_nan", "T._C.reciprocal_no_nan(T.relu(m))"),
    Case("log_sigmoid", "F.logsigmoid(m)"),
    Case("abs", "T.abs(i32)"),
    Case("logical_not", "T.logical_not(m)"),
    Case("logical_not", "~b"),
    # activations
    Case("elu", "F.elu(m, 1.5)"),
    Case("celu", "mod(m)", "nn.CELU(1.5)"),
    Case("leaky_relu", "F.leaky_relu(m, 0.2)"),
    Case("hardshrink", "mod(m)", "nn.Hardshrink(.3)"),
    Case("softshrink", "mod(m)", "nn.Softshrink(.3)"),
    Case("hardtanh", "F.hardtanh(m, -.5, .7)"),
    Case("hardtanh", "F.relu6(m)"),
    Case("softplus", "F.softplus(m)"),
    Case("softplus", "F.softplus(m, 2.0, 1.0)"),
    Case("threshold", "mod(m)", "nn.Threshold(.1, 2.)"),
    Case("prelu", "mod(x)", "nn.PReLU(3)"),
    Case("prelu", "mod(x)", "nn.PReLU()"),
    Case("prelu", "mod(m)", "nn.PReLU(4)"),
    Case("softmax", "F.softmax(m, 1)"),
    Case("softmax", "F.softmax(x, 1)"),
    Case("log_softmax", "F.log_softmax(m, dim=0)"),
    Case("fused_bias_add_gelu", "T._C.fused_bias_add_gelu(m, w, axis=1)", "", "F.gelu(m + w)"),
    Case("fused_bias_add_gelu", "T._C.fused_bias_add_gelu(x4, w, axis=1)", "", "F.gelu(x4 + w.reshape(4, 1, 1))"),
    Case("fused_fast_gelu_mul", "T._C.fused_fast_gelu_mul(m, n)", "", "T._C.fast_gelu(m) * n"),
    Case(
        "fused_glu",
        "T._C.fused_glu(m, mod, mod[:, 0], activation='sigmoid')",
        "T.ones(6, 4) * .3",
        "(T.matmul(m, mod[:3].t()) + .3) * T.sigmoid(T.matmul(m, mod[3:].t()) + .3)",
    ),
    # arithmetic
    Case("broadcast_add", "s + m"),
    Case("broadcast_sub", "m - w"),
    Case("broadcast_mul", "m * w"),
    Case("broadcast_div", "m / n"),
    Case("broadcast_mul", "i * k"),
    Case("broadcast_sub", "i - k"),
    Case("broadcast_sub", "b - c"),
    Case("add_n", "m + n"),
    Case("add_n", "m + n + p + q"),
    Case("add_n", "i + k"),
    Case("pow", "T.pow(p, q)"),
    Case("broadcast_pow", "T.pow(p, w)"),
    Case("elementwise_maximum", "T.maximum(m, n)"),
    Case("elementwise_minimum", "T.minimum(m, n)"),
    Case("elementwise_minimum", "T.minimum(i, k)"),
    Case("broadcast_maximum", "T.maximum(m, w)"),
    Case("broadcast_minimum", "T.minimum(m, w)"),
    Case("broadcast_fmod", "T.fmod(m, n)"),
    Case("broadcast_fmod", "i % k"),
    Case("broadcast_fmod", "T.fmod(b, c)"),
    Case("floordiv", "i // k"),
    Case("floordiv", "m // n"),
    Case("truncdiv", "T._C.trunc_divide(i, k)"),
    Case("truncdiv", "T._C.trunc_divide(m, n)"),
    Case("atan2", "T.atan2(m, n)"),
    Case("square", "m.square()"),
    *(Case(op, f"m {sign} n") for op, sign in (("broadcast_greater", ">"), ("broadcast_less", "<"))),
    *(Case(op, f"i {sign} k") for op, sign in (("broadcast_greater_equal", ">="), ("broadcast_less_equal", "<="))),
    *(Case(op, f"m {sign} n") for op, sign in (("broadcast_greater_equal", ">="), ("broadcast_less_equal", "<="))),
    *(Case(op, f"i {sign} k") for op, sign in (("broadcast_equal", "=="), ("broadcast_not_equal", "!="))),
    *(Case(op, f"m {sign} m") for op, sign in (("broadcast_equal", "=="), ("broadcast_not_equal", "!="))),
    *(
        Case(op, f"b {sign} c")
        for op, sign in (("broadcast_logical_and", "&"), ("broadcast_logical_or", "|"), ("broadcast_logical_xor", "^"))
    ),
    Case("broadcast_logical_and", "T.logical_and(i, k)"),
    Case("square", "i * i * 1.0 * m.square()"),
    *(Case("scalar_add", f"{e}") for e in ("m + 1", "m - 2.5", "i + 3", "i + 2.5", "1 - m", "i32 + 1", "u8 + 1")),
    *(Case("scalar_mul", f"{e}") for e in ("m * 2", "i * 3", "m * 0.3", "d * 0.1")),
    *(Case("scalar_div", f"{e}") for e in ("m / 3", "i / 2")),
    *(Case("scalar_pow", f"{e}") for e in ("p ** 2.5", "m ** 3", "i ** 2", "p ** -1")),
    *(Case("scalar_reverse_pow", f"{e}") for e in ("2 ** m", "1.5 ** m")),
    *(Case("scalar_floordiv", f"{e}") for e in ("i // 2", "m // 0.7")),
    *(Case("scalar_fmod", f"{e}") for e in ("i % 3", "m % 0.7", "i32 % 4")),
    Case("scalar_fmod", "T.fmod(m, -0.3)"),
    *(
        Case(f"scalar_logical_{op}", f"{of} {sign} {to}")
        for op, sign in (
            ("equal", "=="),
            ("not_equal", "!="),
            ("greater", ">"),
            ("less", "<"),
            ("greater_equal", ">="),
            ("less_equal", "<="),
        )
        for of, to in (("m", "0.5"), ("i", "2"), ("i", "2.5"))
    ),
    Case("scalar_logical_and", "T.logical_and(m, 1)"),
    Case("scalar_logical_or", "T.logical_or(m, 0)"),
    Case("scalar_logical_xor", "T.logical_xor(m, 1)"),
    Case("clip_by_scalar", "T.clip(m, -.5, .5)"),
    Case("clip_by_scalar", "T.clip(i, -2, 3)"),
    Case("clip_by_scalar_max", "T.clamp(m, max=0.)"),
    Case("clip_by_scalar_min", "T.clamp(m, min=0)"),
    Case("clip_by_scalar_min", "T.clamp(i, min=0)"),
    Case("where", "T.where(b, m, n)"),
    Case("where", "T.where(b, i, k)"),
    Case("where_scalar_x", "T.where(b, 1., d)"),
    Case("where_scalar_y", "T.where(b, d, 0.)"),
    Case("where_scalar_xy", "T.where(b, 1., 2.)"),
    Case("masked_fill", "m.masked_fill(b, 7)"),
    Case("masked_fill", "i.masked_fill(b, 7)"),
    Case("masked_fill", "F.softmax(m.masked_fill(b, float('-inf')) + 0, 1).masked_fill(b, 0.)"),
    *(
        Case("cast", f"{e}")
        for e in (
            "m.int()",
            "m.long()",
            "i.float()",
            "b.float()",
            "m.bool()",
            "m.double()",
            "u8.float()",
            "m.to(T.int8)",
        )
    ),
    Case("cast", "(m * 9).to(T.uint8).int()"),
    Case("fused_weighted_sum", "T._C.fused_weighted_sum([m, n], [0.3, 0.7])", "", "m * 0.3 + n * 0.7"),
    Case("bias_add", "T._C.bias_add(x4, w, axis=1)"),
    # conv and resampling
    Case("conv1d", "mod(x1)", "nn.Conv1d(3, 4, 3)"),
    Case("conv2d", "mod(x)", "nn.Conv2d(3, 4, 3, padding=1, stride=2)"),
    Case("conv2d", "mod(x)", "nn.Conv2d(3, 6, 3, groups=3, dilation=2, bias=False)"),
    Case("conv3d", "mod(x3)", "nn.Conv3d(3, 4, 3)"),
    Case("deconv1d", "mod(x1)", "nn.ConvTranspose1d(3, 4, 3, 2)"),
    Case("deconv2d", "mod(x)", "nn.ConvTranspose2d(3, 4, 3, 2, 1, 1)"),
    Case("deconv2d", "mod(x)", "nn.ConvTranspose2d(3, 6, 3, groups=3, dilation=2)"),
    Case("deconv3d", "mod(x3)", "nn.ConvTranspose3d(3, 4, 2, 2)"),
    Case("deform_conv2d", "F.deform_conv2d(x, offset, mod)", "T.ones(4, 3, 3, 3) * .1"),
    Case("unfold", "F.unfold(x, 3, 1, 1, 2)"),
    Case("unfold", "F.unfold(x, (2, 3), (2, 1), (0, 1), (1, 2))"),
    Case("fold", "F.fold(F.unfold(x, 3, 1, 1, 2), (8, 8), 3, 1, 1, 2)"),
    Case("unfold_tensor", "x.unfold(2, 3, 2)"),
    Case("unfold_tensor", "m.unfold(1, 2, 1)"),
    *(Case("upsample_nearest_1d", f"F.interpolate(x1, {a}, mode='nearest')") for a in ("size=7", "scale_factor=2")),
    *(
        Case("upsample_nearest_2d", f"F.interpolate(x, {a}, mode='nearest')")
        for a in ("size=(13, 5)", "scale_factor=2", "scale_factor=1.7")
    ),
    *(
        Case("upsample_nearest_3d", f"F.interpolate(x3, {a}, mode='nearest')")
        for a in ("size=(7, 7, 7)", "scale_factor=2")
    ),
    *(
        Case("upsample_linear_1d", f"F.interpolate(x1, {a}, mode='linear')")
        for a in ("size=7", "scale_factor=2", "size=5, align_corners=True")
    ),
    *(
        Case(f"upsample_bi{kind}_2d", f"F.interpolate(x, {a}, mode='bi{kind}')")
        for kind in ("linear", "cubic")
        for a in ("size=(13, 5)", "scale_factor=2", "size=(13, 5), align_corners=True", "scale_factor=1.7")
    ),
    *(
        Case("upsample_trilinear_3d", f"F.interpolate(x3, {a}, mode='trilinear')")
        for a in ("size=(7, 7, 7)", "scale_factor=2")
    ),
    Case("affine_grid", "F.affine_grid(theta, (2, 3, 4, 5), align_corners=False)"),
    Case("affine_grid", "F.affine_grid(theta, (2, 3, 4, 5), align_corners=True)"),
    *(
        Case("grid_sample", f"F.grid_sample(x, grid, '{mode}', '{pad}', align_corners={corners})")
        for mode in ("bilinear", "nearest", "bicubic")
        for pad in ("zeros", "border", "reflection")
        for corners in (True, False)
    ),
    # pooling
    *(Case(f"max_pool_{n}d", f"F.max_pool{n}d({x}, 3, 2, 1)") for n, x in ((1, "x1"), (2, "x"), (3, "x3"))),
    Case("max_pool_2d", "F.max_pool2d(x, 3, 2, 1, ceil_mode=True)"),
    Case("max_pool_2d", "F.max_pool2d(x, 2, 2, dilation=2)"),
    Case("max_pool_2d", "F.max_pool2d(x, 3, 2, 1, return_indices=True)"),
    *(Case(f"avg_pool_{n}d", f"F.avg_pool{n}d({x}, 3, 2, 1)") for n, x in ((1, "x1"), (2, "x"), (3, "x3"))),
    *(
        Case("avg_pool_2d", f"F.avg_pool2d(x, {a})")
        for a in (
            *("3, 2, 1, count_include_pad=False", "3, 2, ceil_mode=True", "3, 2, 1, ceil_mode=True"),
            *("3, 2, 1, ceil_mode=True, count_include_pad=False", "3, 2, 1, divisor_override=5"),
        )
    ),
    *(
        Case(f"adaptive_{k}_pool{n}d", f"F.adaptive_{k}_pool{n}d({x}, {o})")
        for k in ("avg", "max")
        for n, x in ((1, "x1"), (2, "x"), (3, "x3"))
        for o in (1, 2, 3, 4)
        if not (n == 3 and o == 4)
    ),
    Case("adaptive_avg_pool2d", "F.adaptive_avg_pool2d(x, (3, 5))"),
    Case("max_unpool_2d", "F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)"),
    Case("max_unpool_1d", "F.max_unpool1d(*F.max_pool1d(x1, 2, return_indices=True), 2)"),
    Case("max_unpool_3d", "F.max_unpool3d(*F.max_pool3d(x3, 2, return_indices=True), 2)"),
    # normalisation
    Case("normalization", "mod(x)", "nn.BatchNorm2d(3)"),
    Case("normalization", "mod(m)", "nn.BatchNorm1d(4)"),
    Case("normalization", "mod(x)", "nn.BatchNorm2d(3, affine=False)"),
    Case("normalization", "mod(x)", "nn.BatchNorm2d(3, track_running_stats=False)"),
    Case("var", "mod(m)", "nn.LayerNorm(4)"),
    Case("var", "mod(x4)", "nn.GroupNorm(2, 4)"),
    Case("var", "mod(x)", "nn.InstanceNorm2d(3, affine=True)"),
    Case(
        "layer_norm",
        "T._C.layer_norm_affine(m, mod, mod + 1, 1, 1, 1e-5)",
        "T.ones(4) * .7",
        "(m - m.mean(1, True)) / (m.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt() * mod + mod + 1",
    ),
    Case(
        "layer_norm",
        "T._C.layer_norm(m, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5)",
        "",
        "(m - m.mean(1, True)) / (m.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()",
    ),
    Case(
        "group_norm",
        "T._C.group_norm(x4, mod, mod + 1, True, 2, 1e-5)",
        "T.ones(4) * .7",
        "F_group_norm(x4, 2) * .7 + 1.7",
    ),
    Case("rms_norm", "mod(m)", "nn.RMSNorm(4)", "m / (m.square().mean(1, True) + 1e-5).sqrt()"),
    Case("l2_normalize", "F.normalize(m, dim=1)"),
    # shape
    Case("reshape", "m.reshape(2, 6)"),
    Case("reshape", "m.flatten()"),
    Case("expand_dims", "m.unsqueeze(1)"),
    Case("squeeze", "m.unsqueeze(1).squeeze(1)"),
    Case("transpose", "m.t()"),
    Case("transpose", "x.permute(0, 2, 3, 1)"),
    Case("expand", "m.unsqueeze(1).expand(3, 5, 4)"),
    Case("broadcast_like", "T.broadcast_like(w, m)"),
    Case("concat", "T.cat([m, n, p], 1)"),
    Case("stack", "T.stack([m, n], 1)"),
    Case("narrow", "m.narrow(1, 1, 2)"),
    Case("narrow", "T.split(x, 3, 2)[1]"),
    Case("slice", "m[1:-1]"),
    Case("slice", "x[:, 1:, ::2, 3:7:3]"),
    Case("slice_update", "T.slice_update(m.clone(), n[:2, :2], [[0, 2, 1], [0, 2, 1]])"),
    Case("slice_update", "setitem(x, (slice(None), 1, slice(2, 5)), 4.0)"),
    Case("slice_update", "setitem(x, (slice(None), slice(None), slice(0, 8, 2), slice(1, 8, 3)), -1.0)"),
    Case("assign", "copied(m, n)"),
    Case("flip", "T.flip(m, [0, 1])"),
    Case("roll", "T.roll(m, 1, 1)"),
    Case("roll", "T.roll(x, (3, -2), (2, 3))"),
    Case("roll", "T.roll(m, 5)"),
    Case("roll", "T.roll(m, (1, 2), (0, -1))"),
    Case("roll", "T.roll(m, (1,), (-2,))"),
    Case("pad", "F.pad(x, (1, 2, 3, 4), value=1.5)"),
    Case("pad", "F.pad(i, (1, 2), value=7)"),
    Case("pad", "F.pad(x, (-1, 2, 0, -3))"),
    Case("reflection_pad1d", "F.pad(x1, (2, 1), mode='reflect')"),
    Case("reflection_pad2d", "F.pad(x, (2, 1, 3, 0), mode='reflect')"),
    Case("replication_pad1d", "mod(x1)", "nn.ReplicationPad1d((1, 2))"),
    Case("replication_pad2d", "F.pad(x, (2, 1, 3, 0), mode='replicate')"),
    *(Case("tril", f"T.tril(sq, {k})") for k in (0, 1, -2)),
    *(Case("triu", f"T.triu(sq, {k})") for k in (0, 1, -2)),
    Case("fused_scale_tril", "T._C.fused_scale_tril(m, 0, 0.0, 2.0)", "", "T.tril(m) * 2"),
    *(Case("diag", f"T.diag({of})") for of in ("v", "m", "v, 1", "m, -1", "m, 2")),
    *(Case("diagonal", f"T.diagonal({of})") for of in ("m, 0, 0, 1", "m, 1, 0, 1", "sq, 0, 1, 2", "m, -1, 0, 1")),
    Case("as_strided", "T.as_strided(m, (2, 2), (4, 2), 1)"),
    Case("repeat_interleave", "m.repeat_interleave(2, 0)"),
    Case("expand", "m.repeat(2, 3)"),
    Case("one_hot", "F.one_hot(t, 10)"),
    Case("one_hot", "F.one_hot(t, 10, 2.0, -1.0)"),
    Case("constant", "T.ones_like(i) + i"),
    Case("constant", "T.zeros(40, 50) + s"),
    Case("eye", "T.eye(3, 4) + m"),
    Case("arange", "T.arange(4) + i"),
    Case("arange", "T.arange(1, 5, 1.0) + m"),
    Case("fill_", "m.clone().fill_(2.) + m"),
    Case("tensor_scatter_nd_update", "T.tensor_scatter_nd_update(m, ids[:2].unsqueeze(1), n[:2])"),
    Case("constant", "T.full((3, 4), 5) + i"),
    # reductions
    *(Case(f"reduce_{op}", f"x.{op}({a})") for op in ("sum", "max", "min") for a in ("", "1" if op == "sum" else "")),
    *(
        Case("reduce_sum", e)
        for e in ("x.sum((1, 3), keepdim=True)", "x.mean((2, 3))", "i.sum(0)", "b.sum()", "m.mean()")
    ),
    *(Case(f"reduce_{op}", f"x.{op}(1, keepdim=True)[0]") for op in ("max", "min")),
    Case("reduce_max", "i.max()"),
    Case("reduce_prod", "m.prod()"),
    Case("reduce_prod", "m.prod(1)"),
    Case("reduce_any", "T.any(b)"),
    Case("reduce_any", "T.any(b, 1)"),
    Case("reduce_all", "T.all(b, 1, keepdim=True)"),
    Case("reduce_nansum", "T.nansum(m, 1)"),
    Case("var", "m.var(1)"),
    Case("sqrt", "x.std((1, 2), False, True)"),
    Case("sqrt_square_sum", "m.norm()"),
    Case("cumsum", "T.cumsum(m, 1)"),
    Case("cumsum", "T.cumsum(i, 0)"),
    Case("cumprod", "T.cumprod(m, 1)"),
    Case("cumprod", "T.cumprod(x1, 0)"),
    Case("median", "T.median(m)"),
    Case("median_with_indices", "T.median(m, 1)"),
    # indexing
    Case("gather", "T.index_select(m, 1, idx)"),
    Case("gather_nd", "T.gather_nd(m, gn)"),
    Case("gather_nd", "m[idx]"),
    Case("gather_nd", "x[:, idx]"),
    Case("embedding", "mod(t)", "nn.Embedding(10, 4, padding_idx=0)"),
    Case("dim_gather", "T.gather(m, 1, gi)"),
    Case("dim_gather", "T.gather(m, 0, g0)"),
    Case("dim_gather", "T.gather(m, 0, g0[:, :2])"),
    Case("batch_gather", "T.batch_gather(m, gi)"),
    Case("dim_scatter_update", "T.scatter(m, 1, gi, n)"),
    Case("dim_scatter_add", "T.scatter_add(m, 1, gi, n)"),
    Case("dim_scatter_mul", "T.scatter(m, 1, gi, n, reduce='multiply')"),
    Case("dim_scatter_update_scalar", "T.scatter(m, 1, gi, 2.5)"),
    Case("dim_scatter_add_scalar", "T.scatter(m, 1, gi, 2.5, reduce='add')"),
    Case(
        "dim_scatter_mul_scalar",
        "T.scatter(m, 1, gi, 2.5, reduce='multiply')",
        "",
        "T.scatter(m, 1, gi, T.ones(3, 2) * 2.5, reduce='multiply')",
    ),
    Case("scatter_nd", "T.scatter_nd(ids.unsqueeze(1), n, (4, 4))"),
    Case("index_add", "T.index_add(m, 0, ids, n)"),
    Case("index_add", "T.index_add(m, 1, idx, n[:, :3], alpha=2.0)"),
    Case("unsorted_segment_sum", "T._C.unsorted_segment_sum(m, ids, axis=0, num_segments=4)"),
    Case("unsorted_segment_sum", "T._C.unsorted_segment_sum(B, ids, axis=1, num_segments=4)"),
    Case("argmax", "T.argmax(m, 1)"),
    Case("argmax", "T.argmin(m, 0)"),
    Case("arg_sort", "T.argsort(m, 1)"),
    Case("arg_sort", "T.argsort(m, 0, descending=True)"),
    Case("arg_sort", "T.sort(m, 1)[0]"),
    Case("top_k", "T.topk(m, 2, 1)"),
    Case("top_k", "T.topk(m, 2, 0, largest=False)"),
    Case("in_top_k", "T.in_top_k(labels, m, k=2)"),
    Case("searchsorted", "T.searchsorted(mod, w)", "T.tensor([-1., -.5, 0., .5, 2.])"),
    Case("searchsorted", "T.searchsorted(mod, w, right=True, out_int32=True)", "T.tensor([-1., -.5, 0., .5, 2.])"),
    Case("searchsorted_scalar", "T.searchsorted(mod, 0.5)", "T.tensor([-1., -.5, 0., .5, 2.])"),
    Case("arg_sort", "T.argsort(i, 1)"),
    # linear algebra
    Case("matmul", "m @ m2"),
    Case("matmul", "mod(m)", "nn.Linear(4, 6)"),
    Case("broadcast_matmul", "mod(B)", "nn.Linear(4, 6)"),
    Case("broadcast_matmul", "T.matmul(B, m2)"),
    Case("batch_matmul", "T.bmm(B, C)"),
    Case("batch_matmul", "T.matmul(att, att.transpose(2, 3))"),
    Case("matmul", "T._C.matmul(m, n, transpose_a=True, transpose_b=False, alpha=2.0)"),
    Case("matrix_vector_product", "T.mv(m, w)"),
    Case("vector_matrix_product", "T.matmul(w, m2)"),
    Case("dot", "T.dot(w, w)"),
    Case("linalg_cross", "T.cross(m[:, :3], n[:, :3])"),
    Case("inv", "T.linalg.inv(sq + mod)", "T.eye(4) * 3"),
    Case("inv", "T.linalg.inv(mod + sq * .001)", "T.tensor([[0., 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 3], [0, 0, 1, 0]])"),
    Case(
        "fused_scale_mask_softmax",
        "T._C.fused_scale_mask_softmax(att, att > 0, fill_value=-1e4, scale=2.0)",
        "",
        "F.softmax((att * 2).masked_fill(att <= 0, -1e4), -1)",
    ),
    Case(
        "fused_tril_scale_softmax_mask_scale",
        "T._C.fused_scale_tril_softmax_mask_scale(att, p=0, diagonal=0, tril_scale_value=.5, tril_fill_value=-1e4)[0]",
        "",
        "F.softmax((att * .5).masked_fill(T.tril(T.ones(5, 4)) == 0, -1e4), -1)",
    ),
    Case(
        "fused_self_attention_query_mul_key_and_value",
        "T._C.fused_self_attention(hidden, 4, 0.5)",
        "",
        "self_attention(hidden, 4, .5)",
    ),
    Case("batch_matmul", "T.einsum('bij,bjk->bik', B, C)"),
    # quantisation
    *(
        Case("min_max_observer", "mod(m)", f"nn.MinMaxObserver({a})")
        for a in (
            "",
            "quantization_scheme='affine'",
            "per_layer_quantization=False",
            "quantization_formula='cambricon'",
        )
    ),
    *(
        Case("fake_quantization", "mod(m, s.abs() * .02, s * 0 + 3)", f"nn.FakeQuantization({a})")
        for a in (
            "",
            "quantization_scheme='affine'",
            "quantization_bit=4",
            "quantization_bit=4, quantization_scheme='affine'",
        )
    ),
    Case("fake_quantization", "mod(m, p[:, 0] * .02, p[:, 0] * 0)", "nn.FakeQuantization()"),
    *(
        Case("quantization", "mod(m, s.abs() * .02, s * 0 + 3)", f"nn.Quantization({a})")
        for a in ("", "quantization_scheme='affine'", "quantization_bit=4")
    ),
    Case("moving_average_min_max_observer", "mod(m, idx[:1])", "observer()"),
    # detection
    Case("roi_align", "T.roi_align(x, rois, 1.0, 2, 2, 2, True)", "", "None"),
    *(
        Case(f"fused_get_{name}", f"T._C.fused_get_{name}({arguments})", "", formula)
        for name, arguments, formula in (
            (
                "boundding_boxes_coord",
                "m, n, p, q, n, m, q, p",
                "[c + e * h for c, e in ((m, p), (n, q), (n, q), (m, p)) for h in (-.5, .5)]",
            ),
            (
                "intersection_area",
                "m, m + q, n, n + q, m, m + p, n, n + p",
                "F.relu((q - (m - n).abs())) * F.relu((p - (m - n).abs()))",
            ),
            ("iou", "p, q, q, p, p * .1, 1e-8", "p * .1 / (2 * p * q - p * .1 + 1e-8)"),
            (
                "convex_diagonal_squared",
                "m, m + q, n, n + q, m, m + p, n, n + p, 1e-8",
                "((m - n).abs() + q) ** 2 + ((m - n).abs() + p) ** 2 + 1e-8",
            ),
            ("center_dist", "m, m + q, n, n + q, m, m + p, n, n + p", "2 * (m - n) ** 2"),
            (
                "ciou_diagonal_angle",
                "p, q, q, p, 1e-8",
                "(2 / 3.141592653589793 * (T.atan2(q, p + 1e-8) - T.atan2(p, q + 1e-8))) ** 2",
            ),
            ("ciou_result", "p, q, q, p, 1e-8", "[q - q / p - p * p / (p - q + 1), p / (p - q + 1)]"),
        )
    ),
    Case("broadcast_isclose_neq_nan", "T.isclose(m, m + mod)", "T.tensor([0., 1e-9, 1e-7, 1e-3])"),
    Case("broadcast_isclose_eq_nan", "T.isclose(odd, odd, equal_nan=True)"),
    # losses
    Case("kl_div_loss", "mod(m, p)", "nn.KLDivLoss(reduction='none')"),
    Case("kl_div_loss", "mod(m, n)", "nn.KLDivLoss(reduction='none', log_target=True)"),
    Case("smooth_l1_loss", "mod(m, n)", "nn.SmoothL1Loss(beta=.5)"),
    Case("binary_cross_entropy", "mod(p, p)", "nn.BCELoss()"),
    Case("binary_cross_entropy_with_logits", "mod(m, p)", "nn.BCEWithLogitsLoss(reduction='none')"),
    Case("binary_cross_entropy_with_logits", "mod(m, p)", "nn.BCEWithLogitsLoss(pos_weight=T.ones(4) * 2)"),
    Case("nll", "F.cross_entropy(m, labels)"),
    Case("nll", "mod(F.log_softmax(m, 1), labels)", "nn.NLLLoss(weight=T.tensor([.1, .2, .3, .4]), ignore_index=3)"),
]
