"""The `oneflow.nn` layers that a functional call with constant weights stands for, `onnx2nn.fx.layers` for OneFlow.

Functions go by their last name (`conv2d`), their signatures are torch's. A layer is taken
only where OneFlow's computes what the namespace's function does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oneflow_bridge.from_onnx.attention import MultiheadAttention
from oneflow_bridge.namespace.dtypes import float32, float64, flow
from oneflow_bridge.namespace.tensor import Tensor

nn = flow.nn


@dataclass(frozen=True)
class Layer:
    """A layer still to be built.

    Attributes:
        kind: the `oneflow.nn.Module` subclass.
        config: its constructor's arguments.
        state: its parameters and buffers by path (`out_proj.weight`); None where it has none of that name.
        inputs: the positional arguments of its call.
        index_limit: how many rows the layer looks up by its input, which must be checked before; None: it does not.
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


_LAYERS: dict[str, tuple[inspect.Signature, Callable[..., Layer | None]]] = {}


def _layer(name: str) -> Callable[[Callable[..., Layer | None]], Callable[..., Layer | None]]:
    def add(make: Callable[..., Layer | None]) -> Callable[..., Layer | None]:
        _LAYERS[name] = (inspect.signature(make), make)
        return make

    return add


def layer_for(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layer | None:
    """Returns the layer that the call `name(*args, **kwargs)` stands for, None where it stands for none.

    Constants among the arguments are namespace tensors; any other tensor is of the caller's own type.
    """
    if name not in _LAYERS:
        return None
    signature, make = _LAYERS[name]
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    return make(*bound.args, **bound.kwargs)


def _weights(*tensors: Any) -> bool:
    """Whether all tensors that are there are constants of a type in which OneFlow's kernels are complete."""
    return all(t is None or (isinstance(t, Tensor) and t.dtype in (float32, float64)) for t in tensors)


def _conv(rank: int) -> Callable[..., Layer | None]:
    kind = getattr(nn, f"Conv{rank}d")

    def make(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Layer | None:
        if weight is None or not _weights(weight, bias) or not weight.numel() or isinstance(padding, str):
            return None
        if input.ndim != rank + 2 or input.dtype is not weight.dtype:
            return None
        config = dict(in_channels=weight.shape[1] * groups, out_channels=weight.shape[0])
        config |= dict(kernel_size=tuple(weight.shape[2:]), groups=groups, bias=bias is not None)
        config |= _geometry(rank, stride=stride, padding=padding, dilation=dilation)
        return Layer(kind, config, {"weight": weight, "bias": bias}, (input,))

    return make


def _geometry(rank: int, **values: Any) -> dict[str, tuple[int, ...]]:
    return {
        name: (value,) * rank if isinstance(value, int) else tuple(int(v) for v in value)
        for name, value in values.items()
    }


def _conv_transpose(rank: int) -> Callable[..., Layer | None]:
    kind = getattr(nn, f"ConvTranspose{rank}d")

    def make(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Layer | None:
        if weight is None or not _weights(weight, bias) or input.dtype is not weight.dtype or input.ndim != rank + 2:
            return None
        config = dict(in_channels=weight.shape[0], out_channels=weight.shape[1] * groups)
        config |= dict(kernel_size=tuple(weight.shape[2:]), groups=groups, bias=bias is not None)
        config |= _geometry(rank, stride=stride, padding=padding, output_padding=output_padding, dilation=dilation)
        return Layer(kind, config, {"weight": weight, "bias": bias}, (input,))

    return make


for _rank in (1, 2, 3):
    _layer(f"conv{_rank}d")(_conv(_rank))
    _layer(f"conv_transpose{_rank}d")(_conv_transpose(_rank))


@_layer("linear")
def _linear(input: Any, weight: Any, bias: Any = None) -> Layer | None:
    if not _weights(weight, bias) or weight.ndim != 2 or input.ndim < 2 or input.dtype is not weight.dtype:
        return None
    if not weight.numel() or (bias is not None and tuple(bias.shape) != (weight.shape[0],)):
        return None
    config = dict(in_features=weight.shape[1], out_features=weight.shape[0], bias=bias is not None)
    return Layer(nn.Linear, config, {"weight": weight, "bias": bias}, (input,))


@_layer("batch_norm")
def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Layer | None:
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    state = dict(weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    if training or input.ndim not in kinds or any(t is None for t in state.values()) or not _weights(*state.values()):
        return None
    if input.dtype is not float32 or not all(tensor.dtype is float32 for tensor in state.values()):
        return None
    config = dict(num_features=weight.shape[0], eps=eps, momentum=momentum)
    return Layer(kinds[input.ndim], config, state, (input,))


@_layer("instance_norm")
def _instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Layer | None:
    kinds = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
    if input.ndim not in kinds or weight is None or bias is None or not _weights(weight, bias):
        return None
    if running_mean is not None or running_var is not None or not use_input_stats or input.dtype is not weight.dtype:
        return None
    config = dict(num_features=weight.shape[0], eps=eps, momentum=momentum, affine=True)
    return Layer(kinds[input.ndim], config, dict(weight=weight, bias=bias), (input,))


@_layer("group_norm")
def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Layer | None:
    if weight is None or bias is None or not _weights(weight, bias) or input.dtype is not weight.dtype:
        return None
    config = dict(num_groups=num_groups, num_channels=weight.shape[0], eps=eps)
    return Layer(nn.GroupNorm, config, {"weight": weight, "bias": bias}, (input,))


@_layer("layer_norm")
def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Layer | None:
    if weight is None or bias is None or not _weights(weight, bias) or input.dtype is not weight.dtype:
        return None
    config = dict(normalized_shape=tuple(normalized_shape), eps=eps)
    return Layer(nn.LayerNorm, config, {"weight": weight, "bias": bias}, (input,))


@_layer("prelu")
def _prelu(input: Any, weight: Any) -> Layer | None:
    if not _weights(weight) or weight.ndim != 1 or input.ndim < 2 or input.dtype is not weight.dtype:
        return None
    return Layer(nn.PReLU, dict(num_parameters=weight.shape[0]), {"weight": weight}, (input,))


@_layer("embedding")
def _embedding(input: Any, weight: Any) -> Layer | None:
    if not _weights(weight) or weight.ndim != 2 or not weight.numel():
        return None
    config = dict(num_embeddings=weight.shape[0], embedding_dim=weight.shape[1])
    return Layer(nn.Embedding, config, {"weight": weight}, (input,), index_limit=weight.shape[0])


@_layer("getitem")
def _lookup(table: Any, index: Any) -> Layer | None:
    """Rows of a constant table by an index tensor."""
    if isinstance(index, tuple) and len(index) == 1:
        (index,) = index
    if isinstance(index, (tuple, list, slice, Tensor)) or getattr(index, "ndim", 0) < 1:
        return None
    return _embedding(index, table) if index.dtype.is_integer else None


@_layer("dropout")
def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Layer | None:
    return None if training or inplace else Layer(nn.Dropout, dict(p=p), {}, (input,))


@_layer("multi_head_attention_forward")
def _multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
) -> Layer | None:
    state = {"in_proj_weight": in_proj_weight, "in_proj_bias": in_proj_bias}
    state |= {"out_proj.weight": out_proj_weight, "out_proj.bias": out_proj_bias}
    if not all(isinstance(tensor, Tensor) for tensor in state.values()) or not _weights(*state.values()):
        return None
    if (bias_k, bias_v) != (None, None) or training or add_zero_attn or need_weights:
        return None
    config = dict(embed_dim=embed_dim_to_check, num_heads=num_heads)
    masks = (key_padding_mask, attn_mask)
    given = () if all(mask is None for mask in masks) else masks
    return Layer(MultiheadAttention, config, state, (query, key, value, *given))


def _recurrent(kind: Any, **fixed: Any) -> Callable[..., Layer | None]:
    def make(
        input: Any,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Layer | None:
        if not _weights(*params) or train or input.dtype is not params[0].dtype or num_layers != 1:
            return None
        config = dict(input_size=params[0].shape[1], hidden_size=params[1].shape[1], num_layers=1, **fixed)
        config |= dict(bias=has_biases, batch_first=batch_first, dropout=dropout, bidirectional=bidirectional)
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if has_biases else ("weight_ih", "weight_hh")
        names = [f"{name}_l0{suffix}" for suffix in ("", "_reverse")[: 1 + bidirectional] for name in kinds]
        states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        inputs: tuple[Any, ...] = (input,)
        if not all(isinstance(state, Tensor) and not state.numpy().any() for state in states):
            inputs = (input, states if len(states) > 1 else states[0])  # a layer starts from zeros by itself
        return Layer(kind, config, dict(zip(names, params, strict=True)), inputs)

    return make


_layer("lstm")(_recurrent(nn.LSTM))
_layer("gru")(_recurrent(nn.GRU))
_layer("rnn_tanh")(_recurrent(nn.RNN, nonlinearity="tanh"))
_layer("rnn_relu")(_recurrent(nn.RNN, nonlinearity="relu"))
