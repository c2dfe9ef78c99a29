"""Calls whose result the program has already, or has by a call that says more plainly what it is.

Exporters write what an author's one index does as several nodes: dimensions of size 1 are inserted one by one, a mask
is looked up at the positions of a range, negative indices are repaired where there are none.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.positions import KnownPositions, row_major
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.ground.float_decimals import shortest_float32
from onnx2nn.sizes.conditions import at_most
from onnx2nn.sizes.expression import Number, Size, Symbol

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer

_SCALARS = frozenset({torch.tensor, torch.full})
"""Functions that make a tensor of the number that is their last argument."""

_LAYOUTS = frozenset({"unsqueeze", "reshape", "view"})
"""Methods whose result has the elements of their tensor in the same order."""


class PlainCalls:
    """Finds plainer forms of the calls of one recorded program.

    Args:
        tracer: records the program.

    Attributes:
        known: the known elements of integer tensors.
    """

    def __init__(self, tracer: Tracer):
        self.tracer = tracer
        self.known = KnownPositions(tracer)
        self.numbers: dict[Any, Dim] = {}
        self.joined: dict[fx.Node, tuple[Sequence[Tensor], int]] = {}
        self.ranges: dict[Any, Tensor] = {}
        self.broadcast: dict[fx.Node, Tensor] = {}
        self.scalars: dict[fx.Node, Any] = {}
        self._sources: dict[fx.Node, Tensor] = {}
        self._sliced: dict[fx.Node, tuple[Tensor, tuple[slice, ...]]] = {}

    def find(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], specs: Any) -> Any:
        """Returns the result of a call in a plainer form, None where there is none."""
        rule = _RULES.get(target)
        if rule is None or not args or (kwargs and target is not torch.arange):
            return None
        return rule(self, args, specs)

    def range_key(self, args: tuple[Any, ...], spec: Spec) -> Any:
        """Returns a key that ranges with equal elements share, in the module that computes what is recorded now."""
        return _scope(self.tracer.meta), spec.dtype, *map(self.tracer.expr_of, args)

    def note(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Notes a recorded call."""
        if type(result) is Tensor and type(args[0] if args else None) is Tensor and _is_layout(target, args):
            self._sources[result.node] = args[0]
        elif (
            target is operator.getitem and type(result) is Tensor and all(isinstance(i, slice) for i in _items(args[1]))
        ):
            self._sliced[result.node] = args[0], _items(args[1])
        elif target is torch.cat and len(args) == 2 and type(args[1]) is int and type(result) is Tensor:
            self.joined[result.node] = args
        elif target == "expand" and type(args[0]) is Tensor:
            self.broadcast[result.node] = args[0]
        elif target in _SCALARS and type(result) is Tensor and _is_scalar(result):
            self.scalars[result.node] = args[-1]
        elif target is torch.arange:
            self.numbers |= {self.tracer.expr_of(number): number for number in args if isinstance(number, Dim)}
            if all(isinstance(arg, (int, Dim)) for arg in args):
                self.ranges[self.range_key(args, result.spec)] = result
        self.known.note(target, args, kwargs, result)

    def same(self, shape: Shape | None, other: Shape | None) -> bool:
        """Returns whether two shapes are proven to be equal."""
        if shape is None or other is None or len(shape) != len(other):
            return False
        return all(map(self.known.same, shape, other))

    def laid_out(self, tensor: Tensor, shape: Shape) -> Tensor | None:
        """Returns the elements of a tensor in another shape, of the tensor from which it was laid out itself.

        None where that one has other dimensions than the shape, besides those of size 1.
        """
        chain = [tensor]
        while chain[-1].node in self._sources and self._is_local(chain[-1]):
            chain.append(self._sources[chain[-1].node])
        for source in reversed(chain):
            index = self._inserting(source.spec.shape, shape)
            if index is None or (index == (slice(None),) * len(index) and not self._is_local(source)):
                continue
            return self._indexed(source, index)
        return None

    def laid_out_from(self, tensor: Tensor, shape: Shape | None) -> Tensor | None:
        """Returns the tensor with the same elements from which one was laid out, if it has this shape."""
        source = self._sources.get(tensor.node)
        own = None if source is None else source.spec.shape
        if own is None or shape is None or len(own) != len(shape):
            return None
        return source if all(map(self._is_identical, own, shape)) else None

    def inserts(self, shape: Shape, target: Shape) -> bool:
        """Returns whether dimensions of size 1 that are inserted make a shape another one."""
        return self._inserting(shape, target) is not None

    def _is_local(self, tensor: Tensor) -> bool:
        """Returns whether a value was computed in the module that computes what is recorded now.

        A call without effect elsewhere may be that of a module, such as a Flatten of a matrix.
        """
        return _scope(tensor.node.meta) == _scope(self.tracer.meta)

    def _inserting(self, shape: Shape | None, target: Shape) -> tuple[Any, ...] | None:
        """Returns the index that inserts dimensions of size 1 such that a shape becomes another one."""
        if shape is None:
            return None
        index: list[Any] = []
        axis = 0
        for size in target:
            if axis < len(shape) and self._is_identical(size, shape[axis]):
                index.append(slice(None))
                axis += 1
            elif isinstance(size, int) and size == 1:
                index.append(None)
            else:
                return None
        return tuple(index) if axis == len(shape) else None

    def _is_identical(self, size: Number, other: Number) -> bool:
        """Returns whether two sizes have one normal form, which takes no proof: each reshape asks."""
        settled = self.tracer.guards.facts.settled
        one, two = settled(size), settled(other)
        return one is two or (isinstance(one, int) and isinstance(two, int) and one == two)

    def _indexed(self, tensor: Tensor, index: tuple[Any, ...]) -> Tensor:
        added = [axis for axis, item in enumerate(index) if item is None]
        if not added:
            return tensor
        if len(added) == 1:
            return self.tracer.recorded_call("call_method", "unsqueeze", (tensor, added[0]), {})  # type: ignore[no-any-return]  # one tensor
        return self.tracer.recorded_call("call_function", operator.getitem, (tensor, index[: added[-1] + 1]), {})  # type: ignore[no-any-return]  # likewise

    def sliced(self, tensor: Tensor, items: tuple[Any, ...], specs: Any) -> Tensor | None:
        """Returns slices of a tensor as slices of the one that it was sliced from along other axes; None for others."""
        found = self._sliced.get(tensor.node)
        if found is None or not all(isinstance(item, slice) for item in items) or not self._is_local(tensor):
            return None
        source, before = found
        pairs = [*itertools.zip_longest(before, items, fillvalue=slice(None))]
        if not all(_is_all(first) or _is_all(second) for first, second in pairs):
            return None
        index = tuple(second if _is_all(first) else first for first, second in pairs)
        return self.tracer.recorded_call("call_function", operator.getitem, (source, index), {}, specs)  # type: ignore[no-any-return]  # one tensor

    def expanded(self, value: Any, spec: Spec, others: Sequence[Any]) -> Any:
        """Returns a tensor in the shape to which it is broadcast with `others`; None where no number gives a size."""
        if type(value) is not Tensor or value.spec.dtype is not spec.dtype or spec.shape is None:
            return None
        own = value.spec.shape
        if own is None or self.same(own, spec.shape):
            return value if own is not None else None
        new = len(spec.shape) - len(own)
        sizes: list[Any] = []
        for axis, size in enumerate(spec.shape):
            if axis >= new and self.known.same(size, own[axis - new]):
                sizes.append(-1)
                continue
            number = self._number(size, axis - len(spec.shape), others)
            if number is None:
                return None
            sizes.append(number)
        return self.tracer.call("call_method", "expand", (value, sizes), {})

    def _number(self, size: Number, axis: int, others: Sequence[Any]) -> Any:
        """Returns a size as a number of the program; it is read from a tensor with this dimension if nowhere else."""
        if isinstance(size, int):
            return size
        if size in self.numbers:
            return self.numbers[size]
        symbol = _symbol(size)
        if symbol is not None and symbol in self.tracer.symbols.inputs:
            return self.tracer.symbols.inputs[symbol]
        for other in others:
            shape = other.spec.shape if type(other) is Tensor else None
            if shape is not None and -axis <= len(shape) and self.known.same(shape[axis], size):
                return other.dimension(len(shape) + axis)
        return None


def _is_layout(target: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether a call gives the elements of its tensor in the same order."""
    if target is operator.getitem:
        return all(item is None or _is_all(item) for item in _items(args[1]))
    return target in _LAYOUTS and not (len(args) == 2 and isinstance(args[1], torch.dtype))


def _items(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_scalar(tensor: Tensor) -> bool:
    """Returns whether a tensor has one element at all sizes."""
    shape = tensor.spec.shape
    return shape is not None and all(isinstance(size, int) and size == 1 for size in shape)


def _is_all(item: Any) -> bool:
    """Returns whether an item of an index is `:`."""
    return isinstance(item, slice) and item == slice(None)


def _scope(meta: Mapping[str, Any]) -> str:
    """Returns what a file says of the module around a node: the list of scopes, or the name, but for the last part."""
    scopes: str | None = meta.get("scopes")
    _, _, name = meta.get("onnx", ("", "", ""))
    return scopes.rpartition(", ")[0] if scopes else str(name).rpartition("/")[0]


def _symbol(size: Size) -> Symbol | None:
    """Returns the symbol that a size is, None for any other size."""
    ((monomial, coefficient), *rest) = size.terms
    alone = not rest and coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol)
    return monomial[0] if alone else None  # type: ignore[return-value]  # `alone` says so


_Rule = Callable[[PlainCalls, tuple[Any, ...], Any], Any]
_RULES: dict[Any, _Rule] = {}


def _rule(*targets: Any) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(targets, function))
        return function

    return register


@_rule(*_LAYOUTS)
def _laid_out(plain: PlainCalls, args: tuple[Any, ...], specs: Any) -> Any:
    if (
        type(args[0]) is not Tensor
        or not isinstance(specs, Spec)
        or specs.shape is None
        or specs.dtype is not args[0].spec.dtype
    ):
        return None
    return plain.laid_out(args[0], specs.shape)


@_rule("unbind")
def _unbound(plain: PlainCalls, args: tuple[Any, ...], specs: Any) -> Any:
    """Tensors that were stacked, or the one that a dimension was inserted in, as the newer exporter does of `x[i]`."""
    if type(args[0]) is Tensor and len(args) == 2 and len(specs) == 1:
        source = plain.laid_out_from(args[0], specs[0].shape)
        return None if source is None else (source,)
    found = plain.joined.get(args[0].node) if type(args[0]) is Tensor else None
    if found is None or len(args) != 2 or len(found[0]) != len(specs) or not all(type(p) is Tensor for p in found[0]):
        return None
    rank = len(args[0].spec.shape)
    if found[1] % rank != args[1] % rank:
        return None
    parts = [plain.laid_out(part, spec.shape) for part, spec in zip(found[0], specs, strict=True)]
    return None if any(part is None for part in parts) else tuple(parts)


@_rule(operator.getitem)
def _looked_up(plain: PlainCalls, args: tuple[Any, ...], specs: Any) -> Any:
    """Elements at all positions in their order: a view. Slices of slices: of one index."""
    data, items = args[0], _items(args[1])
    if type(data) is Tensor and (merged := plain.sliced(data, items, specs)) is not None:
        return merged
    axis = next((place for place, item in enumerate(items) if not _is_all(item)), len(items))
    indices = items[axis:]
    if type(data) is not Tensor or not indices or not all(isinstance(i, (Tensor, torch.Tensor)) for i in indices):
        return None
    if any(item not in plain.known for item in indices if isinstance(item, Tensor)):
        return None
    shape, end = data.spec.shape, axis + len(indices)
    if shape is None or specs.shape is None:
        return None
    grid = specs.shape[axis : len(specs.shape) - (len(shape) - end)]
    if row_major(plain.known, indices, shape[axis:end], grid):
        return plain.laid_out(data, specs.shape)
    first = _first_places(plain, data, axis, indices, grid, specs.shape)
    if first is not None:
        return first
    return _looked_up_by_narrow(plain, data, items[:axis], indices, grid)


def _first_places(
    plain: PlainCalls, data: Tensor, axis: int, indices: Sequence[Any], grid: Shape, target: Shape
) -> Tensor | None:
    """Returns a view of the first places of indexed dimensions, which index tensors name once each, in their order.

    A mask may have more rows than there are sequences. That it has no fewer is guarded: a lookup would be an error too.
    """
    counts: list[Number] = []
    for index in indices:
        count = plain.known.count(index, grid)
        if count is None or not (isinstance(count, int) or count in plain.numbers):
            return None
        counts.append(count)
    shape, end = data.spec.shape or (), axis + len(indices)
    fits = [at_most(count, size) for count, size in zip(counts, shape[axis:end], strict=True)]
    if (
        any(plain.known.decide(condition) is False for condition in fits)
        or not row_major(plain.known, indices, counts, grid)
        or not plain.inserts((*shape[:axis], *counts, *shape[end:]), target)
    ):
        return None
    for place, (count, condition) in enumerate(zip(counts, fits, strict=True), axis):
        if not plain.known.same(count, shape[place]):
            plain.tracer.guards.demand(condition, "a place for each position that is looked up")
            number = count if isinstance(count, int) else plain.numbers[count]
            data = plain.tracer.call("call_method", "narrow", (data, place, 0, number), {})
    return plain.laid_out(data, target)


def _looked_up_by_narrow(
    plain: PlainCalls, data: Tensor, before: Sequence[Any], indices: Sequence[Any], grid: Shape
) -> Any:
    """Returns elements at positions that need not be expanded, because the index tensors are broadcast anyway."""
    narrow = [plain.broadcast.get(item.node, item) if isinstance(item, Tensor) else item for item in indices]
    if all(one is other for one, other in zip(narrow, indices, strict=True)):
        return None
    for axis, size in enumerate(reversed(grid), 1):
        sizes = [shape[-axis] for item in narrow if len(shape := _shape_of(item)) >= axis]
        if not any(plain.known.same(own, size) for own in sizes):
            return None
    return plain.tracer.recorded_call("call_function", operator.getitem, (data, (*before, *narrow)), {})


def _shape_of(value: Any) -> Shape:
    return (value.spec.shape or ()) if isinstance(value, Tensor) else tuple(value.shape)


@_rule(torch.arange)
def _known_range(plain: PlainCalls, args: tuple[Any, ...], specs: Any) -> Any:
    """A range that the module has."""
    if not all(isinstance(arg, (int, Dim)) for arg in args):
        return None
    return plain.ranges.get(plain.range_key(args, specs))


@_rule(torch.where)
def _chosen(plain: PlainCalls, args: tuple[Any, ...], specs: Any) -> Any:
    """What a condition chooses that is the same for all elements."""
    truth = plain.known.truth(args[0]) if len(args) == 3 else None
    if truth is None:
        return None
    chosen = args[1] if truth else args[2]
    lost = plain.known.is_of_state(args[0]) and not plain.known.is_of_state(chosen)
    return None if lost else plain.expanded(chosen, specs, args)


def _with_neutral(neutral: bool) -> _Rule:
    def rule(plain: PlainCalls, args: tuple[Any, ...], specs: Any) -> Any:
        for one, other in (args, args[::-1]):
            boolean = getattr(other, "dtype", None) is torch.bool
            if boolean and plain.known.truth(one) is neutral and not plain.known.is_of_state(one):
                return plain.expanded(other, specs, args)
        return None

    return rule


_rule(torch.logical_and)(_with_neutral(True))
_rule(torch.logical_or)(_with_neutral(False))


@_rule("to")
def _converted(plain: PlainCalls, args: tuple[Any, ...], specs: Any) -> Any:
    """A conversion to the type that a tensor has."""
    tensor, *dtype = args
    if type(tensor) is not Tensor or len(dtype) != 1:
        return None
    return tensor if isinstance(dtype[0], torch.dtype) and dtype[0] is tensor.spec.dtype else None


def _with_number(function: Any) -> _Rule:
    """Returns the rule of an operation on a tensor of one number beside another tensor: the number itself will do."""

    def rule(plain: PlainCalls, args: tuple[Any, ...], specs: Any) -> Any:
        if not all(type(arg) is Tensor and arg.spec.dtype is torch.int64 for arg in args):
            return None
        for place, other in enumerate(args[::-1]):
            number, shape, wider = plain.scalars.get(args[place].node), _shape_of(args[place]), _shape_of(other)
            if isinstance(number, Dim) and len(shape) <= len(wider) and not _is_scalar(other):
                numbers = (*args[:place], number, *args[place + 1 :])
                return plain.tracer.recorded_call("call_function", function, numbers, {}, specs)
        return None

    return rule


for _function in (operator.add, operator.sub, operator.mul, operator.lt, operator.le, operator.gt, operator.ge):
    _rule(_function)(_with_number(_function))


_INLINE = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32}


def scalars_inlined(args: tuple[Any, ...], may_inline: Callable[[torch.Tensor], bool]) -> tuple[Any, ...]:
    """Replaces a one-element constant beside a tensor by an equal Python number."""
    for arg in args:
        if type(arg) is not Tensor and isinstance(arg, torch.Tensor) and arg.numel() == 1:
            break
    else:
        return args
    traced = [arg for arg in args if isinstance(arg, Tensor)]
    if len(traced) != 1 or traced[0].spec.shape is None:
        return args
    other = traced[0]

    def plain(arg: Any) -> Any:
        fits = isinstance(arg, torch.Tensor) and arg.numel() == 1 and arg.ndim <= other.ndim
        if not fits or arg.dtype != other.spec.dtype or not may_inline(arg) or arg.dtype not in _INLINE:
            return arg
        value = arg.item()
        return shortest_float32(value) if arg.dtype is torch.float32 else value  # torch rounds it before it computes

    return tuple(plain(arg) for arg in args)


def _bounded(place: int) -> _Rule:
    """Returns the rule of an extreme of a tensor and a number: the tensor within the bound at `place`."""

    def rule(plain: PlainCalls, args: tuple[Any, ...], specs: Any) -> Any:
        """A clamp, as torch's newer exporter writes `clamp(max=3)` as a Min."""
        given = scalars_inlined(args, plain.tracer.placement.inline)
        tensor, number = given if isinstance(given[0], Tensor) else given[::-1]
        if not isinstance(tensor, Tensor) or type(number) not in (int, float) or not math.isfinite(number):
            return None
        bounds = [None, None]
        bounds[place] = number
        return plain.tracer.recorded_call("call_function", torch.clamp, (tensor, *bounds), {}, specs)

    return rule


_rule(torch.maximum)(_bounded(0))
_rule(torch.minimum)(_bounded(1))
