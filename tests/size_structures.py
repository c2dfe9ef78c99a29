"""Steps of size graphs that take tensors apart, move or repeat their elements, as computed numbers say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.size_builder import FLOAT, INT64, Builder, Number, Tensor
from tests.size_consumers import CONSUMERS, Outcome, changed, data
from tests.size_numbers import any_integer, apply, as_scalar, as_vector, cast, clamped, negated, size_of, vector


def _axis(g: Builder, x: Tensor) -> tuple[int, Number]:
    """An axis, and its size."""
    axis = g.rng.randint(0, x.rank - 1)
    return axis, cast(g, size_of(g, x, axis), INT64)


def _within(g: Builder, size: Number) -> Number:
    """A computed number from 0 to a size."""
    return apply(g, "Min", apply(g, "Max", any_integer(g), g.number(0)), size)


def split(g: Builder) -> Outcome:
    """Two parts of computed sizes, of which the first is used, the second or both."""
    x = data(g)
    axis, size = _axis(g, x)
    first = _within(g, size)
    names = g.ops("Split", 2, x, vector(g, [first, apply(g, "Sub", size, first)]), axis=axis)
    parts = [changed(x, name, axis, (0, x.dims[axis][1])) for name in names]
    return g.choice([parts[:1], parts[1:], parts])


def sequence(g: Builder) -> Outcome:
    """Parts of a computed size, whose number a size decides too: the number, one of them, or all joined again."""
    x = data(g)
    axis, size = _axis(g, x)
    if g.chance(70):
        least = apply(g, "Add", apply(g, "Div", size, g.number(9)), g.number(1))  # at most nine parts
        length = as_scalar(g, apply(g, "Max", any_integer(g), least))
    else:
        first = _within(g, size)
        length = as_vector(g, first)
        length = replace(length, name=vector(g, [first, apply(g, "Sub", size, first)]))
    parts = g.op("SplitToSequence", x, length, axis=axis)
    way = g.choice(["length", "at", "joined", "longer"])
    if way == "length":
        g.numbers.append(Number(g.op("SequenceLength", parts), 0, 9))
        return [Tensor(g.op("Unsqueeze", g.numbers[-1], g.constant([0])), ((1, 1),), 1, INT64)]
    if way == "at":
        place = g.constant(g.choice([0, -1]))
        return [changed(x, g.op("SequenceAt", parts, place), axis, (0, x.dims[axis][1]))]
    if way == "longer":
        parts = g.op("SequenceInsert", parts, x, *([g.constant(0)] if g.chance(50) else []))
    name = g.op("ConcatFromSequence", parts, axis=axis)
    return [changed(x, name, axis, (0, 2 * x.dims[axis][1]), 2)]


def repeated_pad(g: Builder) -> Outcome:
    """Elements repeated at the ends by computed pads, which crop where they are negative."""
    x = data(g)
    if x.dtype != FLOAT:
        return split(g)
    axis, _ = _axis(g, x)
    amounts = [clamped(g, any_integer(g), g.choice([0, -2, -9]), 9) for _ in range(2)]
    if g.chance(40):
        amounts[0] = g.number(g.choice([0, 1, 2]))
    if g.chance(40):
        amounts.reverse()
    pads: list[Number | int] = [0] * (2 * x.rank)
    pads[axis], pads[axis + x.rank] = amounts
    name = g.op("Pad", x, vector(g, pads), mode=g.choice(["edge", "reflect", "wrap"]))
    return [changed(x, name, axis, (0, x.dims[axis][1] + 18), 19)]


def triangle(g: Builder) -> Outcome:
    x = data(g)
    if x.rank < 2:
        return split(g)
    k = as_scalar(g, clamped(g, any_integer(g), -9, 9))
    return [replace(x, name=g.op("Trilu", x, k, upper=int(g.chance(50))), ramp=False)]


def scattered(g: Builder) -> Outcome:
    """The first row once more, at a computed place that may be counted from the end."""
    x = data(g)
    if not x.dims[0][0]:
        return split(g)
    size = cast(g, size_of(g, x, 0), INT64)
    place = apply(g, "Min", apply(g, "Max", any_integer(g), g.number(0)), apply(g, "Sub", size, g.number(1)))
    if g.chance(40):
        place = apply(g, "Sub", place, size)
    row = g.op("Slice", x, g.constant([0]), g.constant([1]), g.constant([0]))
    indices = g.op("Reshape", place, g.constant([1, 1]))
    return [replace(x, name=g.op("ScatterND", x, indices, row), ramp=False)]


def reversed_(g: Builder) -> Outcome:
    """The first elements of each row in the other order, as many as a size says."""
    x = data(g)
    if x.rank < 2 or not x.dims[0][0] or not x.dims[1][0]:
        return split(g)
    time = g.choice([0, 1])
    size, rows = (cast(g, size_of(g, x, axis), INT64) for axis in (time, 1 - time))
    length = apply(g, "Min", apply(g, "Max", any_integer(g), g.number(1)), size)
    lengths = g.op("Expand", length, vector(g, [rows]))
    return [replace(x, name=g.op("ReverseSequence", x, lengths, time_axis=time, batch_axis=1 - time), ramp=False)]


def one_hot(g: Builder) -> Outcome:
    """A row of computed length with one element that differs, which may lie outside and is counted from the end."""
    depth = clamped(g, any_integer(g), 1, 60)
    places = as_vector(g, clamped(g, negated(g, any_integer(g)) if g.chance(40) else any_integer(g), -60, 60))
    name = g.op("OneHot", places, as_scalar(g, depth), g.constant([3, 5]), axis=g.choice([-1, 0]))
    return [Tensor(g.op("Reshape", name, g.constant([-1])), ((1, 60),), 60, INT64)]


STRUCTURES: tuple[Callable[[Builder], Outcome], ...] = (
    split,
    sequence,
    sequence,
    repeated_pad,
    repeated_pad,
    triangle,
    scattered,
    reversed_,
    one_hot,
)


def consume(g: Builder) -> Outcome:
    """Adds one consumer; returns its tensors, from which later steps and consumers start."""
    results = g.choice((*CONSUMERS, *STRUCTURES))(g)
    g.tensors += results
    return results
