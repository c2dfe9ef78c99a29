"""Graphs that match the patterns of the rewrite rules, with operands, constants and attributes of any kind.

A pattern says which operators follow each other. Ranks, sizes, axes, constants and further readers are drawn, mostly as
exporters write them, so that a rule has to decline what it does not compute.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from onnx import helper

from onnx2nn.rewrite.patterns import Either, Number, Op, Var
from onnx2nn.rewrite.rewrite_rule import Rule
from onnx2nn.rewrite.rule_sets import SWEEPS, all_rules
from tests.drawn.draw import Draw, window
from tests.drawn.graphs import Graph, NoCallError, Value

ELEMENTWISE = ("Abs", "Erf", "Exp", "Log", "Neg", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh", "Reciprocal", "IsNaN")
OF_TWO = ("Add", "Sub", "Mul", "Div", "Pow", "Greater", "Equal", "And")
OWN = ("Linear", "RepeatInterleave", "ScaledDotProductAttention")
"""Operators that earlier rules make: no file has them."""


class PatternGraph(Graph):
    """Draws a graph that matches a pattern.

    Args:
        d: makes all choices.
        pattern: of a rule.
    """

    def __init__(self, d: Draw, pattern: Any):
        super().__init__(d)
        self.bound: dict[str, Value] = {}
        self.hint: list[int] | None = None
        """The shape that the next leaf needs, for the product that reads it."""
        self.outputs = [self.draw(pattern, None)]

    def draw(self, pattern: Any, rank: int | None, like: Value | None = None) -> Value:
        """Adds what matches a pattern.

        Args:
            pattern: the pattern.
            rank: of the result, where something needs one.
            like: what the result stands beside in an operator of two, which broadcasts.
        """
        if isinstance(pattern, Either):
            known = [one for one in pattern.patterns if not self._has_own(one)]
            if not known:
                raise NoCallError("made by other rules")
            return self.draw(self.d.one(known), rank, like)
        if isinstance(pattern, Number):
            shape: tuple[int, ...] = self.d.one(((), (), (), (1,), (1, 1)))
            kind = np.int64 if pattern.value in (2, 3) and like is not None and self.d.flag(6) else self.dtype
            return self.constant(np.full(shape, pattern.value, kind))
        if isinstance(pattern, Op):
            return self.call(pattern, rank, like)
        assert isinstance(pattern, Var)
        if pattern.name in self.bound:
            return self.bound[pattern.name]
        value = self._variable(pattern, rank, like)
        if pattern.name:
            self.bound[pattern.name] = value
        return value

    def _has_own(self, pattern: Any) -> bool:
        return isinstance(pattern, Op) and (
            not pattern.names.isdisjoint(OWN) or any(map(self._has_own, pattern.inputs))
        )

    def _variable(self, pattern: Var, rank: int | None, like: Value | None) -> Value:
        d = self.d
        if pattern.name == "mask" and like is None:
            return self.input(d.array(d.filled(1, 4), np.bool_))
        if like is None and self.hint is not None:
            shape, self.hint = self.hint, None
            return self.leaf(shape)
        if like is None:
            rank = d.one((1, 2, 3, 3, 4, 4, 5)) if rank is None else rank
            return self.leaf(d.filled(rank, rank, d.one(((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (1, 2, 4, 6)))))
        shape = list(like.array.shape)
        if pattern.name == "eps":
            array = np.full(d.one(((), (), (1,), shape[-1:])), d.one((1e-5, 1e-6, 1e-3, 0.1)), self.dtype)
            return self.constant(array) if d.mostly(8) else self.input(array)
        kind = d.int(0, 15)
        if kind in (0, 1, 2, 3, 12, 13, 14, 15):
            shape = shape[-1:]
        elif kind <= 5:
            shape = [size if axis == 1 else 1 for axis, size in enumerate(shape)]
            shape = shape[1:] if d.flag(3) else shape
        elif kind <= 7:
            shape = d.broadcastable(shape)
        elif kind == 8:
            shape = [d.int(1, 2), *shape] if d.flag() else [1] * len(shape)
        elif kind == 9:
            shape = []
        elif kind == 10:
            shape = shape[-2:]
        if d.flag(12):  # a size that the other one takes
            shape = [d.one((1, 3)) if size == 1 else size for size in shape]
        return self.leaf(shape, constant=pattern.constant or d.mostly(4))

    def call(self, pattern: Op, rank: int | None, like: Value | None) -> Value:
        """Adds the nodes of an operator's pattern."""
        op = self.d.one(sorted(pattern.names))
        if op in OWN:
            raise NoCallError("made by other rules")
        given = dict(pattern.attributes)
        if op in ELEMENTWISE:
            value = self.node(op, [self.draw(pattern.inputs[0], rank, like)], **given)
        elif op in OF_TWO:
            value = self._of_two(op, pattern, rank, like)
        else:
            value = _MAKERS[op](self, op, pattern, given, rank)
        if pattern.name:
            self.bound[pattern.name] = value
        if self.d.flag(25):
            value = self.node("Identity", [value])
        return value

    def _of_two(self, op: str, pattern: Op, rank: int | None, like: Value | None) -> Value:
        order = [0, 1] if not isinstance(pattern.inputs[0], Number) else [1, 0]
        if isinstance(pattern.inputs[0], Var) and pattern.inputs[0].name not in self.bound:
            order = (
                [1, 0]
                if isinstance(pattern.inputs[1], Op) and not _reads(pattern.inputs[1], pattern.inputs[0])
                else order
            )
        values: dict[int, Value] = {}
        for index in order:
            other = values.get(1 - index, like if isinstance(pattern.inputs[index], Op) else None)
            values[index] = self.draw(pattern.inputs[index], rank, other)
        a, b = values[0], values[1]
        if op in ("Add", "Mul") and self.d.flag(4):
            a, b = b, a
        return self.node(op, [a, b])


def _reads(pattern: Any, variable: Var) -> bool:
    if isinstance(pattern, Either):
        return any(_reads(one, variable) for one in pattern.patterns)
    return pattern == variable or (isinstance(pattern, Op) and any(_reads(one, variable) for one in pattern.inputs))


Maker = Callable[[PatternGraph, str, Op, dict[str, Any], "int | None"], Value]
_MAKERS: dict[str, Maker] = {}


def _maker(*ops: str) -> Callable[[Maker], Maker]:
    def register(function: Maker) -> Maker:
        _MAKERS.update(dict.fromkeys(ops, function))
        return function

    return register


@_maker("Cast")
def _cast(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    value = g.draw(pattern.inputs[0], rank)
    return g.node(op, [value], to=given.get("to", helper.np_dtype_to_tensor_dtype(np.dtype(g.dtype))))


@_maker("HardSigmoid")
def _hard_sigmoid(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    return g.node(op, [g.draw(pattern.inputs[0], rank)], **given, **({"beta": 0.4} if g.d.flag(6) else {}))


@_maker("ReduceMean", "ReduceMin", "ReduceMax", "ReduceL1", "ReduceL2", "ReduceSum")
def _reduce(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank)
    count = x.array.ndim
    if not pattern.more:
        return g.node(op, [x], keepdims=g.d.one((0, 1)))
    last = g.d.int(1, max(1, min(2, count)))
    axes = list(range(-last, 0)) if g.d.mostly(4) else g.d.axes(count, 1)
    if g.d.flag(3):
        axes = [axis % max(count, 1) for axis in axes]
    attributes = {"keepdims": 0} if g.d.flag(8) else {"keepdims": 1} if g.d.flag() else {}
    if g.opset >= 18 and op != "ReduceSum":
        return g.node(op, [x, g.ints(*axes)], **attributes)
    return g.node(op, [x], axes=axes, **attributes)


@_maker("GlobalAveragePool")
def _global_pool(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    return g.node(op, [g.draw(pattern.inputs[0], g.d.one((3, 3, 4)))])


@_maker("MaxPool", "AveragePool")
def _pool(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], g.d.one((3, 4, 4)))
    kernel = [min(size, g.d.one((1, 1, 2))) for size in x.array.shape[2:]]
    return g.node(op, [x], kernel_shape=kernel, strides=[g.d.one((1, 1, 2)) for _ in kernel])


@_maker("SpaceToDepth", "DepthToSpace")
def _blocks(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], 4)
    _, channels, *sizes = x.array.shape
    fits = [size for size in (1, 2, 3) if not any(length % size for length in sizes)]
    if op == "DepthToSpace":
        fits = [size for size in (1, 2, 3) if not channels % size**2]
    return g.node(op, [x], blocksize=fits[-1])


@_maker("Clip")
def _clip(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank)
    low, high = g.d.one(((0, 6), (0, 6), (1e-12, None), (1e-3, None), (0.5, None), (0, 5), (None, 6)))
    bounds = [None if bound is None else g.constant(np.asarray(bound, g.dtype)) for bound in (low, high)]
    return g.node(op, [x, *bounds] if high is not None else [x, *bounds[:1]])


@_maker("Softmax")
def _softmax(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank)
    axis = {"axis": -1} if g.d.mostly(4) else {"axis": g.d.axis(x.array.ndim)} if x.array.ndim else {}
    return g.node(op, [x], **axis)


@_maker("MatMul")
def _product(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    a = g.draw(pattern.inputs[0], rank or g.d.one((2, 3, 4, 4)))
    inner = a.array.shape[-1]
    second = pattern.inputs[1]
    if isinstance(second, Var) and second.name not in g.bound:
        batch = list(a.array.shape[:-2]) if g.d.flag(4) else []
        shape = [*batch, inner, g.d.int(1, 5)] if g.d.mostly(8) else [inner]
        b = g.bound[second.name] = g.leaf(shape, constant=second.name == "weight" and g.d.mostly(6))
    else:
        g.hint = [*a.array.shape[:-2], inner, g.d.int(1, 5)]
        b = g.draw(second, a.array.ndim)
        g.hint = None
    return g.node(op, [a, b])


@_maker("Conv", "ConvTranspose")
def _convolution(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    d = g.d
    x = g.draw(pattern.inputs[0], d.one((3, 4, 4)))
    space, channels = x.array.ndim - 2, x.array.shape[1]
    group = channels if d.flag(4) else 1
    made = group * d.int(1, 3)
    kernel = [d.int(1, 3) for _ in range(space)]
    shape = [made, channels // group, *kernel] if op == "Conv" else [channels, made // group, *kernel]
    inputs = [x, g.leaf(shape, constant=d.mostly(6))]
    if len(pattern.inputs) > 2:
        inputs.append(g.leaf([made], constant=d.mostly(4)))
    attributes = {key: value for key, value in window(d, space).items() if key != "auto_pad" or op == "Conv"}
    return g.node(op, inputs, group=group, **attributes)


@_maker("Pad")
def _pad(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank)
    count = x.array.ndim
    pads = [0 if axis < 2 and g.d.mostly(6) else g.d.int(0, 2) for axis in range(count)]
    ends = pads if g.d.mostly(3) else [g.d.int(0, 2) if axis >= 2 else pad for axis, pad in enumerate(pads)]
    value = [g.constant(np.asarray(g.d.one((0, 0, 0, 1, -0.0)), g.dtype))] if g.d.flag() else []
    mode = {"mode": g.d.one(("reflect", "edge"))} if g.d.flag(8) else {}
    return g.node(op, [x, g.ints(*pads, *ends), *value], **mode)


@_maker("LayerNormalization")
def _layer_norm(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x, count = g.draw(pattern.inputs[0], rank), g.d.one((1, 1, 2))
    shape = x.array.shape[-count:]
    scale = g.constant(np.ones(shape, g.dtype)) if g.d.mostly(3) else g.leaf(shape, constant=True)
    bias = [g.constant(np.zeros(shape, g.dtype))] if g.d.flag() else []
    return g.node(op, [x, scale, *bias], axis=-count, **g.d.some(epsilon=1e-3))


@_maker("InstanceNormalization")
def _instance_norm(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank or g.d.one((3, 3, 4)))
    if x.array.ndim < 3:
        raise NoCallError("no instances")
    if math.prod(x.array.shape[2:]) == 1:
        raise NoCallError("torch has no variance of one number")
    ones, zeros = np.ones(x.array.shape[1], g.dtype), np.zeros(x.array.shape[1], g.dtype)
    if g.d.flag(5):
        ones = ones * g.dtype(1.5)
    return g.node(op, [x, g.constant(ones), g.constant(zeros)], **g.d.some(epsilon=1e-3))


@_maker("BatchNormalization")
def _batch_norm(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank or g.d.one((2, 3, 4, 4)))
    if x.array.ndim < 2:
        raise NoCallError("no channels")
    channels = x.array.shape[1]
    ones, zeros = np.ones(channels, g.dtype), np.zeros(channels, g.dtype)
    if g.d.flag(5):
        ones = ones * g.dtype(1.5)
    spread = np.linspace(0.5, 2, channels).astype(g.dtype)
    inputs = [x, *map(g.constant, (ones, zeros, spread - g.dtype(1), spread))]
    return g.node(op, inputs, **g.d.some(epsilon=1e-3, momentum=0.8))


@_maker("Reshape")
def _reshape(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    below = pattern.inputs[0]
    splits = rank is not None and isinstance(below, Var)
    x = g.draw(below, rank - g.d.int(1, 2) if splits and rank is not None and rank > 2 else None)
    name = pattern.inputs[1].name if isinstance(pattern.inputs[1], Var) else ""
    sizes = list(x.array.shape)
    if not sizes:
        raise NoCallError("a number")
    known = g.bound.get("x")
    if rank is None and known is not None and known.array.size == x.array.size and g.d.flag():
        sizes = list(known.array.shape)
    elif rank is not None and len(sizes) > rank and not splits and g.d.flag():
        sizes = [math.prod(sizes[: 1 - rank]), *sizes[1 - rank :]]  # all dimensions but the last ones in one
    elif rank is None and not isinstance(below, Var) and g.d.flag(3):
        first = g.d.one([size for size in range(1, sizes[0] + 1) if sizes[0] % size == 0] or [1])
        sizes = [first, sizes[0] // first, *sizes[1:]]
    elif rank is not None or g.d.mostly(4):
        sizes = _regrouped(g.d, sizes, rank or g.d.int(1, 5))
    target = list(sizes)
    if target and g.d.flag(3):
        target[g.d.r.randrange(len(target))] = -1
    elif g.d.flag(3):
        target = [
            0 if i < x.array.ndim and size == x.array.shape[i] and g.d.flag() else size for i, size in enumerate(sizes)
        ]
    shape = g.ints(*target)
    if name:
        g.bound.setdefault(name, shape)
    return g.node(op, [x, shape])


def _regrouped(d: Draw, sizes: list[int], rank: int) -> list[int]:
    """Returns sizes of another rank with as many elements: dimensions are joined, split, and set to 1."""
    if d.flag(4):
        sizes = [size for size in sizes if size != 1 or d.flag()] or [1]
    while len(sizes) > rank:
        at = d.r.randrange(len(sizes) - 1)
        sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
    while len(sizes) < rank:
        at = d.r.randrange(len(sizes))
        factors = [f for f in range(1, sizes[at] + 1) if sizes[at] % f == 0]
        first = d.one(factors)
        sizes[at : at + 1] = [first, sizes[at] // first]
    return sizes


@_maker("Transpose")
def _transpose(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    perm = given.get("perm")
    if g.hint is not None:
        g.hint[-2:] = g.hint[:-3:-1]
    x = g.draw(pattern.inputs[0], len(perm) if perm else rank)
    count = x.array.ndim
    if perm is None:
        swapped = [*range(count - 2), count - 1, count - 2] if count > 1 and g.d.mostly(3) else None
        perm = swapped or g.d.shuffled(range(count))
    return g.node(op, [x], perm=list(perm))


@_maker("Flatten")
def _flatten(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank)
    return g.node(op, [x], axis=g.d.int(0, x.array.ndim))


@_maker("Squeeze")
def _squeeze(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank)
    ones = [axis for axis, size in enumerate(x.array.shape) if size == 1]
    if not ones:
        raise NoCallError("nothing to squeeze")
    return g.node(op, [x, g.ints(g.d.one(ones))] if g.d.mostly(4) else [x])


@_maker("Unsqueeze")
def _unsqueeze(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], None if rank is None else rank - 1)
    axis = 2 if x.array.ndim > 1 and g.d.flag() else g.d.axis(x.array.ndim + 1)
    return g.node(op, [x, g.ints(axis)])


@_maker("Expand")
def _expand(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank)
    sizes = [g.d.int(2, 4) if size == 1 and g.d.flag() else size for size in x.array.shape]
    if g.d.flag(12):
        sizes = [g.d.int(1, 2), *sizes]
    return g.node(op, [x, g.ints(*sizes)])


@_maker("Gather")
def _gather(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x = g.draw(pattern.inputs[0], rank)
    flat = math.prod(x.array.shape[:1])
    if isinstance(pattern.inputs[1], Number):
        return g.node(op, [x, g.constant(np.int64(pattern.inputs[1].value))], axis=0)
    indices = np.arange(flat).reshape(_regrouped(g.d, [flat], g.d.int(1, 3)))
    if g.d.flag(4):
        indices = indices[..., ::-1]
    return g.node(op, [x, g.constant(np.ascontiguousarray(indices))], axis=0)


@_maker("Slice")
def _slice(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    x, d = g.draw(pattern.inputs[0], rank), g.d
    if not x.array.ndim:
        raise NoCallError("nothing to slice")
    end = (1 << 63) - 1
    axis = -1 if d.mostly(5) else d.axis(x.array.ndim)
    half = x.array.shape[axis] // 2 if d.mostly(5) else d.int(0, x.array.shape[axis])
    names = [one.name if isinstance(one, Var) else "" for one in pattern.inputs[1:3]]
    if isinstance(pattern.inputs[-1], Number) or (len(pattern.inputs) > 1 and isinstance(pattern.inputs[1], Number)):
        start, stop, step = int(pattern.inputs[1].value), end, 1
    elif names == ["start"]:
        start, stop, step = half, end, 1
    elif names == ["", "end"]:
        start, stop, step = 0, half, 1
    else:  # every second element, odd ones first
        start, stop, step = int(pattern.name == "odd"), end, 2
    if d.flag(12):
        step = 3 - step
    inputs = [x, g.ints(start), g.ints(stop), g.ints(axis)]
    return g.node(op, inputs if step == 1 and d.flag() else [*inputs, g.ints(step)])


@_maker("Split")
def _split(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    """Parts of a tensor, of which others of the pattern read the last one, `gate`, or any other value."""
    x, d = g.draw(pattern.inputs[0], rank), g.d
    if not x.array.ndim:
        raise NoCallError("nothing to split")
    axis, count = d.axis(x.array.ndim), d.one((2, 2, 2, 2, 3))
    size, attributes = x.array.shape[axis], dict[str, Any]()
    lengths = []
    if d.flag(4):
        lengths = [g.ints(*[size // count] * (count - 1), size - size // count * (count - 1))]
    elif g.opset >= 18:
        attributes = {"num_outputs": count}
    parts = g.results(op, [x, *lengths], count, axis=axis, **attributes)
    if d.mostly(6):
        parts = parts if d.mostly(6) else parts[::-1]
        g.bound["gate"] = parts[-1]
    return parts[0]


@_maker("Concat")
def _concat(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    parts = [g.draw(one, rank) for one in pattern.inputs]
    return g.node(op, parts, axis=-1 if g.d.mostly(5) else g.d.axis(parts[0].array.ndim))


@_maker("Where")
def _where(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    d, parts = g.d, dict[int, Value]()
    for index in sorted(range(3), key=lambda i: not isinstance(pattern.inputs[i], (Op, Either))):
        one = pattern.inputs[index]
        beside = next(iter(parts.values()), None)
        if index == 0 and isinstance(one, Var) and one.name not in g.bound:
            shape = d.broadcastable(beside.array.shape) if beside is not None else d.filled(2, 4)
            array = d.np.integers(0, 3, shape) > 0
            parts[0] = g.bound[one.name] = g.constant(array) if d.flag() else g.input(array)
        elif isinstance(one, Var) and one.constant and one.name == "low":
            parts[index] = g.constant(np.asarray(d.one((-1e30, -np.inf, -3.4e38, -1e4, -5.0)), g.dtype))
        else:
            parts[index] = g.draw(one, rank, beside)
    return g.node(op, [parts[0], parts[1], parts[2]])


@_maker("Trilu")
def _trilu(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    return g.node(op, [g.draw(pattern.inputs[0], rank)], **given)


@_maker("Shape")
def _shape(g: PatternGraph, op: str, pattern: Op, given: dict[str, Any], rank: int | None) -> Value:
    return g.node(op, [g.draw(pattern.inputs[0], None)])


def drawn(d: Draw, pattern: Any, tries: int = 60) -> PatternGraph | None:
    """Returns a graph of a pattern; None where none of the tries was valid."""
    for _ in itertools.repeat(None, tries):
        try:
            return PatternGraph(d, pattern)
        except NoCallError:
            continue
    return None


def _named(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Returns rules by their name and number among those of one name: what is drawn does not depend on other rules."""
    counts: Counter[str] = Counter()
    found = {}
    for rule in rules:
        found[f"{rule.name}-{counts[rule.name]}"] = rule
        counts[rule.name] += 1
    return found


RULES = _named(rule for sweep in SWEEPS for rule in all_rules(sweep) if rule.name != "MultiheadAttention")
"""All but the one whose pattern has nodes that other rules make."""
