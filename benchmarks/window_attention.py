"""A file like an export of SwinIR (Liang et al. 2021): shifted windows of attention, at all sizes of the batch.

The older exporter of torch writes such a model with its size arithmetic in each block, and the mask of each shifted
block anew. Blocks of a few channels make a file of many nodes and few weights.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_WINDOW, _HEADS, _WIDTH, _DEPTH = 4, 2, 8, 6
"""Edge of a window, heads, channels, blocks of a group."""


class _Writer:
    """Collects nodes and weights; nodes are named by the scope that they stand in, as the exporter does."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.scope = ""
        self._generator = np.random.default_rng(0)
        self._names: dict[str, int] = {}

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """Adds a node; returns its first result."""
        base = f"{self.scope}/{operator}"
        number = self._names[base] = self._names.get(base, -1) + 1
        name = f"{base}_{number}" if number else base
        results = [f"{name}_output_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, results, name, **attributes))
        return results[0]

    def constant(self, value: object, kind: type = np.int64) -> str:
        """Adds a Constant node."""
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(value, kind)))

    def weight(self, name: str, *shape: int) -> str:
        """Adds a weight of this scope under its key."""
        key = ".".join([*self.scope.strip("/").split("/"), name])
        values = self._generator.standard_normal(shape, np.float32) / np.float32(4)
        self.weights.append(numpy_helper.from_array(values, key))
        return key

    def numbers(self, *sizes: str | int) -> str:
        """Adds a vector of sizes; numbers of the graph are scalars."""
        zero = self.constant([0])
        parts = [self.constant([s]) if isinstance(s, int) else self.add("Unsqueeze", s, zero) for s in sizes]
        return self.add("Concat", *parts, axis=0)

    def size(self, x: str, axis: int) -> str:
        """Adds the size of an axis, as a scalar."""
        return self.add("Gather", self.add("Shape", x), self.constant(axis), axis=0)

    def over(self, number: str, divisor: int) -> str:
        """Adds a size divided by a number."""
        return self.add("Div", number, self.constant(divisor))

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Adds a linear layer."""
        outer, self.scope = self.scope, f"{self.scope}/{name}"
        product = self.add("MatMul", x, self.weight("weight", inputs, outputs))
        result = self.add("Add", self.weight("bias", outputs), product)
        self.scope = outer
        return result

    def norm(self, x: str, name: str) -> str:
        """Adds a layer normalisation, as opset 16 has none."""
        outer, self.scope = self.scope, f"{self.scope}/{name}"
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        squares = self.add("ReduceMean", self.add("Pow", centred, self.constant(2, np.float32)), axes=[-1])
        deviation = self.add("Sqrt", self.add("Add", squares, self.constant(1e-5, np.float32)))
        scaled = self.add("Mul", self.add("Div", centred, deviation), self.weight("weight", _WIDTH))
        result = self.add("Add", scaled, self.weight("bias", _WIDTH))
        self.scope = outer
        return result


def _windows(w: _Writer, x: str, channels: int) -> str:
    """Adds the windows `(batch * windows, edge, edge, channels)` of an image `(batch, height, width, channels)`."""
    b, rows, columns = w.size(x, 0), w.over(w.size(x, 1), _WINDOW), w.over(w.size(x, 2), _WINDOW)
    parts = w.add("Reshape", x, w.numbers(b, rows, _WINDOW, columns, _WINDOW, channels))
    return w.add(
        "Reshape", w.add("Transpose", parts, perm=[0, 1, 3, 2, 4, 5]), w.numbers(-1, _WINDOW, _WINDOW, channels)
    )


def _image(w: _Writer, windows: str, height: str, width: str) -> str:
    """Adds the image of windows."""
    rows, columns = w.over(height, _WINDOW), w.over(width, _WINDOW)
    parts = w.add("Reshape", windows, w.numbers(-1, rows, columns, _WINDOW, _WINDOW, _WIDTH))
    return w.add("Reshape", w.add("Transpose", parts, perm=[0, 1, 3, 2, 4, 5]), w.numbers(-1, height, width, _WIDTH))


def _rolled(w: _Writer, x: str, shift: int) -> str:
    """Adds `torch.roll` along rows and columns."""
    end = w.constant([np.iinfo(np.int64).max])
    for axis in (1, 2):
        at = w.constant([axis])
        parts = (
            w.add("Slice", x, w.constant([-shift]), end, at),
            w.add("Slice", x, w.constant([0]), w.constant([-shift]), at),
        )
        x = w.add("Concat", *parts, axis=axis)
    return x


def _mask(w: _Writer, height: str, width: str) -> str:
    """Adds the mask `(windows, elements, elements)` that keeps apart what the roll put together."""
    regions = []
    for size in (height, width):
        places = w.add("Range", w.constant(0), size, w.constant(1))
        bounds = (w.add("Sub", size, w.constant(length)) for length in (_WINDOW, _WINDOW // 2))
        first, second = (
            w.add("Cast", w.add("GreaterOrEqual", places, bound), to=TensorProto.FLOAT) for bound in bounds
        )
        regions.append(w.add("Add", first, second))
    rows = w.add("Unsqueeze", w.add("Mul", regions[0], w.constant(3, np.float32)), w.constant([0, 2, 3]))
    numbers = w.add("Add", rows, w.add("Unsqueeze", regions[1], w.constant([0, 1, 3])))
    flat = w.add("Reshape", _windows(w, numbers, 1), w.constant([-1, _WINDOW * _WINDOW]))
    apart = w.add("Sub", w.add("Unsqueeze", flat, w.constant([1])), w.add("Unsqueeze", flat, w.constant([2])))
    same = w.add("Equal", apart, w.constant(0, np.float32))
    return w.add("Where", same, w.constant(0, np.float32), w.constant(-100, np.float32))


def _attention(w: _Writer, x: str, mask: str | None) -> str:
    """Adds attention inside windows `(batch * windows, elements, channels)`."""
    count, steps, head = w.size(x, 0), _WINDOW * _WINDOW, _WIDTH // _HEADS
    packed = w.add("Reshape", w.linear(x, "qkv", _WIDTH, 3 * _WIDTH), w.numbers(count, steps, 3, _HEADS, head))
    packed = w.add("Transpose", packed, perm=[2, 0, 3, 1, 4])
    q, k, v = (w.add("Gather", packed, w.constant(index), axis=0) for index in range(3))
    q = w.add("Mul", q, w.constant(head**-0.5, np.float32))
    scores = w.add("MatMul", q, w.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = w.add("Add", scores, w.weight("relative_position_bias", 1, _HEADS, steps, steps))
    if mask is not None:
        windows = w.size(mask, 0)
        parts = w.add("Reshape", scores, w.numbers(w.add("Div", count, windows), windows, _HEADS, steps, steps))
        masked = w.add("Add", parts, w.add("Unsqueeze", mask, w.constant([0, 2])))
        scores = w.add("Reshape", masked, w.numbers(-1, _HEADS, steps, steps))
    found = w.add("MatMul", w.add("Softmax", scores, axis=-1), v)
    found = w.add("Reshape", w.add("Transpose", found, perm=[0, 2, 1, 3]), w.numbers(count, steps, _WIDTH))
    return w.linear(found, "proj", _WIDTH, _WIDTH)


def _block(w: _Writer, x: str, height: str, width: str, shift: int) -> str:
    """Adds a block on tokens `(batch, height * width, channels)`."""
    scope, b = w.scope, w.size(x, 0)
    image = w.add("Reshape", w.norm(x, "norm1"), w.numbers(b, height, width, _WIDTH))
    if shift:
        image = _rolled(w, image, -shift)
    windows = w.add("Reshape", _windows(w, image, _WIDTH), w.numbers(-1, _WINDOW * _WINDOW, _WIDTH))
    mask = _mask(w, height, width) if shift else None
    w.scope = f"{scope}/attn"
    found = _attention(w, windows, mask)
    w.scope = scope
    image = _image(w, w.add("Reshape", found, w.numbers(-1, _WINDOW, _WINDOW, _WIDTH)), height, width)
    if shift:
        image = _rolled(w, image, shift)
    x = w.add("Add", x, w.add("Reshape", image, w.numbers(b, w.add("Mul", height, width), _WIDTH)))
    normed = w.norm(x, "norm2")
    w.scope = f"{scope}/mlp"
    hidden = w.linear(normed, "fc1", _WIDTH, 2 * _WIDTH)
    error = w.add("Erf", w.add("Div", hidden, w.constant(2**0.5, np.float32)))
    gelu = w.add(
        "Mul", w.add("Mul", hidden, w.add("Add", error, w.constant(1, np.float32))), w.constant(0.5, np.float32)
    )
    result = w.add("Add", x, w.linear(gelu, "fc2", 2 * _WIDTH, _WIDTH))
    w.scope = scope
    return result


def model(count: int) -> onnx.ModelProto:
    """Returns a model of at least `count` nodes for images `(batch, 8, 8, 12)`."""
    w = _Writer()
    height, width = w.size("image", 2), w.size("image", 3)
    tokens = w.add("Reshape", "image", w.numbers(w.size("image", 0), _WIDTH, -1))
    x = w.add("Transpose", tokens, perm=[0, 2, 1])
    group = 0
    while len(w.nodes) < count:
        entered = x
        for index in range(_DEPTH):
            w.scope = f"/layers.{group}/residual_group/blocks.{index}"
            x = _block(w, x, height, width, _WINDOW // 2 if index % 2 else 0)
        w.scope = f"/layers.{group}"
        image = w.add("Reshape", w.add("Transpose", x, perm=[0, 2, 1]), w.numbers(w.size(x, 0), _WIDTH, height, width))
        w.scope += "/conv"
        kernel, bias = w.weight("weight", _WIDTH, _WIDTH, 3, 3), w.weight("bias", _WIDTH)
        image = w.add("Conv", image, kernel, bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        w.scope = f"/layers.{group}"
        flat = w.add("Reshape", image, w.numbers(w.size(image, 0), _WIDTH, -1))
        x = w.add("Add", w.add("Transpose", flat, perm=[0, 2, 1]), entered)
        group += 1
    given = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", _WIDTH, 8, 12])
    found = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", 96, _WIDTH])
    graph = helper.make_graph(w.nodes, "windows", [given], [found], w.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
