"""The rules of gathering, scattering, padding, folding give torch's shapes for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules import gathering, rearranging
from onnx2nn.fx.shape_rules.rule import RULES
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import at_least_zero
from onnx2nn.sizes.expression import Symbol, of_symbol
from tests.symbolic_sizes import (
    SIZES,
    Call,
    Free,
    RecordedSizes,
    any_axis,
    any_shape,
    check_rule,
    meta,
    name_of,
    rules_of,
    stored,
)


def _indices(random: Random, *shape: int) -> torch.Tensor:
    return meta(*shape, dtype=random.choice((torch.int64, torch.int64, torch.int64, torch.int32, torch.float32)))


def _shrunk(random: Random, shape: list[int]) -> list[int]:
    """Returns sizes that are mostly no larger."""
    return [random.randrange(size + 1) if random.random() < 0.9 else size + 1 for size in shape]


def _gather(random: Random) -> Call:
    shape = any_shape(random)
    return (meta(*shape), any_axis(random, len(shape)), _indices(random, *_shrunk(random, shape))), {}


def _scatter(random: Random) -> Call:
    shape = any_shape(random)
    index = _shrunk(random, shape)
    source = [size + random.choice((0, 0, 1, 2)) for size in index] if random.random() < 0.9 else any_shape(random)
    value = meta(*source, dtype=random.choice((torch.float32, torch.float32, torch.int64)))
    return (meta(*shape), any_axis(random, len(shape)), _indices(random, *index), value), {}


def _scatter_value(random: Random) -> Call:
    (*args, _), _ = _scatter(random)
    return random.choice((((*args, 1.0), {}), (tuple(args), {"value": 2}), ((*args, meta()), {})))


def _scatter_any(random: Random) -> Call:
    return random.choice((_scatter, _scatter_value))(random)


def _scatter_reduce(random: Random) -> Call:
    args, _ = _scatter(random)
    return (*args, random.choice(("sum", "amax"))), random.choice(({}, {"include_self": False}))


def _index_select(random: Random) -> Call:
    shape = any_shape(random)
    index = _indices(random, *any_shape(random, random.choice((0, 1, 1, 2))))
    return (meta(*shape), any_axis(random, len(shape)), index), {}


def _index_add(random: Random) -> Call:
    shape = any_shape(random)
    axis = any_axis(random, len(shape))
    count = random.choice(SIZES) if shape and shape[axis] else 0  # the indices are 0
    new = list(shape)
    if new:
        new[axis] = count
    source = stored(*(new if random.random() < 0.9 else any_shape(random)))
    return (stored(*shape), axis, stored(count, dtype=torch.int64), source), {}


def _index_put(random: Random) -> Call:
    shape = any_shape(random)
    count = random.choice(SIZES)
    index = [_indices(random, count) for _ in range(random.randrange(1, len(shape) + 2))]
    new = [random.choice((size, 1)) for size in (count, *shape[len(index) :])]
    return (meta(*shape), tuple(index), meta(*new[random.randrange(len(new) + 1) :])), {}


def _take_along_dim(random: Random) -> Call:
    shape = any_shape(random)
    at = [random.choice((size, 1, random.choice(SIZES))) for size in shape]
    options = {"dim": any_axis(random, len(shape))} if random.random() < 0.8 else {}
    return (meta(*shape), _indices(random, *at)), options


def _take(random: Random) -> Call:
    return (meta(*any_shape(random)), _indices(random, *any_shape(random))), {}


def _embedding(random: Random) -> Call:
    rows = any_shape(random, 2 if random.random() < 0.9 else None)
    return (_indices(random, *any_shape(random)), meta(*rows)), {}


def _embedding_bag(random: Random) -> Call:
    rows = any_shape(random, 2 if random.random() < 0.9 else None)
    index = _indices(random, *any_shape(random, 2 if random.random() < 0.9 else None))
    return (index, meta(*rows)), random.choice(({}, {"mode": "sum"}, {"mode": "mean"}))


def _one_hot(random: Random) -> Call:
    dtype = torch.int64 if random.random() < 0.9 else torch.int32
    return (stored(*any_shape(random), dtype=dtype), random.choice((-1, *map(Free, range(5))))), {}


def _flip(random: Random) -> Call:
    shape = any_shape(random)
    axes = [any_axis(random, len(shape)) for _ in range(random.randrange(3))]
    return (meta(*shape), axes), {}


def _roll(random: Random) -> Call:
    shape = any_shape(random)
    axes = [any_axis(random, len(shape)) for _ in range(random.randrange(3))]
    counts = [Free(random.randrange(-4, 5)) for _ in range(len(axes) or 1)]
    return (meta(*shape), counts, axes), {}


def _pad(random: Random) -> Call:
    shape = any_shape(random)
    mode = random.choice(("constant", "constant", "reflect", "replicate", "circular"))
    low = -3 if mode == "constant" or random.random() < 0.2 else 0
    pads = [random.choice((0, random.randrange(low, 4))) for _ in range(2 * random.randrange(len(shape) + 1))]
    if mode == "constant":
        return (meta(*shape), [random.choice((Free(pad), pad)) for pad in pads]), {"value": random.choice((None, 1.0))}
    return (meta(*shape), pads, mode), {}


def _diagonal(random: Random) -> Call:
    shape = any_shape(random)
    return (meta(*shape), random.randrange(-4, 5), any_axis(random, len(shape)), any_axis(random, len(shape))), {}


def _diag_embed(random: Random) -> Call:
    shape = any_shape(random)
    if random.random() < 0.3:
        return (meta(*shape),), {}
    axes = [any_axis(random, len(shape) + 1) for _ in range(2)]
    return (meta(*shape), random.randrange(-2, 3), *axes), {}


def _multiples(random: Random) -> Call:
    factor = random.randrange(1, 4)
    shape = [size * random.choice((1, factor, factor**2)) for size in any_shape(random)]
    return (stored(*shape), factor), {}


def _multiples_with_elements(random: Random) -> Call:
    (x, factor), _ = _multiples(random)
    return (stored(*(size or factor for size in x.shape)), factor), {}


def _windows(random: Random) -> Call:
    shape = any_shape(random)
    size, step = Free(random.randrange(-1, 5)), Free(random.randrange(4))
    return (meta(*shape), any_axis(random, len(shape)), size, step), {}


def _pair(random: Random, low: int) -> Any:
    one, other = random.randrange(low, low + 3), random.randrange(low, low + 3)
    return random.choice((one, (one, other), [one, other]))


def _geometry(random: Random) -> dict[str, Any]:
    options = {"dilation": _pair(random, 1), "padding": _pair(random, 0), "stride": _pair(random, 1)}
    return {name: option for name, option in options.items() if random.random() < 0.5}


def _unfold(random: Random) -> Call:
    shape = [random.choice((1, 2, 5, 6, 8, random.choice(SIZES))) for _ in range(random.choice((3, 4, 4, 2)))]
    return (meta(*shape), _pair(random, 1)), _geometry(random)


def _fold(random: Random) -> Call:
    kernel, options = (random.randrange(1, 4), random.randrange(1, 4)), _geometry(random)
    image = (random.randrange(1, 8), random.randrange(1, 8))
    channels = random.choice((1, 2, 3))
    try:
        shape = list(F.unfold(meta(channels, *image), kernel, **options).shape)
    except RuntimeError:  # the image is smaller than the kernel
        shape = [3, 4]
    if random.random() < 0.2:
        shape[random.randrange(2)] += 1
    lead = random.choice(([], [2], [0]))
    return (meta(*lead, *shape), tuple(map(Free, image)), kernel), options


CALLS: dict[Any, Callable[[Random], Call]] = {
    **dict.fromkeys((torch.gather, "gather"), _gather),
    **dict.fromkeys((torch.scatter, "scatter"), _scatter_any),
    **dict.fromkeys((torch.scatter_add, "scatter_add"), _scatter),
    **dict.fromkeys((torch.scatter_reduce, "scatter_reduce"), _scatter_reduce),
    **dict.fromkeys((torch.index_select, "index_select"), _index_select),
    **dict.fromkeys((torch.index_add, "index_add"), _index_add),
    **dict.fromkeys((torch.index_put, "index_put"), _index_put),
    **dict.fromkeys((torch.take_along_dim, "take_along_dim"), _take_along_dim),
    **dict.fromkeys((torch.take, "take"), _take),
    F.embedding: _embedding,
    F.embedding_bag: _embedding_bag,
    F.one_hot: _one_hot,
    **dict.fromkeys((torch.flip, "flip"), _flip),
    **dict.fromkeys((torch.roll, "roll"), _roll),
    F.pad: _pad,
    **dict.fromkeys((torch.diagonal, "diagonal"), _diagonal),
    **dict.fromkeys((torch.diag_embed, "diag_embed"), _diag_embed),
    **dict.fromkeys((torch.pixel_shuffle, F.pixel_shuffle, torch.channel_shuffle, F.channel_shuffle), _multiples),
    **dict.fromkeys((torch.pixel_unshuffle, F.pixel_unshuffle), _multiples_with_elements),
    "unfold": _windows,
    F.unfold: _unfold,
    F.fold: _fold,
}


def test_every_rule_of_the_family_is_called() -> None:
    assert set(CALLS) == set(rules_of(gathering, rearranging))


@pytest.mark.parametrize("target", CALLS, ids=name_of)
def test_rule_gives_the_shapes_of_torch(target: Any) -> None:
    check_rule(target, CALLS[target])


def test_pixel_unshuffle_of_a_tensor_that_may_be_empty_is_guarded() -> None:
    assert torch.pixel_unshuffle(stored(0, 4, 6, 6), 2).shape == (0, 4, 6, 6)  # PyTorch's CPU kernel is wrong here
    sizes, batch = RecordedSizes(), of_symbol(Symbol("n"))
    found = RULES[torch.pixel_unshuffle](sizes, Spec((batch, 4, 6, 6), torch.float32), 2)
    assert found == Spec((batch, 16, 3, 3), torch.float32)
    assert sizes.conditions == [at_least_zero(batch - 1)]
    assert RULES[torch.pixel_unshuffle](RecordedSizes(), Spec((0, 4, 6, 6), torch.float32), 2) is None
