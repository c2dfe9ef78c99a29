"""Shape rules of scans, sorting, searching, losses, distances and Fourier transforms, against torch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules import losses, scans, spectra
from tests.symbolic_sizes import Call, Free, check_rule, name_of, rules_of, stored

_DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
_FLOATS = (torch.float32, torch.float64)

Calls = Callable[[Random], Call]


def _size(random: Random) -> int:
    return random.choice((0, 1, 1, 2, 3, random.randint(2, 7)))


def _sizes(random: Random, count: int) -> tuple[int, ...]:
    return tuple(_size(random) for _ in range(count))


def _near(random: Random, value: int) -> int:
    """Returns a size that often fits `value`, or is 1."""
    return random.choice((value,) * 12 + (1, 1, _size(random)))


def _axis(random: Random, rank: int) -> int:
    return random.randint(-rank - (random.random() < 0.05), max(rank - 1, 0))


def scan(dtypes: Any = _DTYPES, dtype: bool = False) -> Calls:
    def make(random: Random) -> Call:
        x = stored(*_sizes(random, random.randint(0, 3)), dtype=random.choice(dtypes))
        options = {"dtype": random.choice((torch.float32, torch.int64))} if dtype and random.random() < 0.3 else {}
        axis = _axis(random, len(x.shape))
        return ((x, axis), options) if random.random() < 0.5 else ((x,), {"dim": axis, **options})

    return make


def sort(random: Random) -> Call:
    x = stored(*_sizes(random, random.randint(0, 3)), dtype=random.choice(_DTYPES))
    axis = _axis(random, len(x.shape))
    return random.choice(
        (
            ((x,), {}),
            ((x, axis), {}),
            ((x,), dict(dim=axis, descending=True, stable=True)),
            ((x, axis, True), {}),
        )
    )


def topk(random: Random) -> Call:
    x = stored(*_sizes(random, random.randint(0, 3)), dtype=random.choice(_DTYPES[:-1]))
    axis = _axis(random, len(x.shape))
    most = x.shape[axis] if x.shape and -len(x.shape) <= axis else 1
    count = Free(random.choice((random.randint(0, most), most, _size(random))))
    options = dict(dim=axis, largest=random.random() < 0.5, sorted=random.random() < 0.5)
    return ((x, count), options) if random.random() < 0.6 else ((x, count, *options.values()), {})


def searchsorted(random: Random) -> Call:
    rows, dtype = _sizes(random, random.randint(0, 2)), random.choice(_DTYPES[:3])
    searched = tuple(_near(random, size) for size in rows) if random.random() < 0.5 else ()
    options = dict(right=random.random() < 0.5, out_int32=random.random() < 0.5) if random.random() < 0.5 else {}
    return (stored(*searched, _size(random), dtype=dtype), stored(*rows, _size(random), dtype=dtype)), options


def bucketize(random: Random) -> Call:
    x, dtype = _sizes(random, random.randint(0, 3)), random.choice(_DTYPES[:3])
    options = dict(right=random.random() < 0.5, out_int32=random.random() < 0.5) if random.random() < 0.5 else {}
    return (stored(*x, dtype=dtype), stored(_size(random), dtype=dtype)), options


def multinomial(random: Random) -> Call:
    x = torch.ones(_sizes(random, random.randint(1, 2)), dtype=random.choice(_FLOATS))
    return (x, Free(_size(random)), random.random() < 0.5), {}


def loss(random: Random) -> Call:
    classes, lead = random.randint(1, 4), _sizes(random, random.choice((0, 1, 1)))
    inner = _sizes(random, random.choice((0, 1, 2, 3))) if lead else ()
    targets = tuple(_near(random, size) for size in (*lead, *inner))
    weight = stored(_near(random, classes)) if random.random() < 0.5 else None
    reduction = random.choice(("none", "sum", "mean"))
    return (stored(*lead, classes, *inner), stored(*targets, dtype=torch.int64), weight), dict(reduction=reduction)


def similarity(random: Random) -> Call:
    x = _sizes(random, random.randint(1, 3))
    y = tuple(_near(random, size) for size in x[random.randint(0, 1) :])
    return (stored(*x), stored(*y)), dict(dim=_axis(random, len(x)))


def cdist(random: Random) -> Call:
    lead, features = _sizes(random, random.randint(0, 2)), _size(random)
    other = tuple(_near(random, size) for size in lead[random.randint(0, len(lead)) :])
    x, y = (*lead, _size(random), features), (*other, _size(random), _near(random, features))
    return (stored(*x), stored(*y)), random.choice(({}, dict(compute_mode="donot_use_mm_for_euclid_dist"), dict(p=1.0)))


def spectrum(dtypes: Any) -> Calls:
    def make(random: Random) -> Call:
        # Where another axis is empty, the kernel on the CPU fails, and others do not.
        rank = random.randint(1, 3)
        axis = random.randrange(rank)
        sizes = [_size(random) if place == axis else random.randint(1, 3) for place in range(rank)]
        x = stored(*tuple(sizes), dtype=random.choice(dtypes))
        n = random.choice((None, Free(_size(random))))
        return (x, n, axis - random.choice((0, rank))), {}

    return make


_COMPLEX = (torch.complex64, torch.complex128)
CALLS: dict[Any, Calls] = {
    **dict.fromkeys((torch.cumsum, "cumsum", torch.cumprod, "cumprod"), scan(dtype=True)),
    **dict.fromkeys((torch.cummax, "cummax", torch.cummin, "cummin"), scan()),
    **dict.fromkeys((torch.sort, "sort", torch.argsort, "argsort"), sort),
    **dict.fromkeys((torch.topk, "topk"), topk),
    torch.searchsorted: searchsorted,
    torch.bucketize: bucketize,
    **dict.fromkeys((torch.multinomial, "multinomial"), multinomial),
    **dict.fromkeys((F.nll_loss, F.cross_entropy), loss),
    **dict.fromkeys((F.cosine_similarity, torch.cosine_similarity), similarity),
    torch.cdist: cdist,
    torch.fft.rfft: spectrum(_FLOATS),
    torch.fft.irfft: spectrum(_COMPLEX),
    torch.fft.fft: spectrum((*_FLOATS, *_COMPLEX)),
    torch.fft.ifft: spectrum((*_FLOATS, *_COMPLEX)),
}


def test_every_rule_of_the_family_is_called() -> None:
    assert set(CALLS) == set(rules_of(losses, scans, spectra))


@pytest.mark.parametrize("target", CALLS, ids=name_of)
def test_rule_gives_the_shapes_of_torch(target: Any) -> None:
    check_rule(target, CALLS[target])
