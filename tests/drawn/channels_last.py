"""Graphs as TensorFlow's exporters write them: images are `(N, H, W, C)`, with transposes around convolutions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.drawn.draw import Draw, window
from tests.drawn.graphs import Graph, NoCallError, Value

Step = Callable[["ChannelsLastGraph", Value], Value]
_STEPS: list[Step] = []


def _step(weight: int) -> Callable[[Step], Step]:
    def register(function: Step) -> Step:
        _STEPS.extend([function] * weight)
        return function

    return register


class ChannelsLastGraph(Graph):
    """Draws such a graph.

    Args:
        d: makes all choices.
    """

    def __init__(self, d: Draw):
        super().__init__(d)
        rank = d.one((4, 4, 4, 3))
        self.values = [self.leaf([d.int(1, 2), *(d.int(2, 5) for _ in range(rank - 2)), d.one((1, 2, 3, 4, 6))])]
        if d.flag(3):
            self.values.append(self.leaf(d.broadcastable(self.values[0].array.shape)))
        for _ in range(d.int(3, 9)):
            value = self.values[-1] if d.mostly(4) else d.one(self.values)
            if not 0 < value.array.ndim < 6 or not value.array.size:
                value = self.values[0]
            try:
                self.values.append(d.one(_STEPS)(self, value))
            except NoCallError:
                continue
        if len(self.nodes) < 2:
            raise NoCallError("no graph")
        self.outputs = [self.values[-1]]

    def around(self, value: Value, op: str, *others: Value, **attributes: object) -> Value:
        """Adds a node that takes channels first between two transposes."""
        rank = value.array.ndim
        if rank < 3:
            raise NoCallError("no image")
        first = self.node("Transpose", [value], perm=[0, rank - 1, *range(1, rank - 1)])
        made = self.node(op, [first, *others], **attributes)
        return self.node("Transpose", [made], perm=[0, *range(2, rank), 1])


@_step(5)
def _convolution(g: ChannelsLastGraph, x: Value) -> Value:
    d, channels, space = g.d, x.array.shape[-1], x.array.ndim - 2
    if space < 1:
        raise NoCallError("no image")
    group = channels if d.flag(3) else 1
    made = group * d.int(1, 3)
    weight = g.leaf([made, channels // group, *(d.int(1, 2) for _ in range(space))], constant=True)
    bias = [g.leaf([made], constant=True)] if d.flag() else []
    return g.around(x, "Conv", weight, *bias, group=group, **window(d, space))


@_step(2)
def _pool(g: ChannelsLastGraph, x: Value) -> Value:
    space = x.array.ndim - 2
    if g.d.flag(3):
        return g.around(x, g.d.one(("GlobalAveragePool", "GlobalMaxPool")))
    op = g.d.one(("MaxPool", "AveragePool"))
    return g.around(x, op, kernel_shape=[2] * space, **window(g.d, space, dilations=False, most=[1] * space))


@_step(4)
def _function(g: ChannelsLastGraph, x: Value) -> Value:
    return g.node(g.d.one(("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Softplus", "Identity")), [x])


@_step(6)
def _with_constant(g: ChannelsLastGraph, x: Value) -> Value:
    d, shape = g.d, list(x.array.shape)
    kind = d.int(0, 6)
    if kind <= 2:
        shape = shape[-1:]
    elif kind == 3:
        shape = [1] * (len(shape) - 1) + shape[-1:]
    elif kind == 4:
        shape = d.broadcastable(shape)
    elif kind == 5:
        shape = []
    else:
        shape = [1, *shape] if d.flag(3) else shape[-2:]
    pair = [x, g.leaf(shape, constant=True)]
    return g.node(d.one(("Add", "Mul", "Sub", "Max")), pair if d.flag() else pair[::-1])


@_step(4)
def _with_another(g: ChannelsLastGraph, x: Value) -> Value:
    pair = [x, g.d.one(g.values)]
    return g.node(g.d.one(("Add", "Mul", "Sub")), pair if g.d.flag() else pair[::-1])


@_step(2)
def _joined(g: ChannelsLastGraph, x: Value) -> Value:
    other = g.d.one(g.values)
    return g.node("Concat", [x, other], axis=-1 if g.d.flag() else g.d.axis(x.array.ndim))


@_step(3)
def _reduced(g: ChannelsLastGraph, x: Value) -> Value:
    d, rank = g.d, x.array.ndim
    axes = [1, 2] if rank == 4 and d.flag() else d.axes(rank, 1)
    op = d.one(("ReduceMean", "ReduceMax", "ReduceSum"))
    attributes = {"keepdims": d.int(0, 1)}
    if op == "ReduceSum" or g.opset >= 18:
        return g.node(op, [x, g.ints(*axes)], **attributes)
    return g.node(op, [x], axes=axes, **attributes)


@_step(2)
def _padded(g: ChannelsLastGraph, x: Value) -> Value:
    d, rank = g.d, x.array.ndim
    pads = [d.int(0, 1) if 0 < axis % rank < rank - 1 or d.flag(6) else 0 for axis in range(2 * rank)]
    value = [g.constant(np.asarray(d.one((0, 2)), g.dtype))] if d.flag() else []
    return g.node("Pad", [x, g.ints(*pads), *value], mode=d.one(("constant", "constant", "edge")))


@_step(2)
def _sliced(g: ChannelsLastGraph, x: Value) -> Value:
    d, axis = g.d, g.d.axis(x.array.ndim)
    start, step = d.int(-2, 1), d.one((1, 1, 2, -1))
    end = d.one((2, -1, 9999)) if step > 0 else -9999
    return g.node("Slice", [x, g.ints(start), g.ints(end), g.ints(axis), g.ints(step)])


@_step(1)
def _softmax(g: ChannelsLastGraph, x: Value) -> Value:
    return g.node(g.d.one(("Softmax", "LogSoftmax")), [x], axis=-1 if g.d.flag() else g.d.axis(x.array.ndim))


@_step(2)
def _reshaped(g: ChannelsLastGraph, x: Value) -> Value:
    d, shape = g.d, list(x.array.shape)
    if len(shape) > 2 and d.flag():
        at = d.int(0, len(shape) - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    else:
        at = d.int(0, len(shape) - 1)
        shape[at : at + 1] = [shape[at], 1] if d.flag() else [1, shape[at]]
    if d.flag():
        shape[d.r.randrange(len(shape))] = -1
    return g.node("Reshape", [x, g.ints(*shape)])


@_step(1)
def _axes(g: ChannelsLastGraph, x: Value) -> Value:
    ones = [axis for axis, size in enumerate(x.array.shape) if size == 1]
    if ones and g.d.mostly(3):
        return g.node("Squeeze", [x, g.ints(g.d.one(ones))])
    return g.node("Unsqueeze", [x, g.ints(g.d.axis(x.array.ndim + 1))])


@_step(1)
def _transposed(g: ChannelsLastGraph, x: Value) -> Value:
    return g.node("Transpose", [x], perm=g.d.shuffled(range(x.array.ndim)))


@_step(1)
def _product(g: ChannelsLastGraph, x: Value) -> Value:
    return g.node("MatMul", [x, g.leaf([x.array.shape[-1], g.d.int(1, 4)], constant=True)])


@_step(1)
def _picked(g: ChannelsLastGraph, x: Value) -> Value:
    axis = g.d.axis(x.array.ndim)
    count = x.array.shape[axis]
    indices = g.d.np.integers(-count, count, g.d.one(((), (2,), (3,)))).astype(np.int64)
    return g.node("Gather", [x, g.constant(indices)], axis=axis)


@_step(1)
def _resized(g: ChannelsLastGraph, x: Value) -> Value:
    rank = x.array.ndim
    if rank != 4:
        raise NoCallError("no image")
    scales = np.asarray([1, 1, g.d.one((1, 2)), 2], np.float32)
    nothing = g.constant(np.zeros(0, np.float32))
    mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return g.around(x, "Resize", nothing, g.constant(scales), **mode)


@_step(1)
def _slopes(g: ChannelsLastGraph, x: Value) -> Value:
    shape = [1] * max(x.array.ndim - 2, 0) + [x.array.shape[-1]]
    return g.node("PRelu", [x, g.leaf(shape, constant=True)])


@_step(1)
def _blocks(g: ChannelsLastGraph, x: Value) -> Value:
    if x.array.ndim != 4 or x.array.shape[-1] % 4:
        raise NoCallError("no blocks")
    return g.around(x, "DepthToSpace", blocksize=2, mode=g.d.one(("DCR", "CRD")))


@_step(1)
def _tiled(g: ChannelsLastGraph, x: Value) -> Value:
    return g.node("Tile", [x, g.ints(*(g.d.int(1, 2) for _ in x.array.shape))])
