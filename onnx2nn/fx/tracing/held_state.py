"""The state of a recorded program's module: constants, as parameters and buffers, and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx, nn

from onnx2nn.fx.blocks.block import BLOCK_ATTRIBUTES
from onnx2nn.fx.constants import identity_of
from onnx2nn.fx.modules.graph_module import ImportedModule
from onnx2nn.fx.modules.module_tree import container, put_module, remove
from onnx2nn.fx.tracing.layers import Layer
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.ground.naming import Names

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer

_TAKEN = frozenset(dir(nn.Module()))
"""Names of members of every module."""

GRAPH_MEMBERS = (BLOCK_ATTRIBUTES | frozenset(dir(ImportedModule))) - _TAKEN
"""Names of members of a module that has a graph: no weight or module of it can have one of them."""

_NOTHING = object()


class HeldState:
    """The module tree that one recorded program refers to.

    Args:
        tracer: records the program.
        around: the state of the enclosing program, with which this one shares parameters.
        root: takes the layers, and all constants that are held inside submodules.

    Attributes:
        names: the used paths.
        nameless: the paths of layers and weights that the file does not name; any module may hold these.
        made: the paths of constants that the exporter made of the author's code.
        parameters: the parameters, by the `identity_of` their tensors.
        own: constants of the module itself, by name, and whether state_dict holds them. The final module
            registers them; registering them here too would take a sixth of the time of a large import.
    """

    def __init__(self, tracer: Tracer, around: HeldState | None, root: nn.Module):
        # torch.compile and other libraries give nn.Module further members at their first use.
        self.names = Names(_TAKEN.union(dir(nn.Module)), GRAPH_MEMBERS)
        self.own: dict[str, tuple[Any, bool]] = {}
        self.nameless, self.made = set[str](), set[str]()
        self._tracer, self._root = tracer, root
        self._reads: dict[Any, fx.Node] = {}
        self._layers: dict[Any, str] = {}
        self._slots: dict[str, frozenset[str]] = {}  # path of a layer → names of its weights
        self.parameters: dict[Any, nn.Parameter] = around.parameters if around is not None else {}
        self._keep: list[Any] = []  # keeps tensors alive: the memory of a freed tensor may be reused

    def attribute_of(self, tensor: torch.Tensor) -> Tensor:
        """Returns a constant as a parameter or buffer of the module; equal constants are held once."""
        base = self._tracer.placement.base(tensor)
        order, wanted = _memory_order(base), _memory_order(tensor)
        if base is tensor or order is None or wanted is None or base.storage_offset() != tensor.storage_offset():
            return Tensor(self._tracer, self.read(tensor), Spec(tuple(tensor.shape), tensor.dtype))
        held = Tensor(self._tracer, self.read(base), Spec(tuple(base.shape), base.dtype))
        return _view_of(held, base, order, tensor, wanted)

    def read(self, tensor: torch.Tensor) -> fx.Node:
        """Returns the node that reads a constant, which becomes a parameter or buffer."""
        steps, trainable, persistent, own, outer, nameless, made = self._tracer.placement.constant(tensor)
        identity = identity_of(tensor)
        key = (identity, *steps) if own else identity
        node = self._reads.get(key)
        if node is None and outer:
            assert self._tracer.parent is not None, "no graph is around this one"
            node = self._reads[key] = self._tracer.captures.capture(self._tracer.parent.attribute(tensor)).node
        elif node is None:
            path = self.names.claim(steps, own=own and not self._is_layers(steps, identity))
            if nameless:
                self.nameless.add(path)
            if made:
                self.made.add(path)
            trained = trainable and tensor.is_floating_point()
            value = tensor
            if not tensor.numel() and tensor.storage_offset():
                value = torch.empty_like(tensor)  # TorchScript does not read a view beyond a memory of nothing back
            self._hold(path, self.parameter(value, identity) if trained else value, persistent)
            self._keep.append(tensor)
            node = self._reads[key] = self._tracer.create("get_attr", path)
        return node

    def _hold(self, path: str, value: torch.Tensor, persistent: bool) -> None:
        if "." not in path:
            self.own[path] = value, persistent
            return
        holder, name = container(self._root, path)
        if isinstance(value, nn.Parameter):
            holder.register_parameter(name, value)
        else:
            holder.register_buffer(name, value, persistent=persistent)

    def _is_layers(self, steps: list[str], identity: Any) -> bool:
        """Returns whether a layer at this path has a slot of this name for another parameter, or an empty slot."""
        holder: Any = self._root
        for step in steps[:-1]:
            holder = getattr(holder, step, None)
        if holder is self._root:
            held, _ = self.own.get(steps[-1], (_NOTHING, True))
        else:
            held = getattr(holder, steps[-1], _NOTHING) if isinstance(holder, nn.Module) else _NOTHING
        return held is None or (isinstance(held, nn.Parameter) and held is not self.parameters.get(identity))

    def is_beside(self, path: str) -> bool:
        """Returns whether the constant at the dotted `path` is held by a layer that does not compute with it."""
        layer, _, name = path.rpartition(".")
        return layer in self._slots and name not in self._slots[layer]

    def remove(self, path: str) -> None:
        """Removes the object at the dotted `path`, and enclosing modules that become empty."""
        if self.own.pop(path, None) is None:
            remove(self._root, path)

    def read_strings(self, array: np.ndarray[Any, Any]) -> fx.Node:
        """Returns the node that reads an array of strings, which becomes a plain attribute of the module."""
        if id(array) not in self._reads:
            path = self.names.claim(["strings"])
            self.own[path] = array, False
            self._keep.append(array)
            self._reads[id(array)] = self._tracer.create("get_attr", path)
        return self._reads[id(array)]

    def parameter(self, tensor: torch.Tensor, identity: Any = None) -> nn.Parameter:
        """Returns the only `nn.Parameter` that holds `tensor`; `identity` is its `identity_of`, if known."""
        if type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter):
            return tensor
        key = identity or identity_of(tensor)
        parameter = self.parameters.get(key)
        if parameter is None:
            parameter = self.parameters[key] = nn.Parameter(tensor)
        return parameter

    def add_layer(self, layer: Layer) -> str:
        """Returns the path of a layer; it is built unless there is an equal layer with state."""
        state = {name: tensor if tensor is None else identity_of(tensor) for name, tensor in layer.state.items()}
        steps, own, nameless = self._tracer.placement.layer(layer)
        key = (layer.kind, repr(layer.config), tuple(state.items()), *(steps if own else ()))
        if not layer.state or key not in self._layers:
            for name, tensor in layer.state.items():
                if tensor is not None and not layer.is_buffer(name):
                    layer.state[name] = self.parameter(tensor, state[name])
                self._keep.append(tensor)
            path = self.names.claim(steps, own=own, module=True)
            if nameless:
                self.nameless.add(path)
            module = layer.build()
            self._tracer.placement.describe(module)
            put_module(self._root, path, module)
            self._layers[key] = path
            self._slots[path] = frozenset(layer.state)
        return self._layers[key]


def _memory_order(tensor: torch.Tensor) -> list[int] | None:
    """Returns a tensor's dimensions in the order in which its memory has them, None where the memory has gaps.

    Law: in this order, the stride of each dimension is the number of elements of all later ones. A dimension of one
    element may stand anywhere.
    """
    sizes, strides = tensor.shape, tensor.stride()
    large = sorted((dim for dim in range(tensor.ndim) if sizes[dim] != 1), key=lambda dim: -strides[dim])
    step = 1
    for dim in reversed(large):
        if strides[dim] != step:
            return None
        step *= sizes[dim]
    if large == sorted(large):
        return [*range(tensor.ndim)]
    return [dim for dim in range(tensor.ndim) if sizes[dim] == 1] + large


def _view_of(recorded: Tensor, base: torch.Tensor, order: list[int], view: torch.Tensor, wanted: list[int]) -> Tensor:
    """Records `view`, which has all elements of `base` in the same memory, as a view of the recorded tensor of `base`.

    Args:
        recorded: the tensor.
        base: its values.
        order: their dimensions in the order of the memory.
        view: the values to record.
        wanted: their dimensions in the order of the memory.
    """
    if base.ndim == 2 and view.shape == base.T.shape and view.stride() == base.T.stride():
        turned: Tensor = recorded.t()
        return turned
    if order != sorted(order):
        recorded = recorded.permute(order)
    recorded = recorded.reshape(tuple(view.shape[dim] for dim in wanted))
    return recorded if wanted == sorted(wanted) else recorded.permute([wanted.index(dim) for dim in range(view.ndim)])
