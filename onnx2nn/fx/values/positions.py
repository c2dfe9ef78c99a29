"""What is known of the elements of integer tensors: of ranges, which exporters lay out, compare and index with.

The elements of a range that is laid out over several dimensions, multiplied and added to others are a sum of multiples
of their coordinates: `start + step_0 * i_0 + step_1 * i_1 + ...`. With the shape that gives their bounds, by which
comparisons are decided.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import fx

from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.spec import Shape
from onnx2nn.fx.values.tensor import Tensor, leaves
from onnx2nn.sizes.conditions import at_least_zero, at_most, is_zero, less
from onnx2nn.sizes.expression import Number

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer

_MAX_CONSTANT = 1 << 14
"""The most elements of a constant that is looked at."""

_INT64 = 1 << 63


class Positions(NamedTuple):
    """The elements of an integer tensor, `start + sum(step * coordinate)`; of a boolean one, 1 or 0 for all elements.

    Attributes:
        start: the first element.
        steps: the difference of neighbours along each dimension, 0 along dimensions of size 1.
    """

    start: Number
    steps: tuple[Number, ...]

    @property
    def is_constant(self) -> bool:
        """Whether all elements are equal."""
        return all(isinstance(step, int) and step == 0 for step in self.steps)


class KnownPositions:
    """The known elements of the integer and boolean tensors of one recorded program.

    Args:
        tracer: records the program.
    """

    def __init__(self, tracer: Tracer):
        self.tracer = tracer
        self._known: dict[fx.Node, Positions] = {}
        self._constants: dict[fx.Node, torch.Tensor] = {}
        self._of_state: set[fx.Node] = set()

    def __contains__(self, value: Any) -> bool:
        """Returns whether something is known of the elements of a traced value."""
        return isinstance(value, Tensor) and (value.node in self._known or value.node in self._constants)

    def hold(self, held: Tensor, tensor: torch.Tensor) -> None:
        """Notes that a value of the program is a constant."""
        if tensor.dtype in _DTYPES:
            self._constants[held.node] = tensor
            if self.is_of_state(tensor):
                self._of_state.add(held.node)

    def is_of_state(self, value: Any) -> bool:
        """Returns whether a tensor depends on a weight or buffer in state_dict, which has to stay in the program."""
        if isinstance(value, torch.Tensor):
            placement = self.tracer.placement
            return not placement.inline(value) and placement.constant(value).persistent
        return isinstance(value, Tensor) and value.node in self._of_state

    def of(self, value: Any) -> Positions | None:
        """Returns the elements of a tensor or number, None where they are not known to be of this form."""
        if isinstance(value, Tensor):
            constant = self._constants.get(value.node)
            return self._known.get(value.node) if constant is None else _of_constant(constant)
        if isinstance(value, torch.Tensor):
            return _of_constant(value)
        if isinstance(value, int):  # a bool too
            return Positions(int(value), ())
        if isinstance(value, Dim) and not value.is_truth:
            return Positions(self.tracer.expr_of(value), ())
        return None

    def truth(self, value: Any) -> bool | None:
        """Returns the element of a boolean tensor whose elements are equal; None for others."""
        found = self.of(value) if getattr(value, "dtype", None) is torch.bool else None
        return None if found is None else bool(found.start)

    def note(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Notes what is known of the result of a call that was recorded."""
        rule = _RULES.get(target)
        if rule is None or type(result) is not Tensor or result.spec.shape is None or result.spec.dtype not in _DTYPES:
            return
        found = rule(self, args, kwargs, result.spec.shape)
        if found is None:
            return
        if result.spec.dtype is torch.bool:
            if not (found.is_constant and isinstance(found.start, int)):
                return
            found = found._replace(start=int(found.start != 0))
        elif not self._fits(found, result.spec.shape):
            return
        self._known[result.node] = _normal(found, result.spec.shape)
        if any(map(self.is_of_state, leaves(args))):
            self._of_state.add(result.node)

    def bounds(self, positions: Positions, shape: Shape) -> tuple[Number, Number] | None:
        """Returns least and greatest element; None where the sign of a step is unknown."""
        least = most = positions.start
        for step, size in zip(positions.steps, shape, strict=True):
            if self.decide(at_least_zero(step)):
                most = most + step * (size - 1)
            elif self.decide(at_most(step, 0)):
                least = least + step * (size - 1)
            else:
                return None
        return least, most

    def count(self, index: Any, grid: Shape) -> Number | None:
        """Returns one more than the greatest element of an index tensor whose least is 0; None for others.

        Args:
            index: the tensor.
            grid: the shape to which it is broadcast.
        """
        found = self.of(index)
        ends = None if found is None else self.bounds(_aligned(found, len(grid)), grid)
        return ends[1] + 1 if ends is not None and self.decide(is_zero(ends[0])) else None

    def decide(self, condition: Any) -> bool | None:
        """Returns the truth of a condition on sizes, None where it is not proven."""
        return self.tracer.guards.decide(condition)

    def same(self, a: Number, b: Number) -> bool:
        """Returns whether two sizes are proven to be equal."""
        return self.tracer.guards.facts.same(a, b)

    def _fits(self, positions: Positions, shape: Shape) -> bool:
        """Returns whether no element is outside of int64, where sums would wrap around."""
        ends = self.bounds(positions, shape)
        if ends is None:
            return False
        least, most = self.tracer.guards.facts.bounds(ends[0])[0], self.tracer.guards.facts.bounds(ends[1])[1]
        return least is not None and most is not None and least >= -_INT64 and most < _INT64


_DTYPES = (torch.int64, torch.bool)


def _normal(positions: Positions, shape: Shape) -> Positions:
    steps = zip(positions.steps, shape, strict=True)
    return positions._replace(steps=tuple(0 if isinstance(size, int) and size == 1 else step for step, size in steps))


def _of_constant(tensor: torch.Tensor) -> Positions | None:
    """Returns the elements of a constant."""
    if tensor.dtype not in _DTYPES or not 0 < tensor.numel() <= _MAX_CONSTANT:
        return None
    array = tensor.numpy().astype(np.int64)
    first = (0,) * array.ndim
    start = int(array[first])
    steps = []
    for axis, size in enumerate(array.shape):
        second = (*first[:axis], 1, *first[axis + 1 :])
        steps.append(int(array[second]) - start if size > 1 else 0)
    expected: Any = np.int64(start)
    for axis, size in enumerate(array.shape):
        coordinates = np.arange(size).reshape([-1 if other == axis else 1 for other in range(array.ndim)])
        expected = expected + coordinates * steps[axis]
    if not (array == expected).all() or (tensor.dtype is torch.bool and any(steps)):
        return None
    return Positions(start, tuple(steps))


_Rule = Callable[[KnownPositions, tuple[Any, ...], Mapping[str, Any], Shape], Positions | None]

_RULES: dict[Any, _Rule] = {}
"""What is known of a result, by function or method."""


def _rule(*targets: Any) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(targets, function))
        return function

    return register


@_rule(torch.arange)
def _arange(known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape) -> Positions | None:
    numbers = [known.of(arg) for arg in args]
    start, step = (numbers[0] if len(args) > 1 else Positions(0, ())), (numbers[2] if len(args) > 2 else None)
    if None in numbers or start is None:
        return None
    return Positions(start.start, (1 if step is None else step.start,))


@_rule(torch.full, torch.zeros, torch.ones)
def _full(known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape) -> Positions | None:
    number = known.of(args[1]) if len(args) > 1 else None
    return None if number is None or number.steps else Positions(number.start, (0,) * len(shape))


@_rule(torch.tensor)
def _scalar(known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape) -> Positions | None:
    return None if shape else known.of(args[0])


@_rule("unsqueeze", "reshape", "view", "squeeze")
def _laid_out(
    known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape
) -> Positions | None:
    """The same dimensions in their order, but for those of size 1."""
    source = known.of(args[0])
    if source is None or type(args[0]) is not Tensor:
        return None
    before = args[0].spec.shape or ()
    pending = [(size, step) for size, step in zip(before, source.steps, strict=True) if not _is_one(size)]
    steps: list[Number] = []
    for size in shape:
        if _is_one(size):
            steps.append(0)
        elif pending and known.same(size, pending[0][0]):
            steps.append(pending.pop(0)[1])
        else:
            return None
    return None if pending else source._replace(steps=tuple(steps))


def _is_one(size: Number) -> bool:
    return isinstance(size, int) and size == 1


@_rule("expand")
def _expanded(
    known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape
) -> Positions | None:
    source = known.of(args[0])
    return None if source is None else _aligned(source, len(shape))


def _aligned(positions: Positions, rank: int) -> Positions:
    """Returns the elements of a tensor that is broadcast; steps along dimensions of size 1 are 0 already."""
    return positions._replace(steps=(0,) * (rank - len(positions.steps)) + positions.steps)


@_rule("to")
def _converted(
    known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape
) -> Positions | None:
    return known.of(args[0])  # of int64 and bool alone


@_rule(operator.getitem)
def _part(known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape) -> Positions | None:
    source = known.of(args[0])
    if source is None or type(args[0]) is not Tensor:
        return None
    start, steps, axis = source.start, list[Number](), 0
    for item in args[1] if isinstance(args[1], tuple) else (args[1],):
        if item is None:
            steps.append(0)
            continue
        if axis == len(source.steps):
            return None
        step, axis = source.steps[axis], axis + 1
        if isinstance(item, slice):
            first, by = (
                known.of(0 if item.start is None else item.start),
                known.of(1 if item.step is None else item.step),
            )
            if first is None or by is None or known.decide(at_least_zero(first.start)) is not True:
                return None
            start, step = start + step * first.start, step * by.start
            steps.append(step)
        elif isinstance(item, int) and item >= 0:
            start = start + step * item
        else:
            return None
    return Positions(start, (*steps, *source.steps[axis:]))


def _operands(known: KnownPositions, args: tuple[Any, ...], shape: Shape) -> tuple[Positions, Positions] | None:
    a, b = (known.of(arg) for arg in args)
    return None if a is None or b is None else (_aligned(a, len(shape)), _aligned(b, len(shape)))


def _combined(function: Callable[[Any, Any], Any]) -> _Rule:
    def rule(known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape) -> Positions | None:
        operands = _operands(known, args, shape)
        if operands is None:
            return None
        a, b = operands
        return Positions(function(a.start, b.start), tuple(map(function, a.steps, b.steps)))

    return rule


_rule(operator.add)(_combined(operator.add))
_rule(operator.sub)(_combined(operator.sub))


@_rule(operator.mul)
def _product(known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape) -> Positions | None:
    operands = _operands(known, args, shape)
    if operands is None:
        return None
    a, b = operands if operands[1].is_constant else operands[::-1]
    return Positions(a.start * b.start, tuple(step * b.start for step in a.steps)) if b.is_constant else None


def _compared(decided: Callable[[KnownPositions, Number, Number], bool | None]) -> _Rule:
    """Returns the rule of a comparison, which is decided from the bounds of the difference of its operands."""

    def rule(known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape) -> Positions | None:
        operands = _operands(known, args, shape)
        if operands is None:
            return None
        a, b = operands
        difference = Positions(a.start - b.start, tuple(map(operator.sub, a.steps, b.steps)))
        ends = known.bounds(_normal(difference, shape), shape)
        truth = None if ends is None else decided(known, *ends)
        return None if truth is None else Positions(int(truth), (0,) * len(shape))

    return rule


def _truth(always: Any, never: Any) -> Callable[[KnownPositions, Number, Number], bool | None]:
    def decided(known: KnownPositions, least: Number, most: Number) -> bool | None:
        if known.decide(always(least, most)):
            return True
        return False if known.decide(never(least, most)) else None

    return decided


_BELOW = _truth(lambda least, most: less(most, 0), lambda least, most: at_least_zero(least))
_UP_TO = _truth(lambda least, most: at_most(most, 0), lambda least, most: less(0, least))
_rule(operator.lt)(_compared(_BELOW))
_rule(operator.le)(_compared(_UP_TO))
_rule(operator.ge)(_compared(_truth(lambda least, most: at_least_zero(least), lambda least, most: less(most, 0))))
_rule(operator.gt)(_compared(_truth(lambda least, most: less(0, least), lambda least, most: at_most(most, 0))))


@_rule(torch.logical_and)
def _conjunction(
    known: KnownPositions, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Shape
) -> Positions | None:
    truths = [known.truth(arg) for arg in args]
    return None if False not in truths and None in truths else Positions(int(all(truths)), (0,) * len(shape))


def row_major(known: KnownPositions, indices: Sequence[Any], sizes: Sequence[Number], grid: Shape) -> bool:
    """Returns whether index tensors name every place of the indexed dimensions once, in their order.

    Args:
        known: the known elements.
        indices: an index tensor for each indexed dimension.
        sizes: the indexed dimensions.
        grid: the shape to which the index tensors are broadcast.
    """
    start: Number = 0
    steps: list[Number] = [0] * len(grid)
    for index, size in zip(indices, sizes, strict=True):
        found = known.of(index)
        if found is None or known.is_of_state(index):
            return False
        found = _aligned(found, len(grid))
        ends = known.bounds(found, grid)
        if ends is None or not known.decide(at_least_zero(ends[0])) or not known.decide(less(ends[1], size)):
            return False
        start = start * size + found.start
        steps = [old * size + new for old, new in zip(steps, found.steps, strict=True)]
    count: Number = 1
    for step, size in zip(reversed(steps), reversed(grid), strict=True):
        if not _is_one(size) and not known.same(step, count):
            return False
        count = count * size
    total: Number = 1
    for size in sizes:
        total = total * size
    return known.decide(is_zero(start)) is True and known.same(total, count)
