"""The layers of PyTorch and OneFlow that replace functional calls with constant weights.

A row body calls `F.nn.functional.conv2d(x, weight, ...)`. Where the weights are constants, the import records a call of
a layer that holds them. The function and the layer compute the same, so that rows and layers are independent of each
other. Functions are identified by name (`conv2d`) and have torch's signatures.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


class Layer(NamedTuple):
    """The description of a layer that is not built yet.

    Attributes:
        kind: the name of its class (`"Conv2d"`).
        config: its constructor's arguments.
        state: its parameters and buffers by dotted name; None for an absent one (`bias=False`).
        inputs: the positional arguments of its call.
        structure: the nesting of the layer's results, by position in the function's (`(0, (1, 2))`); None: the same.
        index_limit: the number of rows of an embedding, None for other layers.
        keywords: the keyword arguments of its call.
    """

    kind: str
    config: dict[str, Any]
    state: dict[str, Any]
    inputs: tuple[Any, ...]
    structure: Any = None
    index_limit: int | None = None
    keywords: Mapping[str, Any] = types.MappingProxyType({})


class Framework(NamedTuple):
    """The differences between the layers of the frameworks.

    Attributes:
        tensor: the type of a constant.
        holds: whether a value is a constant that a layer may hold as a parameter or buffer.
        is_index: whether an element type is one for indices.
        is_zeros: whether a value is known to hold zeros alone.
        strict: whether a layer takes inputs of its weights' type and of its own rank only, and numbers as padding.
        statistics: the only element type of batch normalisation, None for any type.
        stacks: whether a recurrent module has several layers (`num_layers`), and nests its states.
        options: whether attention has dropout, optional biases and returned weights, and LayerNorm an optional bias.
        unbiased: whether the other normalisations have an optional bias beside a weight.
        lacks: functions for which there is no layer.
    """

    tensor: type
    holds: Callable[[Any], bool]
    is_index: Callable[[Any], bool]
    is_zeros: Callable[[Any], bool]
    strict: bool = False
    statistics: Any = None
    stacks: bool = True
    options: bool = True
    unbiased: bool = False
    lacks: frozenset[str] = frozenset()

    def fits(self, input: Any, *weights: Any, optional: tuple[Any, ...] = ()) -> bool:
        """Returns whether all weights are constants (`optional` ones may be None) and the input has their type."""
        given = (*weights, *(weight for weight in optional if weight is not None))
        return all(map(self.holds, given)) and (not self.strict or input.dtype is weights[0].dtype)

    def fits_norm(self, input: Any, weight: Any, bias: Any) -> bool:
        """Returns whether a normalisation with these weights may be a layer."""
        return self.fits(input, weight, optional=(bias,)) and (bias is not None or self.unbiased)

    def ranked(self, input: Any, rank: int) -> bool:
        """Returns whether the input has the rank `rank`, in a framework whose layers require it."""
        return not self.strict or input.ndim == rank


class Layers:
    """The layers of one framework."""

    def __init__(self, framework: Framework):
        made = {name: functools.partial(make, framework) for name, make in _LAYERS.items()}
        self._known = {name: (_Signature(f), f) for name, f in made.items() if name not in framework.lacks}

    def __iter__(self) -> Iterator[str]:
        """Yields the names of the functions."""
        return iter(self._known)

    def find(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layer | None:
        """Returns the layer that replaces the call `name(*args, **kwargs)`, None where there is none."""
        if name not in self._known:
            return None
        signature, make = self._known[name]
        return make(*args, **kwargs) if signature.takes(args, kwargs) else None


class _Signature:
    """The parameters of a function, all of which are positional or keyword ones.

    `inspect.Signature.bind` takes as long as building a layer.
    """

    def __init__(self, function: Callable[..., Any]):
        parameters = inspect.signature(function).parameters.values()
        assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
        self._names = [parameter.name for parameter in parameters]
        self._required = frozenset(p.name for p in parameters if p.default is p.empty)

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether the function can be called so."""
        given, rest = self._names[: len(args)], self._names[len(args) :]
        return len(args) <= len(self._names) and kwargs.keys() <= {*rest} and self._required <= {*given, *kwargs}


_LAYERS: dict[str, Callable[..., Layer | None]] = {}


def _layer(name: str) -> Callable[[Callable[..., Layer | None]], Callable[..., Layer | None]]:
    def add(make: Callable[..., Layer | None]) -> Callable[..., Layer | None]:
        _LAYERS[name] = make
        return make

    return add


def _geometry(framework: Framework, rank: int, **values: Any) -> dict[str, Any]:
    if not framework.strict:
        return values
    return {
        name: (value,) * rank if isinstance(value, int) else tuple(int(v) for v in value)
        for name, value in values.items()
    }


def _conv(rank: int) -> Callable[..., Layer | None]:
    def make(
        framework: Framework,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Layer | None:
        if not framework.fits(input, weight, optional=(bias,)) or not framework.ranked(input, rank + 2):
            return None
        if framework.strict and isinstance(padding, str):
            return None
        config = dict(in_channels=weight.shape[1] * groups, out_channels=weight.shape[0])
        config |= dict(kernel_size=tuple(weight.shape[2:]))
        config |= _geometry(framework, rank, stride=stride, padding=padding, dilation=dilation)
        config |= dict(groups=groups, bias=bias is not None)
        return Layer(f"Conv{rank}d", config, {"weight": weight, "bias": bias}, (input,))

    return make


def _conv_transpose(rank: int) -> Callable[..., Layer | None]:
    def make(
        framework: Framework,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Layer | None:
        if not framework.fits(input, weight, optional=(bias,)) or not framework.ranked(input, rank + 2):
            return None
        config = dict(in_channels=weight.shape[0], out_channels=weight.shape[1] * groups)
        config |= dict(kernel_size=tuple(weight.shape[2:]))
        config |= _geometry(framework, rank, stride=stride, padding=padding, output_padding=output_padding)
        config |= dict(groups=groups, **_geometry(framework, rank, dilation=dilation), bias=bias is not None)
        return Layer(f"ConvTranspose{rank}d", config, {"weight": weight, "bias": bias}, (input,))

    return make


for _rank in (1, 2, 3):
    _layer(f"conv{_rank}d")(_conv(_rank))
    _layer(f"conv_transpose{_rank}d")(_conv_transpose(_rank))


@_layer("linear")
def _linear(framework: Framework, input: Any, weight: Any, bias: Any = None) -> Layer | None:
    if not framework.fits(input, weight, optional=(bias,)) or weight.ndim != 2:
        return None
    if (framework.strict and input.ndim < 2) or (bias is not None and tuple(bias.shape) != (weight.shape[0],)):
        return None
    config = dict(in_features=weight.shape[1], out_features=weight.shape[0], bias=bias is not None)
    return Layer("Linear", config, {"weight": weight, "bias": bias}, (input,))


def _bias_option(bias: Any) -> dict[str, Any]:
    """Returns the argument of a normalisation with a weight alone, which torch's older versions lack."""
    return {} if bias is not None else {"bias": False}


@_layer("batch_norm")
def _batch_norm(
    framework: Framework,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Layer | None:
    kinds = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}
    state = dict(weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    given = [tensor for tensor in state.values() if tensor is not None]
    if training or input.ndim not in kinds or (weight is None and bias is not None):
        return None
    if not framework.fits(input, *given) or (len(given) == 3 and not framework.unbiased):
        return None
    types = {tensor.dtype for tensor in given}
    if framework.statistics is not None and types != {framework.statistics}:
        return None
    config = dict(num_features=running_mean.shape[0], eps=eps, momentum=momentum)
    config |= {"affine": False} if weight is None else _bias_option(bias)
    return Layer(kinds[input.ndim], config, state, (input,))


@_layer("instance_norm")
def _instance_norm(
    framework: Framework,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Layer | None:
    kinds = {3: "InstanceNorm1d", 4: "InstanceNorm2d", 5: "InstanceNorm3d"}
    if input.ndim not in kinds or not framework.fits_norm(input, weight, bias):
        return None
    if running_mean is not None or running_var is not None or not use_input_stats:
        return None
    config = dict(num_features=weight.shape[0], eps=eps, momentum=momentum, affine=True)
    config |= _bias_option(bias)
    return Layer(kinds[input.ndim], config, dict(weight=weight, bias=bias), (input,))


@_layer("group_norm")
def _group_norm(
    framework: Framework, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Layer | None:
    if not framework.fits_norm(input, weight, bias):
        return None
    config = dict(num_groups=num_groups, num_channels=weight.shape[0], eps=eps) | _bias_option(bias)
    return Layer("GroupNorm", config, {"weight": weight, "bias": bias}, (input,))


@_layer("layer_norm")
def _layer_norm(
    framework: Framework, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Layer | None:
    if not framework.fits(input, weight, optional=(bias,)) or (bias is None and not framework.options):
        return None
    config = dict(normalized_shape=tuple(weight.shape), eps=eps)  # what the sizes of the input must be
    config |= dict(bias=bias is not None) if framework.options else {}
    return Layer("LayerNorm", config, {"weight": weight, "bias": bias}, (input,))


@_layer("rms_norm")
def _rms_norm(
    framework: Framework, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Layer | None:
    if not framework.fits(input, weight):
        return None
    config = dict(normalized_shape=tuple(weight.shape), eps=eps)
    return Layer("RMSNorm", config, {"weight": weight}, (input,))


@_layer("prelu")
def _prelu(framework: Framework, input: Any, weight: Any) -> Layer | None:
    if not framework.fits(input, weight) or weight.ndim != 1 or (framework.strict and input.ndim < 2):
        return None
    return Layer("PReLU", dict(num_parameters=weight.shape[0]), {"weight": weight}, (input,))


@_layer("embedding")
def _embedding(
    framework: Framework,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Layer | None:
    if not framework.holds(weight) or weight.ndim != 2:
        return None
    if max_norm is not None or scale_grad_by_freq or sparse or padding_idx is not None:
        return None
    config = dict(num_embeddings=weight.shape[0], embedding_dim=weight.shape[1])
    return Layer("Embedding", config, {"weight": weight}, (input,), index_limit=weight.shape[0])


@_layer("getitem")
def _lookup(framework: Framework, table: Any, index: Any) -> Layer | None:
    """A lookup of rows of a constant table by an index tensor; the layer refuses negative indices."""
    if isinstance(index, tuple) and len(index) == 1 and framework.strict:
        (index,) = index
    if isinstance(index, (tuple, list, slice, framework.tensor)) or getattr(index, "ndim", 0) < 1:
        return None
    return _embedding(framework, index, table) if framework.is_index(getattr(index, "dtype", None)) else None


@_layer("dropout")
def _dropout(
    framework: Framework, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Layer | None:
    return None if training or inplace else Layer("Dropout", dict(p=p), {}, (input,))


@_layer("multi_head_attention_forward")
def _multi_head_attention(
    framework: Framework,
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
    plain = in_proj_bias is None and out_proj_bias is None and framework.options
    state |= {} if plain else biases
    if not all(map(framework.holds, state.values())) or (bias_k, bias_v) != (None, None) or training or add_zero_attn:
        return None
    if query.ndim != 3:
        return None
    config: dict[str, Any] = dict(embed_dim=embed_dim_to_check, num_heads=num_heads)
    masks = dict(key_padding_mask=key_padding_mask, attn_mask=attn_mask)
    if framework.options:
        config |= dict(dropout=dropout_p, bias=not plain)
        keywords: dict[str, Any] = {name: mask for name, mask in masks.items() if mask is not None}
        keywords |= {} if need_weights else dict(need_weights=False)
        return Layer("MultiheadAttention", config, state, (query, key, value), keywords=keywords)
    if need_weights:
        return None
    further = () if key_padding_mask is None and attn_mask is None else tuple(masks.values())
    return Layer("MultiheadAttention", config, state, (query, key, value, *further))


@_layer("channel_shuffle")
def _channel_shuffle(framework: Framework, input: Any, groups: int) -> Layer:
    """For pnnx, which supports the layer but not the function."""
    return Layer("ChannelShuffle", dict(groups=groups), {}, (input,))


def _recurrent(kind: str, **fixed: Any) -> Callable[..., Layer | None]:
    def make(
        framework: Framework,
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
        if not framework.fits(input, *params) or train or (num_layers > 1 and not framework.stacks):
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
        if not all(map(framework.is_zeros, states)):  # a layer starts from zeros by itself
            inputs = (input, states if len(states) > 1 else states[0])
        structure = (0, (1, 2)) if len(states) > 1 and framework.stacks else None
        return Layer(kind, config, dict(zip(names, params, strict=True)), inputs, structure)

    return make


_layer("lstm")(_recurrent("LSTM"))
_layer("gru")(_recurrent("GRU"))
_layer("rnn_tanh")(_recurrent("RNN", nonlinearity="tanh"))
_layer("rnn_relu")(_recurrent("RNN", nonlinearity="relu"))
