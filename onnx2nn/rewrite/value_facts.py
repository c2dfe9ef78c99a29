"""Static facts about the values of a graph, for rewrite rules: constants, shape values, shapes, ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.limits import Account
from onnx2nn.importing.node_facts import is_generated
from onnx2nn.optable.registry import Table
from onnx2nn.rewrite.evaluation import Evaluator
from onnx2nn.rewrite.patterns import attribute_of, int_of, ints_of, origin, tensor_of

_FOLDABLE = ("Cast", "DequantizeLinear", "Identity")
"""Operators, besides Transpose, that exporters leave between a weight and its reader."""

_DEEPEST = 64
"""The most nodes that are followed; a file may chain any number of them."""

_SIZES = (2, 3, 5, 7, 11, 13, 16)
"""Sizes of dynamic dimensions in samples; from the last one on, further dimensions count up."""

_LARGER_SIZES = tuple(2 * size for size in _SIZES)
"""Other ones. No constant of a file equals both the first and the second size of a dimension, nor both products of
several; and what a Reshape of the file divides into its constants at the first sizes, it divides at these."""


_SHORT = 8
"""Of how many nodes a search for a rank that finds none leaves nothing behind: a longer one may find it."""


def _drops_axes(node: ir.Node) -> bool:
    """Returns whether a reduction drops the axes that it reduces."""
    return not int_of(node, "keepdims", 1)


def _is_shape(value: ir.Value | None) -> bool:
    """Returns whether a value holds the sizes of a tensor, in any type: TensorFlow computes with those in int32."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Cast" and node.inputs and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type == "Shape"


def _taken_sizes(node: ir.Node, facts: ValueFacts) -> int | None:
    """Returns how many numbers a Gather takes from the sizes of a tensor, or a reduction makes of these; else None."""
    source = None if not node.inputs or node.inputs[0] is None else node.inputs[0].producer()
    of_sizes = source is not None and _is_shape(node.inputs[0])
    if node.op_type == "Gather" and of_sizes and len(node.inputs) > 1:
        indices = facts.array(node.inputs[1])
        return None if indices is None or indices.ndim != 1 else indices.size
    if source is None or "reduction" not in facts.table.traits_of(node.op_type) or _drops_axes(node):
        return None
    return 1 if of_sizes or (source.op_type == "Gather" and _taken_sizes(source, facts)) else None


def _combined_rank(node: ir.Node, ranks: Sequence[int | None]) -> int | None:
    """Returns the rank of a product or of what is gathered, from those of the inputs; None for other operators."""
    match node.op_type, ranks:
        case "MatMul", [int(a), int(b)]:
            return max(a, b, 2) - (a == 1) - (b == 1)
        case "Gather", [int(data), int(indices)]:
            return data + indices - 1
        case "Gemm", _:
            return 2
    return None


def _rank_behind(node: ir.Node, facts: ValueFacts, depth: int) -> int | None:
    """Returns the rank that a node gives its result, from those of its inputs; these follow from `depth` nodes."""
    first = node.inputs[0] if node.inputs and not node.domain else None
    if first is None:
        return None
    if node.op_type == "Conv":
        weight = facts.constant_shape(node.inputs[1])
        return facts.rank(first, depth) if weight is None else len(weight)
    if node.op_type == "Concat" and node.inputs[-1] is not None:
        return facts.rank(node.inputs[-1], depth)  # in a DenseNet the last input comes from a convolution
    traits = facts.table.traits_of(node.op_type)
    if node.op_type in ("Squeeze", "Unsqueeze") or ("reduction" in traits and _drops_axes(node)):
        before, axes = facts.rank(first, depth), facts.axes(node)
        sign = 1 if node.op_type == "Unsqueeze" else -1
        return None if before is None or not axes else before + sign * len(axes)
    if "keeps_rank" in traits or "reduction" in traits:
        return facts.rank(first, depth)
    ranks = [None if v is None else facts.rank(v, depth) for v in node.inputs]
    if "broadcasting" in traits:
        return None if None in ranks else max(rank or 0 for rank in ranks)
    return _combined_rank(node, ranks)


def _unsqueezed(node: ir.Node, facts: ValueFacts, depth: int) -> tuple[int, ...] | None:
    """Returns the constant shape of an Unsqueeze node's output."""
    shape, axes = facts.constant_shape(node.inputs[0], depth), facts.axes(node)
    if shape is None or axes is None:
        return None
    rank, sizes = len(shape) + len(axes), iter(shape)
    new = {axis % rank for axis in axes}
    return tuple(1 if axis in new else next(sizes) for axis in range(rank)) if len(new) == len(axes) else None


def _reshaped(node: ir.Node, facts: ValueFacts, depth: int) -> tuple[int, ...] | None:
    """Returns the constant shape of a Reshape node's output where its target is known."""
    shape, target = facts.constant_shape(node.inputs[0], depth), facts.target_shape(node.outputs[0])
    if shape is None or target is None:
        return None
    copied = shape if not attribute_of(node, "allowzero", 0) else ()
    sizes = [copied[at] if size == 0 and at < len(copied) else size for at, size in enumerate(target)]
    known = math.prod(size for size in sizes if isinstance(size, int) and size > 0)
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = math.prod(shape) // known
    found = tuple(size for size in sizes if isinstance(size, int) and size > 0)
    return found if len(found) == len(target) and math.prod(found) == math.prod(shape) else None


class ValueFacts:
    """Answers questions about values from the graph alone, before the import.

    Args:
        table: the op table.
        F: `torch`, or the OneFlow namespace that has torch's function names.
        opsets: opset versions by domain.
        account: counts what is evaluated.
        sizes: the sizes that stand for those of dynamic dimensions.
    """

    def __init__(self, table: Table, F: Any, opsets: dict[str, int], account: Account, sizes: Sequence[int] = _SIZES):
        self.table, self.F, self.opsets, self.account = table, F, opsets, account
        self._small = sizes
        self._places: dict[str, int] = {}
        self._constant_expressions: dict[ir.Value, bool] = {}
        self._ranks: dict[ir.Value, int | None] = {}
        self._arrays: dict[ir.Value, np.ndarray[Any, Any] | None] = {}

    @functools.cached_property
    def larger(self) -> ValueFacts:
        """The same facts with another, larger size for each dynamic dimension."""
        other = ValueFacts(self.table, self.F, self.opsets, self.account, _LARGER_SIZES)
        other._places, other._arrays = self._places, self._arrays
        other._constant_expressions, other._ranks = self._constant_expressions, self._ranks
        return other

    def array(self, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
        """Returns the elements of a value that depends on constants alone, None for any other value."""
        if value is None:
            return None
        tensor = tensor_of(value)
        if tensor is not None:
            return tensor.numpy()
        if not self._is_constant_expression(value):
            return None
        if value not in self._arrays:
            self._arrays[value] = Evaluator(self.table, self.F, self.opsets, self.account, {}).known_array(value)
        return self._arrays[value]

    def _is_constant_expression(self, value: ir.Value, depth: int = 12) -> bool:
        """Returns whether a value depends on constants alone; paths of more than `depth` nodes count as unknown."""
        if tensor_of(value) is not None:
            return True
        if value not in self._constant_expressions:
            node = value.producer()
            self._constant_expressions[value] = (
                node is not None
                and node.op_type != "Shape"
                and depth > 0
                and all(v is None or self._is_constant_expression(v, depth - 1) for v in node.inputs)
            )
        return self._constant_expressions[value]

    def number(self, value: ir.Value | None) -> float | None:
        """Returns the number in a constant of one element, None for any other value."""
        array = self.array(value)
        return None if array is None or array.size != 1 or array.dtype.kind not in "fiu" else float(array.reshape(()))

    def ints(self, value: ir.Value | None, depth: int = _DEEPEST) -> list[int | None] | None:
        """Returns the elements of a shape value.

        Returns:
            One integer for each element, None in the place of an element that is known at run time only. None instead
            of a list where the number of elements does not follow from at most `depth` nodes.
        """
        array = self.array(value)
        if array is not None:
            return [int(item) for item in array.reshape(-1)] if array.dtype.kind in "iub" else None
        node = None if value is None else value.producer()
        if node is None or not depth:
            return None
        if node.op_type == "Concat":
            parts = [self.ints(part, depth - 1) for part in node.inputs]
            return None if any(part is None for part in parts) else [item for part in parts for item in part or ()]
        if node.op_type == "Cast":
            return self.ints(node.inputs[0], depth - 1)
        source = node.inputs[0] if node.op_type == "Shape" else None
        if source is not None and source.shape is not None:  # `rank` would come back here, again and again
            start, end = (node.attributes[key].as_int() if key in node.attributes else None for key in ("start", "end"))
            return [None] * len(range(len(source.shape))[start:end])
        flat = node.op_type == "Reshape" and self.ints(node.inputs[1]) in ([1], [-1])
        if node.op_type == "Unsqueeze" or (flat and node.inputs[0] is not None and self.rank(node.inputs[0]) != 1):
            return [None]
        assert value is not None
        count = value.shape[0] if value.shape is not None and len(value.shape) == 1 else self._count(node)
        return [None] * count if isinstance(count, int) else None

    def _count(self, node: ir.Node) -> int | None:
        """Returns how many numbers an operation on constants and shapes gives, None for any other."""
        if node.domain:
            return None
        taken, traits = _taken_sizes(node, self), self.table.traits_of(node.op_type)
        if taken is not None or "broadcasting" not in traits:
            return taken
        sources = [None if value is None else value.producer() for value in node.inputs]
        if not all(source is None or source.op_type in ("Constant", "Shape") for source in sources):
            return None  # a chain, of any length
        lists = [self.ints(value) for value in node.inputs]
        return None if any(each is None for each in lists) else max(len(each or ()) for each in lists)

    def axes(self, node: ir.Node) -> list[int] | None:
        """Returns the axes of a node, from its attribute or its second input; None where they are unknown."""
        if "axes" in node.attributes:
            return ints_of(node, "axes")
        return None if len(node.inputs) < 2 else [axis for axis in self.ints(node.inputs[1]) or () if axis is not None]

    def constant_shape(self, value: ir.Value | None, depth: int = _DEEPEST) -> tuple[int, ...] | None:
        """Returns the shape of a constant without evaluating it, None for any other value.

        Constants are initializers, outputs of Constant nodes, and outputs of Cast, Transpose, Unsqueeze, Reshape,
        DequantizeLinear and Identity nodes on them, at most `depth`: exporters leave these nodes in their files.
        """
        if value is None or not depth:
            return None
        value = origin(value)
        tensor = tensor_of(value)
        if tensor is not None:
            return tuple(tensor.shape.numpy())
        node = value.producer()
        if node is None or node.domain or not node.inputs:
            return None
        if node.op_type == "Unsqueeze":
            return _unsqueezed(node, self, depth - 1)
        if node.op_type == "Reshape":
            return _reshaped(node, self, depth - 1)
        if node.op_type not in _FOLDABLE and node.op_type != "Transpose":
            return None
        shapes = [self.constant_shape(v, depth - 1) for v in node.inputs]
        shape = shapes[0]
        if any(s is None for s in shapes) or shape is None or node.op_type in _FOLDABLE:
            return None if any(s is None for s in shapes) else shape
        perm = ints_of(node, "perm") if "perm" in node.attributes else list(range(len(shape)))[::-1]
        return None if perm is None or sorted(perm) != [*range(len(shape))] else tuple(shape[axis] for axis in perm)

    def channels(self, value: ir.Value, data: ir.Value) -> int | None:
        """Returns the size of a constant that has one element for each channel of `data`, None for any other value.

        Channels are the second dimension of `data`, `(N, C, *spatial)`.
        """
        shape, rank = self.constant_shape(value), self.rank(data)
        if shape is None or rank is None or rank < 2 or len(shape) not in (rank - 1, rank):
            return None
        own = shape[len(shape) - rank + 1 :]
        return own[0] if math.prod(shape) == own[0] else None

    def is_float(self, value: ir.Value, depth: int = _DEEPEST) -> bool:
        """Returns whether a constant is known, from at most `depth` nodes, to have a floating-point dtype."""
        value = origin(value)
        tensor = tensor_of(value)
        kind = value.dtype if tensor is None else tensor.dtype
        if kind is not None:
            return ir.DataType(kind).is_floating_point()
        node = value.producer()
        if node is not None and node.op_type in ("Reshape", "Transpose") and node.inputs[0] is not None and depth:
            return self.is_float(node.inputs[0], depth - 1)
        return node is not None and node.op_type == "DequantizeLinear"

    def is_exporter_default(self, value: ir.Value, number: float) -> bool:
        """Returns whether a constant was made by the exporter and is filled with `number`.

        Exporters fill in weights of 1 and biases of 0 where a layer has none.
        """
        if tensor_of(value) is None or not is_generated(value.name or ""):
            return False
        array = self.array(value)
        return array is not None and bool((array == number).all())

    def rank(self, value: ir.Value, depth: int = _DEEPEST) -> int | None:
        """Returns the rank of a value, None where it does not follow from at most `depth` nodes before it."""
        if value.shape is not None:
            return len(value.shape)
        if value not in self._ranks:
            rank = self._rank_of_result(value, depth)
            if rank is None and depth <= _SHORT:
                return None
            self._ranks[value] = rank
        return self._ranks[value]

    def _rank_of_result(self, value: ir.Value, depth: int) -> int | None:
        """Returns the rank of a value of which the graph tells no shape, from the nodes before it."""
        tensor, target, node = tensor_of(value), self.target_shape(value), value.producer()
        if target is not None:
            return len(target)
        if tensor is not None:
            return len(tensor.shape)
        if node is None or not depth:
            return None
        # A further output has a rank of its own, as a BatchNormalization's mean; those of a Split are all alike.
        alike = value is node.outputs[0] or "value_preserving" in self.table.traits_of(node.op_type)
        return _rank_behind(node, self, depth - 1) if alike else None

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Returns a value's shape, with a small size for each dynamic dimension; None where its rank is unknown."""
        if value.shape is not None:
            return tuple(dim if isinstance(dim, int) else self._size(dim) for dim in value.shape)
        target = self.target_shape(value)
        if target is None:
            array = self.array(value)
            return None if array is None else array.shape
        return tuple(size if size is not None and size > 0 else self._small[i % 6] for i, size in enumerate(target))

    def declared(self, value: ir.Value) -> list[int | None] | None:
        """Returns a value's shape, with None for each dynamic dimension; None where its rank is unknown."""
        target = self.target_shape(value)
        known = None if target is None else [size if size is not None and size > 0 else None for size in target]
        if value.shape is None or (known is not None and len(known) != len(value.shape)):
            return known
        given = known or [None] * len(value.shape)
        return [dim if isinstance(dim, int) else size for dim, size in zip(value.shape, given, strict=True)]

    def target_shape(self, value: ir.Value) -> list[int | None] | None:
        """Returns the shape that a Reshape or Transpose gives a value; None for each size known at run time only."""
        node = value.producer()
        if node is None or node.domain:
            return None
        if node.op_type == "Transpose" and (perm := ints_of(node, "perm")) is not None:
            before = None if node.inputs[0] is None else node.inputs[0].shape
            if before is None or len(before) != len(perm):
                return [None] * len(perm)
            return [dim if isinstance(dim := before[axis], int) else None for axis in perm]
        if node.op_type == "Reshape" and "shape" in node.attributes:
            known = ints_of(node, "shape")
            return None if known is None else [*known]
        return self.ints(node.inputs[1]) if node.op_type == "Reshape" and len(node.inputs) > 1 else None

    def _size(self, dim: ir.SymbolicDim) -> int:
        place = self._places.setdefault(str(dim.value), len(self._places))
        known = len(self._small)
        return self._small[place] if place < known else self._small[-1] + place - known + 1

    def equate(self, value: ir.Value, other: ir.Value, axis: int) -> None:
        """Gives a dynamic dimension of two values one size in samples: the file may have two names for it."""
        dims = [dim for x in (value, other) if x.shape is not None and isinstance(dim := x.shape[axis], ir.SymbolicDim)]
        if len(dims) == 2:
            self._size(dims[0])
            self._places[str(dims[1].value)] = self._places[str(dims[0].value)]

    def placeholder(self, value: ir.Value) -> np.ndarray[Any, Any] | None:
        """Returns zeros in the shape of a value that a Shape node reads, None for other values and unknown shapes."""
        if any(use.node.op_type == "Shape" for use in value.uses()):
            shape = self.shape(value)
            return None if shape is None else np.zeros(shape)
        return None
