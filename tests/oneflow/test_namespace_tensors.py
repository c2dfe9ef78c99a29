"""Shaping, indexing, searching, reducing and products of the OneFlow namespace against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from oneflow_bridge import namespace as F
from onnx2nn.errors import OperatorError
from tests.oneflow.arrays import TYPES, near, same

RNG = np.random.default_rng(0)


def numbers(dtype: str, *shape: int) -> np.ndarray:
    return RNG.integers(0, 100, shape).astype(dtype)


@st.composite
def array_and_key(draw):
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    key = draw(hnp.basic_indices(shape, allow_newaxis=True))
    return np.arange(math.prod(shape)).reshape(shape), key


@settings(max_examples=150)
@given(array_and_key())
def test_basic_indexing(case):
    array, key = case
    same(F.from_numpy(array)[key], array[key])


@pytest.mark.parametrize(
    "key",
    [
        slice(None, None, -1),
        (slice(3, None, -2), slice(None, None, -1)),
        (Ellipsis, slice(-1, -10, -1)),
        (slice(2, 2), 0),
        [1, -1, 0],
        (slice(None), [2, -1]),
        ([0, 2], [1, -1]),
        ([[0], [2]], [1, -1, 0]),
        ([0, 2], slice(None), [1, -1]),
        (slice(1, None), [0, 2], None, [1, 1]),
        (0, [1, 2]),
        (Ellipsis, None, [0, -2]),
        np.arange(60).reshape(3, 4, 5) % 7 == 0,
        (slice(None), np.array([True, False, True, True])),
        (np.array([True, False, True]), [1, 3]),
    ],
)
def test_advanced_indexing(key):
    array = np.arange(60).reshape(3, 4, 5)
    same(F.from_numpy(array)[key], array[key])


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_moves(dtype):
    array = numbers(dtype, 3, 4)
    x = F.from_numpy(array)
    same(x[::-1, [0, 2]], array[::-1, [0, 2]])
    same(F.cat([x, x], 1), np.concatenate([array, array], 1))
    same(x.flip(0, 1), array[::-1, ::-1])
    same(x.roll((1, -1), (0, 1)), np.roll(array, (1, -1), (0, 1)))
    same(x.T.reshape(2, -1), array.T.reshape(2, -1))
    same(x.repeat(2, 1, 2), np.tile(array, (2, 1, 2)))
    same(x.unsqueeze(1).expand(3, 2, 4), np.broadcast_to(array[:, None], (3, 2, 4)))
    same(F.stack([x, x], -1), np.stack([array, array], -1))
    same(x.tril(1), np.tril(array, 1))
    same(x.triu(), np.triu(array))
    same(
        F.gather(x, 1, F.tensor([[0, 3], [1, 1], [2, 0]])),
        np.take_along_axis(array, np.array([[0, 3], [1, 1], [2, 0]]), 1),
    )
    same(F.index_select(x, 0, F.tensor([2, 0])), array[[2, 0]])
    same(F.zeros_like(x), np.zeros_like(array))
    same(F.nn.functional.pad(x, (1, 2, 0, 1)), np.pad(array, [(0, 1), (1, 2)]))
    same(F.masked_fill(x, x > 50, 1), np.where(array > 50, np.array(1, dtype), array))
    target = array.copy()
    target[[0, 2], [1, 3]] = array[1, :2]
    same(F.index_put(x, (F.tensor([0, 2]), F.tensor([1, 3])), x[1, :2]), target)
    assert [part.shape for part in x.split([1, 0, 3], 1)] == [(3, 1), (3, 0), (3, 3)]


@pytest.mark.parametrize(
    "function", ["gather", "index_select", "embedding", "take", "getitem", "scatter", "index_put", "one_hot"]
)
@pytest.mark.parametrize("bad", [7, -7])
def test_an_index_out_of_range_is_an_error_and_not_the_end_of_the_process(function, bad):
    x, index = F.zeros(3, 3), F.tensor([[bad, 0, 0]])
    calls = {
        "gather": lambda: F.gather(x, 1, index),
        "index_select": lambda: F.index_select(x, 0, index[0]),
        "embedding": lambda: F.embedding(x, index),
        "take": lambda: F.take(x, index * 2),
        "getitem": lambda: x[index],
        "scatter": lambda: F.scatter(x, 1, index, 1.0),
        "index_put": lambda: F.index_put(x, (index,), F.ones(1)),
        "one_hot": lambda: F.nn.functional.one_hot(index, 3),
    }
    with pytest.raises(OperatorError, match="Index"):
        calls[function]()


def test_basic_index_out_of_range():
    with pytest.raises(OperatorError):
        F.zeros(3)[3]
    with pytest.raises(OperatorError):
        F.zeros(3)[0, 0]


@settings(max_examples=40)
@given(st.data())
def test_split_and_cat(data):
    array = np.arange(24).reshape(2, 12)
    cuts = sorted(data.draw(st.lists(st.integers(0, 12), max_size=4)))
    sizes = np.diff([0, *cuts, 12]).tolist()
    parts = F.split(F.from_numpy(array), sizes, 1)
    for part, expected in zip(parts, np.split(array, cuts, 1), strict=True):
        same(part, expected)
    same(F.cat(parts, 1), array)
    for part, expected in zip(F.tensor_split(F.from_numpy(array), 5, 1), np.array_split(array, 5, 1), strict=True):
        same(part, expected)


def test_shaping_against_numpy():
    array = np.arange(24).reshape(2, 3, 4)
    x = F.from_numpy(array)
    same(x.movedim(0, -1), np.moveaxis(array, 0, -1))
    same(x.movedim((0, 1), (2, 0)), np.moveaxis(array, (0, 1), (2, 0)))
    same(x.rot90(1, (1, 2)), np.rot90(array, 1, (1, 2)))
    same(x.repeat_interleave(2, 1), np.repeat(array, 2, 1))
    same(x.repeat_interleave(F.tensor([1, 0, 2]), 1), np.repeat(array, [1, 0, 2], 1))
    same(x.diagonal(1, 1, 2), np.diagonal(array, 1, 1, 2))
    same(x.diagonal(-1, 2, 0), np.diagonal(array, -1, 2, 0))
    same(F.diag(F.tensor([1, 2]), -1), np.diag([1, 2], -1))
    same(x.unflatten(2, (2, -1)), array.reshape(2, 3, 2, 2))
    same(x.flatten(1), array.reshape(2, 12))
    same(x.unfold(2, 2, 1), np.lib.stride_tricks.sliding_window_view(array, 2, 2))
    same(x.diff(), np.diff(array))
    for ours, theirs in zip(
        F.meshgrid(x[0, 0], x[0, 1, :2], indexing="xy"), np.meshgrid(array[0, 0], array[0, 1, :2]), strict=True
    ):
        same(ours, theirs)
    same(F.tensor(5).reshape(1).squeeze(), np.array(5))
    for bad in (
        lambda: x.reshape(5, 5),
        lambda: x.expand(2, 3, 5),
        lambda: x.split([1, 1], 1),
        lambda: F.cat([x, x[:1]], 1),
    ):
        with pytest.raises(OperatorError):
            bad()


@pytest.mark.parametrize("arguments", [(5,), (2, 9), (9, 2, -3), (0.0, 1.0, 0.3), (1, 2, 0.25), (3, 3)])
def test_arange(arguments):
    expected = np.arange(*arguments)
    near(F.arange(*arguments), expected.astype(np.float32) if expected.dtype == np.float64 else expected, 1e-7)


def test_creation():
    same(F.eye(3, 4), np.eye(3, 4, dtype=np.float32))
    near(F.linspace(-1, 1, 7), np.linspace(-1, 1, 7, dtype=np.float32), 1e-7)
    same(F.full((2, 3), 7, dtype=F.uint8), np.full((2, 3), 7, np.uint8))
    same(F.full((), 2.5), np.array(2.5, np.float32))
    same(F.tensor([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]]))
    same(F.tensor([1.5, 2.5]), np.array([1.5, 2.5], np.float32))
    same(F.tensor(2**62 + 1), np.array(2**62 + 1))
    same(F.tril_indices(3, 4, 1), np.stack(np.tril_indices(3, 1, 4)))
    same(F.from_numpy(np.zeros((0, 3), np.float32)), np.zeros((0, 3), np.float32))
    with pytest.raises(OperatorError):
        F.arange(0, 5, -1)


def reductions():
    return {
        "sum": np.sum,
        "prod": np.prod,
        "amax": np.max,
        "amin": np.min,
        "any": np.any,
        "all": np.all,
        "count_nonzero": lambda a, axis, keepdims: np.count_nonzero(a, axis, keepdims=keepdims),
    }


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("name", reductions())
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), (1,)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(name, dtype, dim, keepdim):
    array = RNG.integers(0, 3, (2, 3, 4)).astype(dtype)
    if name == "count_nonzero" and keepdim:
        return
    expected = np.asarray(reductions()[name](array, axis=dim, keepdims=keepdim))
    if name in ("sum", "prod") and np.dtype(dtype).kind in "iub":
        expected = reductions()[name](array.astype(np.int64), axis=dim, keepdims=keepdim)
    arguments = {"keepdim": keepdim} if name != "count_nonzero" else {}
    near(getattr(F, name)(F.from_numpy(array), dim, **arguments), expected, 1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("dim", [None, 0, (0, 2), -1])
def test_float_reductions(dtype, dim):
    array = RNG.standard_normal((2, 3, 4)).astype(dtype)
    x, wide = F.from_numpy(array), array.astype(np.float64)
    rtol = 2e-3 if dtype == "float16" else 1e-5
    near(F.mean(x, dim), wide.mean(dim).astype(dtype), rtol)
    near(F.var(x, dim), wide.var(dim, ddof=1).astype(dtype), rtol)
    near(F.std(x, dim, unbiased=False, keepdim=True), wide.std(dim, keepdims=True).astype(dtype), rtol)
    near(F.logsumexp(x, dim), np.log(np.exp(wide).sum(dim)).astype(dtype), rtol)
    for p in (0, 1, 2, 3.0, math.inf, -math.inf):
        power = {math.inf: lambda a: a.max(dim), -math.inf: lambda a: a.min(dim), 0: lambda a: (a != 0).sum(dim)}
        expected = power.get(p, lambda a, p=p: (a**p).sum(dim) ** (1 / p))(abs(wide))
        near(F.linalg.vector_norm(x, p, dim), np.asarray(expected).astype(dtype), rtol)


@pytest.mark.parametrize("name", ["sum", "amax", "prod", "any", "mean"])
@pytest.mark.parametrize("dims", [(5, 6, 7), (0, 3, 7), (2,), None])
def test_reductions_of_rank_8(name, dims):
    array = RNG.standard_normal((2, 1, 3, 2, 1, 2, 3, 2))
    array = array > 0 if name == "any" else array
    expected = getattr(np, {"amax": "max"}.get(name, name))(array, axis=dims)
    near(getattr(F, name)(F.from_numpy(array), dims), np.asarray(expected), 1e-12)


def test_logsumexp_of_infinities():
    x = F.tensor([[-math.inf, -math.inf], [1000.0, 1000.0], [math.inf, 1.0]])
    near(F.logsumexp(x, 1), np.array([-math.inf, 1000 + math.log(2), math.inf], np.float32), 1e-6)


def test_reductions_of_nothing():
    x = F.zeros(2, 0)
    same(x.sum(1), np.zeros(2, np.float32))
    same(x.prod(1), np.ones(2, np.float32))
    assert np.isnan(x.mean(1).numpy()).all()
    same((x > 0).any(1), np.array([False, False]))
    same((x > 0).all(1), np.array([True, True]))
    same(F.matmul(F.ones(2, 0), F.ones(0, 3)), np.zeros((2, 3), np.float32))
    same(x.cumsum(1), np.zeros((2, 0), np.float32))
    same(F.argsort(x), np.zeros((2, 0), np.int64))
    for function in (F.amax, F.argmax):
        with pytest.raises(OperatorError):
            function(x, 1)


def test_nothing_survives_elementwise():
    x, y = F.zeros(0, 3), F.ones(1, 3)
    for result in (
        x + y,
        x * 2,
        x // y,
        x % y,
        F.maximum(x, y),
        F.where(x > y, x, y),
        F.clamp(x, 0, 1),
        x.tril(),
        x.exp(),
    ):
        assert tuple(result.shape) == (0, 3)
    integers = F.zeros(0, 3, dtype=F.int64)
    for result in (integers // 2, integers & 3, integers**2, integers % F.ones(1, 3, dtype=F.int64)):
        assert tuple(result.shape) == (0, 3)


def test_numpy_integers_as_sizes():
    x = F.from_numpy(np.arange(12).reshape(3, 4))
    n = np.int64(2)
    same(x.narrow(1, n - 1, n), np.arange(12).reshape(3, 4)[:, 1:3])
    same(x[n - 1 : n], np.arange(12).reshape(3, 4)[1:2])
    same(x.reshape(n, n * 3), np.arange(12).reshape(2, 6))
    same(F.topk(x, n, 1).values, np.array([[3, 2], [7, 6], [11, 10]]))


def test_scalars_survive():
    x = F.tensor(5.0)
    assert F.argmax(x).item() == 0
    assert F.sort(x).values.item() == 5.0
    assert F.cumsum(x, 0).item() == 5.0
    assert x.sum(0).item() == 5.0
    assert F.softmax(x, 0).item() == 1.0


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_infinities_in_reductions(dtype: str):
    low = np.array([[-math.inf, -math.inf], [-math.inf, 1]], dtype)
    for array in (low, -low):
        x = F.from_numpy(array)
        same(F.amax(x, 1), array.max(1))
        same(F.amin(x, 1), array.min(1))
        same(x.max(), array.max())
        same(F.amax(x[:1]), array[:1].max())


def test_nan_in_reductions():
    array = np.array([[1, math.nan, 3], [4, 5, 6], [math.inf, 2, math.nan]], np.float32)
    x = F.from_numpy(array)
    same(F.amax(x, 1), array.max(1))
    same(F.amin(x, 1), array.min(1))
    same(F.argmax(x, 1), array.argmax(1))
    same(F.argmin(x, 1), array.argmin(1))
    same(x.max(), array.max())
    values, indices = F.max(x, 1)
    same(values, array.max(1))
    same(indices, array.argmax(1))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"])
def test_order(dtype):
    array = RNG.integers(0, 5, (3, 40)).astype(dtype)
    x = F.from_numpy(array)
    ascending = np.argsort(array, 1, kind="stable")
    descending = 39 - np.argsort(array[:, ::-1], 1, kind="stable")[:, ::-1]
    same(F.argsort(x, 1), ascending)
    same(F.sort(x, 1, descending=True).indices, descending)
    same(F.sort(x, 1, descending=True).values, np.take_along_axis(array, descending, 1))
    same(F.sort(x, 0).values, np.sort(array, 0))
    same(F.topk(x, 7, 1).indices, descending[:, :7])
    same(F.topk(x, 7, 1, largest=False).values, np.sort(array, 1)[:, :7])
    same(F.topk(x, 0, 1).values, array[:, :0])
    same(F.argmax(x, 1), array.argmax(1))
    same(F.argmin(x, 0, keepdim=True), array.argmin(0)[None])
    same(F.argmax(x), np.array(array.argmax()))
    same(F.kthvalue(x, 3, 1).values, np.sort(array, 1)[:, 2])
    same(F.median(x, 1).values, np.sort(array, 1)[:, 19])


def test_nan_sorts_last():
    array = np.where(RNG.random((5, 30)) < 0.3, np.nan, RNG.integers(0, 4, (5, 30))).astype(np.float32)
    array[0, 3] = math.inf
    x = F.from_numpy(array)
    same(F.argsort(x, 1), np.argsort(array, 1, kind="stable"))
    same(F.sort(x, 1, descending=True).values, np.sort(array, 1)[:, ::-1])


def test_running_reductions():
    array = RNG.integers(-5, 5, (3, 17))
    same(F.cumsum(F.from_numpy(array), 1), np.cumsum(array, 1))
    same(F.cumsum(F.from_numpy(array.astype(np.int32)), 0), np.cumsum(array, 0))
    same(F.cumsum(F.from_numpy(array.astype(np.int32)), 0, dtype=F.int32), np.cumsum(array, 0).astype(np.int32))
    same(F.cumsum(F.from_numpy(array.astype(np.float16)), 0), np.cumsum(array, 0).astype(np.float16))
    same(F.cumprod(F.from_numpy(array), 0), np.cumprod(array, 0))
    for dtype in (np.int64, np.float32):
        values, indices = F.cummax(F.from_numpy(array.astype(dtype)), 1)
        same(values, np.maximum.accumulate(array.astype(dtype), 1))
        same(F.gather(F.from_numpy(array.astype(dtype)), 1, indices), values.numpy())
        same(F.cummin(F.from_numpy(array.astype(dtype)), 1).values, np.minimum.accumulate(array.astype(dtype), 1))
    assert F.cummax(F.tensor([1, 1, 0, 1]), 0).indices.tolist() == [0, 1, 1, 3]
    near(F.logcumsumexp(F.tensor([1.0, 2.0, 3.0]), 0), np.log(np.cumsum(np.exp(np.array([1, 2, 3], np.float32)))), 1e-6)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float16", "uint8"])
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(dtype, reduce, include_self):
    array, source = RNG.integers(1, 4, (3, 4)).astype(dtype), RNG.integers(1, 4, (3, 6)).astype(dtype)
    index = RNG.integers(0, 4, (3, 6))
    expected = array.copy()
    function = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[reduce]
    if not include_self:
        limit = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
        start = {"sum": 0, "prod": 1, "amax": limit.min if limit else -np.inf, "amin": limit.max if limit else np.inf}[
            reduce
        ]
        np.put_along_axis(expected, index, np.array(start).astype(dtype), 1)
    for i, j in np.ndindex(3, 6):
        expected[i, index[i, j]] = function(expected[i, index[i, j]], source[i, j])
    x, at, src = (F.from_numpy(v) for v in (array, index, source))
    same(F.scatter_reduce(x, 1, at, src, reduce, include_self=include_self), expected)
    if reduce == "sum" and include_self:
        same(F.scatter_add(x, 1, at, src), expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_scatter(dtype):
    array, source = numbers(dtype, 3, 4), numbers(dtype, 2, 4)
    index = np.array([[0, 1, 2, 0], [2, 0, 1, 2]])
    expected = array.copy()
    for i, j in np.ndindex(2, 4):
        expected[index[i, j], j] = source[i, j]
    same(F.scatter(F.from_numpy(array), 0, F.from_numpy(index), F.from_numpy(source)), expected)
    expected[index[0], np.arange(4)] = 1
    same(F.scatter(F.from_numpy(expected), 0, F.from_numpy(index[:1]), 1), expected)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    "key", [([0, 2],), ([0, 2], [1, 3]), ([[0], [1]], [2, 3]), (None, [1, 3]), (None, [1, 3], [0, 4])]
)
def test_index_put(key, accumulate):
    array = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5)
    full = tuple(slice(None) if k is None else np.array(k) for k in key)
    values = RNG.standard_normal(array[full].shape).astype(np.float32)
    expected = array.copy()
    if accumulate:
        np.add.at(expected, full, values)
    else:
        expected[full] = values
    indices = [None if k is None else F.tensor(k) for k in key]
    near(F.from_numpy(array).index_put(indices, F.from_numpy(values), accumulate), expected, 1e-6)


def test_writing_along_a_dim():
    array = np.zeros((3, 4), np.int64)
    x, source = F.from_numpy(array), np.arange(6).reshape(3, 2) + 1
    expected = array.copy()
    expected[:, [3, 1]] = source
    same(x.index_copy(1, F.tensor([3, 1]), F.from_numpy(source)), expected)
    same(x.index_add(1, F.tensor([3, 1]), F.from_numpy(source), alpha=2), expected * 2)
    same(x.index_fill(1, F.tensor([3, 1]), 7), np.where(expected > 0, 7, 0))
    same(F.slice_scatter(x, F.ones(3, 2, dtype=F.int64), 1, 0, 4, 2), np.array([[1, 0, 1, 0]] * 3))
    same(F.select_scatter(x, F.ones(4, dtype=F.int64), 0, -1), np.array([[0] * 4, [0] * 4, [1] * 4]))
    mask = np.array([[True, False, True, False]] * 3)
    expected = array.copy()
    expected[mask] = np.arange(6)
    same(x.masked_scatter(F.from_numpy(mask), F.arange(6)), expected)
    same(x.masked_select(F.from_numpy(mask)), array[mask])


def test_searching():
    array = np.array([3, 1, 3, 0, 2])
    x = F.from_numpy(array)
    same(F.nonzero(x), np.argwhere(array))
    same(F.argwhere(x > 1), np.argwhere(array > 1))
    same(F.where(x > 1)[0], np.nonzero(array > 1)[0])
    assert tuple(F.nonzero(F.tensor(3)).shape) == (1, 0)
    values, inverse, counts = F.unique(x, return_inverse=True, return_counts=True)
    for ours, theirs in zip(
        (values, inverse, counts), np.unique(array, return_inverse=True, return_counts=True), strict=True
    ):
        same(ours, theirs)
    same(F.unique_consecutive(F.tensor([1, 1, 2, 1]), return_counts=True)[1], np.array([2, 1, 1]))
    same(F.unique(F.tensor([[1, 2], [1, 2], [0, 1]]), dim=0), np.array([[0, 1], [1, 2]]))
    same(F.isin(x, F.tensor([3, 0])), np.isin(array, [3, 0]))
    edges = np.array([0.0, 1.0, 2.0], np.float32)
    for right in (False, True):
        same(
            F.searchsorted(F.from_numpy(edges), F.tensor([[1.0, 5.0], [-1.0, 0.5]]), right=right),
            np.searchsorted(edges, [[1, 5], [-1, 0.5]], "right" if right else "left"),
        )
    same(
        F.take_along_dim(F.from_numpy(np.arange(12).reshape(3, 4)), F.tensor([[0], [-1], [2]]), 1),
        np.array([[0], [7], [10]]),
    )
    same(F.bincount(x), np.bincount(array))
    same(F.nn.functional.one_hot(x, 4), np.eye(4, dtype=np.int64)[array])


@st.composite
def factors(draw):
    ranks = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    batch = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=3)).input_shapes
    left = (k,) if ranks[0] == 1 else (*batch[0], m, k)
    right = (k,) if ranks[1] == 1 else (*batch[1], k, n)
    return left, right


@settings(max_examples=80)
@given(factors(), st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "float16"]))
def test_matmul(shapes, dtype):
    a, b = (RNG.integers(0, 5, shape).astype(dtype) for shape in shapes)
    same(F.from_numpy(a) @ F.from_numpy(b), np.asarray(a.astype(np.float64) @ b.astype(np.float64)).astype(dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_integer_matmul_is_exact_and_wraps(dtype):
    info = np.iinfo(dtype)
    a, b = (
        RNG.integers(info.min, info.max, (3, 70), dtype),
        RNG.integers(info.min, info.max, (70, 4), dtype),
    )
    same(F.from_numpy(a) @ F.from_numpy(b), a @ b)


EQUATIONS = [
    "ij,jk->ik",
    "bij,bjk->bik",
    "ij->ji",
    "ii->i",
    "ii",
    "ij,kj",
    "bhqd,bhkd->bhqk",
    "i,j->ij",
    "ij,ij->",
    "ijk->k",
    "...ij,...jk->...ik",
    "ij,jk,kl->il",
    "i,i",
]


@pytest.mark.parametrize("dtype", ["float64", "int64"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation, dtype):
    sizes = dict(zip("bhqkdijl", (2, 3, 4, 5, 3, 3, 4, 2), strict=True))
    terms = equation.split("->")[0].replace("...", "b").split(",")
    arrays = [RNG.integers(-3, 4, [sizes[c] if "ii" not in term else 3 for c in term]).astype(dtype) for term in terms]
    result = F.einsum(equation, *(F.from_numpy(a) for a in arrays))
    near(result, np.einsum(equation, *arrays), 1e-12)


def test_products():
    a, b = RNG.standard_normal((2, 3)), RNG.standard_normal((2, 3))
    x, y = F.from_numpy(a), F.from_numpy(b)
    same(F.outer(x[0], y[1]), np.outer(a[0], b[1]))
    near(F.cross(x, y), np.cross(a, b), 1e-12)
    near(F.kron(x, y), np.kron(a, b), 1e-12)
    same(F.trace(x), np.trace(a))
    near(F.tensordot(x, y, ([1], [1])), np.tensordot(a, b, ([1], [1])), 1e-12)
    near(F.cdist(x, y), np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1)), 1e-12)
    near(F.addmm(F.ones(2, 2, dtype=F.float64), x, y.T, beta=2, alpha=3), 2 + 3 * a @ b.T, 1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 5), (3, 4, 4), (2, 3, 3, 3)])
def test_determinant(shape):
    array = RNG.standard_normal(shape)
    near(F.linalg.det(F.from_numpy(array)), np.asarray(np.linalg.det(array)), 1e-10)


def test_determinant_of_singular_matrices():
    for array in ([[1.0, 2], [2, 4]], [[0.0, 0], [0, 0]], [[0.0, 1], [1, 0]]):
        near(F.linalg.det(F.tensor(array)), np.asarray(np.linalg.det(np.array(array, np.float32))), 1e-6)


def test_names_of_torch_that_no_row_uses():
    """A handler that a user registers may."""
    a, b = numbers("float32", 3, 4), numbers("float32", 4)
    x, y = F.as_tensor(a), F.as_tensor(b)
    for result, expected in zip(F.broadcast_tensors(x, y), np.broadcast_arrays(a, b), strict=True):
        same(result, expected)
    same(F.hstack([x, x]), np.hstack([a, a]))
    same(F.hstack([y, y]), np.hstack([b, b]))
    same(F.vstack([x, y]), np.vstack([a, b]))
    for result, expected in zip(F.var_mean(x, 1), (a.var(1, ddof=1), a.mean(1)), strict=True):
        near(result, expected, 1e-6)
    for result, expected in zip(F.std_mean(x, 1), (a.std(1, ddof=1), a.mean(1)), strict=True):
        near(result, expected, 1e-6)
    near(F.trapz(x, dx=0.5, dim=0), np.trapz(a, dx=0.5, axis=0), 1e-6)
    edges = np.array([10, 50, 90], np.float32)
    same(F.bucketize(x, F.as_tensor(edges)), np.searchsorted(edges, a))
    same(F.bucketize(x, F.as_tensor(edges), right=True), np.searchsorted(edges, a, side="right"))
    same(F.isin(x, F.as_tensor(a[0])), np.isin(a, a[0]))


def test_numbers_of_sizes():
    assert (F.sym_max(3, 5), F.sym_min(3, 5)) == (5, 3)
    assert (F.sym_ite(True, 3, 5), F.sym_ite(False, 3, 5)) == (3, 5)
    assert (F.sym_not(True), F.sym_not(False)) == (False, True)
    assert F.sym_int(2.5) == 2
    assert not F.jit.is_tracing()
