"""Replaces convolutions and linear layers by packed ones, which compute the sums and activations behind them too."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from onnx2nn.optimization import packed_attention
from onnx2nn.optimization.activations import activation_of
from onnx2nn.optimization.chains import Calls, Link, links, parts
from onnx2nn.optimization.packed_attention import PackedSelfAttention, matrices
from onnx2nn.optimization.packed_layers import (
    PackedConv2d,
    PackedLayer,
    PackedLinear,
    can_be_held,
)
from onnx2nn.optimization.residual_sums import fuse_sums
from onnx2nn.optimization.timing import fastest
from onnx2nn.optimization.unpacked_code import skips_rows

_FUNCTIONS: dict[Any, Callable[[], nn.Module]] = {
    torch.relu: nn.ReLU,
    functional.relu: nn.ReLU,
    functional.relu6: nn.ReLU6,
    torch.sigmoid: nn.Sigmoid,
    torch.tanh: nn.Tanh,
    functional.hardswish: nn.Hardswish,
    functional.hardsigmoid: nn.Hardsigmoid,
    functional.silu: nn.SiLU,
    functional.gelu: nn.GELU,
}
"""Functions of one tensor that are activations."""

_SECONDS = 0.01
"""After them, the least number of measurements is enough."""

_TIE = 1.1
"""The share of the plain form's time up to which the packed form is taken."""

_FEW_CHANNELS = 64


def pack_layers(root: nn.Module) -> None:
    """Packs the weights of a tree's layers where oneDNN's kernels are faster, with the sums and activations behind."""
    packed = _replaced(root)
    if not packed:
        return
    fuse_sums(root)
    calls = Calls(root)
    for part in parts(root):
        changed = [
            _fuse_layer(part, link, calls)
            for link in links(part)
            if link.before is not None and calls[link.before] == 1
        ]
        if isinstance(part, fx.GraphModule):
            changed += [
                _fuse_function(part, node, calls) for node in list(part.graph.nodes) if node.target in _FUNCTIONS
            ]
            if any(changed):
                part.recompile()


def _replaced(root: nn.Module) -> list[nn.Module]:
    """Replaces the layers, and returns their packed forms."""
    calls, read = Calls(root), _read_directly(root)
    users = Counter(id(weight) for layer in root.modules() for weight in layer.parameters(recurse=False))
    nodes = _nodes(root)
    known: dict[nn.Module, PackedLayer | PackedSelfAttention | None] = {}
    for parent in list(root.modules()):
        for name, layer in list(parent.named_children()):
            if not calls[layer] or layer in read or any(users[id(weight)] > 1 for weight in layer.parameters()):
                continue
            if layer not in known:
                known[layer] = _packed(layer, nodes.get(layer, []))
            if (form := known[layer]) is not None:
                setattr(parent, name, form)
    return [form for form in known.values() if form is not None]


def _read_directly(root: nn.Module) -> set[nn.Module]:
    """Returns the modules whose weights a program reads itself."""
    found: set[nn.Module] = set()
    for part in parts(root):
        if isinstance(part, fx.GraphModule):
            targets = [str(node.target) for node in part.graph.nodes if node.op == "get_attr"]
            found.update(part.get_submodule(target.rpartition(".")[0]) for target in targets if "." in target)
    return found


def _nodes(root: nn.Module) -> dict[nn.Module, list[fx.Node]]:
    """Returns the calls of each module in the graphs of a tree."""
    found: dict[nn.Module, list[fx.Node]] = {}
    for part in parts(root):
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if node.op == "call_module":
                found.setdefault(part.get_submodule(str(node.target)), []).append(node)
    return found


def _packed(layer: nn.Module, calls: list[fx.Node]) -> PackedLayer | PackedSelfAttention | None:
    """Returns the packed form of a layer; None where there is none, or it takes longer here."""
    if _can_be_packed(layer):
        return _packed_if_faster(layer)
    if packed_attention.can_be_packed(layer, calls):
        attention: Any = layer
        forms = [form for form in map(_packed_if_faster, matrices(attention)) if form is not None]
        return PackedSelfAttention(attention, *forms) if len(forms) == 2 else None
    return None


def _can_be_packed(layer: Any) -> bool:
    if type(layer) is nn.Conv2d:
        fits = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        fits = fits and not skips_rows(layer.weight, layer.stride)
    else:
        fits = type(layer) is nn.Linear
    return fits and can_be_held(layer.weight)


def _packed_if_faster(layer: Any) -> PackedLayer | None:
    """Returns the packed form of a layer; None where this build of torch has none, or it takes longer here."""
    try:
        kind: Any = type(layer)
        dtype = layer.weight.dtype
        faster = _is_faster(_Settings.of(layer)) if dtype == torch.float32 else is_slow(kind, dtype)
        return _pack(layer) if faster else None
    except (RuntimeError, AttributeError):  # a build of torch without oneDNN, or with other operators
        return None


def _pack(layer: Any) -> PackedLayer:
    return PackedConv2d(layer) if type(layer) is nn.Conv2d else PackedLinear(layer)


@dataclass(frozen=True)
class _Settings:
    """What the time of a layer depends on, beside the sizes of its input."""

    kind: type[nn.Conv2d | nn.Linear]
    arguments: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, layer: nn.Conv2d | nn.Linear) -> _Settings:
        if isinstance(layer, nn.Linear):
            names: tuple[str, ...] = ("in_features", "out_features")
        else:
            names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
        return cls(type(layer), (*((name, getattr(layer, name)) for name in names), ("bias", layer.bias is not None)))

    def layer(self) -> nn.Conv2d | nn.Linear:
        """Returns a layer of ones with these settings."""
        layer = nn.utils.skip_init(self.kind, **dict(self.arguments))
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(1.0)
        return layer


@functools.lru_cache(maxsize=1024)
def _is_faster(settings: _Settings) -> bool:
    """Returns whether the packed form takes less time, or about as much: it computes what is behind the layer too."""
    plain = settings.layer()
    packed = _pack(plain)
    times: dict[nn.Module, float] = {plain: 0.0, packed: 0.0}
    with torch.no_grad():
        for x in _samples(plain):
            for form, seconds in fastest((plain, packed), _SECONDS, x).items():
                times[form] += seconds
    return times[packed] < _TIE * times[plain]


@functools.lru_cache
def is_slow(kind: type[nn.Conv2d | nn.Linear], dtype: torch.dtype) -> bool:
    """Returns whether a layer takes longer in float16 or bfloat16 than in float32 with its conversions.

    Without instructions for the type, torch's kernels take up to 100 times as long: one small layer tells.
    """
    arguments: Any = (64, 64) if kind is nn.Linear else (64, 64, 3)
    plain: Any = kind(*arguments).to(dtype)
    x = torch.ones(16, 64, dtype=dtype) if kind is nn.Linear else torch.ones(1, 64, 14, 14, dtype=dtype)
    packed = _pack(plain)
    with torch.no_grad():
        times = fastest((plain, packed), _SECONDS, x)
    return times[packed] < times[plain]


def _samples(layer: nn.Conv2d | nn.Linear) -> Iterator[torch.Tensor]:
    """Yields 16 rows, or images of 28 by 28 (or one window), of few channels also larger ones, as networks have them.

    The plain kernels depend on the size: torch computes a convolution of one large image without oneDNN.
    """
    if isinstance(layer, nn.Linear):
        yield torch.ones(16, layer.in_features)
        return
    windows: Any = zip(layer.kernel_size, layer.dilation, strict=True)
    least = [(kernel - 1) * dilation + 1 for kernel, dilation in windows]
    for side in (28, 112) if layer.in_channels <= _FEW_CHANNELS else (28,):
        x = torch.ones(1, layer.in_channels, *(max(side, size) for size in least))
        yield x.contiguous(memory_format=torch.channels_last)


def _fuse_layer(part: fx.GraphModule | nn.Sequential, link: Link, calls: Calls) -> bool:
    """Lets a packed layer compute the activation behind it, and takes that out of the program."""
    activation = activation_of(link.layer)
    before = link.before
    if not isinstance(before, PackedLayer) or before.activation is not None or activation is None:
        return False
    if link.node is None:
        if calls[link.layer] > 1:
            return False
        setattr(part, link.name, nn.Identity())
    before.activation = activation
    if link.node is not None:
        _remove(link.node)
        if calls[link.layer] == 1:
            around, _, name = link.name.rpartition(".")
            delattr(part.get_submodule(around), name)
    return True


def _fuse_function(part: fx.GraphModule, node: fx.Node, calls: Calls) -> bool:
    """Lets a packed layer compute a function behind it."""
    source = node.args[0] if len(node.args) == 1 and not node.kwargs else None
    if not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) != 1:
        return False
    before = part.get_submodule(str(source.target))
    if not isinstance(before, PackedLayer) or before.activation is not None or calls[before] > 1:
        return False
    before.activation = activation_of(_FUNCTIONS[node.target]())
    _remove(node)
    return True


def _remove(node: fx.Node) -> None:
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]  # the input is a node
    node.graph.erase_node(node)
