"""An imported program as its calls with weights, and the calls where several of their values meet."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.fx.blocks.flattening import flattened
from onnx2nn.layers import Conv1D
from onnx2nn.transferring.attention_calls import write_out_attention

# fmt: off
_LAYOUT = frozenset((
    "t", "transpose", "permute", "reshape", "view", "flatten", "unflatten", "unsqueeze", "squeeze", "getitem",
    "index_select", "expand", "expand_as", "broadcast_to", "cat", "concat", "split", "chunk", "unbind", "select",
    "narrow", "contiguous", "clone", "to", "repeat", "movedim", "embedding", "swapaxes", "type_as", "detach",
    "stack",
))
# fmt: on
"""Functions that only move elements. What a layer gets by them from weights is found again in these, see `Weights`."""

_FUNCTIONS: Mapping[str, tuple[str, tuple[tuple[int, str], ...]]] = {
    **{f"conv{n}d": ("affine", ((1, "weight"), (2, "bias"))) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": ("transposed", ((1, "weight"), (2, "bias"))) for n in (1, 2, 3)},
    "linear": ("affine", ((1, "weight"), (2, "bias"))),
    "layer_norm": ("layer_norm", ((2, "weight"), (3, "bias"))),
    "group_norm": ("group_norm", ((2, "weight"), (3, "bias"))),
    "rms_norm": ("rms_norm", ((2, "weight"),)),
    "batch_norm": ("batch_norm", ((1, "running_mean"), (2, "running_var"), (3, "weight"), (4, "bias"))),
    "instance_norm": ("instance_norm", ((3, "weight"), (4, "bias"))),
    "embedding": ("embedding", ((1, "weight"),)),
    "prelu": ("prelu", ((1, "weight"),)),
}
"""Function → the kind of layer, and where its weights stand."""

_KINDS: Mapping[type[nn.Module], str] = {
    **dict.fromkeys((nn.Linear, Conv1D, nn.Conv1d, nn.Conv2d, nn.Conv3d), "affine"),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), "transposed"),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), "batch_norm"),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), "instance_norm"),
    nn.LayerNorm: "layer_norm",
    nn.GroupNorm: "group_norm",
    nn.RMSNorm: "rms_norm",
    nn.Embedding: "embedding",
    nn.PReLU: "prelu",
}
"""Class of a layer → the kind that its function has too."""

_PLAIN = {"iadd": "add", "imul": "mul", "isub": "sub", "concat": "cat", "scaled_dot_product_attention": "attention"}
COMMUTATIVE = frozenset({"add", "mul"})
LINEAR = frozenset({"affine", "transposed"})
"""Kinds of layers whose value is a weight times what they are called on, plus a bias."""


@dataclass(eq=False)
class Weight:
    """A constant tensor that a call uses.

    Attributes:
        value: its elements, in the layout of the layer's function.
        elements: where each of them is in the state of the module (`Program.offsets`), or among the results of `layer`;
            None where they are computed otherwise, or a constant's.
        names: the tensors of the state that it is made of.
        layer: the layer that computes it from a constant, where one does.
    """

    value: torch.Tensor
    elements: torch.Tensor | None
    names: tuple[str, ...]
    layer: Call | None = None


@dataclass(eq=False)
class Call:
    """A call with weights, a call where values of several calls meet, an input or an output.

    Attributes:
        node: its name in the program.
        kind: of layer, or the function.
        weights: role → weight.
        norm: the weights of the batch normalisation behind it, which can be folded into it; the weight alone where a
            scale of each channel stands there.
        epsilon: of the normalisation that it is, or that is behind it.
        sources: the calls whose values it gets.
        given: the node whose value it is called on, None for inputs and outputs.
        last: the node that has its value, the batch normalisation's where there is one.
    """

    node: fx.Node
    kind: str
    weights: dict[str, Weight] = field(default_factory=dict)
    norm: dict[str, Weight] = field(default_factory=dict)
    epsilon: float = 0.0
    sources: list[Call] = field(default_factory=list)
    given: fx.Node | None = None
    last: fx.Node | None = None

    @property
    def label(self) -> tuple[Any, ...]:
        """What two calls must have in common to be the same layer: the kind, and the sizes of the weight."""
        weight = self.weights.get("weight")
        if self.kind in LINEAR and weight is not None:
            out, *others = weight.value.shape
            return (self.kind, out, *others[:1], *(size for size in others[1:] if size != 1))
        shapes = [tuple(w.value.squeeze().shape) for role, w in self.weights.items() if w.value.numel() > 1]
        if self.kind in _KINDS.values():
            return (self.kind, *sorted(set(shapes)))
        return (self.kind, *shapes)

    @property
    def pieces(self) -> Iterator[Weight]:
        """All its weights."""
        yield from self.weights.values()
        yield from self.norm.values()

    def __str__(self) -> str:
        names = dict.fromkeys(name for weight in self.pieces for name in weight.names)
        sizes = "x".join(map(str, self.label[1:]))
        return f"{', '.join(names) or self.node.name} ({self.kind}{f' {sizes}' if sizes else ''})"


class Program:
    """The calls of an imported module.

    Attributes:
        module: its flat program, in float64.
        calls: in the program's order; inputs first, outputs last.
        offsets: key of state_dict → the number of its first element, counted over the whole state.
    """

    def __init__(self, module: fx.GraphModule, weights: Collection[str] | None = None):
        """Reads a program.

        Args:
            module: an import.
            weights: keys that can be filled; other tensors are constants, such as buffers outside of state_dict. None:
                all can.
        """
        self.module = write_out_attention(flattened(module))
        self._weights = weights
        self.calls: list[Call] = []
        self._source: dict[fx.Node, Call | None] = {}
        self._values: dict[fx.Node, Any] = {}
        self._elements: dict[fx.Node, Any] = {}
        self._names: dict[fx.Node, tuple[str, ...]] = {}
        self._layers: dict[fx.Node, Call] = {}
        self.offsets: dict[str, int] = {}
        self._state: dict[str, torch.Tensor] = {
            **dict(self.module.named_parameters(remove_duplicate=False)),
            **dict(self.module.named_buffers(remove_duplicate=False)),
        }
        first: dict[int, int] = {}
        size = 0
        for key, value in self._state.items():
            self.offsets[key] = first.setdefault(id(value), size)
            size += value.numel()
        for node in self.module.graph.nodes:
            self._add(node)

    def state(self) -> Mapping[str, torch.Tensor]:
        """Returns all parameters and buffers by their keys."""
        return self._state

    def constant(self, node: fx.Node) -> Any:
        """Returns the value of a node that depends on no input."""
        return self._values[node]

    def _add(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._source[node] = self._call(Call(node, f"input {len(self.calls)}"))
        elif node.op == "get_attr":
            value = self._state.get(str(node.target))
            if value is None:
                self._source[node] = None  # a module that a higher-order operator calls
                return
            self._values[node], self._names[node] = value.detach(), (str(node.target),)
            self._elements[node] = self._numbered(str(node.target))
        elif node.op == "output":
            for index, result in enumerate(_nodes(node.args)):
                source = self._source.get(result)
                self._call(Call(node, f"output {index}", sources=[source] if source is not None else []))
        elif self._is_constant(node):
            self._evaluate(node)
        else:
            self._source[node] = self._called(node)

    def _numbered(self, key: str) -> torch.Tensor | None:
        value = self._state[key]
        if not value.is_floating_point() or (self._weights is not None and key not in self._weights):
            return None
        return _counted(value.shape, self.offsets[key])

    def _is_constant(self, node: fx.Node) -> bool:
        inputs = node.all_input_nodes
        if not inputs or any(value not in self._values for value in inputs):
            return False
        if node.op != "call_module":
            return True
        kind = type(self.module.get_submodule(str(node.target)))
        return kind is Conv1D or getattr(nn, kind.__name__, None) is kind

    def _evaluate(self, node: fx.Node) -> None:
        run = fx.Interpreter(self.module)

        def call(known: Mapping[fx.Node, Any]) -> Any:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda value: known[value])
            if node.op == "call_method":
                return run.call_method(str(node.target), args, kwargs)
            if node.op == "call_module":
                return run.call_module(str(node.target), args, kwargs)
            return run.call_function(node.target, args, kwargs)

        with torch.no_grad():
            self._values[node] = call(self._values)
            names = dict.fromkeys(name for value in node.all_input_nodes for name in self._names[value])
            if node.op == "call_module":
                held = self.module.get_submodule(str(node.target)).state_dict()
                names |= dict.fromkeys(f"{node.target}.{role}" for role in held)
            self._names[node] = tuple(names)
            layer = self._constant_layer(node)
            if layer is not None:
                self._layers[node] = layer
                self._elements[node] = _counted(self._values[node].shape)
                return
            numbered = {value: self._elements.get(value) for value in node.all_input_nodes}
            layers = {self._layers.get(value) for value, found in numbered.items() if found is not None}
            if node.op == "call_module" or function_name(node) not in _LAYOUT or len(layers) != 1:
                self._elements[node] = None
                return
            (layer,) = layers
            if layer is not None:
                self._layers[node] = layer
            mixed = {v: self._values[v] if found is None else found for v, found in numbered.items()}
            self._elements[node] = call(mixed)

    def _constant_layer(self, node: fx.Node) -> Call | None:
        """Returns the layer that a node calls on a constant; None where weights affect what it is called on."""
        if node.op == "call_module":
            call = self._layer(node)
        else:
            kind, _ = _FUNCTIONS.get(function_name(node), ("", ()))
            call = self._function(node) if kind == "affine" else None
        if call is None or call.kind != "affine" or not isinstance(node.args[0], fx.Node):
            return None
        if "weight" not in call.weights or call.weights["weight"].elements is None:
            return None
        bias = call.weights.get("bias")
        if self._is_affected(self._names[node.args[0]]) or (
            bias is not None and bias.elements is None and self._is_affected(bias.names)
        ):
            return None
        call.given = node.args[0]
        return call

    def _is_affected(self, names: Collection[str]) -> bool:
        """Whether any of some tensors is a weight, where weights and other tensors are told apart."""
        return self._weights is not None and any(name in self._weights for name in names)

    def _weight(self, node: Any) -> Weight | None:
        """Returns a weight that a call is given; None for a scalar, an index and what is no constant."""
        value = self._values.get(node) if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return None
        return Weight(value, self._elements.get(node), self._names[node], self._layers.get(node))

    def _called(self, node: fx.Node) -> Call | None:
        inputs = [value for value in node.all_input_nodes if value not in self._values]
        sources = [source for value in inputs if (source := self._source.get(value)) is not None]
        call = self._layer(node) if node.op == "call_module" else self._function(node)
        if call is not None:
            call.sources, call.given = sources, inputs[0] if inputs else None
            return self._folded(call, inputs) or self._call(call)
        if len({id(source) for source in sources}) < 2:
            return sources[0] if sources else None
        kind = _PLAIN.get(function_name(node), function_name(node))
        return self._call(Call(node, kind, sources=self._joined(node, sources) if kind == "cat" else sources))

    def _joined(self, node: fx.Node, sources: list[Call]) -> list[Call]:
        """Returns the sources of a concatenation, with those of concatenations that it alone reads in their place."""
        found = []
        for source in sources:
            alone = source.node in node.all_input_nodes and len(source.node.users) == 1
            if source.kind == "cat" and not source.weights and alone:
                self.calls.remove(source)
                found += source.sources
            else:
                found.append(source)
        return found

    def _layer(self, node: fx.Node) -> Call | None:
        layer: nn.Module = self.module.get_submodule(str(node.target))
        kind = _KINDS.get(type(layer), type(layer).__name__)
        weights = {}
        for role in [*dict(layer.named_parameters(remove_duplicate=False)), *dict(layer.named_buffers())]:
            key = f"{node.target}.{role}"
            value, numbers = self._state[key].detach(), self._numbered(key)
            if not value.is_floating_point():
                continue
            if isinstance(layer, Conv1D) and role == "weight":
                value, numbers = value.t(), None if numbers is None else numbers.t()
            weights[role] = Weight(value, numbers, (key,))
        return Call(node, kind, weights, epsilon=getattr(layer, "eps", None) or 0.0) if weights else None

    def _function(self, node: fx.Node) -> Call | None:
        name = function_name(node)
        if name in _FUNCTIONS:
            kind, places = _FUNCTIONS[name]
            given = [*node.args, *[None] * 8]
            found = {role: self._weight(node.kwargs.get(role, given[position])) for position, role in places}
            weights = {role: weight for role, weight in found.items() if weight is not None}
            # ONNX's InstanceNormalization always has weights; the import leaves out neutral ones of one element
            if not weights and kind != "instance_norm":
                return None
            return Call(node, kind, weights, epsilon=_epsilon(node, name))
        matrix = self._weight(node.args[1]) if name == "matmul" and len(node.args) == 2 else None
        if matrix is not None and matrix.value.dim() == 2:
            numbers = None if matrix.elements is None else matrix.elements.t()
            return Call(node, "affine", {"weight": Weight(matrix.value.t(), numbers, matrix.names)})
        constants = [
            weight for value in _nodes((node.args, node.kwargs)) if (weight := self._weight(value)) is not None
        ]
        weights = {str(index): weight for index, weight in enumerate(constants) if weight.value.numel() > 1}
        return Call(node, _PLAIN.get(name, name), weights) if weights else None

    def _folded(self, call: Call, inputs: list[fx.Node]) -> Call | None:
        """Returns the layer before a batch normalisation, a scale or the addition of a bias, which takes it in."""
        if len(inputs) != 1 or len(inputs[0].users) != 1 or len(call.sources) != 1:
            return None
        before = call.sources[0]
        if before.last is not _unshaped(inputs[0], before) or before.kind not in LINEAR or before.norm:
            return None
        if call.kind == "batch_norm" and "running_mean" in call.weights:
            before.norm, before.epsilon = call.weights, call.epsilon
        elif call.kind == "mul" and _is_bias(before, call.weights["0"]):
            before.norm = {"weight": call.weights["0"]}
        elif call.kind == "add" and "bias" not in before.weights and _is_bias(before, call.weights["0"]):
            before.weights["bias"] = call.weights["0"]
        else:
            return None
        before.last = call.node
        return before

    def _call(self, call: Call) -> Call:
        call.last = call.node
        self.calls.append(call)
        return call


def _counted(shape: Sequence[int], start: int = 0) -> torch.Tensor:
    """Returns the numbers from `start` on, which stand for the elements of a tensor."""
    return torch.arange(start, start + math.prod(shape), dtype=torch.float64).reshape(shape)


def _unshaped(node: fx.Node, layer: Call) -> fx.Node:
    """Returns the value behind reshapes that leave the last dimension, where a linear layer has its channels."""
    weight = layer.weights.get("weight")
    while node is not layer.last and weight is not None and weight.value.dim() == 2:
        before = node.all_input_nodes
        if len(before) != 1 or len(before[0].users) != 1 or not _leaves_last(node, weight.value.shape[0]):
            break
        node = before[0]
    return node


def _leaves_last(node: fx.Node, size: int) -> bool:
    """Whether a call is a reshape to a known last dimension, or puts one in front."""
    sizes = node.args[1:]
    if function_name(node) == "unsqueeze":
        return sizes == (0,)
    if function_name(node) not in ("reshape", "view") or not sizes:
        return False
    last = sizes[-1][-1] if isinstance(sizes[-1], (tuple, list)) else sizes[-1]
    return isinstance(last, int) and last == size


def _is_bias(layer: Call, added: Weight) -> bool:
    weight = layer.weights["weight"].value
    size = weight.shape[1 if layer.kind == "transposed" else 0]
    place = 1 - weight.dim() if weight.dim() > 2 else -1  # channels stand before the spatial dimensions
    shape = added.value.shape
    return added.value.numel() == size and len(shape) >= -place and shape[place] == size


def _epsilon(node: fx.Node, name: str) -> float:
    place = {"batch_norm": 7}.get(name)
    if place is None:
        return 0.0
    found = node.kwargs.get("eps", node.args[place] if len(node.args) > place else 1e-5)
    return float(found) if isinstance(found, (int, float)) else 0.0


def _nodes(arguments: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(arguments, found.append)
    return found


def function_name(node: fx.Node) -> str:
    """Returns the plain name of the function or method that a node calls."""
    if node.target is operator.getitem:
        return "getitem"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return name.removeprefix("onnx2nn_functional_")
