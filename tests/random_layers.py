"""Layers that random nested modules are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

FEATURES, TIME = 6, 4


class OverTime(nn.Module):
    """A layer with functions around it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(FEATURES, FEATURES, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Centre(nn.Module):
    """A module without weights that gives two values; the other is not always used."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = x.mean(-1, keepdim=True)
        return x - mean, mean.expand(x.shape)


class Gate(nn.Module):
    """A module without weights that takes two values."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * y


class Steps(nn.Module):
    """A module without weights whose buffer is in no state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.linspace(0.1, 1, FEATURES), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cos(torch.arange(x.size(1))[:, None] * self.steps).expand(x.shape) * x


class Skipped(nn.Sequential):
    """A chain of modules with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def linear() -> nn.Linear:
    return nn.Linear(FEATURES, FEATURES)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": linear,
    "unbiased": lambda: nn.Linear(FEATURES, FEATURES, bias=False),
    "norm": lambda: nn.LayerNorm(FEATURES),
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "hardswish": nn.Hardswish,
    "softmax": lambda: nn.Softmax(-1),
    "dropout": nn.Dropout,
    "series": lambda: nn.Sequential(linear(), nn.ReLU(), linear()),
    "nested": lambda: nn.Sequential(linear(), nn.Sequential(nn.Tanh(), linear()), nn.GELU()),
    "skipped": lambda: Skipped(linear(), nn.ReLU(), Skipped(nn.Tanh(), linear())),
    "over_time": OverTime,
    "centre": Centre,
    "gate": Gate,
    "steps": Steps,
}


class Branch(nn.Module):
    """A layer, and a choice by data of what becomes of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        if torch.compiler.is_exporting():
            chosen = torch.cond(x.sum() > 0, lambda x: torch.tanh(x) * 0.5, lambda x: x - 1, (x,))
        else:
            chosen = _by_sum(x)
        return torch.relu(chosen)  # a file tells no module of what stands in a script: it is told by what is around it


@torch.jit.script
def _by_sum(x: torch.Tensor) -> torch.Tensor:
    """A choice that torch's older exporter writes as an If; it follows a trace into one branch otherwise."""
    if bool(x.sum() > 0):
        result = torch.tanh(x) * 0.5
    else:
        result = x - 1
    return result


BRANCHING: dict[str, Callable[[], nn.Module]] = {"branch": Branch}
"""Layers that data choose between."""


class Modulated(nn.Module):
    """A layer that a second value scales; its activation of that value is often that of other such layers too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * (1 + self.linear(F.silu(y)))


class AdaptiveNorm(nn.Module):
    """A normalisation whose scale and offset are computed of the mean of a second value."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.SiLU()
        self.linear = nn.Linear(FEATURES, 2 * FEATURES)
        self.norm = nn.LayerNorm(FEATURES, elementwise_affine=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scale, offset = self.linear(self.act(y.mean(1, keepdim=True))).chunk(2, -1)
        return self.norm(x) * (1 + scale) + offset


class Mixed(nn.Module):
    """Layers whose second value is used first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()
        self.outer = linear()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.inner(F.gelu(y))
        return self.outer(F.gelu(x)) - z


MODULATING: dict[str, Callable[[], nn.Module]] = {"modulated": Modulated, "adaptive": AdaptiveNorm, "mixed": Mixed}
"""Layers of two values, of which each activates what others activate too."""


class ActivatedNorm(nn.LayerNorm):
    """A normalisation with an activation in it."""

    def __init__(self) -> None:
        super().__init__(FEATURES)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(super().forward(x))


class ActivatedGroups(nn.GroupNorm):
    """A normalisation of groups of steps in time, with an activation in it."""

    def __init__(self) -> None:
        super().__init__(2, TIME)
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps))


class ActivatedBatch(nn.BatchNorm1d):
    """A batch norm of steps in time with an activation in it, and another one as a function."""

    def __init__(self) -> None:
        super().__init__(TIME)
        self.running_mean.uniform_(-0.5, 0.5)
        self.running_var.uniform_(0.5, 1.5)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.act(super().forward(x)))


class Padded(nn.Conv1d):
    """A convolution of steps in time that pads its input, more at the start, and activates its result."""

    def __init__(self) -> None:
        super().__init__(TIME, TIME, 4, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(F.pad(x, (2, 1))))


class PaddedByModule(nn.Conv1d):
    """A convolution of steps in time that has a module which pads."""

    def __init__(self) -> None:
        super().__init__(TIME, TIME, 3, bias=False)
        self.padded = nn.ConstantPad1d((0, 2), 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.padded(x))


EXTENDED: dict[str, Callable[[], nn.Module]] = {
    "activated_norm": ActivatedNorm,
    "activated_groups": ActivatedGroups,
    "activated_batch": ActivatedBatch,
    "padded": Padded,
    "padded_by_module": PaddedByModule,
    "even": lambda: nn.Conv1d(TIME, TIME, 4, padding="same"),
    "mirrored": lambda: nn.Conv1d(TIME, TIME, 3, padding=1, padding_mode="reflect"),
    "repeated": lambda: nn.Conv1d(TIME, TIME, 3, padding=1, padding_mode="replicate"),
}
"""Layers that do more than torch's plain ones: normalisations that activate, and convolutions that pad."""


class Attending(nn.Module):
    """Attention of one value to another, or to itself.

    Args:
        kind: whose keys and values it has: `own`, `other`, `placed` for its own values and other keys, or `both`.
        needs_weights: whether torch computes the weights, which it does by other functions than the result alone.
    """

    def __init__(self, kind: str, needs_weights: bool):
        super().__init__()
        self.kind, self.needs_weights = kind, needs_weights
        self.attention = nn.MultiheadAttention(FEATURES, 2, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        given = {"own": (x, x, x), "other": (x, y, y), "placed": (x + y, x + y, x), "both": (x, x + y, y)}[self.kind]
        return self.attention(*given, need_weights=self.needs_weights)[0] * 0.5


ATTENDING: dict[str, Callable[[], nn.Module]] = {
    f"{kind}_{needs_weights}": functools.partial(Attending, kind, needs_weights)
    for kind in ("own", "other", "placed", "both")
    for needs_weights in (False, True)
}
"""Attention by torch's layer, whose one weight its exporters split."""


class Viewed(nn.Module):
    """A vector that is viewed where it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(FEATURES) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * self.gamma.view(1, 1, -1)


class Exponential(nn.Module):
    """A scale whose logarithm is the weight: several layers have equal ones, and other numbers one exponential."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.rand(()).round() * 1.8 + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(x, dim=-1) * self.logit_scale.exp()


class Placed(nn.Module):
    """Embeddings of positions, looked up for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.position_embedding = nn.Embedding(TIME, FEATURES)
        self.register_buffer("position_ids", torch.arange(TIME).expand((1, -1)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.position_embedding(self.position_ids)


WEIGHTED: dict[str, Callable[[], nn.Module]] = {"viewed": Viewed, "exponential": Exponential, "placed": Placed}
"""Layers that compute with their weights alone, which the newer exporter writes as constants."""

OF_TWO = (Gate, Modulated, AdaptiveNorm, Mixed, Attending)
"""Layers that take two values; others take one."""
