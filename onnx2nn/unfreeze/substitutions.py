"""Substitutions for constants that hold a frozen size: their values for all sizes, and their ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.importing.node_facts import node_name
from onnx2nn.rewrite.rewrite_rule import REPLACEMENT_OPSET
from onnx2nn.sizes.expression import Number, floor_divide, multiply, product
from onnx2nn.unfreeze.sized_values import Sized

Dimension = tuple["ir.Value", int]
"""A value of the graph and one of its axes."""

DimensionSizes = Callable[[Dimension], Number]
"""Returns the size of a dimension."""


@dataclass(frozen=True)
class Size:
    """An integer computed from dimensions: `number` times their product, divided by `divisor` and rounded down.

    Attributes:
        dimensions: the factors that are read from the shapes of values.
        number: the constant factor.
        divisor: the divisor of the product.
    """

    dimensions: tuple[Dimension, ...]
    number: int = 1
    divisor: int = 1

    def __mul__(self, other: Size | int) -> Size:
        if isinstance(other, int):
            return Size(self.dimensions, self.number * other, self.divisor)
        return Size((*self.dimensions, *other.dimensions), self.number * other.number, self.divisor * other.divisor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Size:
        return Size(self.dimensions, self.number, self.divisor * divisor)

    def of(self, size_of: DimensionSizes) -> Number:
        """Returns the number for the given sizes."""
        return floor_divide(multiply(product(map(size_of, self.dimensions)), self.number), self.divisor)


@dataclass(frozen=True)
class Element:
    """The element at `index` of the replaced vector, which is computed from sizes already and stays."""

    index: int


@dataclass(frozen=True)
class Numbers:
    """A list of sizes that replaces another one.

    Attributes:
        items: the numbers, in the order of the elements.
        shape: the shape of the tensor.
        dtype: int64 or int32.
    """

    items: tuple[int | Size | Element, ...]
    shape: tuple[int, ...]
    dtype: ir.DataType = ir.DataType.INT64

    def of(self, value: Sized, size_of: DimensionSizes) -> Sized:
        """Returns the value that takes the place of `value`."""
        return value.with_elements([_number(item, value, size_of) for item in self.items], self.shape)

    def insert(self, nodes: Inserter, value: ir.Value) -> ir.Value:
        """Returns the value that the inserted nodes compute in place of `value`."""
        parts: list[ir.Value] = []
        constants: list[int] = []
        for item in (*self.items, None):
            if isinstance(item, int):
                constants.append(item)
                continue
            if constants:
                parts.append(nodes.constant(constants))
                constants = []
            if isinstance(item, Size):
                parts.append(nodes.size(item))
            elif isinstance(item, Element):
                parts.append(nodes.add("Gather", [value, nodes.constant([item.index])], axis=0))
        vector = parts[0] if len(parts) == 1 else nodes.add("Concat", parts, axis=0)
        if len(self.shape) != 1:
            vector = nodes.add("Reshape", [vector, nodes.constant(self.shape)])
        return nodes.cast(vector, self.dtype)


def _number(item: int | Size | Element, value: Sized, size_of: DimensionSizes) -> Any:
    if isinstance(item, Element):
        return value.elements[item.index]
    return item.of(size_of) if isinstance(item, Size) else item


@dataclass(frozen=True)
class Count:
    """The numbers from 0 up to a size along an axis, for a constant that counts to the frozen size.

    Attributes:
        axis: the axis.
        size: the number of elements.
        rank: the rank of the tensor; its other dimensions are 1.
        dtype: int64 or int32.
    """

    axis: int
    size: Size
    rank: int
    dtype: ir.DataType

    def of(self, value: Sized, size_of: DimensionSizes) -> Sized:
        """Returns the value that takes the place of `value`."""
        return value.with_shape(self._shape(self.size.of(size_of)))

    def insert(self, nodes: Inserter, value: ir.Value) -> ir.Value:
        """Returns the value that the inserted nodes compute in place of `value`."""
        end = nodes.add("Reshape", [nodes.size(self.size), nodes.constant([])])
        counted = nodes.cast(nodes.add("Range", [nodes.scalar(0), end, nodes.scalar(1)]), self.dtype)
        if self.rank == 1:
            return counted
        return nodes.add("Reshape", [counted, nodes.constant(self._shape(-1))])

    def _shape(self, size: Any) -> tuple[Any, ...]:
        return tuple(size if axis == self.axis else 1 for axis in range(self.rank))


@dataclass(frozen=True)
class Repeat:
    """The first slice of a value along an axis, repeated; all slices are the same at the frozen size.

    Attributes:
        axis: the axis.
        size: the number of repetitions.
        rank: the rank of the tensor.
        single: whether the axis has only one slice.
    """

    axis: int
    size: Size
    rank: int
    single: bool

    def of(self, value: Sized, size_of: DimensionSizes) -> Sized:
        """Returns the value that takes the place of `value`."""
        return value.with_shape((*value.sizes[: self.axis], self.size.of(size_of), *value.sizes[self.axis + 1 :]))

    def insert(self, nodes: Inserter, value: ir.Value) -> ir.Value:
        """Returns the value that the inserted nodes compute in place of `value`."""
        if not self.single:
            value = nodes.add("Slice", [value, *(nodes.constant([number]) for number in (0, 1, self.axis))])
        parts = [nodes.constant([1] * self.axis)] if self.axis else []
        parts.append(nodes.size(self.size))
        if self.axis + 1 < self.rank:
            parts.append(nodes.constant([1] * (self.rank - self.axis - 1)))
        shape = parts[0] if len(parts) == 1 else nodes.add("Concat", parts, axis=0)
        return nodes.add("Expand", [value, shape])


@dataclass(frozen=True)
class Absent:
    """No value, for an input that is zero without one, such as the initial state of a recurrent operator.

    Attributes:
        zeros: the zeros of any size that it stands for.
    """

    zeros: Repeat

    def of(self, value: Sized, size_of: DimensionSizes) -> Sized:
        """Returns the value that takes the place of `value`."""
        return self.zeros.of(value, size_of)

    def insert(self, nodes: Inserter, value: ir.Value) -> None:
        """Returns None: no value takes the place of `value`."""


Substitution = Numbers | Count | Repeat | Absent


class Inserter:
    """Inserts nodes before a node that is to read their outputs.

    Args:
        before: the node.
    """

    def __init__(self, before: ir.Node):
        assert before.graph is not None
        self._before, self._graph = before, before.graph
        self._count = 0

    def add(self, operator: str, inputs: Sequence[ir.Value], **attributes: int) -> ir.Value:
        """Returns the output of a new node."""
        return self._insert(operator, inputs, ir.convenience.convert_attributes(attributes))

    def constant(self, numbers: Sequence[int]) -> ir.Value:
        """Inserts a vector of int64."""
        return self._constant(np.array(numbers, dtype=np.int64))

    def scalar(self, number: int) -> ir.Value:
        """Inserts a scalar of int64."""
        return self._constant(np.array(number, dtype=np.int64))

    def size(self, size: Size) -> ir.Value:
        """Inserts the nodes that compute a size; returns it as a vector of one element."""
        result: ir.Value | None = None
        for value, axis in size.dimensions:
            shape = self.add("Shape", [value], start=axis, end=axis + 1)
            result = shape if result is None else self.add("Mul", [result, shape])
        assert result is not None, "a size has dimensions"
        if size.number != 1:
            result = self.add("Mul", [result, self.constant([size.number])])
        return self.add("Div", [result, self.constant([size.divisor])]) if size.divisor != 1 else result

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Casts a value of int64 to `dtype`."""
        return value if dtype == ir.DataType.INT64 else self.add("Cast", [value], to=int(dtype))

    def _constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        return self._insert("Constant", [], [ir.AttrTensor("value", ir.Tensor(array))])

    def _insert(self, operator: str, inputs: Sequence[ir.Value], attributes: Sequence[ir.Attr]) -> ir.Value:
        self._count += 1
        name = f"{node_name(self._before)}_{operator.lower()}_{self._count}"
        output = ir.Value(name=name)
        node = ir.Node("", operator, list(inputs), attributes, outputs=[output], version=REPLACEMENT_OPSET, name=name)
        node.metadata_props.update(self._before.metadata_props)  # the author's module around it
        self._graph.insert_before(self._before, node)
        return output


def apply(substitutions: Iterator[tuple[ir.Node, int, Substitution]]) -> None:
    """Inserts the nodes of substitutions before the nodes whose inputs they replace; removes what nothing reads then.

    Args:
        substitutions: node, position of the input, and its substitution.
    """
    inserters: dict[ir.Node, Inserter] = {}
    for node, position, substitution in substitutions:
        inserter = inserters.setdefault(node, Inserter(node))
        value = node.inputs[position]
        assert value is not None
        node.replace_input_with(position, substitution.insert(inserter, value))
        _remove_unread(value)


def _remove_unread(value: ir.Value) -> None:
    """Removes the node of a value that nothing reads, and the nodes before it whose outputs nothing reads then."""
    pending = [value]
    while pending:
        node = pending.pop().producer()
        if node is None or node.graph is None or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        pending += [v for v in node.inputs if v is not None]
        node.graph.remove(node, safe=True)
