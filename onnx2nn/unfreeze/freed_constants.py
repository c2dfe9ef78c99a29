"""Sizes that an exporter baked into a file become dynamic again: `load(..., dynamic={"x": {0: "batch"}})`.

A file exported at one size holds that size in constants: in the target of a Reshape, the end of a Slice, a mask of
that length, an initial state. The model is imported twice. The first time as it is, which tells every value's shape at
the frozen size; the second time with dynamic dimensions, where each constant that the frozen size explains is replaced
by what it was computed from. A Reshape's target follows from how its dimensions line up with those of its input. The
other constants show by the nodes that fail: what stands before such a node is tried, from the nearest on, and kept
where the import gets further. In the end both modules run on the same inputs; what differs is an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import OperatorError
from onnx2nn.fx.constants import Constant
from onnx2nn.fx.dim import Dim
from onnx2nn.fx.tensor import Tensor
from onnx2nn.optable.row import OWN
from onnx2nn.optable.shape_values import Host

Frozen = Mapping[str, int]
"""Names of the dimensions to free → their size in the file."""

_SIZES = {"Expand": 1, "ConstantOfShape": 0, "Slice": 2, "Range": 1, "Resize": 3, "Tile": 1}
"""Operators that take sizes, and the position of the input that holds them."""
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
_ANCESTORS = 400
"""So many nodes before a failing one are searched for a constant that holds the frozen size."""
_SMALL = 64
"""Elements of the largest constant that is taken for a list of sizes."""


@dataclass(frozen=True)
class Repair:
    """One constant that is to follow a dynamic dimension.

    Attributes:
        node: the node that takes it.
        position: which of the node's inputs it is.
        kind: `"number"`: its element at `index` is the dimension's size; `"range"`: it counts from 0 up to that size;
            `"repeat"`: along its axis `index`, where all of it is the same, it is repeated to that size; `"place"`: of
            a Reshape's target, the dimension at `index` holds it.
        index: see `kind`.
        name: of the dimension.
    """

    node: ir.Node
    position: int
    kind: str
    index: int
    name: str


class Thaw:
    """What one import replaces.

    Args:
        frozen: the dimensions to free.
        shapes: every value's shape at the frozen size, as far as known.
        repairs: found so far.
    """

    def __init__(self, frozen: Frozen, shapes: Mapping[ir.Value, tuple[int, ...]], repairs: Sequence[Repair] = ()):
        self.frozen, self.shapes = frozen, shapes
        self.repairs: dict[ir.Node, list[Repair]] = {}
        self._places: dict[Any, dict[str, int]] = {}
        for repair in repairs:
            self.repairs.setdefault(repair.node, []).append(repair)
            if repair.kind == "place":
                self._places.setdefault(self._alike(repair.node), {})[repair.name] = repair.index
        self.dims: dict[str, Any] = {}

    def _alike(self, node: ir.Node) -> Any:
        """What reshapes have in common that repeated blocks of a network hold: they are repaired together."""
        return tuple(None if v is None else self.shapes.get(v) for v in (node.inputs[0], node.outputs[0]))

    def places(self, node: ir.Node) -> Mapping[str, int]:
        """Returns which dimension of a Reshape's target the freed dimensions go into, as far as that was found."""
        own = {r.name: r.index for r in self.repairs.get(node, ()) if r.kind == "place"}
        return {**self._places.get(self._alike(node), {}), **own}

    def factors(self, dim: Any, size: int) -> list[Factor]:
        """Returns what a dimension, `size` in the file, is made of: freed dimensions times a number, where it is."""
        if not isinstance(dim, Dim):
            return [Factor(size)]
        names = [name for name in self.frozen if isinstance(self.dims.get(name), Dim)]
        for count in (1, 2):
            for some in itertools.combinations(names, count):
                own = math.prod(self.frozen[name] for name in some)
                products = [math.prod(values) for values in zip(*(self.dims[n].values for n in some), strict=True)]
                if size % own == 0 and all(v == p * (size // own) for v, p in zip(dim.values, products, strict=True)):
                    return [*(Factor(self.frozen[n], self.dims[n], n) for n in some), Factor(size // own)]
        return [Factor(size, dim)]

    def inputs(self, node: ir.Node, inputs: Sequence[Any]) -> list[Any]:
        """Returns what `node` gets in place of `inputs`."""
        inputs = list(inputs)
        for repair in self.repairs.get(node, ()):
            if repair.kind == "place":
                continue
            inputs[repair.position] = self._repaired(inputs[repair.position], repair)
        shapes = [None if value is None else self.shapes.get(value) for value in node.inputs]
        rule = _RULES.get(node.op_type) if node.domain in ("", OWN) else None
        return inputs if rule is None else rule(self, node, inputs, shapes)

    def _repaired(self, value: Any, repair: Repair) -> Any:
        dim = self.dims[repair.name]
        if repair.kind == "number":
            array, dtype = _numbers(value)
            array = array.copy()
            array.flat[repair.index] = dim
            return Host(array, dtype)
        if repair.kind == "range":
            return _range(value, dim)
        return _repeat(value, repair.index, dim)


def _numbers(value: Constant | Host) -> tuple[np.ndarray[Any, Any], np.dtype[Any]]:
    if isinstance(value, Host):
        return value.array, value.dtype
    return value.numpy().astype(object), value.numpy().dtype


def _range(value: Constant, dim: Any) -> Tensor:
    tracer = dim.tracer
    counted = tracer.F.arange(dim, dtype=value.value.dtype)
    return counted.reshape(*value.shape[:-1], -1) if len(value.shape) > 1 else counted


def _repeat(value: Any, axis: int, dim: Any) -> Tensor:
    tracer = dim.tracer
    tensor = tracer.attribute(value.value) if isinstance(value, Constant) else value
    if tensor.shape[axis] != 1:
        tensor = tensor.narrow(axis, 0, 1)
    return tensor.expand(*(dim if i == axis else -1 for i in range(tensor.ndim)))


# ---- what follows from the shapes around a node


def _is_dynamic(value: Any) -> bool:
    return isinstance(value, Tensor) and value.spec.shapes is not None and any(isinstance(d, Dim) for d in value.shape)


def _sizes(inputs: Sequence[Any], position: int) -> list[Any] | None:
    """Returns a list of sizes that a node takes, ints and what follows from other dimensions; None: not known."""
    value = inputs[position] if position < len(inputs) else None
    if isinstance(value, Host):
        return list(value.array.tolist())
    return list(value.numpy().tolist()) if isinstance(value, Constant) and len(value.shape) == 1 else None


def _replaced(inputs: Sequence[Any], position: int, sizes: Sequence[Any]) -> list[Any]:
    host = Host(np.array([*sizes, None], dtype=object)[:-1], np.dtype(np.int64))
    return [*inputs[:position], host, *inputs[position + 1 :]]


def _reshape(thaw: Thaw, node: ir.Node, inputs: list[Any], shapes: Sequence[Any]) -> list[Any]:
    """Fixed sizes of the target are written in terms of the input's dimensions."""
    target, sizes = _sizes(inputs, 1), thaw.shapes.get(node.outputs[0])
    if target is None or sizes is None or shapes[0] is None or not _is_dynamic(inputs[0]) or not math.prod(sizes):
        return inputs
    factors = [f for dim, size in zip(inputs[0].shape, shapes[0], strict=True) for f in thaw.factors(dim, size)]
    found = aligned(factors, sizes, thaw.places(node))
    kept = [item if isinstance(item, Dim) or item == -1 else new for item, new in zip(target, found, strict=True)]
    return _replaced(inputs, 1, kept)


def _expand(thaw: Thaw, node: ir.Node, inputs: list[Any], shapes: Sequence[Any]) -> list[Any]:
    """A dimension that has its size already need not be named: 1 leaves it as it is."""
    target = _sizes(inputs, 1)
    if target is None or shapes[0] is None or not _is_dynamic(inputs[0]):
        return inputs
    lead = len(target) - inputs[0].ndim
    for axis, (dim, size) in enumerate(zip(inputs[0].shape, shapes[0], strict=True)):
        if isinstance(dim, Dim) and lead + axis >= 0 and _is(target[lead + axis], size):
            target[lead + axis] = 1
    return _replaced(inputs, 1, target)


def _slice(thaw: Thaw, node: ir.Node, inputs: list[Any], shapes: Sequence[Any]) -> list[Any]:
    """An end that is the dimension's frozen size is its end at any size."""
    ends, axes = _sizes(inputs, 2), _sizes(inputs, 3)
    if ends is None or shapes[0] is None or not _is_dynamic(inputs[0]):
        return inputs
    if len(inputs) > 3 and inputs[3] is not None and axes is None:
        return inputs
    for position, axis in enumerate(range(len(ends)) if axes is None else axes):
        if isinstance(inputs[0].shape[axis], Dim) and _is(ends[position], shapes[0][axis]):
            ends[position] = np.iinfo(np.int64).max
    return _replaced(inputs, 2, ends)


def _resize(thaw: Thaw, node: ir.Node, inputs: list[Any], shapes: Sequence[Any]) -> list[Any]:
    """Sizes that are a multiple or a whole part of the input's follow it."""
    sizes = _sizes(inputs, 3)
    if sizes is None or shapes[0] is None or not _is_dynamic(inputs[0]):
        return inputs
    for position, axis in enumerate(node.attributes.get_ints("axes", list(range(len(sizes))))):
        dim, size, wanted = inputs[0].shape[axis], shapes[0][axis], sizes[position]
        if isinstance(wanted, Dim) or not isinstance(dim, Dim) or not size or not wanted:
            continue
        if wanted % size == 0:
            sizes[position] = dim * (wanted // size)
        elif size % wanted == 0:
            sizes[position] = dim // (size // wanted)
    return _replaced(inputs, 3, sizes)


def _is(value: Any, size: int) -> bool:
    return not isinstance(value, Dim) and bool(value == size)


def _recurrent(thaw: Thaw, node: ir.Node, inputs: list[Any], shapes: Sequence[Any]) -> list[Any]:
    """Initial states that are the same for the whole batch follow its size."""
    if node.domain == OWN:  # raised, and then as nn.LSTM has it: the states follow the input, layers first
        positions: Sequence[int] = range(1, 1 + len(_STATES[node.op_type]))
        batch, axis = 0 if node.attributes.get_int("batch_first", 0) else 1, 1
    else:
        positions = _STATES[node.op_type]
        batch = axis = 0 if node.attributes.get_int("layout", 0) else 1
    if not _is_dynamic(inputs[0]) or not isinstance(inputs[0].shape[batch], Dim):
        return inputs
    for position in positions:
        state = inputs[position] if position < len(inputs) else None
        if isinstance(state, (Constant, Tensor)) and not _is_dynamic(state) and _same_along(state, axis):
            inputs[position] = _repeat(state, axis, inputs[0].shape[batch])
    return inputs


_RULES = {"Reshape": _reshape, "Expand": _expand, "Slice": _slice, "Resize": _resize}
_RULES |= dict.fromkeys(_STATES, _recurrent)


class Factor(NamedTuple):
    """A factor of a tensor's number of elements.

    Attributes:
        size: at the frozen size.
        dim: at any size; None where it is always `size`.
        name: of the dynamic dimension that it is, `""` where it is computed from some.
    """

    size: int
    dim: Any = None
    name: str = ""


def aligned(factors: Sequence[Factor], sizes: Sequence[int], places: Mapping[str, int]) -> list[Any]:
    """Returns a Reshape's target for any size, from the target that was right at the frozen size.

    A reshape keeps the order of the elements, so every factor of their number covers a range of it; a dynamic one goes
    where its range ends up. One of frozen size 1 stands between two others: it becomes a 1 of the target that stands
    there, else a factor of the dimension that begins there, unless `places` says where.

    Args:
        factors: of the input's dimensions in their order.
        sizes: the target at the frozen size.
        places: name of a dynamic dimension → index of the target dimension that it goes into.

    Raises:
        OperatorError: a dynamic dimension is cut at a size that does not follow from it.
    """
    ends = [1]
    for size in sizes:
        ends.append(ends[-1] * size)
    static = list(sizes)
    dynamic: list[list[Any]] = [[] for _ in sizes]
    before = 1
    for factor in factors:
        if factor.dim is not None:
            k, dim = _place(factor, sizes, ends, before, dynamic, places)
            size = math.gcd(factor.size, static[k]) if dim is not factor.dim else factor.size
            if static[k] % size:
                raise OperatorError(f"a dimension to free, {factor.size} in the file, goes into one of {sizes[k]}.")
            static[k] //= size
            dynamic[k].append(dim)
        before *= factor.size
    return [math.prod(dims, start=size) for size, dims in zip(static, dynamic, strict=True)]


def _place(
    factor: Factor,
    sizes: Sequence[int],
    ends: Sequence[int],
    before: int,
    dynamic: Sequence[Sequence[Any]],
    places: Mapping[str, int],
) -> tuple[int, Any]:
    """Returns the target dimension that a factor goes into, and what of it does."""
    if factor.name in places:
        return places[factor.name], factor.dim
    if factor.size == 1:
        ones = [k for k, size in enumerate(sizes) if size == 1 and ends[k] == before and not dynamic[k]]
        begins = [k for k, size in enumerate(sizes) if size > 1 and ends[k] == before]
        around = [k for k in range(len(sizes)) if ends[k] <= before <= ends[k + 1]]
        return (ones or begins or around)[0], factor.dim
    covered = [k for k in range(len(sizes)) if ends[k] < before * factor.size and ends[k + 1] > before]
    if len(covered) == 1:
        return covered[0], factor.dim
    parts = [sizes[k] for k in covered]
    if math.prod(parts) != factor.size:
        raise OperatorError(f"a dimension to free, {factor.size} in the file, is divided into {parts}.")
    return covered[0], factor.dim // math.prod(parts[1:])


# ---- what a failing node suggests


def repairs(node: ir.Node, inputs: Sequence[Any], thaw: Thaw) -> Iterator[Repair]:
    """Yields constants that may be what makes `node` fail, the likeliest first.

    Args:
        node: the node that fails, on `inputs`.
        inputs: its inputs as the import knows them.
        thaw: of the failed import.
    """
    yield from _broadcast(node, inputs, thaw)
    for ancestor in _ancestors(node):
        position = _SIZES.get(ancestor.op_type, -1) if ancestor.domain == "" else -1
        if ancestor.op_type == "Reshape":
            yield from _places(ancestor, thaw)
        for index, value in enumerate(ancestor.inputs):
            numbers = _constant(value)
            if numbers is None:
                continue
            for name, size in thaw.frozen.items():
                if index == position and numbers.size <= _SMALL:
                    for element, number in enumerate(numbers.flat):
                        if number == size:
                            yield Repair(ancestor, index, "number", element, name)
                if size > 1 and numbers.ndim and _counts(numbers, size):
                    yield Repair(ancestor, index, "range", 0, name)


def _broadcast(node: ir.Node, inputs: Sequence[Any], thaw: Thaw) -> Iterator[Repair]:
    """Inputs with the frozen size where another has the dynamic one, or where a state's batch is."""
    shapes = [None if value is None else thaw.shapes.get(value) for value in node.inputs]
    for name, size in thaw.frozen.items():
        for position, (value, shape) in enumerate(zip(inputs, shapes, strict=False)):
            if shape is None or not isinstance(value, (Constant, Tensor)) or _is_dynamic(value):
                continue
            for axis, own in enumerate(shape):
                others = [s for p, s in enumerate(shapes) if p != position and s is not None and len(s) == len(shape)]
                if own == size and any(other[axis] == own for other in others) and _same_along(value, axis):
                    yield Repair(node, position, "repeat", axis, name)


def _places(node: ir.Node, thaw: Thaw) -> Iterator[Repair]:
    """Every dimension of a Reshape's target that a freed dimension may go into."""
    target = _constant(node.inputs[1]) if len(node.inputs) > 1 else None
    shape = thaw.shapes.get(node.outputs[0])
    if target is None or shape is None:
        return
    for name, size in thaw.frozen.items():
        for index, own in enumerate(shape):
            if own % size == 0:
                yield Repair(node, 1, "place", index, name)


def _same_along(value: Constant | Tensor, axis: int) -> bool:
    if isinstance(value, Tensor):
        return value.shape[axis] == 1
    array = value.value
    return bool((array == array.narrow(axis, 0, 1)).all()) if hasattr(array, "narrow") else False


def _constant(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """Returns the whole numbers of a small constant of the file."""
    if value is None:
        return None
    tensor = value.const_value
    producer = value.producer()
    if tensor is None and producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        tensor = producer.attributes["value"].as_tensor()
    if tensor is None or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or tensor.size > 1 << 16:
        return None
    return tensor.numpy()


def _counts(numbers: np.ndarray[Any, Any], size: int) -> bool:
    return numbers.size == size == numbers.shape[-1] and bool((numbers.ravel() == np.arange(size)).all())


def _ancestors(node: ir.Node) -> Iterator[ir.Node]:
    """Yields `node` and what it is computed from, the nearest first."""
    seen = {node}
    queue = [node]
    for current in queue:
        yield current
        if len(queue) > _ANCESTORS:
            continue
        for value in current.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in seen:
                seen.add(producer)
                queue.append(producer)
