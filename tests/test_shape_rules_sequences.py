"""Shape rules of resized images, recurrent layers and attention, against torch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules import images, recurrent
from onnx2nn.fx.shape_rules.rule import RULES
from onnx2nn.fx.trace_errors import ShapeMismatch
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.expression import Symbol, of_symbol
from onnx2nn.sizes.solving import fulfilled
from onnx2nn.sizes.substitution import evaluated
from tests.symbolic_sizes import Call, Free, RecordedSizes, check_rule, meta, name_of, rules_of, stored

_FACTORS = (0.5, 2.0, 1.5, 0.25, 3.0, 0.3, 1.25, 1.3333333730697632, 0.699999988079071)


def _size(random: Random) -> int:
    return random.choice((0, 1, 2, 3, random.randint(1, 5), random.randint(1, 5)))


def _sizes(random: Random, count: int) -> tuple[int, ...]:
    return tuple(_size(random) for _ in range(count))


def _near(random: Random, value: int) -> int:
    """Returns a size that often fits `value`, or is 1."""
    return random.choice((value,) * 14 + (1, _size(random)))


def interpolate(random: Random) -> Call:
    x = _sizes(random, random.randint(3, 5))
    axes = len(x) - 2
    linear = ("linear", "bilinear", "trilinear")[axes - 1]
    mode = random.choice(("nearest", "nearest-exact", "area", linear, linear, "bicubic"))
    options: dict[str, Any] = {"mode": mode}
    if mode in (linear, "bicubic"):
        options["align_corners"] = random.random() < 0.5
    if random.random() < 0.5:
        sizes = [Free(_size(random)) for _ in range(axes)]
        return (stored(*x), random.choice((sizes, tuple(sizes), sizes[0]))), options
    factors = [random.choice(_FACTORS) for _ in range(axes)]
    options["scale_factor"] = random.choice((factors, tuple(factors), factors[0]))
    return (stored(*x),), options


def grid_sample(random: Random) -> Call:
    axes = random.choice((2, 2, 3))
    x = _sizes(random, 2 + axes)
    grid = (_near(random, x[0]), *_sizes(random, axes), _near(random, axes))
    mode = random.choice(("bilinear", "nearest", "bicubic"))
    padding = random.choice(("zeros", "border", "reflection"))
    return (stored(*x), stored(*grid)), dict(mode=mode, padding_mode=padding, align_corners=random.random() < 0.5)


def affine_grid(random: Random) -> Call:
    axes = random.choice((2, 2, 3))
    size = [Free(random.randint(1, 3) if random.random() < 0.9 else 0) for _ in range(2 + axes)]
    theta = stored(_near(random, size[0]), _near(random, axes), _near(random, axes + 1))
    # With `align_corners` and an axis of one point, torch does not look at the batch and the channels.
    return (theta, size), dict(align_corners=1 not in size[2:] and random.random() < 0.5)


def _recurrent(random: Random, gates: int, states: int) -> Call:
    layers, ways, biased = random.randint(1, 2), random.randint(1, 2), random.random() < 0.5
    batch, steps, width, hidden = (random.randint(1, 4) for _ in range(4))
    steps = _near(random, steps)
    parameters: list[torch.Tensor] = []
    for layer in range(layers):
        inputs = width if layer == 0 else ways * hidden
        for _ in range(ways):
            parameters += [meta(gates * hidden, _near(random, inputs)), meta(gates * hidden, hidden)]
            parameters += [meta(gates * hidden) for _ in range(2 * biased)]
    batch_first = random.random() < 0.5
    x = meta(*((batch, steps, width) if batch_first else (steps, batch, width)))
    initial = [meta(layers * ways, batch, hidden) for _ in range(states)]
    hx: Any = initial if states > 1 else initial[0]
    return (x, hx, parameters, biased, layers, 0.0, False, ways == 2, batch_first), {}


def lstm(random: Random) -> Call:
    return _recurrent(random, 4, 2)


def gru(random: Random) -> Call:
    return _recurrent(random, 3, 1)


def rnn(random: Random) -> Call:
    return _recurrent(random, 1, 1)


def attention(random: Random) -> Call:
    """Returns an attention, in which empty operands fit: torch does not check them."""
    lead, rows, columns = _sizes(random, random.randint(0, 2)), *_sizes(random, 2)
    if random.random() < 0.8:
        lead, rows, columns = tuple(max(size, 1) for size in lead), max(rows, 1), max(columns, 1)
    is_full = 0 not in (*lead, rows, columns)
    near = (lambda size: max(_near(random, size), 1)) if is_full else int
    features, width = random.randint(1, 4), random.randint(1, 4)
    q = (*lead, rows, features)
    k = (*map(near, lead), columns, near(features))
    # torch reads beyond values that are fewer than the keys, where it has a kernel for the whole.
    v = (*map(near, k[:-2]), columns if len(k) == 4 else near(columns), width)
    options: dict[str, Any] = {}
    if random.random() < 0.4:
        mask = tuple(map(near, (*lead, rows, columns)[random.randint(0, len(lead)) :]))
        options["attn_mask"] = stored(*mask, dtype=random.choice((torch.bool, torch.float32)))
    elif random.random() < 0.5:
        options["is_causal"] = True
    if is_full and random.random() < 0.3:
        options["enable_gqa"] = True
        repeats = random.randint(1, 3)
        if len(q) > 2:
            q = (*q[:-3], q[-3] * repeats + random.choice((0, 0, 1)), *q[-2:])
    return (stored(*q), stored(*k), stored(*v)), options


def multi_head_attention(random: Random) -> Call:
    heads, length, batch = random.randint(1, 3), random.randint(1, 4), random.randint(1, 4)
    features = _near(random, heads * random.randint(1, 3))
    x, biased = stored(length, batch, features), random.random() < 0.5
    columns = random.choice((length, random.randint(1, 4)))
    k = x if columns == length else stored(columns, max(_near(random, batch), 1), features)
    v = k if random.random() < 0.9 else stored(columns, batch, max(_near(random, features), 1))
    bias = (stored(3 * features), stored(_near(random, features))) if biased else (None, None)
    weights = stored(_near(random, 3 * features), features), stored(features, features)
    options: dict[str, Any] = dict(training=False, need_weights=False)
    if random.random() < 0.4:
        shape = random.choice(((length, columns), (batch * heads, length, columns)))
        options["attn_mask"] = stored(*tuple(_near(random, size) for size in shape))
    if random.random() < 0.3:
        options["key_padding_mask"] = stored(_near(random, batch), _near(random, columns))
    before = (x, k, v, Free(features), heads, weights[0], bias[0], None, None, False, 0.0, weights[1], bias[1])
    return before, options


CALLS: dict[Any, Callable[[Random], Call]] = {
    F.interpolate: interpolate,
    F.grid_sample: grid_sample,
    F.affine_grid: affine_grid,
    torch.lstm: lstm,
    torch.gru: gru,
    **dict.fromkeys((torch.rnn_tanh, torch.rnn_relu), rnn),
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: multi_head_attention,
}


def test_every_rule_of_the_family_is_called() -> None:
    assert set(CALLS) == set(rules_of(images, recurrent))


@pytest.mark.parametrize("target", CALLS, ids=name_of)
def test_rule_gives_the_shapes_of_torch(target: Any) -> None:
    check_rule(target, CALLS[target])


@pytest.mark.parametrize("function", [torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu], ids=lambda f: f.__name__)
def test_initial_states_have_the_batch_of_the_input(function: Any) -> None:
    """torch does not check it: it reads beyond the states."""
    of = lambda size: of_symbol(Symbol("batch", 1)) if size is None else size  # noqa: E731
    gates, states = {torch.lstm: (4, 2), torch.gru: (3, 1)}.get(function, (1, 1))
    parameters = [Spec((gates * 3, width), torch.float32) for width in (2, 3)]
    for batch, fits in ((5, True), (4, False), (1, False), (None, None)):
        sizes = RecordedSizes()
        state = Spec((1, of(batch), 3), torch.float32)
        call = (Spec((7, 5, 2), torch.float32), [state] * 2 if states > 1 else state, parameters)
        options = (False, 1, 0.0, False, False, False)
        if fits is False:
            with pytest.raises(ShapeMismatch):
                RULES[function](sizes, *call, *options)
            continue
        output = RULES[function](sizes, *call, *options)
        assert isinstance(output, tuple)
        assert output[0] == Spec((7, 5, 3), torch.float32)
        assert len(output) == 1 + states
        assert len(sizes.conditions) == (fits is None)


def test_a_scale_that_a_float32_holds_is_exact_for_sizes_of_images() -> None:
    size, sizes = of_symbol(Symbol("n")), RecordedSizes()
    x = Spec((1, 1, size), torch.float32)
    resized = RULES[F.interpolate](sizes, x, scale_factor=1.3333333730697632)
    assert isinstance(resized, Spec)
    assert resized.shape is not None
    (limit, *_) = sizes.conditions
    for n in (3, 10**6 + 1, (1 << 29) - 1):
        (symbol,) = limit.symbols
        assert fulfilled(limit, {symbol: n})
        assert evaluated(resized.shape[-1], {symbol: n}) == int(float(n) * 1.3333333730697632)
    assert not fulfilled(limit, {symbol: (1 << 30)})
    assert RULES[F.interpolate](RecordedSizes(), x, scale_factor=4 / 3) is None
