"""The `oneflow.nn` layers that replace functional calls with constant weights, by the table of `importing.layers`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oneflow_bridge.from_onnx.attention import MultiheadAttention
from oneflow_bridge.namespace.dtypes import float32, float64, flow
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.importing.layers import Framework, Layers

nn = flow.nn


@dataclass(frozen=True)
class Layer:
    """A layer that is to be built.

    Attributes:
        kind: the `oneflow.nn.Module` subclass.
        config: its constructor's arguments.
        state: its parameters and buffers by path (`out_proj.weight`); None for an absent one.
        inputs: the positional arguments of its call.
        index_limit: of an embedding: its number of rows, against which indices must be checked; None for other layers.
    """

    kind: Any
    config: dict[str, Any]
    state: dict[str, Tensor | None]
    inputs: tuple[Any, ...]
    index_limit: int | None = None

    def build(self, parameter: Callable[[Tensor], Any]) -> Any:
        """Returns the layer in eval mode; `parameter` makes the parameter that holds a tensor."""
        module = self.kind(**self.config)
        for name, tensor in self.state.items():
            if tensor is None:
                continue
            *inner, last = name.split(".")
            holder = functools.reduce(getattr, inner, module)
            if last in holder._buffers:
                holder._buffers[last] = tensor.value
            else:
                holder._parameters[last] = parameter(tensor)
        return module.eval()


def _holds(value: Any) -> bool:
    """Whether a value is a constant of a type in which OneFlow's kernels are complete."""
    return isinstance(value, Tensor) and value.dtype in (float32, float64) and bool(value.numel())


def _is_zeros(value: Any) -> bool:
    """Whether a value is zeros, constant or of a size that is known at run time."""
    if isinstance(value, Tensor):
        return not value.numpy().any()
    spec = getattr(value, "spec", None)
    return spec is not None and bool(spec.zeros)


def _is_index(dtype: Any) -> bool:
    return dtype is not None and dtype.is_integer


_LAYERS = Layers(
    Framework(
        Tensor,
        _holds,
        _is_index,
        _is_zeros,
        strict=True,
        statistics=float32,
        stacks=False,
        options=False,
        lacks=frozenset({"rms_norm", "channel_shuffle"}),
    )
)
_OWN = {"MultiheadAttention": MultiheadAttention}


def layer_for(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layer | None:
    """Returns the layer that replaces the call `name(*args, **kwargs)`, None where no layer does.

    Constants among the arguments are namespace tensors; other tensors are of a type of the caller's.
    """
    found = _LAYERS.find(name, args, kwargs)
    if found is None:
        return None
    kind = _OWN.get(found.kind) or getattr(nn, found.kind)
    return Layer(kind, found.config, found.state, found.inputs, found.index_limit)
