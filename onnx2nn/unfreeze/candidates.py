"""Candidates for a failing node: constants that may hold the frozen size and that no rule covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.registry import TABLE
from onnx2nn.unfreeze.rules import Frozen, Repair, is_in_order, reshaped, same_along
from onnx2nn.unfreeze.sized_values import Sized
from onnx2nn.unfreeze.symbolic_walk import Values

_ANCESTORS = 400
"""The most nodes before a failing one that are searched for a constant with the frozen size."""
_SMALL = 64
"""The maximum number of elements of a constant that may be a list of sizes."""


def candidates(
    node: ir.Node, inputs: Sequence[Sized | None], frozen: Sequence[Frozen], values: Values, is_shared: bool = False
) -> Iterator[Repair]:
    """Yields constants that may make `node` fail, the likeliest first.

    Args:
        node: the node that fails.
        inputs: its inputs.
        frozen: the dimensions to make dynamic.
        values: the known values before it.
        is_shared: whether it fails because its result is one for all samples of a batch. A single 0 that indices are
            computed from may then be the first of the numbers that count the samples.
    """
    yield from _broadcast(node, inputs, frozen)
    for ancestor in _ancestors(node):
        row = None if ancestor.domain else TABLE.newest("", ancestor.op_type)
        position = None if row is None else row.size_position
        if ancestor.op_type == "Reshape":
            yield from _places(ancestor, frozen, values)
        for index, value in enumerate(ancestor.inputs):
            numbers = _constant(value)
            if numbers is None:
                continue
            for dimension in frozen:
                if index == position and numbers.size <= _SMALL:
                    for element in np.flatnonzero(numbers == dimension.size):
                        yield Repair(ancestor, index, "number", int(element), dimension.name)
                may_count = dimension.size > 1 or (is_shared and row is not None and not row.is_static(index))
                if numbers.ndim and may_count and _counts(numbers, dimension.size):
                    for axis in range(numbers.ndim) if dimension.size == 1 else (numbers.ndim - 1,):
                        yield Repair(ancestor, index, "range", axis, dimension.name)


def _broadcast(node: ir.Node, inputs: Sequence[Sized | None], frozen: Sequence[Frozen]) -> Iterator[Repair]:
    """Yields inputs with the frozen size on an axis on which another input has it too, and all slices are the same."""
    shapes = [None if value is None else value.shape for value in inputs]
    for dimension in frozen:
        for position, (value, shape) in enumerate(zip(inputs, shapes, strict=True)):
            if value is None or shape is None or value.is_dynamic:
                continue
            for axis, own in enumerate(shape):
                others = [s for p, s in enumerate(shapes) if p != position and s is not None and len(s) == len(shape)]
                meets = own == dimension.size and any(other[axis] == own for other in others)
                if meets and same_along(node, position, value, axis):
                    yield Repair(node, position, "repeat", axis, dimension.name)


def _places(node: ir.Node, frozen: Sequence[Frozen], values: Values) -> Iterator[Repair]:
    """Yields each dimension of a Reshape's target that may contain a freed dimension."""
    target = _constant(node.inputs[1]) if len(node.inputs) > 1 else None
    known = None if node.inputs[0] is None else values.get(node.inputs[0])
    if target is None or known is None:
        return
    shape = known.shape
    sizes = reshaped(shape, target.reshape(-1).tolist(), node.attributes.get_int("allowzero", 0))
    for dimension in frozen:
        for index, own in enumerate(sizes or ()):
            if own % dimension.size == 0 and is_in_order(known, sizes or (), index, dimension, values):
                yield Repair(node, 1, "place", index, dimension.name, (shape, sizes))


def _constant(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """Returns the elements of a small integer constant of the file, None for any other value."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or tensor.size > 1 << 16:
        return None
    return tensor.numpy()


def _counts(numbers: np.ndarray[Any, Any], size: int) -> bool:
    return numbers.size == size == numbers.shape[-1] and bool((numbers.ravel() == np.arange(size)).all())


def _ancestors(node: ir.Node) -> Iterator[ir.Node]:
    """Yields `node` and the nodes from which it is computed, the nearest first."""
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
