"""Steps of size graphs that compute numbers from shapes and from other numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.size_builder import BOOL, FLOAT, INT32, INT64, LARGEST, Builder, Number, Tensor

CONSTANTS = (1, 2, 3, 4, 7, 8, 10, 16, 32, 40, 64, 100, 1000, 0, -1, -2, -5, -40)
FLOATS = (0.5, 2.0, 0.3, 1.7, 0.25, 1.5, 3.0, 0.1, -0.5, -1.3)


def size_of(g: Builder, x: Tensor, axis: int) -> Number:
    """A dimension of a tensor, by one of the ways in which exporters write it."""
    low, high = x.dims[axis]
    if g.chance(30):
        axis -= x.rank
    way = g.choice(["scalar", "vector", "attributes", "slice", "squeeze", "int32"])
    if way == "attributes":
        end = {} if axis in (-1, x.rank - 1) else {"end": axis + 1}
        return Number(g.op("Shape", x, start=axis, **end), low, high, INT64, 1)
    shape = g.op("Shape", x)
    if way in ("slice", "squeeze"):
        end = 2**63 - 1 if axis == -1 else axis + 1
        part = g.op("Slice", shape, g.constant([axis]), g.constant([end]))
        return Number(part, low, high, INT64, 1) if way == "slice" else Number(g.op("Squeeze", part), low, high)
    if way == "int32":
        return Number(g.op("Gather", g.op("Cast", shape, to=INT32), g.constant(axis)), low, high, INT32)
    rank = int(way == "vector")
    return Number(g.op("Gather", shape, g.constant([axis] if rank else axis)), low, high, INT64, rank)


def any_size(g: Builder) -> Number:
    x = g.latest(g.tensors)
    if x.elements <= LARGEST and g.chance(10):
        return Number(g.op("Size", x), 0, x.elements)
    if not x.rank:
        return g.number(1)
    return size_of(g, x, g.rng.randint(0, x.rank - 1))


def of_a_vector(g: Builder) -> Number:
    """An element of the shape after arithmetic on all of it."""
    x = g.latest(g.tensors)
    if not x.rank:
        return any_size(g)
    axis = g.rng.randint(0, x.rank - 1)
    others = [g.choice([2, 3, 4, -1, 8]) for _ in x.dims]
    operator = g.choice(["Mul", "Add", "Sub", "Div"])
    a, b = Number("", *x.dims[axis]), g.number(others[axis])
    name = g.op("Gather", g.op(operator, g.op("Shape", x), g.constant(others)), g.constant(axis))
    return Number(name, *bounds_of(operator, a, b))


def cast(g: Builder, number: Number, dtype: int) -> Number:
    if number.dtype == dtype:
        return number
    slack = 1 + number.size * 1e-6 if FLOAT in (number.dtype, dtype) and number.size > 2**23 else 0
    low, high = number.low - slack, number.high + slack
    if dtype != FLOAT:
        low, high = math.floor(low), math.ceil(high)
    return Number(g.op("Cast", number, to=dtype), low, high, dtype, number.rank)


def as_vector(g: Builder, number: Number) -> Number:
    if number.rank:
        return number
    name = g.op("Unsqueeze", number, g.constant([0])) if g.chance(70) else g.op("Reshape", number, g.constant([-1]))
    return replace(number, name=name, rank=1)


def as_scalar(g: Builder, number: Number) -> Number:
    if not number.rank:
        return number
    name = g.op("Squeeze", number, g.constant([0])) if g.chance(70) else g.op("Squeeze", number)
    return replace(number, name=name, rank=0)


def vector(g: Builder, parts: Sequence[Number | int]) -> str:
    """The name of an int64 vector of numbers."""
    if all(isinstance(part, int) for part in parts):
        return g.constant(list(parts))
    names = [g.constant([part]) if isinstance(part, int) else as_vector(g, cast(g, part, INT64)).name for part in parts]
    return names[0] if len(names) == 1 else g.op("Concat", *names, axis=0)


def bounds_of(operator: str, a: Number, b: Number, fmod: int = 0) -> tuple[float, float]:
    """The bounds of a binary operator; Div and Mod by an interval without zero."""
    if operator == "Add":
        return a.low + b.low, a.high + b.high
    if operator == "Sub":
        return a.low - b.high, a.high - b.low
    if operator == "Min":
        return min(a.low, b.low), min(a.high, b.high)
    if operator == "Max":
        return max(a.low, b.low), max(a.high, b.high)
    if operator == "Mod":
        largest = b.size - 1
        if fmod:
            return (0 if a.low >= 0 else -largest), (0 if a.high <= 0 else largest)
        return (0, largest) if b.low > 0 else (-largest, 0)
    corners = [(p, q) for p in (a.low, a.high) for q in (b.low, b.high)]
    if operator == "Mul":
        results = [p * q for p, q in corners]
    else:
        results = [p / q if FLOAT in (a.dtype, b.dtype) else math.trunc(p / q) for p, q in corners]
    return min(results), max(results)


def nonzero(g: Builder, number: Number) -> Number:
    """A number that is never zero, from one that may be."""
    if number.low > 0 or number.high < 0:
        return number
    way = g.choice(["Max", "Abs", "Neg"])
    one = g.number(1, number.dtype)
    if way == "Abs":
        return apply(g, "Add", absolute(g, number), one)
    positive = apply(g, "Max", number, one)
    return negated(g, positive) if way == "Neg" else positive


def apply(g: Builder, operator: str, a: Number, b: Number, **attributes: int) -> Number:
    """A binary operator on numbers of one dtype."""
    low, high = bounds_of(operator, a, b, attributes.get("fmod", 0))
    return Number(g.op(operator, a, b, **attributes), low, high, a.dtype, max(a.rank, b.rank))


def negated(g: Builder, a: Number) -> Number:
    return replace(a, name=g.op("Neg", a), low=-a.high, high=-a.low)


def absolute(g: Builder, a: Number) -> Number:
    return replace(a, name=g.op("Abs", a), low=0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high)), high=a.size)


def any_number(g: Builder) -> Number:
    return g.latest(g.numbers) if g.numbers else any_size(g)


def any_integer(g: Builder) -> Number:
    return cast(g, any_number(g), INT64)


def second(g: Builder, a: Number, percent: int = 40) -> Number:
    """Another number, cast to the first one's dtype, or else a constant."""
    others = [number for number in g.numbers if number is not a]
    if others and g.chance(percent):
        return cast(g, g.choice(others), a.dtype)
    return g.number(g.choice(FLOATS if a.dtype == FLOAT else CONSTANTS), a.dtype, int(g.chance(20)))


def unary(g: Builder) -> Number:
    return g.choice([negated, absolute])(g, any_number(g))


def binary(g: Builder) -> Number:
    """Arithmetic of two numbers, or of a number and a constant on either side."""
    a = any_number(g)
    b = second(g, a)
    if g.chance(20):
        a, b = b, a
    operators = ["Sub", "Add", "Div", "Mul", "Min", "Max", *([] if a.dtype == FLOAT else ["Mod", "Mod"])]
    operator = g.choice(operators)
    if operator == "Mul" and a.size * b.size > LARGEST:
        operator = "Sub"
    if max(a.size, b.size) * 2 > LARGEST:
        operator, b = "Min", g.number(5000, a.dtype)
    if operator in ("Div", "Mod"):
        b = nonzero(g, b)
    attributes = {"fmod": 1} if operator == "Mod" and g.chance(50) else {}
    return apply(g, operator, a, b, **attributes)


def shifted(g: Builder) -> Number:
    """A number that is negative at some sizes, divided, rounded or without its sign."""
    a = any_integer(g)
    border = g.number(g.choice([8, 16, 40, 64, 300, 1000]))
    a = apply(g, "Sub", *([a, border] if g.chance(70) else [border, a]))
    way = g.choice(["Div", "Mod", "fmod", "Abs", "Cast"])
    divisor = g.number(g.choice([2, 3, 4, 8, -3, 16]))
    if way == "Abs":
        return absolute(g, a)
    if way == "Cast":
        quotient = apply(g, "Div", cast(g, a, FLOAT), g.number(g.choice([2.0, 8.0, 3.0, -4.0]), FLOAT))
        return cast(g, quotient, g.choice([INT64, INT32]))
    return apply(g, way.replace("fm", "M"), a, divisor, **({"fmod": 1} if way == "fmod" else {}))


def condition(g: Builder, depth: int = 0) -> Number:
    """A bool from comparisons of numbers."""
    way = g.choice(["compare", "compare", "compare", "Not", "And", "Or"]) if depth < 2 else "compare"
    if way == "Not":
        a = condition(g, depth + 1)
        return replace(a, name=g.op("Not", a))
    if way in ("And", "Or"):
        a, b = condition(g, depth + 1), condition(g, depth + 1)
        return Number(g.op(way, a, b), 0, 1, BOOL, max(a.rank, b.rank))
    a = any_number(g)
    b = second(g, a)
    operators = ["Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"]
    return Number(g.op(g.choice(operators), a, b), 0, 1, BOOL, max(a.rank, b.rank))


def where(g: Builder) -> Number:
    test, a = condition(g), any_number(g)
    b = second(g, a, 50)
    if g.chance(50):
        a, b = b, a
    rank = max(test.rank, a.rank, b.rank)
    return Number(g.op("Where", test, a, b), min(a.low, b.low), max(a.high, b.high), a.dtype, rank)


def from_condition(g: Builder) -> Number:
    return cast(g, condition(g), g.choice([INT64, INT32, FLOAT]))


def float_detour(g: Builder) -> Number:
    """Through float32 and, nine times of ten, back to an integer."""
    a = cast(g, any_number(g), FLOAT)
    for _ in range(g.choice([1, 1, 2])):
        b = second(g, a, 25)
        operator = g.choice(["Mul", "Div", "Add", "Sub"])
        if operator == "Mul" and a.size * b.size > LARGEST:
            operator = "Add"
        if operator == "Div":
            b = nonzero(g, b)
            if b.low < 0.01 < b.high or a.size / min(abs(b.low), abs(b.high)) > LARGEST:
                operator = "Sub"
        if max(a.size, b.size) * 2 > LARGEST:
            operator, b = "Min", g.number(5000, FLOAT)
        a = apply(g, operator, a, b)
    rounding = g.choice(["Floor", "Ceil", "Round", ""])
    if rounding:
        a = Number(g.op(rounding, a), a.low - 1, a.high + 1, FLOAT, a.rank)
    return a if g.chance(10) else cast(g, a, g.choice([INT64, INT64, INT32]))


def clamped(g: Builder, number: Number, low: int, high: int) -> Number:
    """An int64 number between two constants."""
    number = cast(g, number, INT64)
    if low <= number.low and number.high <= high:
        return number
    way = g.choice(["Max", "Min", "Clip", "Mod", "Where"])
    if way == "Mod" and low <= 0 < high:
        return apply(g, "Mod", number, g.number(high + 1))
    if way == "Clip":
        return replace(number, name=g.op("Clip", number, g.constant(low), g.constant(high)), low=low, high=high)
    if number.high > high:
        if way == "Where":
            larger = g.op("Greater", number, g.constant(high))
            number = replace(number, name=g.op("Where", larger, g.constant(high), number), high=high)
        else:
            number = apply(g, "Min", number, g.number(high))
    return apply(g, "Max", number, g.number(low)) if number.low < low else number


def chosen_by_if(g: Builder) -> Number:
    """A number that an If on sizes computes in one of two ways."""
    test = as_scalar(g, condition(g))
    graphs, results = [], []
    for _ in range(2):
        with g.inner() as nodes:
            number = as_scalar(g, cast(g, g.choice([binary, float_detour, unary])(g), INT64))
            number = replace(number, name=g.op("Identity", number))
            graphs.append(g.subgraph(nodes, [(number.name, INT64)]))
        results.append(number)
    name = g.op("If", test, then_branch=graphs[0], else_branch=graphs[1])
    return Number(name, min(r.low for r in results), max(r.high for r in results))


def counted_by_loop(g: Builder) -> Number:
    """A number that a loop of at most six passes carries."""
    trips = as_scalar(g, clamped(g, any_integer(g), 0, 6))
    start = as_scalar(g, clamped(g, any_integer(g), -1000, 6000))
    index, going, carried = g.name("index"), g.name("going"), g.name("carried")
    with g.inner() as nodes:
        grown = g.choice([index, g.constant(g.choice([2, 1, -3])), start.name])
        result, kept = g.op(g.choice(["Add", "Sub"]), carried, grown), g.op("Identity", going)
        body = g.subgraph(nodes, [(kept, BOOL), (result, INT64)], [(index, INT64), (going, BOOL), (carried, INT64)])
    name = g.op("Loop", trips, "", start, body=body)
    return Number(name, -7 * 6000, 7 * 6000)


STEPS: tuple[Callable[[Builder], Number], ...] = (
    any_size,
    *[binary] * 7,
    unary,
    *[shifted] * 4,
    *[float_detour] * 4,
    any_size,
    any_size,
    *[where] * 2,
    from_condition,
    of_a_vector,
    chosen_by_if,
    counted_by_loop,
)


def step(g: Builder) -> None:
    """Computes one more number. Inside a subgraph no further subgraph is made."""
    if not g.numbers:
        g.numbers.append(any_size(g))
    g.numbers.append(g.choice(STEPS[:-2] if g.depth else STEPS)(g))
