"""Shape rules of convolutions, pools and normalisations, against torch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules import convolutions, normalisations, pools
from tests.symbolic_sizes import Call, Free, check_rule, name_of, rules_of, stored

Calls = Callable[[Random], Call]


def _size(random: Random, most: int = 9) -> int:
    return random.choice((0, 1, 2, random.randint(1, most), random.randint(2, most)))


def _mostly(random: Random, value: Any, other: Any) -> Any:
    return value if random.random() < 0.93 else other


def _setting(random: Random, rank: int, low: int, high: int) -> Any:
    values = [random.randint(low, high) for _ in range(rank)]
    return random.choice((values, tuple(values), values[0], values[:1]))


def convolution(rank: int) -> Calls:
    def make(random: Random) -> Call:
        groups = random.choice((1, 1, 2, 3))
        inner, outer = random.randint(1, 3), random.randint(1, 3)
        weight = stored(_mostly(random, outer * groups, 5), inner, *(random.randint(1, 4) for _ in range(rank)))
        channels = _mostly(random, inner * groups, random.randint(0, 5))
        batch = () if random.random() < 0.2 else (_size(random, 3),)
        x = stored(*batch, channels, *(_size(random) for _ in range(rank)))
        bias = stored(_mostly(random, weight.shape[0], 1)) if random.random() < 0.5 else None
        settings = (_setting(random, rank, 1, 3), _setting(random, rank, 0, 3), _setting(random, rank, 1, 3))
        if random.random() < 0.5:
            return (x, weight, bias, *settings, groups), {}
        return (x, weight), dict(
            bias=bias, stride=settings[0], padding=settings[1], dilation=settings[2], groups=groups
        )

    return make


def transposed(rank: int) -> Calls:
    def make(random: Random) -> Call:
        groups = random.choice((1, 1, 2, 3))
        outer, inner = random.randint(1, 3), random.randint(1, 3)
        weight = stored(inner * groups, outer, *(random.randint(1, 4) for _ in range(rank)))
        channels = _mostly(random, inner * groups, random.randint(0, 5))
        batch = () if random.random() < 0.2 else (_size(random, 3),)
        x = stored(*batch, channels, *(_size(random) for _ in range(rank)))
        bias = stored(_mostly(random, outer * groups, 1)) if random.random() < 0.5 else None
        settings = (_setting(random, rank, 1, 3), _setting(random, rank, 0, 3), _setting(random, rank, 0, 2))
        call: Call = (x, weight, bias, *settings, groups, _setting(random, rank, 1, 3)), {}
        return make(random) if _is_empty_transposed(rank, *call[0]) else call

    return make


def _is_empty_transposed(rank: int, x: torch.Tensor, weight: torch.Tensor, _: Any, *settings: Any) -> bool:
    """Returns whether an output has size 0: some of torch's kernels on the CPU take that, some do not."""
    every = [value if len(value := [n] if isinstance(n, int) else list(n)) > 1 else value * rank for n in settings]
    steps, pads, extras, _, spreads = every
    spans = [s * (k - 1) + 1 for k, s in zip(weight.shape[2:], spreads, strict=True)]
    sizes = zip(x.shape[-rank:], steps, pads, extras, spans, strict=True)
    return any((size - 1) * step - 2 * pad + extra + span == 0 for size, step, pad, extra, span in sizes)


def _pooled(random: Random, rank: int) -> torch.Tensor:
    batch = () if random.random() < 0.2 else (_size(random, 3),)
    return stored(*batch, _mostly(random, random.randint(1, 3), 0), *(_size(random) for _ in range(rank)))


def max_pool(rank: int, indices: bool = False) -> Calls:
    def make(random: Random) -> Call:
        options: dict[str, Any] = {}
        if random.random() < 0.7:
            options["stride"] = _setting(random, rank, 1, 4)
        if random.random() < 0.7:
            options["padding"] = _setting(random, rank, 0, 1)
        if random.random() < 0.5:
            options["dilation"] = _setting(random, rank, 1, 3)
        options["ceil_mode"] = random.random() < 0.5
        if indices:
            options["return_indices"] = random.random() < 0.5
        return (_pooled(random, rank), _setting(random, rank, 1, 4)), options

    return make


def avg_pool(rank: int) -> Calls:
    def make(random: Random) -> Call:
        settings = (_setting(random, rank, 1, 4), _setting(random, rank, 1, 4), _setting(random, rank, 0, 1))
        return (_pooled(random, rank), *settings), dict(ceil_mode=random.random() < 0.5)

    return make


def lp_pool(rank: int) -> Calls:
    def make(random: Random) -> Call:
        kernel: Any = tuple(random.randint(1, 4) for _ in range(rank)) if rank > 1 else random.randint(1, 4)
        stride = _setting(random, rank, 1, 4) if random.random() < 0.7 else None
        return (_pooled(random, rank), 2.0, kernel, stride, random.random() < 0.5), {}

    return make


def adaptive(rank: int) -> Calls:
    def make(random: Random) -> Call:
        outputs = [None if random.random() < 0.1 else Free(_size(random, 4)) for _ in range(rank)]
        size: Any = random.choice((outputs, Free(_size(random, 4)))) if rank > 1 else Free(_size(random, 4))
        return (_pooled(random, rank), size), {}

    return make


def max_unpool(rank: int) -> Calls:
    def make(random: Random) -> Call:
        x = _pooled(random, rank)
        indices = stored(*(x.shape if random.random() < 0.9 else (*x.shape[:-1], 2)), dtype=torch.int64)
        stride = _setting(random, rank, 1, 4) if random.random() < 0.7 else None
        settings = (_setting(random, rank, 1, 4), stride, _setting(random, rank, 0, 1))
        return (x, indices, *settings), {}

    return make


def _x(random: Random, low: int, high: int) -> torch.Tensor:
    return stored(*tuple(_size(random, 4) for _ in range(random.randint(low, high))))


def _with_channels(random: Random) -> torch.Tensor:
    """Returns an input with images and channels, without which torch's kernel on the CPU fails, and others do not."""
    x = _x(random, 2, 5)
    return stored(max(x.shape[0], 1), max(x.shape[1], 1), *x.shape[2:])


def batch_norm(random: Random) -> Call:
    x = _with_channels(random)
    of = lambda: stored(_mostly(random, x.shape[1], 3) if 0 not in x.shape else x.shape[1])  # noqa: E731
    states = (of(), of()) if random.random() < 0.8 else (None, None)
    parameters = (of() if random.random() < 0.5 else None, of() if random.random() < 0.5 else None)
    return (x, *states, *parameters, random.random() < 0.5), {}


def instance_norm(random: Random) -> Call:
    x = _with_channels(random)
    of = lambda: stored(_mostly(random, x.shape[1], 3) if 0 not in x.shape else x.shape[1])  # noqa: E731
    return (x,), dict(weight=of() if random.random() < 0.5 else None, bias=of() if random.random() < 0.5 else None)


def group_norm(random: Random) -> Call:
    groups, x = random.randint(1, 3), _x(random, 2, 5)
    x = stored(x.shape[0], random.choice((x.shape[1] * groups, x.shape[1] * groups, _size(random))), *x.shape[2:])
    of = lambda: stored(_mostly(random, x.shape[1], 3))  # noqa: E731
    return (x, groups, of() if random.random() < 0.5 else None, of() if random.random() < 0.5 else None), {}


def layer_norm(biased: bool) -> Calls:
    def make(random: Random) -> Call:
        x = _x(random, 1, 4)
        last = [_mostly(random, size, 3) for size in x.shape[-random.randint(1, len(x.shape)) :]]
        given = [stored(*tuple(last)) if random.random() < 0.5 else None for _ in range(1 + biased)]
        return (x, list(map(Free, last)), *given), {}

    return make


def normalize(random: Random) -> Call:
    x = _x(random, 1, 4)
    return (x, random.choice((1, 2, 2.0, float("inf"), -1)), random.randint(-len(x.shape), len(x.shape))), {}


def local_response_norm(random: Random) -> Call:
    return (_x(random, 2, 5), random.randint(1, 5)), {}


_BY_RANK = (
    (convolution, (torch.conv1d, torch.conv2d, torch.conv3d)),
    (transposed, (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)),
    (max_pool, (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)),
    (lambda rank: max_pool(rank, indices=True), (F.max_pool1d, F.max_pool2d, F.max_pool3d)),
    (max_pool, (F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices)),
    (avg_pool, (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)),
    (lp_pool, (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)),
    (adaptive, (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)),
    (adaptive, (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)),
    (max_unpool, (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)),
)
CALLS: dict[Any, Calls] = {
    **{function: make(rank) for make, functions in _BY_RANK for rank, function in enumerate(functions, 1)},
    F.batch_norm: batch_norm,
    F.instance_norm: instance_norm,
    F.group_norm: group_norm,
    F.layer_norm: layer_norm(biased=True),
    F.rms_norm: layer_norm(biased=False),
    F.normalize: normalize,
    F.local_response_norm: local_response_norm,
}


def test_every_rule_of_the_family_is_called() -> None:
    assert set(CALLS) == set(rules_of(convolutions, normalisations, pools))


@pytest.mark.parametrize("target", CALLS, ids=name_of)
def test_rule_gives_the_shapes_of_torch(target: Any) -> None:
    check_rule(target, CALLS[target])
