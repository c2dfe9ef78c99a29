"""Normalisations that their author extended: such a module is a block, and still a layer.

A class like timm's `BatchNormAct2d` normalises, and gives the result to an activation in it. In a file both are calls,
of which the second is in the scope of the first. A block that calls both would do the same; but tools find, freeze and
fold normalisations by their class, and a batch norm does something else in training. Therefore such a module is both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnx2nn.fx.blocks.activations import Module, activated, module_of
from onnx2nn.fx.blocks.block import BLOCK_ATTRIBUTES, Block, class_of
from onnx2nn.fx.blocks.program import REPEAT, Call, Notes, Program, Value
from onnx2nn.fx.blocks.scopes import Scoped, declared_class, noted_modules, path_of, step_name
from onnx2nn.fx.blocks.value_hints import class_name_of
from onnx2nn.fx.modules.module_tree import set_child
from onnx2nn.ground.naming import without_call_number
from onnx2nn.importing.regions import Path


class ExtendedLayer(Block):
    """A block that is a layer of torch, too, with its state and its configuration.

    In training a batch norm updates its statistics, but does not count the batches, as one with a momentum needs not.
    """

    forward = nn.Module.forward
    """That of the program, which is generated later; it is not the layer's."""


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

_EXTENDED = {kind: type(f"Extended{kind.__name__}", (ExtendedLayer, kind), {}) for kind in _FUNCTIONS}
_LAYERS = {extended: kind for kind, extended in _EXTENDED.items()}

_OF_LAYERS = frozenset({"onnx_op", "onnx_name", "onnx_source"}).union(
    *(vars(layer) for layer in (nn.BatchNorm1d(1), nn.GroupNorm(1, 1), nn.LayerNorm(1), nn.RMSNorm(1)))
)
"""The attributes of layers, and what an import notes on them."""


def layer_of(module: nn.Module) -> type[nn.Module] | None:
    """Returns the class of the layer that a module extends, None for another module."""
    return _LAYERS[type(module).kind] if isinstance(module, ExtendedLayer) else None


def function_of(module: nn.Module) -> Callable[..., torch.Tensor] | None:
    """Returns the function that an extended layer calls in the place of the layer, None for another module."""
    layer = layer_of(module)
    return None if layer is None else _FUNCTIONS[layer][0]


def plain_layer(module: nn.Module) -> nn.Module:
    """Returns the layer that a module extends, alone; it shares the state and the modules inside."""
    layer = layer_of(module)
    assert layer is not None
    result = object.__new__(layer)
    result.__dict__.update((name, value) for name, value in vars(module).items() if name in _OF_LAYERS)
    return result


def behind(module: ExtendedLayer) -> nn.Module:
    """Returns the module of the activation behind the layer in its block; of several an `nn.Sequential`."""
    found = list[nn.Module]()
    for node in module.graph.nodes:
        if node.op == "call_module":
            found.append(module.get_submodule(str(node.target)))
        elif activated(node) is not None:
            kind, options = cast(Module, module_of(node))
            found.append(kind(**options))
    return found[0] if len(found) == 1 else nn.Sequential(*found)


def extend_layers(program: Scoped, declared: dict[fx.Node, Path | None]) -> dict[str, str]:
    """Makes the activations that a normalisation's author called in it parts of it.

    Args:
        program: flat; its graph, its tree and the notes of its calls are changed in place.
        declared: the modules that the file names for calls, without those of the activations afterwards.

    Returns:
        The classes of such modules, by path.
    """
    found = dict[str, str]()
    calls: dict[str, list[fx.Node]] = {}
    for node in program.graph.nodes:
        if node.op == "call_module":
            calls.setdefault(str(node.target), []).append(node)
    for target, nodes in calls.items():
        path = path_of(target)
        layer = program.find(path)
        kind = _EXTENDED.get(type(layer)) if layer is not None else None
        if kind is None or layer is None or not _is_plain(layer):
            continue
        chains = [_Chain(call, path, declared) for call in nodes]
        first = chains[0]
        if first.behind and all(chain.activations == first.activations for chain in chains):
            module = _extended(kind, layer, first)
            set_child(program.module(path[:-1]), path[-1], module)
            found[target] = type(module).__name__
            held = type(module).program
            assert held is not None, "a block's class has a program"
            for chain in chains:
                chain.remove(program, declared, {} if chain is first else {REPEAT: _notes(held, chain)})
    if found:
        program.__dict__.pop("calls", None)  # they are read again
    return found


def calls_made(program: Scoped, node: fx.Node) -> int:
    """Returns the number of calls of functions and layers that a call is: an extended layer makes several."""
    layer = program.find(path_of(node.target)) if node.op == "call_module" else None
    held = type(layer).program if isinstance(layer, ExtendedLayer) else None
    return 1 if held is None else sum(call.op.startswith("call_") for call in held.calls)


class _Chain:
    """A call of a layer and the activations behind it in the layer's module, each of which alone reads the one before.

    Args:
        call: the call.
        path: of the layer. The older exporter writes the scope of a shared one as the caller's, and the layer's name.
        declared: the modules that the file names for calls.

    Attributes:
        behind: the activations, in order.
        names: the names of their modules in the layer's; an empty name for a function's call.
    """

    def __init__(self, call: fx.Node, path: Path, declared: Mapping[fx.Node, Path | None]):
        self.call, self.behind, self.names = call, list[fx.Node](), list[str]()
        base = declared.get(call) or ()
        last = call if _is_at(base[-1:], path[-1:]) else None
        while last is not None and len(last.users) == 1:
            (user,) = last.users
            place, noted = declared.get(user) or (), noted_modules(user)
            inside = place[len(base) :]
            name = step_name(inside[0]) if inside else ""
            own = _is_at(place[: len(base)], base) and len(inside) < 2 and (not noted or base in noted)
            if not own or activated(user) is not last or name in BLOCK_ATTRIBUTES:
                break
            self.behind.append(user)
            self.names.append(name)
            last = user

    @property
    def activations(self) -> list[tuple[str, Module | None]]:
        """The modules that the activations are, with their names, without the numbers of calls."""
        return [
            (without_call_number(name), module_of(node)) for name, node in zip(self.names, self.behind, strict=True)
        ]

    def remove(self, program: Scoped, declared: dict[fx.Node, Path | None], notes: Mapping[str, Any]) -> None:
        """Removes the activations from a program, whose values are those of the call before them, which gets notes."""
        self.behind[-1].replace_all_uses_with(self.call)
        kept = {name: note for name, note in self.call.meta.items() if name != "onnx_outputs"}  # those of the last call
        self.call.meta = {**kept, **notes}
        for node in reversed(self.behind):
            program.graph.erase_node(node)
            program.specs.pop(node, None)
            declared.pop(node, None)


def _is_at(place: Path, other: Path) -> bool:
    """Returns whether two scopes are calls of one module: torch's older exporter numbers the calls."""
    return len(place) == len(other) and all(map(_is_call, place, other))


def _is_call(step: str, other: str) -> bool:
    names = {step_name(step), step_name(without_call_number(step))}
    return not names.isdisjoint((step_name(other), step_name(without_call_number(other))))


def _is_plain(layer: nn.Module) -> bool:
    """Returns whether a layer does in training what its function does with the arguments that it is given."""
    if not isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
        return True
    return layer.running_mean is not None and layer.running_var is not None and layer.momentum is not None


def _extended(kind: type[ExtendedLayer], layer: nn.Module, first: _Chain) -> ExtendedLayer:
    """Returns the block that a layer becomes, which holds the layer's state and the modules of the activations.

    Args:
        kind: what its class derives from.
        layer: the layer.
        first: its first call.
    """
    calls = [Call("placeholder", "x")]
    given: list[Any] = [Value(0)]
    function, names = _FUNCTIONS[type(layer)]
    for name in names:
        value = getattr(layer, name)
        if isinstance(value, (torch.Tensor, bool)):
            given.append(Value(len(calls)))
            calls.append(Call("get_attr", name))
        else:
            given.append(value)
    calls.append(Call("call_function", function, tuple(given)))
    for node, name in zip(first.behind, first.names, strict=True):
        last = Value(len(calls) - 1)
        if name:
            activation, options = cast(Module, module_of(node))
            layer.add_module(name, activation(**options))
            calls.append(Call("call_module", name, (last,)))
        else:
            calls.append(Call(node.op, node.target, (last, *node.args[1:]), node.kwargs))
    calls.append(Call("output", "output", (Value(len(calls) - 1),)))
    program = Program(calls)
    made = class_of(kind, class_name_of(path_of(first.call.target), declared_class(first.call)), program)
    return made(layer, Notes(("x",), _notes(program, first)))


def _notes(program: Program, chain: _Chain) -> list[Mapping[str, Any]]:
    """Returns the notes of the calls in a block, for one call of it."""
    made = iter((chain.call, *chain.behind))
    return [next(made).meta if call.op.startswith("call_") else {} for call in program.calls]
