"""Random networks of layers that are deployed: images with convolutions, sequences with attention and recurrence."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, LENGTH, IMAGE = 20, 6, (16, 12)

ACTIVATIONS: list[Callable[[], nn.Module]] = [
    *(nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.ELU),
    *(nn.Mish, nn.Softplus, nn.Softsign, nn.PReLU, nn.Identity),
    lambda: nn.GELU(approximate="tanh"),
    lambda: nn.Hardtanh(-0.5, 0.7),
]


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

    def __init__(self, channels: int, rng: random.Random):
        super().__init__()
        inner = channels // 2
        self.reduce, self.expand = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.act, self.gate = rng.choice(ACTIVATIONS)(), rng.choice([nn.Sigmoid, nn.Hardsigmoid])()
        self.pools = rng.random() < 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.adaptive_avg_pool2d(x, 1) if self.pools else x.mean((2, 3), keepdim=True)
        weighted: torch.Tensor = x * self.gate(self.expand(self.act(self.reduce(y))))
        return weighted


class Beside(nn.Module):
    """Two branches whose channels stand one behind the other, in turns if they are shuffled."""

    def __init__(self, first: nn.Module, second: nn.Module, groups: int):
        super().__init__()
        self.first, self.second, self.groups = first, second, groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([self.first(x), self.second(x)], 1)
        n, c, h, w = y.shape
        return y.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class ChannelNorm(nn.Module):
    """ConvNeXt's norm of an image's channels."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y


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


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.3, 2)
    nn.init.uniform_(norm.weight, -1, 1.5)
    nn.init.normal_(norm.bias)
    return norm


def _unit(rng: random.Random, given: int, made: int, stride: int = 1) -> list[nn.Module]:
    size, spread = rng.choice([1, 1, 3, 3, 5]), rng.choice([1, 1, 1, 2])
    groups = rng.choice(
        [1, 1, 1, *([given] if made % given == 0 else []), *([2] if given % 2 == made % 2 == 0 else [])]
    )
    padding = size // 2 * spread
    mode = "reflect" if padding and rng.random() < 0.1 else "zeros"
    layers: list[nn.Module] = [
        nn.Conv2d(
            given,
            made,
            size,
            stride,
            padding=padding,
            dilation=spread,
            groups=groups,
            bias=rng.random() < 0.6,
            padding_mode=mode,
        )
    ]
    if rng.random() < 0.6:
        layers.append(_batch_norm(made))
    if rng.random() < 0.15:
        layers.append(nn.GroupNorm(rng.choice([n for n in (1, 2) if made % n == 0]), made))
    if rng.random() < 0.8:
        layers.append(rng.choice(ACTIVATIONS)())
    return layers


def _resized(rng: random.Random, channels: int) -> nn.Module:
    ways: list[Callable[[], nn.Module]] = [
        lambda: nn.MaxPool2d(3, 2, 1),
        lambda: nn.MaxPool2d(2, ceil_mode=True),
        lambda: nn.AvgPool2d(2, 2, ceil_mode=True),
        lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        lambda: nn.Upsample(scale_factor=2),
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda: nn.ConvTranspose2d(channels, channels, 2, 2),
    ]
    return rng.choice(ways)()


def _image(rng: random.Random) -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    colours, channels = rng.choice([1, 3, 4]), rng.choice([4, 6, 8])
    layers = _unit(rng, colours, channels, rng.choice([1, 2]))
    for _ in range(rng.randint(1, 6)):
        kind = rng.randrange(7)
        if kind == 0:
            made = rng.choice([4, 8, 12, 16])
            layers += _unit(rng, channels, made, rng.choice([1, 1, 2]))
            channels = made
        elif kind <= 2:
            body = nn.Sequential(*_unit(rng, channels, channels), *_unit(rng, channels, channels))
            layers.append(Residual(body, rng.choice(ACTIVATIONS)(), rng.randrange(5)))
        elif kind == 3:
            layers.append(Squeeze(channels, rng))
        elif kind == 4:
            branches = [nn.Sequential(*_unit(rng, channels, 4)) for _ in range(2)]
            layers.append(Beside(branches[0], branches[1], rng.choice([1, 2])))
            channels = 8
        elif kind == 5:
            layers.append(_resized(rng, channels))
        else:
            layers.append(ChannelNorm(channels))
    end = rng.randrange(3)
    if end:
        layers += [nn.AdaptiveAvgPool2d(end), nn.Flatten(), nn.Linear(channels * end**2, rng.choice([1, 5]))]
    return nn.Sequential(*layers), lambda n: torch.randn(n, colours, *IMAGE)


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
            layers += [nn.Linear(width, made), rng.choice([nn.ReLU, nn.Tanh, nn.SiLU])()]
            width = made
    layers.append(nn.Linear(width, 3))
    if embeds:
        return nn.Sequential(*layers), lambda n: torch.randint(0, TOKENS, (n, LENGTH))
    return nn.Sequential(*layers), lambda n: torch.randn(n, LENGTH, first)
