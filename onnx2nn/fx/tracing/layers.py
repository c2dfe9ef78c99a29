"""The `torch.nn` layers that replace functional calls with constant weights, by the table in `importing.layers`."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from onnx2nn.importing.layers import Framework, Layers
from onnx2nn.layers import Conv1D, FakeQuantize


class Layer(NamedTuple):
    """The description of a layer that is not built yet.

    Attributes:
        kind: the `nn.Module` subclass.
        config: its constructor's arguments.
        state: its parameters and buffers by dotted name; None for an absent one (`bias=False`).
        inputs: the positional arguments of its call.
        structure: the nesting of the layer's results, by position in the function's (`(0, (1, 2))`); None: the same.
        keywords: the keyword arguments of its call.
    """

    kind: type[nn.Module]
    config: dict[str, Any]
    state: dict[str, torch.Tensor | None]
    inputs: tuple[Any, ...]
    structure: Any = None
    keywords: Mapping[str, Any] = types.MappingProxyType({})

    def is_buffer(self, name: str) -> bool:
        """Returns whether a tensor of its state is a buffer."""
        return name.startswith("running_") or self.kind is FakeQuantize

    def build(self) -> nn.Module:
        """Returns the layer with its weights; torch's initialisation is skipped, because it would be overwritten."""
        if not self.state:
            return self.kind(**self.config)
        module = _made(self.kind, self.config)
        for name, tensor in self.state.items():
            if tensor is None:
                continue
            inner, _, name = name.rpartition(".")
            holder = module.get_submodule(inner) if inner else module
            trained = not self.is_buffer(name) and not isinstance(tensor, nn.Parameter)
            setattr(holder, name, nn.Parameter(tensor) if trained else tensor)  # a recurrent layer notes its weights
        if getattr(module, "num_batches_tracked", None) is not None:  # None in an InstanceNorm
            module.num_batches_tracked = torch.zeros((), dtype=torch.int64)
        return module


def _made(kind: Any, config: dict[str, Any]) -> nn.Module:
    """Returns a layer without values; layers of one configuration are shallow copies of the first one."""
    try:
        pattern, own = _pattern(kind, **config)
    except TypeError:  # an argument that is no key, such as a list
        return _uninitialised(kind, config)
    if own is None:
        return _uninitialised(kind, config)
    module: nn.Module = kind.__new__(kind)
    members = vars(module)
    members.update(vars(pattern))
    for name, make in own:
        members[name] = make()
    return module


_UNCHANGING = frozenset({bool, int, float, str, type(None), tuple})
_CONTAINERS = frozenset({dict, list, set, OrderedDict})


@functools.lru_cache(256, typed=True)
def _pattern(kind: type[nn.Module], /, **config: Any) -> tuple[nn.Module, list[tuple[str, Callable[[], Any]]] | None]:
    """Returns a layer, and what makes those of its members that each copy has of its own: mostly empty containers.

    A layer of several modules, of which a shallow copy would share the inner ones, has None there.
    """
    module = _uninitialised(kind, config)
    if any(True for _ in module.children()):
        return module, None
    own = {name: value for name, value in vars(module).items() if type(value) not in _UNCHANGING}
    return module, [
        (name, type(value) if type(value) in _CONTAINERS and not value else functools.partial(copy.copy, value))
        for name, value in own.items()
    ]


def _uninitialised(kind: type[nn.Module], config: dict[str, Any]) -> nn.Module:
    module = _without_initialisation(kind)(**config, device="meta")  # type: ignore[arg-type]  # mypy takes the constructor for nn.Module's
    module.__class__ = kind
    return module


@functools.cache
def _without_initialisation(kind: Any) -> type[nn.Module]:
    """Returns `kind` without its random initialisation, which would take most of the time of building a layer."""
    return type(kind.__name__, (kind,), {"reset_parameters": lambda self: None, "__module__": kind.__module__})


def _holds(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_zeros(value: Any) -> bool:
    """Returns whether a tensor is known to hold zeros only: a constant, or `torch.zeros` at run time."""
    if isinstance(value, torch.Tensor):
        return not bool(value.any())
    return getattr(getattr(value, "node", None), "target", None) is torch.zeros


def _is_index(dtype: Any) -> bool:
    return dtype in (torch.int32, torch.int64)


_UNBIASED = "bias" in inspect.signature(nn.GroupNorm).parameters
"""Whether this version of torch has normalisations with a weight and no bias beside that of LayerNorm."""

_LAYERS = Layers(Framework(torch.Tensor, _holds, _is_index, _is_zeros, unbiased=_UNBIASED))
_RECURRENT = {torch.lstm: "lstm", torch.gru: "gru", torch.rnn_tanh: "rnn_tanh", torch.rnn_relu: "rnn_relu"}
_NAMES: dict[Any, str] = {operator.getitem: "getitem", **_RECURRENT}
_NAMES |= {getattr(F, name): name for name in _LAYERS if hasattr(F, name)}


def may_be_layer(function: Any) -> bool:
    """Returns whether calls of `function` may be replaced by a layer."""
    return function in _NAMES


def layer_for(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layer | None:
    """Returns the layer that replaces the call `function(*args, **kwargs)`, None where there is none.

    Constants among the arguments are real `torch.Tensor`s; other tensors are of the caller's own type.
    """
    name = _NAMES.get(function)
    found = None if name is None else _LAYERS.find(name, args, kwargs)
    if found is None:
        return None
    return Layer(getattr(nn, found.kind), found.config, found.state, found.inputs, found.structure, found.keywords)


def stored_transposed(layer: Layer) -> Layer | None:
    """Returns the `Conv1D` that does what an `nn.Linear` does, whose weight it holds transposed; None for others.

    Args:
        layer: its input is a traced tensor.
    """
    weight, bias = (layer.state.get(name) for name in ("weight", "bias"))
    if layer.kind is not nn.Linear or weight is None or bias is None or not weight.numel() or layer.inputs[0].ndim < 2:
        return None
    config = dict(nf=layer.config["out_features"], nx=layer.config["in_features"])
    return Layer(Conv1D, config, {"weight": weight.T, "bias": bias}, layer.inputs)


def unchecked(function: Any, args: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields pairs of sizes that must be equal in a call, and that the function itself does not check.

    torch.lstm and similar functions read beyond the initial state of a smaller batch; the layers check its size.
    """
    if function in _RECURRENT:
        input, hx, *_, batch_first = args
        states = hx if isinstance(hx, (list, tuple)) else (hx,)
        yield from ((state.shape[1], input.shape[0 if batch_first else 1]) for state in states)
