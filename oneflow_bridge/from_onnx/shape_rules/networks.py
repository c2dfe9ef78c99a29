"""Shape rules of convolutions, pools, attention, recurrent layers and what else networks are made of."""

from __future__ import annotations

import math
from typing import Any

from oneflow_bridge.from_onnx.dim import unknown_size
from oneflow_bridge.from_onnx.shape_rules.rule import (
    Shape,
    Uncovered,
    axis_of,
    broadcast,
    number_of,
    per_axis,
    put,
    rule,
    shape_of,
    size_of,
)
from onnx2nn.sizes.expression import Number


@rule("scaled_dot_product_attention")
def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Shape:
    q, k, v = map(shape_of, (query, key, value))
    return (*broadcast(q[:-2], k[:-2], v[:-2]), q[-2], v[-1])


@rule("nn.functional.embedding")
def _embedding(index: Any, weight: Any, *_: Any, **__: Any) -> Shape:
    return (*shape_of(index), *shape_of(weight)[1:])


@rule("embedding")
def _embedding_of_weight(weight: Any, index: Any, *_: Any, **__: Any) -> Shape:
    return _embedding(index, weight)


@rule("nn.functional.embedding_bag")
def _embedding_bag(index: Any, weight: Any, *_: Any, **__: Any) -> Shape:
    return (shape_of(index)[0], *shape_of(weight)[1:])


def _window(size: Number, kernel: int, stride: int, pad: int, dilation: int) -> Number:
    return (size + (2 * pad - dilation * (kernel - 1) - 1)) // stride + 1


@rule("conv1d", "conv2d", "conv3d")
def _convolution(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Shape:
    shape, w = shape_of(x), shape_of(weight)
    rank = len(w) - 2
    settings = [per_axis(value, rank) for value in (stride, padding, dilation)]
    sizes = [_window(*one) for one in zip(shape[-rank:], per_axis(w[2:], rank), *settings, strict=True)]
    return (*shape[: -rank - 1], w[0], *sizes)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Shape:
    shape, w = shape_of(x), shape_of(weight)
    rank = len(w) - 2
    settings = [per_axis(value, rank) for value in (stride, padding, output_padding, dilation)]
    sizes = [
        (size - 1) * step - 2 * pad + spread * (kernel - 1) + extra + 1
        for size, kernel, step, pad, extra, spread in zip(shape[-rank:], per_axis(w[2:], rank), *settings, strict=True)
    ]
    return (*shape[: -rank - 1], w[1] * groups, *sizes)


def _pool(name: str, rank: int) -> None:
    @rule(f"{name}{rank}d")
    def pool(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *args: Any, **kwargs: Any) -> Any:
        shape = shape_of(x)
        order = ("dilation", "ceil_mode", "return_indices") if name == "max_pool" else ("ceil_mode",)
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        kernels, pads = per_axis(kernel_size, rank), per_axis(padding, rank)
        strides = kernels if stride is None or stride == [] else per_axis(stride, rank)
        spreads = per_axis(given.get("dilation", 1), rank)
        sizes: list[Number] = []
        for one in zip(shape[-rank:], kernels, strides, pads, spreads, strict=True):
            sizes.append(unknown_size() if given.get("ceil_mode") else _window(*one))
        result = (*shape[:-rank], *sizes)
        return [result] * 2 if given.get("return_indices") else result

    @rule(f"adaptive_{name}{rank}d")
    def adaptive(x: Any, output_size: Any, return_indices: bool = False) -> Any:
        shape = shape_of(x)
        wanted = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size] * rank
        sizes = [old if new is None else size_of(new) for old, new in zip(shape[-rank:], wanted, strict=True)]
        result = (*shape[:-rank], *sizes)
        return [result] * 2 if return_indices else result


for _name in ("max_pool", "avg_pool"):
    for _rank in (1, 2, 3):
        _pool(_name, _rank)


@rule("pad")
def _pad(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Shape:
    shape = list(shape_of(x))
    for place in range(len(pad) // 2):
        axis = len(shape) - 1 - place
        shape[axis] = shape[axis] + number_of(pad[2 * place]) + number_of(pad[2 * place + 1])
    return tuple(shape)


@rule("interpolate")
def _interpolate(x: Any, size: Any = None, scale_factor: Any = None, *_: Any, **__: Any) -> Shape:
    shape = shape_of(x)
    given = scale_factor if size is None else size
    each = list(given) if isinstance(given, (list, tuple)) else [given] * (len(shape) - 2)
    sizes = map(size_of, each) if size is not None else map(_scaled, shape[2:], each)
    return (*shape[:2], *sizes)


def _scaled(size: Number, factor: Any) -> Number:
    if isinstance(size, int):
        return math.floor(size * float(factor))
    return size * int(factor) if float(factor).is_integer() else unknown_size()


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(x: Any, hx: Any, *options: Any) -> list[Shape]:
    shape, states = shape_of(x), list(hx) if isinstance(hx, (list, tuple)) else [hx]
    *_, bidirectional, _batch_first = options
    hidden = shape_of(states[0])[-1] * (2 if bidirectional else 1)
    return [(*shape[:2], hidden), *map(shape_of, states)]


@rule("multi_head_attention_forward")
def _multi_head_attention(query: Any, *_: Any, need_weights: bool = True, **__: Any) -> list[Any]:
    if need_weights:
        raise Uncovered
    return [shape_of(query), None]


@rule("pixel_shuffle")
def _pixel_shuffle(x: Any, factor: int) -> Shape:
    *front, channels, height, width = shape_of(x)
    return (*front, channels // (factor * factor), height * factor, width * factor)


@rule("pixel_unshuffle")
def _pixel_unshuffle(x: Any, factor: int) -> Shape:
    *front, channels, height, width = shape_of(x)
    return (*front, channels * factor * factor, height // factor, width // factor)


@rule("glu")
def _glu(x: Any, dim: Any = -1) -> Shape:
    shape = shape_of(x)
    axis = axis_of(dim, len(shape))
    return put(shape, axis, shape[axis] // 2)


@rule("grid_sample")
def _grid_sample(x: Any, grid: Any, *_: Any, **__: Any) -> Shape:
    return (*shape_of(x)[:2], *shape_of(grid)[1:-1])
