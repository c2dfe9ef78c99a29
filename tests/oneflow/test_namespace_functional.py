"""torch.nn.functional on OneFlow against numpy references written from the definitions."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

from oneflow_bridge import namespace as F
from onnx2nn.errors import OperatorError
from tests.oneflow.arrays import near, same

functional = F.nn.functional
RNG = np.random.default_rng(1)


def normal(dtype: str, *shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "relu6": ({}, lambda a: np.clip(a, 0, 6)),
    "leaky_relu": ({"negative_slope": 0.2}, lambda a: np.where(a > 0, a, 0.2 * a)),
    "elu": ({"alpha": 1.1}, lambda a: np.where(a > 0, a, 1.1 * np.expm1(a))),
    "celu": ({"alpha": 1.1}, lambda a: np.maximum(a, 0) + np.minimum(0, 1.1 * np.expm1(a / 1.1))),
    "selu": ({}, lambda a: 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a))),
    "gelu": ({}, lambda a: a * 0.5 * (1 + erf(a / math.sqrt(2)))),
    "silu": ({}, lambda a: a * sigmoid(a)),
    "mish": ({}, lambda a: a * np.tanh(np.logaddexp(0, a))),
    "hardswish": ({}, lambda a: a * np.clip(a + 3, 0, 6) / 6),
    "hardsigmoid": ({}, lambda a: np.clip(a + 3, 0, 6) / 6),
    "hardtanh": ({"min_val": -0.5, "max_val": 0.7}, lambda a: np.clip(a, -0.5, 0.7)),
    "softplus": ({"beta": 2.0, "threshold": 15.0}, lambda a: np.where(2 * a > 15, a, np.logaddexp(0, 2 * a) / 2)),
    "softsign": ({}, lambda a: a / (1 + abs(a))),
    "softshrink": ({"lambd": 0.3}, lambda a: np.sign(a) * np.maximum(abs(a) - 0.3, 0)),
    "hardshrink": ({"lambd": 0.3}, lambda a: np.where(abs(a) > 0.3, a, 0)),
    "tanhshrink": ({}, lambda a: a - np.tanh(a)),
    "threshold": ({"threshold": 0.1, "value": 2.0}, lambda a: np.where(a > 0.1, a, 2)),
    "logsigmoid": ({}, lambda a: -np.logaddexp(0, -a)),
    "glu": ({"dim": 1}, lambda a: a[:, :4] * sigmoid(a[:, 4:])),
    "softmax": (
        {"dim": 1},
        lambda a: np.exp(a - a.max(1, keepdims=True)) / np.exp(a - a.max(1, keepdims=True)).sum(1, keepdims=True),
    ),
    "log_softmax": ({"dim": 0}, lambda a: a - a.max(0) - np.log(np.exp(a - a.max(0)).sum(0))),
    "softmin": (
        {"dim": 1},
        lambda a: np.exp(a.min(1, keepdims=True) - a) / np.exp(a.min(1, keepdims=True) - a).sum(1, keepdims=True),
    ),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, dtype):
    options, reference = ACTIVATIONS[name]
    array = normal(dtype, 3, 8) * 3
    array[0, :4] = 60, -60, 0, 0.4
    rtol = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-12}[dtype]
    near(
        getattr(functional, name)(F.from_numpy(array), **options),
        reference(array.astype(np.float64)).astype(dtype),
        rtol,
    )


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name not in ("softmax", "log_softmax", "softmin")])
def test_activations_of_every_half(name):
    """What is computed on the way may not fit a half: exp(12) does not."""
    options, reference = ACTIVATIONS[name]
    array = np.arange(2**16, dtype=np.uint16).view(np.float16)
    array = array[np.isfinite(array)].reshape(-1, 8)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = reference(array.astype(np.float64)).astype(np.float16)
    # What does not fit a float64 in the definition (inf * 0) is no reference.
    known = np.isfinite(expected) | (name in ("leaky_relu", "elu", "celu", "selu"))
    result = getattr(functional, name)(F.from_numpy(array), **options)
    assert result.dtype is F.float16
    np.testing.assert_allclose(result.numpy()[known], expected[known], rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["layer_norm", "normalize", "local_response_norm", "cosine_similarity", "mse_loss"])
def test_squares_that_do_not_fit_a_half(name):
    """The same as in float32."""
    x, y = (F.from_numpy((300 * normal("float32", 2, 8, 3)).astype("float16")) for _ in range(2))
    options = {"layer_norm": ((3,),), "local_response_norm": (3,), "normalize": ()}.get(name, (y,))
    reduction = {"reduction": "none"} if name == "mse_loss" else {}
    function = getattr(functional, name)
    wide = (v.to(F.float32) if isinstance(v, F.Tensor) else v for v in options)
    expected = function(x.to(F.float32), *wide, **reduction).numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(function(x, *options, **reduction).numpy(), expected.astype(np.float16))


def test_gelu_tanh():
    a = normal("float32", 50) * 4
    expected = 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
    near(functional.gelu(F.from_numpy(a), approximate="tanh"), expected, 2e-6)


def test_prelu():
    a, w = normal("float32", 2, 3, 4), np.array([0.1, 0.2, 0.3], np.float32)
    same(functional.prelu(F.from_numpy(a), F.from_numpy(w)), np.where(a > 0, a, a * w[:, None]))


def windows(array, kernel, stride, dilation):
    """(N, C, *out, *kernel) of (N, C, *spatial)."""
    span = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    axes = tuple(range(2, array.ndim))
    view = np.lib.stride_tricks.sliding_window_view(array, span, axes)
    rank = len(kernel)
    return view[
        (slice(None), slice(None), *(slice(None, None, s) for s in stride), *(slice(None, None, d) for d in dilation))
    ], rank


def convolve(x, w, stride, padding, dilation, groups):
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    view, _ = windows(x, w.shape[2:], stride, dilation)
    n, out = x.shape[0], view.shape[2 : 2 + rank]
    view = view.reshape(n, groups, w.shape[1], *out, -1)
    weight = w.reshape(groups, w.shape[0] // groups, w.shape[1], -1)
    letters = "xyz"[:rank]
    return np.einsum(f"ngc{letters}k,gock->ngo{letters}", view, weight).reshape(n, w.shape[0], *out)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 1), (3, 1, 2, 4)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "float16"])
def test_convolution(rank, stride, padding, dilation, groups, dtype):
    x = RNG.integers(0, 4, (2, 4, *(7, 6, 8)[:rank])).astype(dtype)
    w = RNG.integers(0, 3, (8, 4 // groups, *(3, 2, 3)[:rank])).astype(dtype)
    b = RNG.integers(0, 3, 8).astype(dtype)
    arguments = stride, padding, dilation, groups
    expected = convolve(x.astype(np.float64), w.astype(np.float64), *([v] * rank for v in arguments[:3]), groups)
    expected = expected + b.reshape(-1, *[1] * rank)
    convolution = getattr(F, f"conv{rank}d")
    near(convolution(F.from_numpy(x), F.from_numpy(w), F.from_numpy(b), *arguments), expected.astype(dtype), 1e-6)


def test_large_integer_convolution_is_exact():
    x, w = RNG.integers(-(2**31), 2**31, (1, 2, 5, 5)), RNG.integers(-(2**31), 2**31, (3, 2, 2, 2))
    expected = np.zeros((1, 3, 4, 4), np.int64)
    for o, c, i, j in np.ndindex(3, 2, 2, 2):
        expected[0, o] += x[0, c, i : i + 4, j : j + 4] * w[o, c, i, j]
    same(F.conv2d(F.from_numpy(x), F.from_numpy(w)), expected)
    narrow = (v.astype(np.int32) for v in (x, w))
    same(F.conv2d(*map(F.from_numpy, narrow)), expected.astype(np.int32))


def test_convolution_same_padding_and_without_batch():
    x, w = normal("float64", 2, 3, 6, 5), normal("float64", 4, 3, 3, 2)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 1)])
    expected = convolve(padded, w, (1, 1), (0, 0), (1, 1), 1)
    near(F.conv2d(F.from_numpy(x), F.from_numpy(w), padding="same"), expected, 1e-12)
    near(F.conv2d(F.from_numpy(x[0]), F.from_numpy(w), padding="same"), expected[0], 1e-12)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "output_padding", "groups", "dilation"), [(1, 0, 0, 1, 1), (2, 1, 1, 2, 1), (3, 0, 2, 1, 2)]
)
def test_transposed_convolution(rank, stride, padding, output_padding, groups, dilation):
    x, w = normal("float64", 2, 4, *(5, 4, 3)[:rank]), normal("float64", 4, 3, *(3, 2, 2)[:rank])
    sizes = [(n - 1) * stride + dilation * (k - 1) + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    full = np.zeros((2, 3 * groups, *(s + output_padding for s in sizes)))
    for place in np.ndindex(*x.shape[2:]):
        for tap in np.ndindex(*w.shape[2:]):
            at = tuple(p * stride + t * dilation for p, t in zip(place, tap, strict=True))
            for g in range(groups):
                part = slice(g * 4 // groups, (g + 1) * 4 // groups)
                full[(slice(None), slice(3 * g, 3 * g + 3), *at)] += (
                    x[(slice(None), part, *place)] @ w[(part, slice(None), *tap)]
                )
    crop = tuple(slice(padding, s + output_padding - padding) for s in sizes)
    result = getattr(F, f"conv_transpose{rank}d")(
        F.from_numpy(x), F.from_numpy(w), None, stride, padding, output_padding, groups, dilation
    )
    near(result, full[(slice(None), slice(None), *crop)], 1e-12)


def pool_places(size, kernel, stride, padding, dilation, ceil_mode):
    """Starts of the windows, as torch counts them."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (math.ceil(span / stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1
    return [i * stride - padding for i in range(count)]


def pooled(x, kernel, stride, padding, dilation, ceil_mode, reduce):
    spatial = x.shape[2:]
    places = [pool_places(n, *g, ceil_mode) for n, *g in zip(spatial, kernel, stride, padding, dilation, strict=True)]
    out = np.zeros((*x.shape[:2], *map(len, places)))
    for at in itertools.product(*(range(len(p)) for p in places)):
        starts = [p[i] for p, i in zip(places, at, strict=True)]
        taps = [[s + d * t for t in range(k)] for s, k, d in zip(starts, kernel, dilation, strict=True)]
        inside = [[t for t in tap if 0 <= t < n] for tap, n in zip(taps, spatial, strict=True)]
        padded = [[t for t in tap if t < n + p] for tap, n, p in zip(taps, spatial, padding, strict=True)]
        out[(slice(None), slice(None), *at)] = reduce(
            x[np.ix_(range(x.shape[0]), range(x.shape[1]), *inside)], inside, padded
        )
    return out


GEOMETRIES = [(2, None, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2), (2, 3, 1, 1), (3, 2, 0, 1)]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "float16"])
def test_max_pool(rank, geometry, ceil_mode, dtype):
    x = RNG.permutation(2 * 3 * 8 * 7 * 6)[: 2 * 3 * math.prod((8, 7, 6)[:rank])].reshape(2, 3, *(8, 7, 6)[:rank])
    x = (x % 250 if dtype == "uint8" else x - 1000).astype(dtype)
    kernel, stride, padding, dilation = ([v] * rank for v in (geometry[0], geometry[1] or geometry[0], *geometry[2:]))
    expected = pooled(
        x, kernel, stride, padding, dilation, ceil_mode, lambda w, *_: w.max(tuple(range(2, 2 + rank)))
    ).astype(dtype)
    arguments = *geometry, ceil_mode
    pool = getattr(functional, f"max_pool{rank}d")
    same(pool(F.from_numpy(x), *arguments), expected)
    values, indices = pool(F.from_numpy(x), *arguments, return_indices=True)
    same(values, expected)
    assert indices.dtype is F.int64
    flat = x.reshape(2, 3, -1)
    np.testing.assert_array_equal(
        np.take_along_axis(flat, indices.numpy().reshape(2, 3, -1), 2).reshape(expected.shape), expected
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("geometry", [g[:3] for g in GEOMETRIES if g[3] == 1])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("divisor", [None, 5])
def test_avg_pool(rank, geometry, ceil_mode, count_include_pad, divisor):
    x = normal("float64", 2, 3, *(8, 7, 6)[:rank])
    kernel, stride, padding = ([v] * rank for v in (geometry[0], geometry[1] or geometry[0], geometry[2]))

    def mean(window, inside, padded):
        count = divisor or math.prod(map(len, padded if count_include_pad else inside))
        return window.sum(tuple(range(2, 2 + rank))) / count

    expected = pooled(x, kernel, stride, padding, [1] * rank, ceil_mode, mean)
    arguments = (*geometry, ceil_mode, count_include_pad, divisor)
    near(getattr(functional, f"avg_pool{rank}d")(F.from_numpy(x), *arguments), expected, 1e-12)


def test_adaptive_and_lp_pools():
    x = normal("float64", 2, 3, 7, 5)
    rows, columns = ([(n * i // o, -(-n * (i + 1) // o)) for i in range(o)] for n, o in ((7, 3), (5, 4)))
    for name, reduce in (("avg", np.mean), ("max", np.max)):
        expected = np.stack(
            [np.stack([reduce(x[:, :, a:b, c:d], (2, 3)) for c, d in columns], -1) for a, b in rows], -2
        )
        near(getattr(functional, f"adaptive_{name}_pool2d")(F.from_numpy(x), (3, 4)), expected, 1e-12)
        near(
            getattr(functional, f"adaptive_{name}_pool2d")(F.from_numpy(x), 1), reduce(x, (2, 3), keepdims=True), 1e-12
        )
    expected = np.sqrt(pooled(x**2, (2, 2), (2, 2), (0, 0), (1, 1), False, lambda w, *_: w.sum((2, 3))))
    near(functional.lp_pool2d(F.from_numpy(x), 2.0, 2), expected, 1e-12)


def test_max_unpool():
    x = normal("float32", 2, 3, 6, 4)
    values, indices = functional.max_pool2d(F.from_numpy(x), 2, return_indices=True)
    result = functional.max_unpool2d(values, indices, 2).numpy()
    np.testing.assert_array_equal(result[result != 0], x[result != 0])
    assert (result != 0).sum() == 2 * 3 * 3 * 2


NUMPY_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "float16", "int16"])
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "pads", [(1, 2), (1, 2, 3, 1), (2, 0, 0, 1, 1, 1), (0, 0, 0, 0, 1, 1), (0, 1, 0, 0, 0, 0, 1, 1)]
)
def test_pad(pads, mode, dtype):
    array = RNG.integers(0, 9, (3, 4, 5, 4)).astype(dtype)
    width = [(0, 0)] * (4 - len(pads) // 2) + [(pads[i], pads[i + 1]) for i in range(len(pads) - 2, -1, -2)]
    if mode == "constant":
        same(functional.pad(F.from_numpy(array), pads), np.pad(array, width))
        same(functional.pad(F.from_numpy(array), pads, value=1), np.pad(array, width, constant_values=1))
    else:
        same(functional.pad(F.from_numpy(array), pads, mode=mode), np.pad(array, width, mode=NUMPY_MODES[mode]))


def test_negative_pads_cut():
    array = np.arange(20).reshape(4, 5)
    same(
        functional.pad(F.from_numpy(array), (-1, 2, 1, -2), value=7),
        np.pad(array[:2, 1:], [(1, 0), (0, 2)], constant_values=7),
    )
    same(
        functional.pad(F.from_numpy(array), (-1, 2), mode="replicate"),
        np.pad(array, [(0, 0), (0, 2)], mode="edge")[:, 1:],
    )
    with pytest.raises(OperatorError):
        functional.pad(F.from_numpy(array), (5, 0), mode="reflect")
    with pytest.raises(OperatorError):
        functional.pad(F.from_numpy(array), (-3, -3))


def resized(x, sizes, scale, mode, align_corners):
    """Separable resizing of (N, C, *spatial) in float64."""
    for axis, out in enumerate(sizes, 2):
        n = x.shape[axis]
        step = 1 / scale if scale else n / out
        i = np.arange(out)
        if mode.startswith("nearest"):
            index = np.minimum(np.floor((i + (0.5 if mode == "nearest-exact" else 0)) * step).astype(int), n - 1)
            x = np.take(x, index, axis)
            continue
        source = i * ((n - 1) / max(out - 1, 1)) if align_corners else (i + 0.5) * step - 0.5
        shape = [-1 if d == axis else 1 for d in range(x.ndim)]
        if mode == "cubic":
            low = np.floor(source).astype(int)
            total = 0
            for tap in range(-1, 3):
                d = abs(source - (low + tap))
                a = -0.75
                weight = np.where(
                    d <= 1, (a + 2) * d**3 - (a + 3) * d**2 + 1, a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
                )
                total = total + np.take(x, np.clip(low + tap, 0, n - 1), axis) * weight.reshape(shape)
            x = total
        else:
            source = np.clip(source, 0, n - 1)
            low = np.floor(source).astype(int)
            part = (source - low).reshape(shape)
            x = np.take(x, low, axis) * (1 - part) + np.take(x, np.minimum(low + 1, n - 1), axis) * part
    return x


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "cubic"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "target",
    [{"size": (13, 5, 8)}, {"size": (8, 12, 10)}, {"scale_factor": 1.7}, {"scale_factor": 2.0}, {"scale_factor": 0.6}],
)
def test_interpolate(mode, align_corners, rank, target):
    if (align_corners and mode.startswith("nearest")) or (mode == "cubic" and rank != 2):
        return
    x = normal("float64", 2, 3, *(4, 6, 5)[:rank])
    scale = target.get("scale_factor")
    sizes = target["size"][:rank] if "size" in target else [math.floor(n * scale) for n in x.shape[2:]]
    name = {"linear": ("linear", "bilinear", "trilinear")[rank - 1], "cubic": "bicubic"}.get(mode, mode)
    result = functional.interpolate(
        F.from_numpy(x), sizes if scale is None else None, scale, name, align_corners or None
    )
    near(result, resized(x, sizes, scale, mode, align_corners), 1e-5)


def test_pixel_shuffles():
    x = np.arange(2 * 8 * 3 * 4).reshape(2, 8, 3, 4)
    expected = x.reshape(2, 2, 2, 2, 3, 4).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 6, 8)
    same(F.pixel_shuffle(F.from_numpy(x), 2), expected)
    same(F.pixel_unshuffle(F.from_numpy(expected), 2), x)
    same(F.channel_shuffle(F.from_numpy(x), 4), x.reshape(2, 4, 2, 3, 4).swapaxes(1, 2).reshape(2, 8, 3, 4))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_normalizations(dtype):
    x, w, b = normal(dtype, 2, 6, 4, 5), normal(dtype, 6), normal(dtype, 6)
    wide = x.astype(np.float64)
    rtol = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-11}[dtype]

    def standardized(a, axes, eps=1e-5):
        return (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + eps)

    scale, shift = (v.astype(np.float64)[:, None, None] for v in (w, b))
    X, W, B = (F.from_numpy(v) for v in (x, w, b))
    grouped = standardized(wide.reshape(2, 3, -1), 2).reshape(x.shape) * scale + shift
    near(F.group_norm(X, 3, W, B), grouped.astype(dtype), rtol)
    near(F.instance_norm(X, None, None, W, B), (standardized(wide, (2, 3)) * scale + shift).astype(dtype), rtol)
    near(F.batch_norm(X, None, None, W, B, True), (standardized(wide, (0, 2, 3)) * scale + shift).astype(dtype), rtol)
    mean, var = normal(dtype, 6), abs(normal(dtype, 6)) + np.array(0.5, dtype)
    expected = (wide - mean[:, None, None]) / np.sqrt(var.astype(np.float64)[:, None, None] + 1e-5) * scale + shift
    near(F.batch_norm(X, F.from_numpy(mean), F.from_numpy(var), W, B), expected.astype(dtype), rtol * 2)
    last, last_w = normal(dtype, 5), normal(dtype, 4, 5)
    near(F.layer_norm(X, (5,), F.from_numpy(last)), (standardized(wide, 3) * last).astype(dtype), rtol)
    near(F.layer_norm(X, (4, 5), F.from_numpy(last_w)), (standardized(wide, (2, 3)) * last_w).astype(dtype), rtol)
    rms = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * last
    near(functional.rms_norm(X, (5,), F.from_numpy(last), 1e-6), rms.astype(dtype), rtol)
    for size in (3, 4):
        squares = np.pad(wide**2, [(0, 0), (size // 2, (size - 1) // 2), (0, 0), (0, 0)])
        total = sum(squares[:, i : i + 6] for i in range(size))
        expected = wide / (2.0 + 0.1 * total / size) ** 0.75
        near(functional.local_response_norm(X, size, 0.1, 0.75, 2.0), expected.astype(dtype), rtol)
    near(functional.normalize(X, dim=1), (wide / np.sqrt((wide**2).sum(1, keepdims=True))).astype(dtype), rtol)


@pytest.mark.parametrize("masked", ["none", "bool", "float", "causal"])
def test_attention(masked):
    q, k, v = normal("float64", 2, 4, 5, 8), normal("float64", 2, 4, 6, 8), normal("float64", 2, 4, 6, 3)
    mask = {
        "none": None,
        "bool": RNG.random((5, 6)) < 0.7,
        "float": normal("float64", 5, 6),
        "causal": np.tri(5, 6, dtype=bool),
    }[masked]
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(8)
    if mask is not None:
        mask = mask if mask.dtype != bool else mask | (np.arange(6) == 0)
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    given = None if masked in ("none", "causal") else F.from_numpy(mask)
    result = functional.scaled_dot_product_attention(*map(F.from_numpy, (q, k, v)), given, is_causal=masked == "causal")
    near(result, expected, 1e-12)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_queries_that_may_attend_nothing_find_zeros(kind):
    q, k, v = (normal("float32", 2, 3, 4) for _ in range(3))
    allowed = np.array([[True, False, True], [False] * 3, [True] * 3])
    mask = allowed if kind == "bool" else np.where(allowed, 0, -np.inf).astype(np.float32)
    found = functional.scaled_dot_product_attention(*map(F.from_numpy, (q, k, v, mask))).numpy()
    assert np.isfinite(found).all() and (found[:, 1] == 0).all() and (found[:, 0] != 0).any()


def test_packed_attention():
    """`nn.MultiheadAttention` of torch in numpy."""
    length, batch, features, heads = 5, 3, 8, 2
    x, y = normal("float64", length, batch, features), normal("float64", length + 2, batch, features)
    weight, bias = normal("float64", 3 * features, features), normal("float64", 3 * features)
    out, out_bias = normal("float64", features, features), normal("float64", features)
    q, k, v = (
        (t @ w.T + b).reshape(len(t), batch, heads, -1).transpose(1, 2, 0, 3)
        for t, w, b in zip((x, y, y), np.split(weight, 3), np.split(bias, 3), strict=True)
    )
    weights = np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(features / heads))
    joined = (weights / weights.sum(-1, keepdims=True) @ v).transpose(2, 0, 1, 3).reshape(x.shape)
    given = [F.from_numpy(t) for t in (x, y, y, weight, bias, out, out_bias)]
    call = functional.multi_head_attention_forward
    options = dict(training=False, need_weights=False)
    result, none = call(*given[:3], features, heads, *given[3:5], None, None, False, 0.0, *given[5:], **options)
    assert none is None
    near(result, joined @ out.T + out_bias, 1e-12)
    with pytest.raises(OperatorError, match="dropout"):
        call(*given[:3], features, heads, *given[3:5], None, None, False, 0.5, *given[5:], need_weights=False)
    with pytest.raises(OperatorError, match="weights"):
        call(*given[:3], features, heads, *given[3:5], None, None, False, 0.0, *given[5:])


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_packed_attention(kind):
    length, batch, features, heads = 4, 3, 8, 2
    x, weight = normal("float64", length, batch, features), normal("float64", 3 * features, features)
    out = normal("float64", features, features)
    future, padding = np.triu(np.ones((length, length), bool), 1), np.zeros((batch, length), bool)
    padding[1, 2:] = True
    q, k, v = ((x @ w.T).reshape(length, batch, heads, -1).transpose(1, 2, 0, 3) for w in np.split(weight, 3))
    added = [np.where(mask, -np.inf, 0.0) for mask in (future, padding)]
    if kind == "float":
        added = [normal("float64", *mask.shape) for mask in added]
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(features / heads) + added[0] + added[1][:, None, None]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    joined = (weights / weights.sum(-1, keepdims=True) @ v).transpose(2, 0, 1, 3).reshape(x.shape)
    masks = (future, padding) if kind == "bool" else added
    options = dict(zip(("attn_mask", "key_padding_mask"), map(F.from_numpy, masks), strict=True))
    given, packed, last = (F.from_numpy(t) for t in (x, weight, out))
    call, rest = functional.multi_head_attention_forward, (packed, None, None, None, False, 0.0, last, None)
    result, _ = call(given, given, given, features, heads, *rest, training=False, need_weights=False, **options)
    near(result, joined @ out.T, 1e-12)


def test_fold_is_the_transpose_of_unfold():
    x = normal("float64", 2, 3, 6, 5)
    columns = functional.unfold(F.from_numpy(x), (2, 3), 1, 1, 2)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    view, _ = windows(padded, (2, 3), (2, 2), (1, 1))
    same(columns, view.transpose(0, 1, 4, 5, 2, 3).reshape(2, 18, -1))
    other = normal("float64", *columns.shape)
    folded = functional.fold(F.from_numpy(other), (6, 5), (2, 3), 1, 1, 2).numpy()
    assert math.isclose((folded * x).sum(), (other * columns.numpy()).sum(), rel_tol=1e-12)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_grid_sample(mode, padding_mode, align_corners, dtype):
    x, grid = normal(dtype, 2, 3, 5, 6), (RNG.random((2, 4, 7, 2)) * 2.8 - 1.4).astype(dtype)
    result = functional.grid_sample(F.from_numpy(x), F.from_numpy(grid), mode, padding_mode, align_corners)
    near(
        result,
        sampled(x.astype(np.float64), grid.astype(np.float64), mode, padding_mode, align_corners).astype(dtype),
        1e-5,
    )


def sampled(x, grid, mode, padding_mode, align_corners):
    n, channels, height, width = x.shape
    places = []
    for coordinate, size in ((grid[..., 1], height), (grid[..., 0], width)):
        at = (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2
        if padding_mode == "border":
            at = np.clip(at, 0, size - 1)
        elif padding_mode == "reflection":
            low, high = (0, size - 1) if align_corners else (-0.5, size - 0.5)
            span = high - low
            rest = np.abs(at - low) % (2 * span)
            at = np.clip(np.where(rest > span, 2 * span - rest, rest) + low, 0, size - 1)
        places.append(at)
    y, z = places
    out = np.zeros((n, channels, *grid.shape[1:3]))
    taps = (
        [(np.round(y), np.round(z), 1.0)]
        if mode == "nearest"
        else [
            (np.floor(y) + i, np.floor(z) + j, (1 - abs(y - np.floor(y) - i)) * (1 - abs(z - np.floor(z) - j)))
            for i in (0, 1)
            for j in (0, 1)
        ]
    )
    for row, column, weight in taps:
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        r, c = np.clip(row, 0, height - 1).astype(int), np.clip(column, 0, width - 1).astype(int)
        for b in range(n):
            out[b] += x[b][:, r[b], c[b]] * (inside * weight)[b]
    return out


def test_losses():
    logits, target, weight = normal("float64", 4, 5, 3), RNG.integers(0, 5, (4, 3)), RNG.random(5)
    target[0, 0] = -100
    logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    kept = target != -100
    picked = (
        -np.take_along_axis(logp, np.where(kept, target, 0)[:, None], 1)[:, 0]
        * weight[np.where(kept, target, 0)]
        * kept
    )
    count = (weight[np.where(kept, target, 0)] * kept).sum()
    X, T, W = F.from_numpy(logits), F.from_numpy(target), F.from_numpy(weight)
    near(functional.cross_entropy(X, T, W), np.asarray(picked.sum() / count), 1e-12)
    near(functional.cross_entropy(X, T, W, reduction="none"), picked, 1e-12)
    near(functional.nll_loss(F.log_softmax(X, 1), T, W, reduction="sum"), np.asarray(picked.sum()), 1e-12)
    a, b = RNG.random((3, 4)), RNG.random((3, 4))
    A, B = F.from_numpy(a), F.from_numpy(b)
    near(functional.mse_loss(A, B), np.asarray(((a - b) ** 2).mean()), 1e-12)
    expected = -(b * np.log(a) + (1 - b) * np.log(1 - a)).mean()
    near(functional.binary_cross_entropy(A, B), np.asarray(expected), 1e-12)
    near(functional.binary_cross_entropy_with_logits(F.logit(A), B), np.asarray(expected), 1e-10)


def test_bags_add_rows_in_their_order():
    table, index = normal("float32", 50, 3), RNG.integers(0, 50, (7, 40))
    expected = functools.reduce(np.add, [table[column] for column in index.T])
    bags = [functional.embedding_bag(F.from_numpy(index), F.from_numpy(table), mode=mode) for mode in ("sum", "mean")]
    same(bags[0], expected)
    near(bags[1], table[index].mean(1), 1e-6)


def test_linear_and_bilinear():
    a, w, b = normal("float64", 2, 3, 4), normal("float64", 5, 4), normal("float64", 5)
    near(functional.linear(*map(F.from_numpy, (a, w, b))), a @ w.T + b, 1e-12)
    c, v = normal("float64", 2, 3, 6), normal("float64", 5, 4, 6)
    near(functional.bilinear(*map(F.from_numpy, (a, c, v, b))), np.einsum("bni,oij,bnj->bno", a, v, c) + b, 1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.conv2d(x, F.ones(1, 2, 3, 3)),
        lambda x: F.conv2d(x, F.ones(1, 1, 9, 9)),
        lambda x: functional.max_pool2d(x, 9),
        lambda x: functional.max_pool2d(x, 2, 1, 2),
        lambda x: functional.avg_pool2d(x, 9),
        lambda x: F.layer_norm(x, (3,)),
        lambda x: F.group_norm(x, 2),
        lambda x: functional.interpolate(x, (2, 2), mode="bilinear", antialias=True),
        lambda x: F.matmul(x, F.ones(3, 3)),
        lambda x: F.topk(x, 9),
        lambda x: F.softmax(x.to(F.int64), 1),
    ],
)
def test_what_cannot_be_done_is_an_error(call):
    with pytest.raises(OperatorError):
        call(F.ones(1, 1, 4, 4))
