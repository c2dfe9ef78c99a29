"""What the module of a recorded program holds: constants, as parameters and buffers, and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx, nn

from onnx2nn.fx.constants import identity_of
from onnx2nn.fx.layers import Layer
from onnx2nn.fx.module_tree import container, put_module, remove
from onnx2nn.fx.spec import Spec
from onnx2nn.fx.tensor import Tensor
from onnx2nn.ground.naming import Names

if TYPE_CHECKING:
    from onnx2nn.fx.tracer import Tracer

_TAKEN = frozenset(dir(nn.Module()))
_TAKEN_OUTSIDE = frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph()))) - _TAKEN

_NOTHING = object()


class HeldState:
    """The module tree that one recorded program refers to.

    Args:
        tracer: what records the program.
        around: that of the enclosing program, with which it shares parameters.
        root: takes the layers, and what is held inside other modules.

    Attributes:
        names: the paths in it.
        parameters: those that hold tensors, by `identity_of`.
        own: what the module is to hold itself, by name, and whether state_dict has it. The module that is made at the
            end registers it: to do that here too would take a sixth of the time that a large import takes.
    """

    def __init__(self, tracer: Tracer, around: HeldState | None, root: nn.Module):
        self.names = Names(_TAKEN, _TAKEN_OUTSIDE)
        self.own: dict[str, tuple[Any, bool]] = {}
        self._tracer, self._root = tracer, root
        self._reads: dict[Any, fx.Node] = {}
        self._layers: dict[Any, str] = {}
        self.parameters: dict[Any, nn.Parameter] = around.parameters if around is not None else {}
        self._keep: list[Any] = []  # a tensor's memory is another's when it is gone

    def attribute_of(self, tensor: torch.Tensor) -> Tensor:
        """Returns a constant as a parameter or buffer of the module; the same constant is held once."""
        whole = self._tracer.placement.whole(tensor)
        held = Tensor(self._tracer, self.read(whole), Spec((tuple(whole.shape),) * self._tracer.points, whole.dtype))
        return held if whole is tensor else _rearranged(held, whole, tensor)

    def read(self, tensor: torch.Tensor) -> fx.Node:
        """Returns the node that reads a constant, which becomes a parameter or buffer."""
        steps, trainable, persistent, own, outer = self._tracer.placement.constant(tensor)
        identity = identity_of(tensor)
        key = (identity, *steps) if own else identity
        node = self._reads.get(key)
        if node is None and outer:
            assert self._tracer.parent is not None, "no graph is around this one"
            node = self._reads[key] = self._tracer.captures.capture(self._tracer.parent.attribute(tensor)).node
        elif node is None:
            path = self.names.claim(steps, own=own and not self._is_layers(steps, identity))
            trained = trainable and tensor.is_floating_point()
            self._hold(path, self.parameter(tensor, identity) if trained else tensor, persistent)
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
        """Whether a layer stands there that has a parameter of this name, another one or none: it would use this."""
        holder: Any = self._root
        for step in steps[:-1]:
            holder = getattr(holder, step, None)
        if holder is self._root:
            held, _ = self.own.get(steps[-1], (_NOTHING, True))
        else:
            held = getattr(holder, steps[-1], _NOTHING) if isinstance(holder, nn.Module) else _NOTHING
        return held is None or (isinstance(held, nn.Parameter) and held is not self.parameters.get(identity))

    def remove(self, path: str) -> None:
        """Removes what is at the dotted `path`, and the modules around it that hold nothing else."""
        if self.own.pop(path, None) is None:
            remove(self._root, path)

    def read_strings(self, array: np.ndarray[Any, Any]) -> fx.Node:
        """Returns the node that reads an array of strings, a plain attribute of the module."""
        if id(array) not in self._reads:
            path = self.names.claim(["strings"])
            self.own[path] = array, False
            self._keep.append(array)
            self._reads[id(array)] = self._tracer.create("get_attr", path)
        return self._reads[id(array)]

    def parameter(self, tensor: torch.Tensor, identity: Any = None) -> nn.Parameter:
        """Returns the one `nn.Parameter` that holds `tensor`, whose `identity_of` may be known already."""
        if type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter):
            return tensor
        key = identity or identity_of(tensor)
        parameter = self.parameters.get(key)
        if parameter is None:
            parameter = self.parameters[key] = nn.Parameter(tensor)
        return parameter

    def add_layer(self, layer: Layer) -> str:
        """Returns the path of a layer, which is built where no equal one is there; one without state always is."""
        state = {name: tensor if tensor is None else identity_of(tensor) for name, tensor in layer.state.items()}
        steps, own = self._tracer.placement.layer(layer)
        key = (layer.kind, repr(layer.config), tuple(state.items()), *(steps if own else ()))
        if not layer.state or key not in self._layers:
            for name, tensor in layer.state.items():
                if tensor is not None and not name.startswith("running_"):
                    layer.state[name] = self.parameter(tensor)
                self._keep.append(tensor)
            path = self.names.claim(steps, own=own, module=True)
            module = layer.build()
            self._tracer.placement.describe(module)
            put_module(self._root, path, module)
            self._layers[key] = path
        return self._layers[key]


def _rearranged(whole: Tensor, base: torch.Tensor, view: torch.Tensor) -> Tensor:
    """Returns what makes `view` of the recorded tensor that stands for `base`, whose elements it all has."""
    turned = base.ndim == 2 and view.shape == base.T.shape and view.stride() == base.T.stride()
    rearranged: Tensor = whole.t() if turned else whole.reshape(tuple(view.shape))
    return rearranged
