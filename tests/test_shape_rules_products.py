"""Shape rules of products of matrices and of reductions, against torch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules import products, reductions
from tests.symbolic_sizes import Call, check_rule, is_covered, meta, name_of, rules_of, stored

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")

Calls = Callable[[Random], Call]


def _size(random: Random) -> int:
    return random.choice((0, 1, 1, 2, 3, random.randint(2, 7)))


def _sizes(random: Random, count: int) -> tuple[int, ...]:
    return tuple(_size(random) for _ in range(count))


def _near(random: Random, value: int) -> int:
    """Returns a size that often fits `value`, or is 1."""
    return random.choice((value,) * 12 + (1, 1, 1, _size(random)))


def matmul(random: Random) -> Call:
    m, k, n = _sizes(random, 3)
    lead = _sizes(random, random.randint(0, 2))
    x = (*lead, m, k) if random.random() < 0.8 else (k,)
    other = tuple(_near(random, size) for size in lead[random.randint(0, len(lead)) :])
    y = (*other, _near(random, k), n) if random.random() < 0.8 else (_near(random, k),)
    return (stored(*x), stored(*y)), {}


def ranked(rank: int) -> Calls:
    def make(random: Random) -> Call:
        m, k, n = _sizes(random, 3)
        lead = _sizes(random, rank - 2)
        return (stored(*lead, m, k), stored(*(_near(random, d) for d in lead), _near(random, k), n)), {}

    return make


def added(rank: int, summed: bool = False) -> Calls:
    def make(random: Random) -> Call:
        (x, y), _ = ranked(rank)(random)
        shape = (*x.shape[summed:-1], y.shape[-1])
        c = stored(*tuple(_near(random, d) for d in shape[random.randint(0, len(shape)) :]))
        return (c, x, y), random.choice(({}, dict(alpha=2.0, beta=0.5)))

    return make


def mv(random: Random) -> Call:
    m, k = _sizes(random, 2)
    return (stored(m, k), stored(_near(random, k))), {}


def vectors(random: Random) -> Call:
    n = _size(random)
    return (stored(n), stored(_near(random, n))), {}


def linear(random: Random) -> Call:
    x = _sizes(random, random.randint(1, 4))
    weight = (_size(random), _near(random, x[-1]))
    bias = (stored(_near(random, weight[0])),) if random.random() < 0.5 else ()
    return (stored(*x), stored(*weight), *bias), {}


def bilinear(random: Random) -> Call:
    lead, a, b, n = _sizes(random, random.randint(0, 2)), *_sizes(random, 3)
    bias = (stored(_near(random, n)),) if random.random() < 0.5 else ()
    y = tuple(_near(random, d) for d in lead)
    return (stored(*lead, a), stored(*y, b), stored(n, _near(random, a), b), *bias), {}


def einsum(random: Random) -> Call:
    sizes = dict(zip("abcd", _sizes(random, 4), strict=True))
    terms = ["".join(random.choice("abcd") for _ in range(random.randint(0, 3))) for _ in range(random.randint(1, 3))]
    letters = sorted(set("".join(terms)))
    right = "".join(random.sample(letters, random.randint(0, len(letters))))
    shapes = [[_near(random, sizes[letter]) for letter in term] for term in terms]
    if random.random() < 0.5:
        covered = _sizes(random, random.randint(0, 2))
        for i, term in enumerate(terms):
            if random.random() < 0.7:
                at, first = random.randint(0, len(term)), random.randint(0, len(covered))
                terms[i] = f"{term[:at]}...{term[at:]}"
                shapes[i][at:at] = [_near(random, size) for size in covered[first:]]
        at = random.randint(0, len(right))
        right = f"{right[:at]}...{right[at:]}" if random.random() < 0.8 else right
    equation = ",".join(terms) + (f"->{right}" if random.random() < 0.8 else "")
    return (equation, *(stored(*shape) for shape in shapes)), {}


def tensordot(random: Random) -> Call:
    x = _sizes(random, random.randint(1, 3))
    count = random.randint(0, len(x))
    if random.random() < 0.5:
        y = (*(_near(random, d) for d in x[len(x) - count :]), *_sizes(random, random.randint(0, 1)))
        return (stored(*x), stored(*y), count), {}
    left = random.sample(range(len(x)), count)
    y = (*_sizes(random, 1), *(_near(random, x[axis]) for axis in left))
    return (stored(*x), stored(*y)), dict(dims=(left, list(range(1, 1 + count))))


def kron(random: Random) -> Call:
    return (stored(*_sizes(random, random.randint(0, 3))), stored(*_sizes(random, random.randint(0, 3)))), {}


def cross(random: Random) -> Call:
    x = list(_sizes(random, random.randint(1, 3)))
    axis = random.randrange(len(x))
    x[axis] = random.choice((3, 3, 3, 2))
    y = [_near(random, d) for d in x]
    return (stored(*tuple(x)), stored(*tuple(y))), dict(dim=axis - random.choice((0, len(x))))


def square(random: Random) -> Call:
    lead, n = _sizes(random, random.randint(0, 2)), random.randint(0, 4)
    return (meta(*lead, n, _near(random, n)),), {}  # with values, a singular matrix has no inverse


def _reduced(random: Random, dtypes: Any) -> tuple[torch.Tensor, int]:
    x = stored(*_sizes(random, random.randint(0, 4)), dtype=random.choice(dtypes))
    return x, len(x.shape)


def _axis(random: Random, rank: int) -> int:
    return random.randint(-rank - (random.random() < 0.05), max(rank - 1, 0))


_FLOAT = (torch.float32, torch.float32, torch.float64)
_ANY = (torch.float32, torch.int64, torch.int32, torch.bool, torch.uint8)


def _axes(random: Random, rank: int) -> Any:
    axes = random.sample(range(rank), random.randint(0, rank))
    return random.choice((axes, tuple(axis - rank for axis in axes), _axis(random, rank)))


def over_axes(dtypes: Any = _ANY, dtype: bool = False, required: bool = False) -> Calls:
    def make(random: Random) -> Call:
        x, rank = _reduced(random, dtypes)
        options = dict(keepdim=random.random() < 0.5) if random.random() < 0.6 else {}
        more = dict(dtype=random.choice((torch.float32, torch.int64))) if dtype and random.random() < 0.3 else {}
        if not required and random.random() < 0.3:
            return (x,), more
        if random.random() < 0.5:
            return (x, _axes(random, rank)), {**options, **more}
        return (x,), dict(dim=_axes(random, rank), **options, **more)

    return make


def over_axis(dtypes: Any = _ANY, dtype: bool = False) -> Calls:
    def make(random: Random) -> Call:
        x, rank = _reduced(random, dtypes)
        options = dict(keepdim=random.random() < 0.5) if random.random() < 0.6 else {}
        more = dict(dtype=random.choice((torch.float32, torch.int64))) if dtype and random.random() < 0.3 else {}
        if random.random() < 0.3:
            return (x,), more
        return (x, _axis(random, rank)), {**options, **more}

    return make


def spread(random: Random) -> Call:
    x, rank = _reduced(random, _FLOAT)
    if random.random() < 0.3:
        return (x, *random.choice(((), (False,)))), {}
    return (x, _axes(random, rank)), dict(correction=random.choice((0, 1)), keepdim=random.random() < 0.5)


def count_nonzero(random: Random) -> Call:
    x, rank = _reduced(random, _ANY)
    return (x, *random.choice(((), (_axes(random, rank),)))), {}


def norm(random: Random) -> Call:
    x, rank = _reduced(random, _FLOAT)
    order = random.choice((1, 2, 2.0, 3.0, float("inf"), -1, 0))
    dim = random.choice((None, _axes(random, rank)))
    return (x, order, dim), dict(keepdim=random.random() < 0.5)


CALLS: dict[Any, Calls] = {
    **dict.fromkeys((torch.matmul, operator.matmul, "matmul", "__matmul__"), matmul),
    **dict.fromkeys((torch.mm, "mm"), ranked(2)),
    **dict.fromkeys((torch.bmm, "bmm"), ranked(3)),
    **dict.fromkeys((torch.mv, "mv"), mv),
    **dict.fromkeys((torch.dot, "dot", torch.outer, "outer"), vectors),
    **dict.fromkeys((torch.addmm, "addmm"), added(2)),
    **dict.fromkeys((torch.baddbmm, "baddbmm"), added(3)),
    **dict.fromkeys((torch.addbmm, "addbmm"), added(3, summed=True)),
    F.linear: linear,
    **dict.fromkeys((F.bilinear, torch.bilinear), bilinear),
    torch.einsum: einsum,
    torch.tensordot: tensordot,
    **dict.fromkeys((torch.kron, "kron"), kron),
    **dict.fromkeys((torch.linalg.cross, torch.cross, "cross"), cross),
    **dict.fromkeys((torch.linalg.inv, torch.inverse, "inverse"), square),
    **dict.fromkeys((torch.linalg.det, torch.det, "det"), square),
    **dict.fromkeys((torch.sum, "sum", torch.mean, "mean"), over_axes(dtype=True)),
    **dict.fromkeys((torch.prod, "prod"), over_axis(dtype=True)),
    **dict.fromkeys((torch.logsumexp, "logsumexp", torch.special.logsumexp), over_axes(_FLOAT, required=True)),
    **dict.fromkeys((torch.var, "var", torch.std, "std"), spread),
    **dict.fromkeys((torch.any, "any", torch.all, "all"), over_axes()),
    **dict.fromkeys((torch.count_nonzero, "count_nonzero"), count_nonzero),
    **dict.fromkeys((torch.amax, "amax", torch.amin, "amin"), over_axes()),
    **dict.fromkeys((torch.max, "max", torch.min, "min", torch.argmax, "argmax", torch.argmin), over_axis()),
    **dict.fromkeys(("argmin", torch.median, "median", torch.nanmedian, "nanmedian"), over_axis()),
    **dict.fromkeys((torch.linalg.vector_norm, torch.norm, "norm"), norm),
}


def test_every_rule_of_the_family_is_called() -> None:
    assert set(CALLS) == set(rules_of(products, reductions))


@pytest.mark.parametrize("equation", ["oi,...ihw->...ohw", "oi,...ihw", "oi,...ihw->o...", "oi,...ihw->ohw"])
def test_an_ellipsis_is_covered(equation: str) -> None:
    assert is_covered(Random(0), torch.einsum, (equation, stored(4, 3), stored(2, 3, 5, 6)), {})


@pytest.mark.parametrize("target", CALLS, ids=name_of)
def test_rule_gives_the_shapes_of_torch(target: Any) -> None:
    check_rule(target, CALLS[target])
