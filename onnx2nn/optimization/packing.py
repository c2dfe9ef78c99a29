"""Replaces convolutions and linear layers by packed ones, and lets them compute the activations behind them."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from onnx2nn.optimization import packed_attention
from onnx2nn.optimization.chains import Calls, Link, links, parts
from onnx2nn.optimization.packed_attention import PackedSelfAttention, matrices
from onnx2nn.optimization.packed_layers import PackedConv2d, PackedLayer, PackedLinear, activation_of

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

_ROUNDS = 5
"""Measurements of each form of a layer, of which the fastest counts."""


def pack_layers(root: nn.Module) -> None:
    """Packs the weights of a tree's layers where oneDNN's kernels are faster, with the activations behind them."""
    packed = _replaced(root)
    if not packed:
        return
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


def _can_be_packed(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        fits = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    else:
        fits = type(layer) is nn.Linear
    return fits and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"


def _packed_if_faster(layer: Any) -> PackedLayer | None:
    """Returns the packed form of a layer; None where this build of torch has none, or it takes longer here."""
    try:
        form = PackedConv2d(layer) if type(layer) is nn.Conv2d else PackedLinear(layer)
        return form if _is_faster(_Forms(layer, form)) else None
    except (RuntimeError, AttributeError):  # a build of torch without oneDNN, or with other operators
        return None


class _Forms:
    """Two forms of one layer; equal to those of any layer with the same settings, whatever the weights are."""

    def __init__(self, plain: nn.Conv2d | nn.Linear, packed: PackedLayer):
        self.plain, self.packed = plain, packed
        self._settings = (type(plain), tuple(plain.weight.shape), str(packed.window))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Forms) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(self._settings)


@functools.lru_cache(maxsize=1024)
def _is_faster(forms: _Forms) -> bool:
    """Returns whether the packed form takes less time, for 16 rows, or for an image of 28 by 28 (or one window)."""
    x: Any
    if isinstance(forms.plain, nn.Linear):
        x = torch.randn(16, forms.plain.in_features)
    else:
        window = zip(forms.plain.kernel_size, forms.plain.dilation, strict=True)
        sizes = [max(28, (kernel - 1) * int(dilation) + 1) for kernel, dilation in window]
        x = torch.randn(1, forms.plain.in_channels, *sizes).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        times: dict[nn.Module, float] = {}
        for form in (forms.plain, forms.packed) * _ROUNDS:
            start = time.perf_counter()
            form(x)
            times[form] = min(times.get(form, float("inf")), time.perf_counter() - start)
    return times[forms.packed] < times[forms.plain]


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
