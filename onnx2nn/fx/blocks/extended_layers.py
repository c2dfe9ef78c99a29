"""Layers that their author extended: such a module is a block, and still a layer.

A class like timm's `BatchNormAct2d` normalises, and gives the result to an activation in it; its `Conv2dSame` pads what
it convolves. In a file both are calls, of which the second is in the scope of the first. A block that calls both would
do the same; but tools find, freeze and fold layers by their class, and a batch norm does something else in training.
Therefore such a module is both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnx2nn.fx.blocks.activations import Module, activated, module_of
from onnx2nn.fx.blocks.block import BLOCK_ATTRIBUTES, Block, class_of
from onnx2nn.fx.blocks.padded_layers import Front, Fronts, padded
from onnx2nn.fx.blocks.program import REPEAT, Call, Notes, Program, Value
from onnx2nn.fx.blocks.scopes import Scoped, declared_class, is_call, name_inside, path_of
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
_CONVOLUTION = ("weight", "bias", "stride", "padding", "dilation", "groups")
_FUNCTIONS: dict[type[nn.Module], tuple[Callable[..., torch.Tensor], tuple[str, ...]]] = {
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.BatchNorm3d: _BATCH_NORM,
    nn.GroupNorm: (F.group_norm, ("num_groups", "weight", "bias", "eps")),
    nn.LayerNorm: (F.layer_norm, ("normalized_shape", "weight", "bias", "eps")),
    nn.RMSNorm: (F.rms_norm, ("normalized_shape", "weight", "eps")),
    nn.Conv1d: (F.conv1d, _CONVOLUTION),
    nn.Conv2d: (F.conv2d, _CONVOLUTION),
    nn.Conv3d: (F.conv3d, _CONVOLUTION),
}
"""The functions that layers call, with the attributes that these get behind the input."""

_CHANGED = frozenset({"bias", "groups"})
"""Attributes that are no tensors and that tools change: folding a batch norm gives a bias, pruning fewer groups."""

_EXTENDED = {kind: type(f"Extended{kind.__name__}", (ExtendedLayer, kind), {}) for kind in _FUNCTIONS}
_LAYERS = {extended: kind for kind, extended in _EXTENDED.items()}

_OF_LAYERS = frozenset({"onnx_op", "onnx_name", "onnx_source"}).union(
    *(
        vars(layer)
        for layer in (nn.BatchNorm1d(1), nn.GroupNorm(1, 1), nn.LayerNorm(1), nn.RMSNorm(1), nn.Conv1d(1, 1, 1))
    )
)
"""The attributes of layers, and what an import notes on them."""


def layer_of(module: nn.Module) -> type[nn.Module] | None:
    """Returns the class of the layer that a module extends, None for another module."""
    return _LAYERS[type(module).kind] if isinstance(module, ExtendedLayer) else None


def is_convolution(module: ExtendedLayer) -> bool:
    """Returns whether an extended layer is a convolution."""
    return _FUNCTIONS[_LAYERS[type(module).kind]][1] is _CONVOLUTION


def function_of(module: nn.Module) -> Callable[..., torch.Tensor] | None:
    """Returns the function that an extended layer calls in the place of the layer, None for another module."""
    layer = layer_of(module)
    return None if layer is None else _FUNCTIONS[layer][0]


def settings_of(module: nn.Module) -> dict[str, Any]:
    """Returns what the program of an extended layer reads that is no tensor, and that a call may be given as it is."""
    if layer_of(module) is None:
        return {}
    values = {name: getattr(module, name, None) for name in _CHANGED}
    return {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}


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
    """Makes what a layer's author called in it parts of it: activations, and the padding of a convolution.

    Args:
        program: flat; its graph, its tree and the notes of its calls are changed in place.
        declared: the modules that the file names for calls, without those of the activations afterwards.

    Returns:
        The classes of such modules, by path.
    """
    found, fronts, changed = dict[str, str](), Fronts(program, declared), False
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
        chains = [_Chain(fronts, call, path) for call in nodes]
        first = chains[0]
        if any(chain.signature != first.signature for chain in chains) or not (first.front or first.behind):
            continue
        plain = None if first.behind or first.front is None else padded(layer, first.front)
        if plain is None and first.is_padded_outside:
            continue
        module = _extended(kind, layer, first) if plain is None else plain
        set_child(program.module(path[:-1]), path[-1], module)
        held = module.program if isinstance(module, ExtendedLayer) else None
        if held is not None:
            found[target] = type(module).__name__
        for chain in chains:
            chain.remove(program, declared, {} if chain is first or held is None else {REPEAT: _notes(held, chain)})
        changed = True
    if changed:
        fronts.remove_unused()
        program.__dict__.pop("calls", None)  # they are read again
    return found


def calls_made(program: Scoped, node: fx.Node) -> int:
    """Returns the number of calls of functions and layers that a call is: an extended layer makes several."""
    layer = program.find(path_of(node.target)) if node.op == "call_module" else None
    held = type(layer).program if isinstance(layer, ExtendedLayer) else None
    return 1 if held is None else sum(call.op.startswith("call_") for call in held.calls)


class _Chain:
    """A call of a layer and those around it in the layer's module: the padding of a convolution, and activations.

    Each of them alone reads the one before.

    Args:
        fronts: of the program.
        call: the call.
        path: of the layer. The older exporter writes the scope of a shared one as the caller's, and the layer's name.

    Attributes:
        layer: the class of the layer.
        is_own: whether the file names the layer for the call.
        front: the padding, if there is one.
        behind: the activations, in order.
        names: the names of their modules in the layer's; an empty name for a function's call.
    """

    def __init__(self, fronts: Fronts, call: fx.Node, path: Path):
        program, declared = fronts.program, fronts.declared
        self.call, self.behind, self.names = call, list[fx.Node](), list[str]()
        self.front: Front | None = None
        base = declared.get(call) or ()
        self.is_own = is_call(base[-1:], path[-1:])
        self.layer = type(program.module(path))
        if _FUNCTIONS[self.layer][1] is _CONVOLUTION:
            # torch's newer exporter notes the batch norm for one into which it folded it
            self.front = fronts.of(call, base if self.is_own else path)
            if self.front is None and self.noted in ("", self.layer.__name__):
                return  # a quantiser's nodes are named after what they round: the scope alone is no evidence
        last = call
        while self.is_own and len(last.users) == 1:
            (user,) = last.users
            name = name_inside(user, base, declared)
            if name is None or activated(user) is not last or name in BLOCK_ATTRIBUTES:
                break
            self.behind.append(user)
            self.names.append(name)
            last = user

    @property
    def class_name(self) -> str:
        """The name of the class: the author's, where the file has it."""
        if self.front is not None and self.noted in ("", self.layer.__name__):
            return f"Padded{self.layer.__name__}"
        return class_name_of(path_of(self.call.target), self.noted)

    @property
    def noted(self) -> str:
        """The name of the class that the file has, `""` where it has none."""
        return declared_class(self.call) if self.is_own else ""

    @property
    def is_padded_outside(self) -> bool:
        """Whether an exporter made one node of a convolution of torch and of the padding that its caller called."""
        return self.front is not None and self.front.merged and self.noted == self.layer.__name__

    @property
    def signature(self) -> tuple[Any, ...]:
        """What is equal for calls of one module: the padding, the activations and the names of their modules.

        The names are without the numbers of calls.
        """
        activations = [
            (without_call_number(name), module_of(node)) for name, node in zip(self.names, self.behind, strict=True)
        ]
        return self.front and self.front.program, activations

    def remove(self, program: Scoped, declared: dict[fx.Node, Path | None], notes: Mapping[str, Any]) -> None:
        """Removes what is around the call from a program; the call, which gets notes, has the value of the last one."""
        kept = dict(self.call.meta)
        if self.behind:
            self.behind[-1].replace_all_uses_with(self.call)
            kept.pop("onnx_outputs", None)  # those of the last one
        self.call.meta = {**kept, **notes}
        removed = [*self.behind]
        if self.front is not None:
            self.call.replace_input_with(self.front.pad, self.front.padded)
            removed.append(self.front.pad)
        for node in reversed(removed):
            program.graph.erase_node(node)
            program.specs.pop(node, None)
            declared.pop(node, None)


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
    if first.front is not None:
        calls += first.front.program.calls
        if first.front.name:
            layer.add_module(first.front.name, first.front.module())
    given: list[Any] = [Value(len(calls) - 1)]
    function, names = _FUNCTIONS[type(layer)]
    for name in names:
        value = getattr(layer, name)
        if isinstance(value, (torch.Tensor, bool)) or name in _CHANGED:
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
    made = class_of(kind, first.class_name, program)
    return made(layer, Notes(("x",), _notes(program, first)))


def _notes(program: Program, chain: _Chain) -> list[Mapping[str, Any]]:
    """Returns the notes of the calls in a block, for one call of it."""
    made = iter((*(chain.front.nodes if chain.front else ()), chain.call, *chain.behind))
    return [next(made).meta if call.op.startswith("call_") else {} for call in program.calls]
