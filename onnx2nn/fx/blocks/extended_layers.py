"""Normalisations that their author extended: such a module is a block, and still a layer.

A class like timm's `BatchNormAct2d` normalises, and gives the result to an activation in it. In a file both are calls,
of which the second is in the scope of the first. A block that calls both would do the same; but tools find, freeze and
fold normalisations by their class, and a batch norm does something else in training. Therefore such a module is both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnx2nn.fx.blocks.activations import Module, activated, module_of
from onnx2nn.fx.blocks.block import BLOCK_ATTRIBUTES, Block, class_of
from onnx2nn.fx.blocks.program import Call, Notes, Program, Value
from onnx2nn.fx.blocks.scopes import Scoped, declared_class, noted_modules, path_of, step_name
from onnx2nn.fx.blocks.value_hints import class_name_of
from onnx2nn.fx.modules.module_tree import set_child
from onnx2nn.importing.regions import Path


class ExtendedLayer(Block):
    """A block that is a layer of torch, too, with its state and its configuration.

    In training a batch norm updates its statistics, but does not count the batches, as one with a momentum needs not.
    """

    layer: type[nn.Module]
    """The layer's class."""

    forward = nn.Module.forward
    """That of the program, which is generated later; it is not the layer's."""

    @classmethod
    def function(cls) -> Callable[..., torch.Tensor]:
        """Returns the function that the program calls in the layer's place."""
        return _FUNCTIONS[cls.layer][0]

    def plain(self) -> nn.Module:
        """Returns the layer alone, which shares the state and the modules inside."""
        result = object.__new__(self.layer)
        result.__dict__.update((name, value) for name, value in vars(self).items() if name in _OF_LAYERS)
        return result

    def behind(self) -> nn.Module:
        """Returns the module of the activation behind the layer; of several an `nn.Sequential`."""
        found = list[nn.Module]()
        for node in self.graph.nodes:
            if node.op == "call_module":
                found.append(self.get_submodule(str(node.target)))
            elif activated(node) is not None:
                kind, options = cast(Module, module_of(node))
                found.append(kind(**options))
        return found[0] if len(found) == 1 else nn.Sequential(*found)


_BATCH_NORM = F.batch_norm, ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_FUNCTIONS: dict[type[nn.Module], tuple[Callable[..., torch.Tensor], tuple[str, ...]]] = {
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.BatchNorm3d: _BATCH_NORM,
    nn.GroupNorm: (F.group_norm, ("num_groups", "weight", "bias", "eps")),
    nn.LayerNorm: (F.layer_norm, ("normalized_shape", "weight", "bias", "eps")),
    nn.RMSNorm: (F.rms_norm, ("normalized_shape", "weight", "eps")),
}
"""The functions that layers call, with the attributes that these get behind the input."""

_EXTENDED = {kind: type(f"Extended{kind.__name__}", (ExtendedLayer, kind), {"layer": kind}) for kind in _FUNCTIONS}

_OF_LAYERS = frozenset({"onnx_op", "onnx_name", "onnx_source"}).union(
    *(vars(layer) for layer in (nn.BatchNorm1d(1), nn.GroupNorm(1, 1), nn.LayerNorm(1), nn.RMSNorm(1)))
)
"""The attributes of layers, and what an import notes on them."""


def extend_layers(program: Scoped, declared: dict[fx.Node, Path | None]) -> dict[str, str]:
    """Makes the activations that a normalisation's author called in it parts of it.

    Args:
        program: flat; its graph, its tree and the notes of its calls are changed in place.
        declared: the modules that the file names for calls, without those of the activations afterwards.

    Returns:
        The classes of such modules, by path.
    """
    found = dict[str, str]()
    calls = program.graph.find_nodes(op="call_module", sort=False)
    times = Counter(str(node.target) for node in calls)
    for call in calls:
        path, target = path_of(call.target), str(call.target)
        layer = program.find(path)
        kind = _EXTENDED.get(type(layer)) if layer is not None else None
        if kind is None or layer is None or declared.get(call) != path or times[target] > 1:
            continue
        chain = [*_chain(call, path, declared)]
        if chain and _is_plain(layer):
            behind = {node: _child_name(declared[node] or (), path) for node in chain}
            module = _extended(kind, layer, call, behind)
            set_child(program.module(path[:-1]), path[-1], module)
            found[target] = type(module).__name__
            _remove(program, call, chain, declared)
    if found:
        program.__dict__.pop("calls", None)  # they are read again
    return found


def calls_made(program: Scoped, node: fx.Node) -> int:
    """Returns the number of calls of functions and layers that a call is: an extended layer makes several."""
    layer = program.find(path_of(node.target)) if node.op == "call_module" else None
    held = type(layer).program if isinstance(layer, ExtendedLayer) else None
    return 1 if held is None else sum(call.op.startswith("call_") for call in held.calls)


def _chain(call: fx.Node, path: Path, declared: Mapping[fx.Node, Path | None]) -> Iterator[fx.Node]:
    """Yields the activations behind a layer's call in the layer's module, each of which alone reads the one before."""
    last = call
    while len(last.users) == 1:
        (user,) = last.users
        place, noted = declared.get(user) or (), noted_modules(user)
        inside = place[: len(path)] == path and (not noted or path in noted)
        name = _child_name(place, path)
        if not inside or activated(user) is not last or len(place) > len(path) + 1 or name in BLOCK_ATTRIBUTES:
            return
        yield user
        last = user


def _child_name(place: Path, path: Path) -> str:
    """Returns the name of the module of a call in the module at `path`; an empty one for a function's call."""
    return step_name(place[-1]) if len(place) > len(path) else ""


def _is_plain(layer: nn.Module) -> bool:
    """Returns whether a layer does in training what its function does with the arguments that it is given."""
    if not isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
        return True
    return layer.running_mean is not None and layer.running_var is not None and layer.momentum is not None


def _extended(
    kind: type[ExtendedLayer], layer: nn.Module, call: fx.Node, behind: Mapping[fx.Node, str]
) -> ExtendedLayer:
    """Returns the block that a layer becomes, which holds the layer's state and the modules of the activations.

    Args:
        kind: what its class derives from.
        layer: the layer.
        call: its call.
        behind: the activations in order, with the names of their modules; an empty name for a function's call.
    """
    calls, meta = [Call("placeholder", "x")], [dict[str, Any]()]
    given: list[Any] = [Value(0)]
    function, names = _FUNCTIONS[kind.layer]
    for name in names:
        value = getattr(layer, name)
        if isinstance(value, (torch.Tensor, bool)):
            given.append(Value(len(calls)))
            calls.append(Call("get_attr", name))
            meta.append({})
        else:
            given.append(value)
    calls.append(Call("call_function", function, tuple(given)))
    meta.append(call.meta)
    for node, name in behind.items():
        last = Value(len(calls) - 1)
        if name:
            activation, options = cast(Module, module_of(node))
            layer.add_module(name, activation(**options))
            calls.append(Call("call_module", name, (last,)))
        else:
            calls.append(Call(node.op, node.target, (last, *node.args[1:]), node.kwargs))
        meta.append(node.meta)
    calls.append(Call("output", "output", (Value(len(calls) - 1),)))
    meta.append({})
    name = class_name_of(path_of(call.target), declared_class(call))
    return class_of(kind, name, Program(calls))(layer, Notes(("x",), meta))


def _remove(program: Scoped, call: fx.Node, chain: Sequence[fx.Node], declared: dict[fx.Node, Path | None]) -> None:
    """Removes activations from a program, whose values are those of the call before them."""
    chain[-1].replace_all_uses_with(call)
    call.meta = {name: note for name, note in call.meta.items() if name != "onnx_outputs"}  # those of the last call
    for node in reversed(chain):
        program.graph.erase_node(node)
        program.specs.pop(node, None)
        declared.pop(node, None)
