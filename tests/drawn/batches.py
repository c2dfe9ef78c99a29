"""Random graphs with a batch of 1 that operators merge, move, repeat, cut off or compute with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Shape = tuple[int, ...]

INPUT = "x"
_MOST = 5
"""The most dimensions."""


class Batch:
    """A graph that is drawn for one sample.

    Args:
        seed: makes all choices.

    Attributes:
        shape: the shape of the input, whose first dimension is the batch of 1.
    """

    def __init__(self, seed: int):
        self.r, self.np = random.Random(f"batch.{seed}"), np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self.shape: Shape = (1, *(self.r.choice([1, 2, 3, 4, 4, 6]) for _ in range(self.r.randint(1, 3))))
        self.shapes: dict[str, Shape] = {INPUT: self.shape}
        while len(self.shapes) == 1:
            for _ in range(self.r.randint(2, 14)):
                self.r.choice(STEPS)(self)

    def model(self) -> onnx.ModelProto:
        """Returns the model: its last value and perhaps another one are the outputs."""
        drawn = [name for name in self.shapes if name != INPUT]
        outputs = dict.fromkeys([drawn[-1], *([self.r.choice(drawn)] if self.r.random() < 0.3 else [])])
        inputs = [helper.make_tensor_value_info(INPUT, onnx.TensorProto.FLOAT, self.shape)]
        infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, self.shapes[name]) for name in outputs]
        graph = helper.make_graph(self._nodes, "batch", inputs, infos, self._constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def value(self) -> tuple[str, Shape]:
        """Returns a value, mostly the last one, and its shape."""
        names = list(self.shapes)
        name = names[-1] if self.r.random() < 0.7 else self.r.choice(names)
        return name, self.shapes[name]

    def constant(self, array: Any) -> str:
        """Adds an initializer; returns its name."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def numbers(self, *numbers: int) -> str:
        """Adds a vector of int64."""
        return self.constant(np.array(numbers, np.int64))

    def weight(self, *shape: int) -> str:
        """Adds random floats."""
        return self.constant((self.np.normal(size=shape) * 0.5).astype(np.float32))

    def node(self, op: str, inputs: Sequence[str], count: int = 1, **attributes: Any) -> list[str]:
        """Adds a node; returns its outputs, whose shapes are not noted."""
        number = len(self._nodes)
        outputs = [f"v{number}_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(op, inputs, outputs, f"{op}_{number}", **attributes))
        return outputs

    def add(self, op: str, inputs: Sequence[str], *shapes: Sequence[int], **attributes: Any) -> str:
        """Adds a node with outputs of these shapes; returns the first."""
        outputs = self.node(op, inputs, len(shapes), **attributes)
        self.shapes.update(zip(outputs, map(tuple, shapes), strict=True))
        return outputs[0]


Step = Callable[[Batch], None]
STEPS: list[Step] = []


def _step(times: int = 1) -> Callable[[Step], Step]:
    def register(step: Step) -> Step:
        STEPS.extend([step] * times)
        return step

    return register


def _with(shape: Shape, axis: int, *sizes: int) -> Shape:
    """Returns a shape with other dimensions, or none, in the place of one."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


@_step(3)
def _reshape(g: Batch) -> None:
    x, shape = g.value()
    rest = math.prod(shape)
    sizes = [1] if g.r.random() < 0.6 else []
    for _ in range(g.r.randint(0, 2)):
        sizes.append(g.r.choice([k for k in range(1, rest + 1) if rest % k == 0]))
        rest //= sizes[-1]
    sizes.append(rest)
    if g.r.random() < 0.3:
        g.r.shuffle(sizes)
    target, place = list(sizes), g.r.randrange(len(sizes))
    if g.r.random() < 0.4:
        target[place] = -1
    elif place < len(shape) and sizes[place] == shape[place]:
        target[place] = 0
    g.add("Reshape", [x, g.numbers(*target)], sizes)


@_step()
def _reshape_by_the_shape(g: Batch) -> None:
    x, shape = g.value()
    if len(shape) > 1:
        (sizes,) = g.node("Shape", [x])
        (first,) = g.node("Gather", [sizes, g.numbers(0)])
        (target,) = g.node("Concat", [first, g.numbers(-1)], axis=0)
        g.add("Reshape", [x, target], (shape[0], math.prod(shape[1:])))


@_step()
def _flatten(g: Batch) -> None:
    x, shape = g.value()
    axis = g.r.randint(0, len(shape))
    g.add("Flatten", [x], (math.prod(shape[:axis]), math.prod(shape[axis:])), axis=axis)


@_step(2)
def _transpose(g: Batch) -> None:
    x, shape = g.value()
    order = g.r.sample(range(len(shape)), len(shape))
    if order:
        g.add("Transpose", [x], [shape[axis] for axis in order], perm=order)


@_step()
def _squeeze(g: Batch) -> None:
    x, shape = g.value()
    if ones := [axis for axis, size in enumerate(shape) if size == 1]:
        axes = sorted(g.r.sample(ones, g.r.randint(1, len(ones))))
        g.add("Squeeze", [x, g.numbers(*axes)], [size for axis, size in enumerate(shape) if axis not in axes])


@_step()
def _unsqueeze(g: Batch) -> None:
    x, shape = g.value()
    axis = g.r.randint(0, len(shape))
    if len(shape) < _MOST:
        g.add("Unsqueeze", [x, g.numbers(axis)], (*shape[:axis], 1, *shape[axis:]))


@_step(2)
def _elementwise(g: Batch) -> None:
    x, shape = g.value()
    g.add(g.r.choice(["Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Elu"]), [x], shape)


@_step(2)
def _with_a_weight(g: Batch) -> None:
    x, shape = g.value()
    weight = g.weight(*(size if g.r.random() < 0.6 else 1 for size in shape))
    g.add(g.r.choice(["Add", "Mul", "Sub"]), g.r.sample([x, weight], 2), shape)


@_step()
def _with_positions(g: Batch) -> None:
    x, shape = g.value()
    if shape:
        axis = g.r.randrange(len(shape))
        sizes = [-1 if i == axis else 1 for i in range(len(shape))]
        g.add("Add", [x, g.constant(np.arange(shape[axis], dtype=np.float32).reshape(sizes))], shape)


@_step()
def _where(g: Batch) -> None:
    x, shape = g.value()
    (chosen,) = g.node("Greater", [x, g.constant(np.float32(0.1))])
    other = g.weight(*(size if g.r.random() < 0.5 else 1 for size in shape))
    g.add("Where", [chosen, x, other], shape)


@_step()
def _product(g: Batch) -> None:
    x, shape = g.value()
    if shape:
        wide = g.r.randint(1, 5)
        g.add("MatMul", [x, g.weight(shape[-1], wide)], (*shape[:-1], wide))


@_step()
def _product_with_itself(g: Batch) -> None:
    x, shape = g.value()
    if len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        y = g.add("Transpose", [x], [shape[axis] for axis in order], perm=order)
        g.add("MatMul", [x, y], (*shape[:-1], shape[-2]))


@_step()
def _convolution(g: Batch) -> None:
    x, shape = g.value()
    if len(shape) in (3, 4):
        channels, size = g.r.randint(1, 4), g.r.choice([1, 3])
        kernel = [size] * (len(shape) - 2)
        weights = [g.weight(channels, shape[1], *kernel), g.weight(channels)]
        g.add("Conv", [x, *weights], _with(shape, 1, channels), pads=[size // 2] * (2 * len(kernel)))


@_step()
def _reduction(g: Batch) -> None:
    x, shape = g.value()
    if shape:
        axes = sorted(g.r.sample(range(len(shape)), g.r.randint(1, max(1, len(shape) - 1))))
        kept, op = g.r.randint(0, 1), g.r.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"])
        sizes = [1 if axis in axes else size for axis, size in enumerate(shape) if kept or axis not in axes]
        g.add(op, [x, g.numbers(*axes)], sizes, keepdims=kept)


@_step()
def _largest(g: Batch) -> None:
    x, shape = g.value()
    if shape:
        axis, kept = g.r.randrange(len(shape)), g.r.randint(0, 1)
        (index,) = g.node("ArgMax", [x], axis=axis, keepdims=kept)
        g.add("Cast", [index], _with(shape, axis, *([1] if kept else [])), to=onnx.TensorProto.FLOAT)


@_step()
def _along_an_axis(g: Batch) -> None:
    x, shape = g.value()
    if shape:
        axis = g.r.randrange(len(shape))
        if g.r.random() < 0.5:
            g.add("Softmax", [x], shape, axis=axis)
        else:
            g.add("CumSum", [x, g.constant(np.int64(axis))], shape)


@_step()
def _norm(g: Batch) -> None:
    x, shape = g.value()
    if len(shape) > 1:
        g.add("LayerNormalization", [x, g.weight(shape[-1]), g.weight(shape[-1])], shape, axis=-1)


@_step()
def _concat(g: Batch) -> None:
    """With another value where one fits, else with a weight of one or two slices."""
    x, shape = g.value()
    if not shape:
        return
    axis = g.r.randrange(len(shape))
    fits = [
        name
        for name, other in g.shapes.items()
        if len(other) == len(shape) and _with(other, axis) == _with(shape, axis)
    ]
    other = g.r.choice(fits) if g.r.random() < 0.5 else ""
    size = g.shapes[other][axis] if other else g.r.randint(1, 2)
    parts = [x, other or g.weight(*_with(shape, axis, size))]
    g.add("Concat", g.r.sample(parts, 2), _with(shape, axis, shape[axis] + size), axis=axis)


@_step()
def _token(g: Batch) -> None:
    """A weight that is repeated to the sizes of a value, and stands before it."""
    x, shape = g.value()
    if shape:
        axis = g.r.randrange(len(shape))
        slice_ = _with(shape, axis, 1)
        weight = g.weight(*(1 if g.r.random() < 0.5 else size for size in slice_))
        token = g.add("Expand", [weight, g.numbers(*slice_)], slice_)
        g.add("Concat", [token, x], _with(shape, axis, shape[axis] + 1), axis=axis)


@_step()
def _slice(g: Batch) -> None:
    x, shape = g.value()
    if shape:
        axis = g.r.randrange(len(shape))
        begin = g.r.randint(0, shape[axis] - 1)
        end = g.r.randint(begin + 1, shape[axis])
        given = (1 << 31) if end == shape[axis] and g.r.random() < 0.4 else end
        g.add("Slice", [x, *map(g.numbers, (begin, given, axis))], _with(shape, axis, end - begin))


@_step()
def _gather(g: Batch) -> None:
    x, shape = g.value()
    if not shape:
        return
    axis = g.r.randrange(len(shape))
    chosen = [g.r.randrange(shape[axis]) for _ in range(g.r.randint(1, 3))]
    if g.r.random() < 0.6:
        g.add("Gather", [x, g.constant(np.int64(chosen[0]))], _with(shape, axis), axis=axis)
    else:
        g.add("Gather", [x, g.numbers(*chosen)], _with(shape, axis, len(chosen)), axis=axis)


@_step()
def _split(g: Batch) -> None:
    x, shape = g.value()
    if wide := [axis for axis, size in enumerate(shape) if size > 1]:
        axis = g.r.choice(wide)
        first = g.r.randint(1, shape[axis] - 1)
        sizes = (first, shape[axis] - first)
        g.add("Split", [x, g.numbers(*sizes)], *(_with(shape, axis, size) for size in sizes), axis=axis)


@_step()
def _repeat(g: Batch) -> None:
    x, shape = g.value()
    if g.r.random() < 0.5:
        sizes = [g.r.choice([1, 2, 3]) if size == 1 and g.r.random() < 0.5 else size for size in shape]
        g.add("Expand", [x, g.numbers(*sizes)], sizes)
    elif shape:
        times = [g.r.choice([1, 1, 1, 2]) for _ in shape]
        g.add("Tile", [x, g.numbers(*times)], [size * n for size, n in zip(shape, times, strict=True)])


@_step()
def _pad(g: Batch) -> None:
    x, shape = g.value()
    if shape:
        axis, pads = g.r.randrange(len(shape)), [0] * (2 * len(shape))
        pads[axis], pads[axis + len(shape)] = g.r.randint(0, 1), g.r.randint(0, 1)
        g.add("Pad", [x, g.numbers(*pads)], _with(shape, axis, shape[axis] + sum(pads)))


@_step()
def _resize(g: Batch) -> None:
    x, shape = g.value()
    if len(shape) in (3, 4):
        sizes = (*shape[:2], *(size * g.r.randint(1, 2) for size in shape[2:]))
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        g.add("Resize", [x, "", "", g.numbers(*sizes)], sizes, mode="nearest", **how)


@_step()
def _recurrence(g: Batch) -> None:
    x, shape = g.value()
    if len(shape) != 3:
        return
    length, batch, features = shape
    hidden = g.r.randint(1, 3)
    inputs = [x, g.weight(1, 3 * hidden, features), g.weight(1, 3 * hidden, hidden), g.weight(1, 6 * hidden)]
    if g.r.random() < 0.6:
        state = (1, batch, hidden)
        inputs += ["", g.weight(*state) if g.r.random() < 0.5 else g.constant(np.zeros(state, np.float32))]
    g.add("GRU", inputs, (length, 1, batch, hidden), (1, batch, hidden), hidden_size=hidden)
