"""The rules of functions that make tensors give torch's shapes and dtypes for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

from onnx2nn.fx.shape_rules import creation
from onnx2nn.fx.shape_rules.rule import RULES
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.expression import Symbol, of_symbol
from onnx2nn.sizes.substitution import evaluated
from tests.symbolic_sizes import Call, Free, RecordedSizes, any_shape, check_rule, meta, name_of, rules_of

_DTYPES = (None, torch.float32, torch.float64, torch.int64, torch.int32, torch.float16, torch.bool)
_NUMBERS: tuple[Any, ...] = (1, 2.5, True, 3j, Free(4), Free(0), -7)


def _options(random: Random) -> dict[str, Any]:
    return {"dtype": random.choice(_DTYPES), "device": "meta"} if random.random() < 0.5 else {"device": "meta"}


def _sizes(random: Random) -> list[Free]:
    return [Free(size) for size in (any_shape(random) if random.random() < 0.95 else [2, -1])]


def _of_size(random: Random) -> Call:
    size, options = _sizes(random), _options(random)
    way = random.randrange(4)
    if way == 0:
        return (), {"size": size, **options}
    return (tuple(size), options) if way == 1 else ((random.choice((size, tuple(size))),), options)


def _of_count(random: Random) -> Call:
    return (Free(random.randrange(-1, 9)),), _options(random)


def _new(random: Random) -> Call:
    args, options = _of_size(random)
    return (meta(2, dtype=random.choice((torch.float16, torch.int64))), *args), options


def _new_full(random: Random) -> Call:
    return (meta(2, dtype=random.choice((torch.float16, torch.int64))), _sizes(random), 1), _options(random)


def _full(random: Random) -> Call:
    return (_sizes(random), random.choice(_NUMBERS)), _options(random)


def _randint(random: Random) -> Call:
    size = tuple(_sizes(random))
    calls: list[Call] = [((5, size), {}), ((1, 5, size), {}), ((5,), {"size": size})]
    args, options = random.choice(calls)
    return args, {**options, **_options(random)}


def _tensor(random: Random) -> Call:
    def nested(depth: int) -> Any:
        if depth == 0:
            return random.choice(_NUMBERS)
        return [nested(depth - 1) for _ in range(random.randrange(4) if random.random() < 0.3 else 2)]

    return (nested(random.randrange(4)),), _options(random)


def _scalar(random: Random) -> Call:
    return (random.choice(_NUMBERS),), _options(random)


def _arange(random: Random) -> Call:
    numbers = [random.choice((Free(random.randrange(-5, 9)), random.randrange(-5, 9), 2.5, -0.5)) for _ in range(3)]
    bounds: list[Any] = numbers[: random.randrange(1, 3)]
    if len(bounds) == 2 and random.random() < 0.6:
        bounds.append(random.choice((1, 2, 3, -1, -2, 0, 0.5, -1.5)))
    return tuple(bounds), _options(random)


def _eye(random: Random) -> Call:
    return tuple(_sizes(random)[: random.randrange(1, 3)]), _options(random)


def _linspace(random: Random) -> Call:
    return (*random.sample((0, 1.5, 4, -1.0), 2), Free(random.randrange(-1, 6))), _options(random)


def _triangle(random: Random) -> Call:
    return (meta(*any_shape(random)), random.choice((Free(1), 0, -2))), {}


def _indices(random: Random) -> Call:
    return (random.randrange(5), random.randrange(5), random.randrange(-3, 4)), {"device": "meta"}


CALLS: dict[Any, Callable[[Random], Call]] = {
    **dict.fromkeys((torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn), _of_size),
    torch.randperm: _of_count,
    **dict.fromkeys(("new_zeros", "new_ones", "new_empty"), _new),
    "new_full": _new_full,
    torch.full: _full,
    torch.randint: _randint,
    **dict.fromkeys((torch.tensor, torch.as_tensor), _tensor),
    torch.scalar_tensor: _scalar,
    torch.arange: _arange,
    torch.eye: _eye,
    torch.linspace: _linspace,
    **dict.fromkeys((torch.hann_window, torch.hamming_window, torch.blackman_window, torch.bartlett_window), _of_count),
    **dict.fromkeys((torch.triu, torch.tril, "triu", "tril"), _triangle),
    **dict.fromkeys((torch.triu_indices, torch.tril_indices), _indices),
}


def test_every_rule_of_the_family_is_called() -> None:
    assert set(CALLS) == set(rules_of(creation))


@pytest.mark.parametrize("target", CALLS, ids=name_of)
def test_rule_gives_the_shapes_and_dtypes_of_torch(target: Any) -> None:
    check_rule(target, CALLS[target])


@pytest.mark.parametrize("function", [torch.triu_indices, torch.tril_indices])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_the_indices_of_a_triangle_of_any_size(function: Any, offset: int) -> None:
    symbol = Symbol("n")
    found = RULES[function](RecordedSizes(), of_symbol(symbol), of_symbol(symbol), offset)
    if (offset == -1) == (function is torch.triu_indices) and offset:
        assert found is None
        return
    assert isinstance(found, Spec) and found.shape is not None
    for size in range(5):
        assert evaluated(found.shape[1], {symbol: size}) == function(size, size, offset).shape[1]
