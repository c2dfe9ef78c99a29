"""Random networks of layers that are deployed: signals, images and volumes with convolutions, sequences with attention
and recurrence.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, LENGTH = 20, 6
SIZES = {1: (31,), 2: (16, 12), 3: (6, 7, 5)}
"""The size of a signal, an image and a volume."""

ACTIVATIONS: list[Callable[[], nn.Module]] = [
    *(nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.ELU),
    *(nn.Mish, nn.Softplus, nn.Softsign, nn.PReLU, nn.Identity),
    lambda: nn.GELU(approximate="tanh"),
    lambda: nn.Hardtanh(-0.5, 0.7),
]


_CONV: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_NORM: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_MAX: dict[int, type[nn.Module]] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
_MEAN: dict[int, type[nn.Module]] = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
_ADAPTIVE: dict[int, type[nn.Module]] = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


class Residual(nn.Module):
    """A body beside its input, and an activation or a norm behind both."""

    def __init__(self, body: nn.Module, after: nn.Module, way: int):
        super().__init__()
        self.body, self.after, self.way = body, after, way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return self.after([x + y, y + x, y * x, y - x, x + y * 0.5][self.way])


class Squeeze(nn.Module):
    """Channels weighted by what their averages give."""

    def __init__(self, channels: int, rank: int, rng: random.Random):
        super().__init__()
        inner, conv = channels // 2, _CONV[rank]
        self.reduce, self.expand = conv(channels, inner, 1), conv(inner, channels, 1)
        self.act, self.gate = rng.choice(ACTIVATIONS)(), rng.choice([nn.Sigmoid, nn.Hardsigmoid])()
        self.pools = rng.random() < 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = _ADAPTIVE[x.ndim - 2](1)(x) if self.pools else x.mean([*range(2, x.ndim)], keepdim=True)
        weighted: torch.Tensor = x * self.gate(self.expand(self.act(self.reduce(y))))
        return weighted


class Beside(nn.Module):
    """Two branches whose channels stand one behind the other, in turns if they are shuffled."""

    def __init__(self, first: nn.Module, second: nn.Module, groups: int):
        super().__init__()
        self.first, self.second, self.groups = first, second, groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([self.first(x), self.second(x)], 1)
        return y.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)


class ChannelNorm(nn.Module):
    """ConvNeXt's norm of an image's channels."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x.movedim(1, -1)).movedim(-1, 1)
        return y


class Twice(nn.Module):
    """One layer called twice, of which a norm follows one call."""

    def __init__(self, layer: nn.Module, norm: nn.Module):
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.layer(x))
        return y + self.layer(torch.relu(x))


class Attention(nn.Module):
    """Self-attention: packed or not, written out or by torch's function, causal or not."""

    def __init__(self, width: int, rng: random.Random):
        super().__init__()
        self.heads, self.packed, self.causal = rng.choice([1, 2, 4]), rng.random() < 0.4, rng.random() < 0.3
        self.written_out = rng.random() < 0.5
        sizes = [3 * width] if self.packed else [width] * 3
        self.projections = nn.ModuleList(nn.Linear(width, size, bias=rng.random() < 0.7) for size in sizes)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, width = x.shape
        parts = self.projections[0](x).chunk(3, -1) if self.packed else [layer(x) for layer in self.projections]
        q, k, v = (part.view(n, t, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        mask = torch.ones(t, t, dtype=torch.bool).tril() if self.causal else None
        if self.written_out:
            scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
            y = (scores if mask is None else scores.masked_fill(~mask, -1e9)).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        result: torch.Tensor = self.out(y.transpose(1, 2).reshape(n, t, width))
        return result


class Recurrent(nn.Module):
    """The outputs of a recurrent layer."""

    def __init__(self, width: int, hidden: int, rng: random.Random):
        super().__init__()
        layer = rng.choice([nn.LSTM, nn.GRU, nn.RNN])
        self.layer = layer(width, hidden, rng.choice([1, 2]), bidirectional=rng.random() < 0.4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)[0]
        return y


def draw(seed: int) -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    """Returns the network of a seed, in evaluation mode, and what gives its inputs for a batch size.

    The statistics of batch norms are those of a trained network: no norm is the identity.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net, inputs = (_image if rng.random() < 0.65 else _sequence)(rng)
    return net.eval(), inputs


def _batch_norm(channels: int, rank: int) -> nn.Module:
    norm: Any = _NORM[rank](channels)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.3, 2)
    nn.init.uniform_(norm.weight, -1, 1.5)
    nn.init.normal_(norm.bias)
    module: nn.Module = norm
    return module


def _groups(rng: random.Random, given: int, made: int) -> int:
    return rng.choice([1, 1, 1, *([given] if made % given == 0 else []), *([2] if given % 2 == made % 2 == 0 else [])])


def _unit(rng: random.Random, given: int, made: int, rank: int, stride: int = 1) -> list[nn.Module]:
    size, spread = rng.choice([1, 1, 3, 3, 5]), rng.choice([1, 1, 1, 2])
    padding = size // 2 * spread
    options = {"padding": padding, "dilation": spread, "groups": _groups(rng, given, made), "bias": rng.random() < 0.6}
    if stride == 1 and rng.random() < 0.15:
        layers = [_TRANSPOSED[rank](given, made, size, **options)]
    else:
        mode = "reflect" if padding and rng.random() < 0.1 else "zeros"
        layers = [_CONV[rank](given, made, size, stride, padding_mode=mode, **options)]
    if rng.random() < 0.6:
        layers.append(_batch_norm(made, rank))
    if rng.random() < 0.15:
        layers.append(nn.GroupNorm(rng.choice([n for n in (1, 2) if made % n == 0]), made))
    if rng.random() < 0.8:
        layers.append(rng.choice(ACTIVATIONS)())
    return layers


def _enlarging(rng: random.Random, given: int, made: int, rank: int) -> list[nn.Module]:
    """A transposed convolution with a step, which leaves places out or fills several, and what follows it."""
    size, step = rng.choice([2, 3, 4]), 2
    more = rng.choice([0, 1]) if size > 2 else 0
    groups, bias = _groups(rng, given, made), rng.random() < 0.6
    up = _TRANSPOSED[rank](
        given, made, size, step, padding=rng.choice([0, 1]), output_padding=more, groups=groups, bias=bias
    )
    after = [_batch_norm(made, rank)] if rng.random() < 0.6 else []
    return [up, *after, *([rng.choice(ACTIVATIONS)()] if rng.random() < 0.5 else [])]


def _resized(rng: random.Random, rank: int) -> nn.Module:
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank]
    ways: list[Callable[[], nn.Module]] = [
        lambda: _MAX[rank](3, 2, 1),
        lambda: _MAX[rank](2, ceil_mode=True),
        lambda: _MEAN[rank](2, 2, ceil_mode=True),
        lambda: _MEAN[rank](3, 1, 1, count_include_pad=False),
        lambda: nn.Upsample(scale_factor=2),
        lambda: nn.Upsample(scale_factor=2, mode=linear),
    ]
    return rng.choice(ways)()


def _image(rng: random.Random) -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    rank = rng.choice([1, 2, 2, 2, 2, 3])
    colours, channels = rng.choice([1, 3, 4]), rng.choice([4, 6, 8])
    layers = _unit(rng, colours, channels, rank, rng.choice([1, 2]))
    for _ in range(rng.randint(1, 6)):
        kind = rng.randrange(9)
        if kind == 0:
            made = rng.choice([4, 8, 12, 16])
            layers += _unit(rng, channels, made, rank, rng.choice([1, 1, 2]))
            channels = made
        elif kind <= 2:
            body = nn.Sequential(*_unit(rng, channels, channels, rank), *_unit(rng, channels, channels, rank))
            layers.append(Residual(body, rng.choice(ACTIVATIONS)(), rng.randrange(5)))
        elif kind == 3:
            layers.append(Squeeze(channels, rank, rng))
        elif kind == 4:
            branches = [nn.Sequential(*_unit(rng, channels, 4, rank)) for _ in range(2)]
            layers.append(Beside(branches[0], branches[1], rng.choice([1, 2])))
            channels = 8
        elif kind == 5:
            layers.append(_resized(rng, rank))
        elif kind == 6:
            made = rng.choice([channels, 4, 8])
            layers += _enlarging(rng, channels, made, rank)
            channels = made
        elif kind == 7:
            first, *_ = _unit(rng, channels, channels, rank)
            layers.append(Twice(first, _batch_norm(channels, rank)))
        else:
            layers.append(ChannelNorm(channels))
    end = rng.randrange(3)
    if end:
        layers += [_ADAPTIVE[rank](end), nn.Flatten(), *_head(rng, channels * end**rank)]
    return nn.Sequential(*layers), lambda n: torch.randn(n, colours, *SIZES[rank])


def _head(rng: random.Random, given: int) -> list[nn.Module]:
    made = rng.choice([1, 5])
    layers: list[nn.Module] = [nn.Linear(given, made, bias=rng.random() < 0.7)]
    if rng.random() < 0.4:
        layers += [_batch_norm(made, 1), rng.choice([nn.ReLU, nn.Hardtanh])(), nn.Linear(made, 3)]
    return layers


def _sequence(rng: random.Random) -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    first = width = rng.choice([8, 16])
    embeds = rng.random() < 0.4
    layers: list[nn.Module] = [nn.Embedding(TOKENS, width)] if embeds else []
    for _ in range(rng.randint(1, 5)):
        kind = rng.randrange(6)
        after = nn.LayerNorm(width) if rng.random() < 0.5 else nn.Identity()
        before = [nn.LayerNorm(width)] if rng.random() < 0.5 else []
        if kind <= 1:
            act = rng.choice([act for act in ACTIVATIONS if act is not nn.PReLU])()
            body = [*before, nn.Linear(width, 2 * width, bias=rng.random() < 0.8), act, nn.Linear(2 * width, width)]
            layers.append(Residual(nn.Sequential(*body), after, rng.choice([0, 1, 4])))
        elif kind <= 3:
            layers.append(Residual(nn.Sequential(*before, Attention(width, rng)), after, rng.randrange(2)))
        elif kind == 4:
            layers.append(Recurrent(width, 8, rng))
            width = 16 if layers[-1].layer.bidirectional else 8  # type: ignore[union-attr]  # of the layer above
        else:
            made = rng.choice([8, 16])
            norm = [_batch_norm(LENGTH, 1)] if rng.random() < 0.3 else []  # of the steps: they are its channels
            layers += [nn.Linear(width, made), *norm, rng.choice([nn.ReLU, nn.Tanh, nn.SiLU])()]
            width = made
    layers.append(nn.Linear(width, 3))
    if embeds:
        return nn.Sequential(*layers), lambda n: torch.randint(0, TOKENS, (n, LENGTH))
    return nn.Sequential(*layers), lambda n: torch.randn(n, LENGTH, first)
