"""The `torch.nn` layers that a functional call with constant weights stands for.

A row body writes `F.nn.functional.conv2d(x, weight, ...)`; where the weights are constants the tracer asks `layer_for`
and records a call of `nn.Conv2d` holding them instead. The functional and the layer mean the same, so rows and layers
know nothing of each other.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from onnx2nn.fx.own_state import own_buffers


@dataclass(frozen=True)
class Layer:
    """A layer still to be built.

    Attributes:
        kind: the `nn.Module` subclass.
        config: its constructor's arguments.
        state: its parameters and buffers by dotted name; None where the layer has none of that name.
        inputs: the positional arguments of its call.
        structure: how the layer nests the function's results, by position (`(0, (1, 2))`); None: as the function does.
    """

    kind: type[nn.Module]
    config: dict[str, Any]
    state: dict[str, torch.Tensor | None]
    inputs: tuple[Any, ...]
    structure: Any = None

    def build(self) -> nn.Module:
        """Returns the layer with its weights; its own initialisation is skipped (it would be thrown away)."""
        if not self.state:
            return self.kind(**self.config)
        module = _uninitialised(self.kind)(**self.config, device="meta")  # type: ignore[arg-type]
        module.__class__ = self.kind
        for name, tensor in self.state.items():
            if tensor is None:
                continue
            inner, _, name = name.rpartition(".")
            holder = module.get_submodule(inner)
            if name in own_buffers(holder) or isinstance(tensor, nn.Parameter):
                setattr(holder, name, tensor)
            else:
                setattr(holder, name, nn.Parameter(tensor))
        if getattr(module, "num_batches_tracked", None) is not None:  # of an InstanceNorm without statistics it is None
            module.num_batches_tracked = torch.zeros((), dtype=torch.int64)
        return module


@functools.cache
def _uninitialised(kind: Any) -> type[nn.Module]:
    """Returns `kind` without its random initialisation, which costs more than all else in building a layer."""
    return type(kind.__name__, (kind,), {"reset_parameters": lambda self: None, "__module__": kind.__module__})


_LAYERS: dict[Any, tuple[inspect.Signature, Callable[..., Layer | None]]] = {}


def _layer(function: Any) -> Callable[[Callable[..., Layer | None]], Callable[..., Layer | None]]:
    def add(make: Callable[..., Layer | None]) -> Callable[..., Layer | None]:
        _LAYERS[function] = (inspect.signature(make), make)
        return make

    return add


def may_be_layer(function: Any) -> bool:
    """Returns whether some call of `function` stands for a layer."""
    return function in _LAYERS


def layer_for(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layer | None:
    """Returns the layer that the call `function(*args, **kwargs)` stands for, None where it stands for none.

    Constants among the arguments are real `torch.Tensor`s; anything else that is a tensor is the caller's own type.
    """
    entry = _LAYERS.get(function)
    if entry is None:
        return None
    signature, make = entry
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    return make(*bound.args, **bound.kwargs)


def _constant(*tensors: Any) -> bool:
    return all(tensor is None or isinstance(tensor, torch.Tensor) for tensor in tensors)


def _conv(kind: type[nn.Module]) -> Callable[..., Layer | None]:
    def make(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Layer | None:
        if not isinstance(weight, torch.Tensor) or not _constant(bias) or not weight.is_floating_point():
            return None
        kernel = tuple(weight.shape[2:])
        config = dict(in_channels=weight.shape[1] * groups, out_channels=weight.shape[0], kernel_size=kernel)
        config |= dict(stride=stride, padding=padding, dilation=dilation, groups=groups, bias=bias is not None)
        return Layer(kind, config, {"weight": weight, "bias": bias}, (input,))

    return make


def _conv_transpose(kind: type[nn.Module]) -> Callable[..., Layer | None]:
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
        if not isinstance(weight, torch.Tensor) or not _constant(bias) or not weight.is_floating_point():
            return None
        kernel = tuple(weight.shape[2:])
        config = dict(in_channels=weight.shape[0], out_channels=weight.shape[1] * groups, kernel_size=kernel)
        config |= dict(stride=stride, padding=padding, output_padding=output_padding, groups=groups, dilation=dilation)
        config["bias"] = bias is not None
        return Layer(kind, config, {"weight": weight, "bias": bias}, (input,))

    return make


_layer(F.conv1d)(_conv(nn.Conv1d))
_layer(F.conv2d)(_conv(nn.Conv2d))
_layer(F.conv3d)(_conv(nn.Conv3d))
_layer(F.conv_transpose1d)(_conv_transpose(nn.ConvTranspose1d))
_layer(F.conv_transpose2d)(_conv_transpose(nn.ConvTranspose2d))
_layer(F.conv_transpose3d)(_conv_transpose(nn.ConvTranspose3d))


@_layer(F.linear)
def _linear(input: Any, weight: Any, bias: Any = None) -> Layer | None:
    if not isinstance(weight, torch.Tensor) or not _constant(bias) or weight.ndim != 2:
        return None
    if not weight.is_floating_point() or (bias is not None and tuple(bias.shape) != (weight.shape[0],)):
        return None
    config = dict(in_features=weight.shape[1], out_features=weight.shape[0], bias=bias is not None)
    return Layer(nn.Linear, config, {"weight": weight, "bias": bias}, (input,))


@_layer(F.batch_norm)
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
    if training or input.ndim not in kinds or not all(isinstance(t, torch.Tensor) for t in state.values()):
        return None
    config = dict(num_features=weight.shape[0], eps=eps, momentum=momentum)
    return Layer(kinds[input.ndim], config, state, (input,))


@_layer(F.instance_norm)
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
    state = dict(weight=weight, bias=bias)
    if input.ndim not in kinds or not all(isinstance(t, torch.Tensor) for t in state.values()):
        return None
    if running_mean is not None or running_var is not None or not use_input_stats:
        return None
    config = dict(num_features=weight.shape[0], eps=eps, momentum=momentum, affine=True)
    return Layer(kinds[input.ndim], config, state, (input,))


@_layer(F.group_norm)
def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Layer | None:
    if not isinstance(weight, torch.Tensor) or not isinstance(bias, torch.Tensor):
        return None
    config = dict(num_groups=num_groups, num_channels=weight.shape[0], eps=eps)
    return Layer(nn.GroupNorm, config, {"weight": weight, "bias": bias}, (input,))


@_layer(F.layer_norm)
def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Layer | None:
    if not isinstance(weight, torch.Tensor) or not _constant(bias):
        return None
    config = dict(normalized_shape=tuple(normalized_shape), eps=eps, bias=bias is not None)
    return Layer(nn.LayerNorm, config, {"weight": weight, "bias": bias}, (input,))


@_layer(F.rms_norm)
def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Layer | None:
    if not isinstance(weight, torch.Tensor):
        return None
    config = dict(normalized_shape=tuple(normalized_shape), eps=eps)
    return Layer(nn.RMSNorm, config, {"weight": weight}, (input,))


@_layer(F.prelu)
def _prelu(input: Any, weight: Any) -> Layer | None:
    if not isinstance(weight, torch.Tensor) or weight.ndim != 1 or not weight.is_floating_point():
        return None
    return Layer(nn.PReLU, dict(num_parameters=weight.shape[0]), {"weight": weight}, (input,))


@_layer(F.embedding)
def _embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Layer | None:
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    if max_norm is not None or scale_grad_by_freq or sparse or padding_idx is not None:
        return None
    config = dict(num_embeddings=weight.shape[0], embedding_dim=weight.shape[1])
    return Layer(nn.Embedding, config, {"weight": weight}, (input,))


@_layer(operator.getitem)
def _lookup(table: Any, index: Any) -> Layer | None:
    """Rows of a constant table by an index tensor; to the layer an index below zero is an error."""
    if isinstance(index, (tuple, list, slice, torch.Tensor)) or getattr(index, "ndim", 0) < 1:
        return None
    if getattr(index, "dtype", None) not in (torch.int32, torch.int64):
        return None
    return _embedding(index, table)


@_layer(F.dropout)
def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Layer | None:
    if training or inplace:
        return None
    return Layer(nn.Dropout, dict(p=p), {}, (input,))


@_layer(F.multi_head_attention_forward)
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
    state = {"in_proj_weight": in_proj_weight, "out_proj.weight": out_proj_weight}
    biases = {"in_proj_bias": in_proj_bias, "out_proj.bias": out_proj_bias}
    plain = in_proj_bias is None and out_proj_bias is None
    state |= {} if plain else biases
    if not all(isinstance(tensor, torch.Tensor) for tensor in state.values()) or training or add_zero_attn:
        return None
    if (bias_k, bias_v) != (None, None):
        return None
    config = dict(embed_dim=embed_dim_to_check, num_heads=num_heads, dropout=dropout_p, bias=not plain)
    masks = () if attn_mask is None else (attn_mask,)
    return Layer(nn.MultiheadAttention, config, state, (query, key, value, key_padding_mask, need_weights, *masks))


@_layer(F.channel_shuffle)
def _channel_shuffle(input: Any, groups: int) -> Layer:
    """pnnx knows the layer, not the function."""
    return Layer(nn.ChannelShuffle, dict(groups=groups), {}, (input,))


def _is_zeros(value: Any) -> bool:
    """Returns whether a tensor is known to hold zeros alone: a constant, or `torch.zeros` at run time."""
    if isinstance(value, torch.Tensor):
        return not bool(value.any())
    return getattr(getattr(value, "node", None), "target", None) is torch.zeros


def _recurrent(kind: type[nn.RNNBase], **fixed: Any) -> Callable[..., Layer | None]:
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
        if not _constant(*params) or train:
            return None
        config = dict(input_size=params[0].shape[1], hidden_size=params[1].shape[1], num_layers=num_layers, **fixed)
        config |= dict(bias=has_biases, batch_first=batch_first, dropout=dropout, bidirectional=bidirectional)
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if has_biases else ("weight_ih", "weight_hh")
        names = [
            f"{name}_l{layer}{suffix}"
            for layer in range(num_layers)
            for suffix in ("", "_reverse")[: 1 + bidirectional]
            for name in kinds
        ]
        states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        inputs: tuple[Any, ...] = (input,)
        if not all(_is_zeros(state) for state in states):  # a layer starts from zeros by itself
            inputs = (input, states if len(states) > 1 else states[0])
        structure = (0, (1, 2)) if len(states) > 1 else None
        return Layer(kind, config, dict(zip(names, params, strict=True)), inputs, structure)

    return make


def unchecked(function: Any, args: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields the sizes in a call that must be equal, though the function itself does not look.

    torch.lstm and the like read beyond an initial state that is for a smaller batch; the layers check theirs.
    """
    if function in _RECURRENT:
        input, hx, *_, batch_first = args
        states = hx if isinstance(hx, (list, tuple)) else (hx,)
        yield from ((state.shape[1], input.shape[0 if batch_first else 1]) for state in states)


_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}

_layer(torch.lstm)(_recurrent(nn.LSTM))
_layer(torch.gru)(_recurrent(nn.GRU))
_layer(torch.rnn_tanh)(_recurrent(nn.RNN, nonlinearity="tanh"))
_layer(torch.rnn_relu)(_recurrent(nn.RNN, nonlinearity="relu"))
