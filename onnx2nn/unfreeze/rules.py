"""Rules for constants that hold a frozen size: a Reshape's target, the end of a Slice, initial states.

A file that was exported at one size holds it in constants; `load(..., dynamic={"x": {0: "batch"}})` makes them dynamic.
A Reshape's target follows from the correspondence of its dimensions and its input's. A Slice's end that equals the
frozen size is the end at any size. Constants that no rule covers are left to `candidates`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import OperatorError
from onnx2nn.optable.registry import TABLE
from onnx2nn.sizes import expression
from onnx2nn.sizes.expression import Number, Symbol
from onnx2nn.unfreeze.reshape_targets import Factor, divided, product
from onnx2nn.unfreeze.sized_values import Sized
from onnx2nn.unfreeze.substitutions import Absent, Count, Dimension, Element, Numbers, Repeat, Size
from onnx2nn.unfreeze.symbolic_walk import Substituted, Values

_ANCESTORS = 200
"""The most values before a Reshape among which the one is searched that merged its input's dimension."""


@dataclass(frozen=True)
class Frozen:
    """A dimension to make dynamic.

    Attributes:
        name: the user's name.
        size: the size in the file.
        source: an input of the graph and its axis with this dimension.
    """

    name: str
    size: int
    source: Dimension

    def factor(self, size: Size) -> Factor:
        """Returns the dimension as a factor of a number of elements; `size` reads it."""
        return Factor(self.size, size, self.name, self.source[1])


@dataclass(frozen=True)
class Repair:
    """A constant that is to depend on a dynamic dimension.

    Attributes:
        node: the node that takes it.
        position: its position among the node's inputs.
        kind: `"number"`: its element at `index` is the dimension's size; `"range"`: it counts along its axis `index`
            from 0 up to the size;
            `"repeat"`: it is repeated along its axis `index`, on which all slices are the same, up to the size;
            `"place"`: the dimension at `index` of a Reshape's target contains the size.
        index: see `kind`.
        name: the dimension's name.
        shapes: the shapes of input and output in the file, for a Reshape; the repair then holds for all Reshapes with
            these shapes, so that repeated blocks of a network are repaired together.
    """

    node: ir.Node
    position: int
    kind: str
    index: int
    name: str
    shapes: Any = None


class Rules:
    """Finds the substitutions for the inputs of nodes.

    Args:
        frozen: the dimensions to make dynamic.
        repairs: constants that no rule covers, found by `candidates`.
        inner: the inputs of its function, for each node of a function: it sees no others.
    """

    def __init__(
        self, frozen: Sequence[Frozen], repairs: Sequence[Repair], inner: Mapping[ir.Node, Sequence[ir.Value]]
    ):
        self._frozen, self._inner = frozen, inner
        self._by_name = {dimension.name: dimension for dimension in frozen}
        self._repairs: dict[ir.Node, list[Repair]] = {}
        self._places: dict[Any, dict[str, int]] = {}
        self._orders: dict[ir.Value, list[list[Factor]]] = {}
        for repair in repairs:
            self._repairs.setdefault(repair.node, []).append(repair)
            if repair.kind == "place":
                self._places.setdefault(repair.shapes, {})[repair.name] = repair.index

    def __call__(self, node: ir.Node, inputs: Sequence[Any], values: Values) -> Substituted:
        """Returns the substitutions for inputs of `node`, by position."""
        found: Substituted = {}
        for repair in self._repairs.get(node, ()):
            substitution = (
                None if repair.kind == "place" else self._repaired(node, repair, inputs[repair.position], values)
            )
            if substitution is not None:
                found[repair.position] = substitution
        rule = _rule_of(node)
        if rule is not None and inputs[0].is_dynamic:
            return {**rule(self, node, inputs, values), **found}
        return found

    def places(self, node: ir.Node, value: Sized, shapes: Any, values: Values) -> Mapping[str, int]:
        """Returns the dimension of a Reshape's target for each freed dimension, as far as repairs decide it."""
        own = {r.name: r.index for r in self._repairs.get(node, ()) if r.kind == "place"}
        found = {**self._places.get(shapes, {}), **own}
        return {k: i for k, i in found.items() if is_in_order(value, shapes[1], i, self._by_name[k], values)}

    def factors(self, node: ir.Node, value: Sized, axis: int, values: Values) -> list[Factor]:
        """Returns the factors of a dimension: freed dimensions and a number, or the dimension itself."""
        size, frozen = value.sizes[axis], value.shape[axis]
        if isinstance(size, int):
            return [Factor(size)]
        undivided = Size(((_input(node, 0), axis),))
        for count in (1, 2):
            for some in itertools.combinations(self._frozen, count):
                freed = expression.product(values[d.source[0]].sizes[d.source[1]] for d in some)
                factor = expression.divided(size, freed) if isinstance(freed, expression.Size) else None
                if not isinstance(factor, int):
                    continue
                order = self._order(_input(node, 0), size, values) if factor > 1 or count > 1 else None
                sources = [self._source(node, d, values) for d in some]
                if order or None not in sources:
                    own = [d.factor(Size((s,))) for d, s in zip(some, sources, strict=True) if s]
                    return order or [*own, Factor(factor)]
                if count > 1:
                    raise OperatorError("a function's input does not tell the dimensions that were merged before it.")
                local = undivided if factor == 1 else undivided // factor
                return [some[0].factor(local), Factor(factor)]
        return [Factor(frozen, undivided)]

    def note_order(self, node: ir.Node, parts: list[list[Factor]]) -> None:
        """Notes the factors of every dimension of a Reshape's output, in their order."""
        self._orders[node.outputs[0]] = [[f for f in own if f.size != 1 or f.dim is not None] for own in parts]

    def _order(self, value: ir.Value, size: Number, values: Values) -> list[Factor] | None:
        """Returns the factors of a dimension in the order in which a Reshape before it merged them, None for unknown.

        Args:
            value: the value with the dimension.
            size: the dimension. Nodes between keep its elements in their order, on any axis.
            values: the known values.
        """
        queue = [value]
        for current in queue:
            for axis, parts in enumerate(self._orders.get(current, ())):
                if values[current].sizes[axis] == size and len(parts) > 1:
                    return parts
            node = current.producer()
            if node is not None and len(queue) < _ANCESTORS:
                queue += [v for v in node.inputs if v is not None and v in values and v not in queue]
        return None

    def _source(self, node: ir.Node, dimension: Frozen, values: Values) -> Dimension | None:
        """Returns an input with a dimension, and its axis: of the graph, or of the function that `node` is in."""
        if node not in self._inner:
            return dimension.source
        size = values[dimension.source[0]].sizes[dimension.source[1]]
        seen = [value for value in self._inner[node] if value in values and size in values[value].sizes]
        return (seen[0], values[seen[0]].sizes.index(size)) if seen else None

    def _repaired(self, node: ir.Node, repair: Repair, value: Sized, values: Values) -> Any:
        source = self._source(node, self._by_name[repair.name], values)
        if source is None:
            return None
        dimension = Size((source,))
        rank = len(value.shape)
        if repair.kind == "repeat":
            return Repeat(repair.index, dimension, rank, value.shape[repair.index] == 1)
        if not value.is_known:
            return None
        if repair.kind == "range":
            return Count(repair.index, dimension, rank, value.kind)
        items: list[Any] = _items(value)
        items[repair.index] = dimension
        return Numbers(tuple(items), value.shape, value.kind)


def _input(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    assert value is not None, "its shape is known"
    return value


def _items(value: Sized) -> list[Any]:
    """Returns the elements of a list of sizes: numbers, and `Element`s for sizes that are computed already."""
    return [item if isinstance(item, (int, float)) else Element(index) for index, item in enumerate(value.elements)]


def _sizes(inputs: Sequence[Any], position: int) -> list[Any] | None:
    """Returns the list of sizes in a node's input, see `_items`; None where it is unknown."""
    value = inputs[position] if position < len(inputs) else None
    if value is None or not value.is_known or len(value.shape) != 1 or value.is_dynamic:
        return None
    return _items(value)


def _replaced(inputs: Sequence[Any], position: int, items: Sequence[Any]) -> Substituted:
    if list(items) == _sizes(inputs, position):
        return {}
    return {position: Numbers(tuple(items), (len(items),), inputs[position].kind)}


def _reshape(rules: Rules, node: ir.Node, inputs: Sequence[Any], values: Values) -> Substituted:
    """Expresses fixed sizes of the target by the input's dimensions."""
    target = _sizes(inputs, 1)
    if target is None:
        return {}
    shape = inputs[0].shape
    sizes = reshaped(shape, inputs[1].frozen, node.attributes.get_int("allowzero", 0))
    if sizes is None or not math.prod(sizes):
        return {}
    factors = [f for axis in range(len(shape)) for f in rules.factors(node, inputs[0], axis, values)]
    parts = divided(factors, sizes, rules.places(node, inputs[0], (shape, sizes), values))
    rules.note_order(node, parts)
    items = [item if isinstance(item, Element) else product(own) for item, own in zip(target, parts, strict=True)]
    if not any(isinstance(item, Size) for item in items) or _follows(node, inputs, items, values):
        return {}
    if not node.attributes.get_int("allowzero", 0):
        items = [0 if _is_kept(item, inputs[0], i, values) else item for i, item in enumerate(items)]
    computed = [i for i, item in enumerate(items) if not isinstance(item, int) or item < 1]
    if len(computed) == 1 and isinstance(items[computed[0]], Size):
        items[computed[0]] = -1
    return _replaced(inputs, 1, items)


def _flatten(rules: Rules, node: ir.Node, inputs: Sequence[Any], values: Values) -> Substituted:
    """Notes which dimensions are merged."""
    rank = len(inputs[0].shape)
    cut = node.attributes.get_int("axis", 1) % max(rank, 1) if node.attributes.get_int("axis", 1) != rank else rank
    parts = [rules.factors(node, inputs[0], axis, values) for axis in range(rank)]
    rules.note_order(node, [[f for own in half for f in own] for half in (parts[:cut], parts[cut:])])
    return {}


def _is_kept(item: Any, value: Sized, axis: int, values: Values) -> bool:
    """Returns whether a size of a Reshape's target is always the input's dimension at the same place."""
    if not isinstance(item, Size) or axis >= len(value.shape):
        return False
    return value.same(_number(item, values), value.sizes[axis])


def _follows(node: ir.Node, inputs: Sequence[Any], items: Sequence[Any], values: Values) -> bool:
    """Returns whether the target of a Reshape, with a 0 or a -1, always gives the shape `items` as it is."""
    if any(isinstance(item, Element) for item in items):
        return False
    value, target = inputs[0], inputs[1].elements
    if not node.attributes.get_int("allowzero", 0):
        target = [value.sizes[i] if size == 0 and i < len(value.shape) else size for i, size in enumerate(target)]
    count = expression.product(value.sizes)
    if -1 in target:
        known = expression.product(size for size in target if size != -1)
        if known == 0:
            return False
        target = [expression.floor_divide(count, known) if size == -1 else size for size in target]
    wanted = (_number(item, values) for item in items)
    same: bool = value.same(expression.product(target), count)
    return same and all(value.same(size, item) for size, item in zip(target, wanted, strict=True))


def _number(item: int | Size, values: Values) -> Number:
    """Returns a size as an expression."""
    return item if isinstance(item, int) else item.of(lambda dimension: values[dimension[0]].sizes[dimension[1]])


def reshaped(shape: Sequence[int], target: Sequence[int], allowzero: int) -> tuple[int, ...] | None:
    """Returns the shape of an ONNX Reshape's output, None where the target does not fit."""
    sizes = [shape[i] if not size and not allowzero and i < len(shape) else size for i, size in enumerate(target)]
    count, known = math.prod(shape), math.prod(size for size in sizes if size != -1)
    if -1 in sizes and (not known or count % known):
        return None
    sizes = [count // known if size == -1 else size for size in sizes]
    return tuple(sizes) if math.prod(sizes) == count else None


def is_in_order(value: Sized, target: Sequence[int], index: int, dimension: Frozen, values: Values) -> bool:
    """Returns whether a freed dimension of a Reshape's input can be in one of its target: their strides meet.

    Elsewhere the elements of one sample would lie among those of others.

    Args:
        value: the input.
        target: the target at the file's sizes.
        index: of the target's dimension.
        dimension: the freed dimension.
        values: the known values.
    """
    source, axis = dimension.source
    freed: frozenset[Symbol] = getattr(values[source].sizes[axis], "symbols", frozenset())
    axes = [axis for axis, size in enumerate(value.sizes) if not freed.isdisjoint(getattr(size, "symbols", ()))]
    if len(axes) != 1:
        return True
    first, last = math.prod(value.shape[: axes[0]]), math.prod(value.shape[: axes[0] + 1])
    begin, end = math.prod(target[:index]), math.prod(target[: index + 1])
    return begin <= last and first <= end


def _expand(rules: Rules, node: ir.Node, inputs: Sequence[Any], values: Values) -> Substituted:
    """Replaces the size of a dimension that the input already has by 1, which keeps the dimension."""
    target = _sizes(inputs, 1)
    if target is None:
        return {}
    lead = len(target) - len(inputs[0].shape)
    for axis, size in enumerate(inputs[0].shape):
        if inputs[0].varies(axis) and lead + axis >= 0 and target[lead + axis] == size:
            target[lead + axis] = 1
    return _replaced(inputs, 1, target)


def _slice(rules: Rules, node: ir.Node, inputs: Sequence[Any], values: Values) -> Substituted:
    """Replaces an end that equals the frozen size by the largest integer, the end at any size."""
    ends, axes = _sizes(inputs, 2), _sizes(inputs, 3)
    if ends is None or (len(node.inputs) > 3 and node.inputs[3] is not None and axes is None):
        return {}
    for position, axis in enumerate(range(len(ends)) if axes is None else axes):
        if inputs[0].varies(axis) and ends[position] == inputs[0].shape[axis]:
            ends[position] = int(np.iinfo(inputs[2].kind.numpy()).max)
    return _replaced(inputs, 2, ends)


def _resize(rules: Rules, node: ir.Node, inputs: Sequence[Any], values: Values) -> Substituted:
    """Expresses sizes that are a multiple or a divisor of the input's size by the input's dimension."""
    sizes = _sizes(inputs, 3)
    if sizes is None:
        return {}
    for position, axis in enumerate(node.attributes.get_ints("axes", list(range(len(sizes))))):
        size, wanted = inputs[0].shape[axis], sizes[position]
        if isinstance(wanted, Element) or not inputs[0].varies(axis) or not size or not wanted:
            continue
        dimension = Size(((_input(node, 0), axis),))
        if wanted % size == 0:
            sizes[position] = dimension * (wanted // size)
        elif size % wanted == 0:
            sizes[position] = dimension // (size // wanted)
    return _replaced(inputs, 3, sizes)


def _recurrent(rules: Rules, node: ir.Node, inputs: Sequence[Any], values: Values) -> Substituted:
    """Repeats initial states that are the same for the whole batch up to its size, and leaves out zeros."""
    batch = axis = 0 if node.attributes.get_int("layout", 0) else 1
    found: Substituted = {}
    if not inputs[0].varies(batch):
        return found
    for position in _states(node.op_type):
        state = inputs[position] if position < len(inputs) else None
        if state is None or state.is_dynamic or not same_along(node, position, state, axis):
            continue
        size = Size(((_input(node, 0), batch),))
        repeat = Repeat(axis, size, len(state.shape), state.shape[axis] == 1)
        found[position] = Absent(repeat) if state.is_zero else repeat
    return found


_RULES: dict[str, Callable[[Rules, ir.Node, Sequence[Any], Values], Substituted]] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "Slice": _slice,
    "Resize": _resize,
}


def _rule_of(node: ir.Node) -> Callable[[Rules, ir.Node, Sequence[Any], Values], Substituted] | None:
    if node.domain:
        return None
    return _recurrent if "recurrent" in TABLE.traits_of(node.op_type) else _RULES.get(node.op_type)


def _states(operator: str) -> list[int]:
    """Returns the positions of the initial states of a recurrent operator."""
    row = TABLE.newest("", operator)
    return [] if row is None else [i for i, name in enumerate(row.inputs) if name.startswith("initial_")]


def same_along(node: ir.Node, position: int, value: Sized, axis: int) -> bool:
    """Returns whether all slices of an input along an axis are equal."""
    if value.shape[axis] == 1:
        return True
    tensor = None if node.inputs[position] is None else ir.convenience.get_const_tensor(_input(node, position))
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return False
    array = tensor.numpy()
    return bool((array == array.take([0], axis)).all())
