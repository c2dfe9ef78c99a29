"""The rules of indexing, reshaping, joining and splitting give torch's shapes for all sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules import indexing, joining, reshaping
from onnx2nn.fx.shape_rules.rule import RULES
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import at_least_zero, disjunction, equal
from onnx2nn.sizes.expression import Symbol, of_symbol
from onnx2nn.sizes.selection import maximum, minimum
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
)


def _bound(random: Random) -> Free | int | None:
    return random.choice((None, Free(random.randrange(-7, 8)), random.randrange(-7, 8), 2**31 - 1, 2**63 - 1))


def _index(random: Random) -> Call:
    shape = any_shape(random)
    broadcast = random.choice(SIZES)

    def item() -> Any:
        way = random.randrange(9)
        if way < 3:
            return slice(_bound(random), _bound(random), random.choice((None, 1, 2, 3)))
        if way < 5:
            return random.choice((Free(random.randrange(-4, 4)), random.randrange(-3, 3)))
        if way == 5:
            return random.choice((None, Ellipsis))
        if way == 6:
            return [random.randrange(2) for _ in range(random.randrange(1, 4))]
        lead = random.choice(((), (1,), (2,)))
        return meta(*lead, random.choice((1, broadcast)), dtype=random.choice((torch.int64, torch.int32, torch.bool)))

    items = tuple(item() for _ in range(random.randrange(1, len(shape) + 2)))
    return (meta(*shape), items[0] if len(items) == 1 and random.random() < 0.5 else items), {}


def _narrow(random: Random) -> Call:
    shape = any_shape(random, random.randrange(1, 4))
    start, length = Free(random.randrange(-4, 5)), Free(random.randrange(-1, 6))
    return (meta(*shape), any_axis(random, len(shape)), start, length), {}


def _select(random: Random) -> Call:
    shape = any_shape(random, random.randrange(1, 4))
    return (meta(*shape), any_axis(random, len(shape)), Free(random.randrange(-4, 5))), {}


def _factors(random: Random, count: int, unknown: bool = True) -> list[Any]:
    """Returns a shape of `count` elements, or of another number at times, with one -1 at times."""
    target: list[int] = []
    while count > 1 and len(target) < 4:
        factor = random.choice([d for d in range(1, count + 1) if count % d == 0])
        target.append(factor)
        count //= factor
    target.append(count)
    random.shuffle(target)
    if unknown and random.random() < 0.5:
        target[random.randrange(len(target))] = -1
    if random.random() < 0.1:
        target[random.randrange(len(target))] = random.choice(SIZES)
    return [Free(size) if size >= 0 else size for size in target]


def _as_sizes(random: Random, *lists: list[Any]) -> tuple[Any, ...]:
    return random.choice((lists, tuple(map(tuple, lists)), tuple(lists[0])))


def _reshape(random: Random) -> Call:
    shape = any_shape(random)
    return (meta(*shape), _factors(random, meta(*shape).numel())), {}


def _reshape_method(random: Random) -> Call:
    x, target = _reshape(random)[0]
    return (x, *_as_sizes(random, target)), {}


def _view(random: Random) -> Call:
    if random.random() < 0.9:
        return _reshape_method(random)
    return (meta(*any_shape(random)), random.choice((torch.int32, torch.int8, torch.float64))), {}


def _like(random: Random) -> Call:
    shape = any_shape(random)
    return (meta(*shape), meta(*shape[::-1])), {}


def _flatten(random: Random) -> Call:
    shape = any_shape(random)
    axes = [any_axis(random, len(shape)) for _ in range(random.randrange(3))]
    return (meta(*shape), *axes), {}


def _unflatten(random: Random) -> Call:
    shape = any_shape(random, random.randrange(1, 4))
    axis = any_axis(random, len(shape))
    return (meta(*shape), axis), {"sizes": _factors(random, shape[axis])}


def _whole(random: Random) -> Call:
    return (meta(*any_shape(random)),), {}


def _of_axis(random: Random) -> Call:
    shape = any_shape(random)
    return (meta(*shape), any_axis(random, len(shape) + random.randrange(2))), {}


def _squeeze(random: Random) -> Call:
    shape = any_shape(random)
    ways = ((), (any_axis(random, len(shape)),), (tuple(any_axis(random, len(shape)) for _ in range(2)),))
    return (meta(*shape), *random.choice(ways)), {}


def _two_axes(random: Random) -> Call:
    shape = any_shape(random)
    return (meta(*shape), any_axis(random, len(shape)), any_axis(random, len(shape))), {}


def _permute(random: Random, function: bool = False) -> Call:
    shape = any_shape(random)
    order = [axis - random.choice((0, len(shape))) for axis in range(len(shape))]
    random.shuffle(order)
    return (meta(*shape), *([order] if function else _as_sizes(random, order))), {}


def _movedim(random: Random) -> Call:
    if random.random() < 0.5:
        return _two_axes(random)
    shape = any_shape(random)
    count = random.randrange(len(shape) + 1)
    return (meta(*shape), *(tuple(random.sample(range(len(shape)), count)) for _ in range(2))), {}


def _expand(random: Random, function: bool = False) -> Call:
    shape = any_shape(random)
    target: list[Any] = [random.choice((size, size, -1)) if size != 1 else random.choice(SIZES) for size in shape]
    target = [Free(size) if size >= 0 else size for size in [*any_shape(random, random.randrange(2)), *target]]
    return (meta(*shape), *([target] if function else _as_sizes(random, target))), {}


def _expand_as(random: Random) -> Call:
    (x, *_), _ = call = _expand(random, function=True)
    return (x, meta(*(max(size, 0) for size in call[0][1]))), {}


def _repeat(random: Random, function: bool = False) -> Call:
    shape = any_shape(random)
    counts = [Free(random.randrange(-(random.random() < 0.1), 4)) for _ in range(len(shape) + random.randrange(-1, 2))]
    return (meta(*shape), *([counts] if function else _as_sizes(random, counts))), {}


def _repeat_interleave(random: Random) -> Call:
    shape = any_shape(random)
    return (meta(*shape), Free(random.randrange(4)), random.choice((None, any_axis(random, len(shape))))), {}


def _cat(random: Random) -> Call:
    shape, axis = any_shape(random), 0
    axis = any_axis(random, len(shape))
    parts = []
    for _ in range(random.randrange(1, 4)):
        part = list(shape)
        if part:
            part[axis] = random.choice(SIZES)
        if random.random() < 0.1:
            part = any_shape(random)
        parts.append(meta(*part, dtype=random.choice((torch.float32, torch.float32, torch.int64, torch.float16))))
    return (parts, axis), {}


def _stack(random: Random) -> Call:
    shape = any_shape(random)
    dtype = random.choice((torch.float32, torch.int64))
    parts = [meta(*shape, dtype=random.choice((torch.float32, dtype))) for _ in range(random.randrange(1, 4))]
    if random.random() < 0.1:
        parts.append(meta(*any_shape(random)))
    return (parts, any_axis(random, len(shape) + 1)), {}


def _split(random: Random) -> Call:
    shape = any_shape(random, random.randrange(1, 4))
    axis = any_axis(random, len(shape))
    if random.random() < 0.5:
        return (meta(*shape), random.randrange(5), axis), {}
    first = random.randrange(shape[axis] + 1)
    return (meta(*shape), [Free(first), Free(shape[axis] - first + (random.random() < 0.1))], axis), {}


def _chunk(random: Random) -> Call:
    shape = any_shape(random, random.randrange(1, 4))
    return (meta(*shape), random.randrange(5), any_axis(random, len(shape))), {}


def _glu(random: Random) -> Call:
    shape = any_shape(random, random.randrange(1, 4))
    axis = any_axis(random, len(shape))
    if random.random() < 0.7:
        shape = [size * 2 if place == axis % len(shape) else size for place, size in enumerate(shape)]
    return (meta(*shape), axis), {}


def _of_function(call: Callable[..., Call]) -> Callable[[Random], Call]:
    return lambda random: call(random, function=True)


CALLS: dict[Any, Callable[[Random], Call]] = {
    **dict.fromkeys((operator.getitem, "__getitem__"), _index),
    **dict.fromkeys((torch.select, "select"), _select),
    **dict.fromkeys((torch.narrow, "narrow"), _narrow),
    torch.reshape: _reshape,
    "reshape": _reshape_method,
    "view": _view,
    **dict.fromkeys(("reshape_as", "view_as"), _like),
    **dict.fromkeys((torch.flatten, "flatten"), _flatten),
    **dict.fromkeys((torch.ravel, "ravel", torch.t, "t"), _whole),
    **dict.fromkeys((torch.unflatten, "unflatten"), _unflatten),
    **dict.fromkeys((torch.squeeze, "squeeze"), _squeeze),
    **dict.fromkeys((torch.unsqueeze, "unsqueeze", torch.unbind, "unbind"), _of_axis),
    **dict.fromkeys((torch.transpose, torch.swapaxes, torch.swapdims, "transpose", "swapaxes", "swapdims"), _two_axes),
    torch.permute: _of_function(_permute),
    "permute": _permute,
    **dict.fromkeys((torch.movedim, torch.moveaxis, "movedim", "moveaxis"), _movedim),
    torch.broadcast_to: _of_function(_expand),
    "expand": _expand,
    "broadcast_to": _of_function(_expand),
    "expand_as": _expand_as,
    "repeat": _repeat,
    torch.tile: _of_function(_repeat),
    "tile": _repeat,
    **dict.fromkeys((torch.repeat_interleave, "repeat_interleave"), _repeat_interleave),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), _cat),
    torch.stack: _stack,
    **dict.fromkeys((torch.split, "split"), _split),
    **dict.fromkeys((torch.chunk, "chunk", torch.tensor_split, "tensor_split"), _chunk),
    F.glu: _glu,
}


def test_every_rule_of_the_family_is_called() -> None:
    assert set(CALLS) == set(rules_of(indexing, joining, reshaping))


@pytest.mark.parametrize("target", CALLS, ids=name_of)
def test_rule_gives_the_shapes_of_torch(target: Any) -> None:
    check_rule(target, CALLS[target])


_N, _M = (of_symbol(Symbol(name)) for name in "nm")


@pytest.mark.parametrize(
    ("target", "shape", "args", "expected"),
    [
        (operator.getitem, (2, _N), ((slice(None), slice(None, 4)),), (2, minimum(4, _N))),
        (operator.getitem, (_N,), (slice(1, None),), (maximum(_N - 1, 0),)),
        (operator.getitem, (_N + 1,), (slice(1, None),), (_N,)),
        (operator.getitem, (_N,), (slice(-3, None),), (minimum(3, _N),)),
        (operator.getitem, (_N + 2,), (slice(None, -2),), (_N,)),
        (operator.getitem, (_N,), (slice(0, 2**63 - 1),), (_N,)),
        (operator.getitem, (_N,), (slice(None, None, 2),), ((_N + 1) // 2,)),
        (operator.getitem, (_N + _M,), (slice(None, _N),), (_N,)),
        (operator.getitem, (_N, 3), (Spec((_M, 2), torch.int64),), (_M, 2, 3)),
        (operator.getitem, (_N, 3), ((Ellipsis, Spec((_M,), torch.int64)),), (_N, _M)),
        (operator.getitem, (3, _N), (0,), (_N,)),
        (operator.getitem, (3, _N), (None,), (1, 3, _N)),
        ("reshape", (_N, _M, 6), (_N * 2, -1), (_N * 2, _M * 3)),
        ("flatten", (_N, _M, 3), (1,), (_N, _M * 3)),
        ("chunk", (2, _N * 3), (3, 1), ((2, _N),) * 3),
        ("split", (_N, 5), (2, 1), ((_N, 2), (_N, 2), (_N, 1))),
        ("expand", (1, 1), (_N, -1), (_N, 1)),
        (F.glu, (_N, 2 * _M), (), (_N, _M)),
        ("tensor_split", (_N,), (2,), (((_N + 1) // 2,), (_N // 2,))),
    ],
)
def test_shapes_are_short(target: Any, shape: Any, args: Any, expected: Any) -> None:
    found = RULES[target](RecordedSizes(), Spec(shape, torch.float32), *args)
    assert found is not None
    assert (found.shape if isinstance(found, Spec) else tuple(part.shape for part in found)) == expected


@pytest.mark.parametrize(
    ("target", "shape", "args", "required"),
    [
        ("reshape", (_N, 6), (-1, 6), []),
        ("reshape", (_N, 6), (_N, -1), []),
        ("reshape", (_N, _M), (6,), [equal(_N * _M, 6)]),
        ("squeeze", (_N + 2, 1), (0,), []),
        ("expand", (_N,), (5,), [disjunction([equal(_N, 5), equal(_N, 1)])]),
        (operator.getitem, (_N,), (2,), [at_least_zero(_N - 3)]),
        ("narrow", (_N,), (0, 1, 4), [at_least_zero(_N - 5)]),
    ],
)
def test_rule_requires_what_torch_checks(target: Any, shape: Any, args: Any, required: Any) -> None:
    sizes = RecordedSizes()
    assert RULES[target](sizes, Spec(shape, torch.float32), *args) is not None
    assert sizes.conditions == required


def test_squeezing_an_unknown_size_gives_an_unknown_rank() -> None:
    assert RULES["squeeze"](RecordedSizes(), Spec((_N, 1), torch.float32), 0) is None
