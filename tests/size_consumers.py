"""Steps of size graphs that make tensors: their shapes or values depend on computed numbers, or on data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.size_builder import BOOL, FLOAT, INT32, INT64, MANY, Bounds, Builder, Number, Tensor
from tests.size_numbers import (
    any_integer,
    any_number,
    apply,
    as_scalar,
    as_vector,
    cast,
    clamped,
    condition,
    negated,
    nonzero,
    size_of,
    step,
    vector,
)

Outcome = list[Tensor]

END = 2**63 - 1


def data(g: Builder, exact: bool = False) -> Tensor:
    """A tensor with dimensions, small if there is one; exact where it decides sizes, which rounding may not."""
    options = [x for x in g.tensors if x.rank and (x.exact or not exact)]
    return g.latest([x for x in options if x.elements <= MANY] or options)


def changed(x: Tensor, name: str, axis: int, dim: Bounds, factor: float = 1) -> Tensor:
    """A tensor that differs in one dimension."""
    dims = tuple(dim if i == axis else d for i, d in enumerate(x.dims))
    return replace(x, name=name, dims=dims, elements=int(x.elements * factor), ramp=False)


def slice_(g: Builder) -> Outcome:
    x = data(g)
    axes = [g.rng.randint(0, x.rank - 1)]
    if x.rank > 1 and g.chance(25):
        axes.append((axes[0] + 1) % x.rank)
    starts: list[Number | int] = []
    ends: list[Number | int] = []
    steps: list[Number | int] = []
    for _ in axes:
        way = g.choice(["end", "start", "both", "constant", "backwards"])
        starts.append(any_integer(g) if way in ("start", "both") else g.choice([0, 1, 2, -3]))
        ends.append(any_integer(g) if way in ("end", "both") else g.choice([4, END, -1, 40, 1]))
        steps.append(g.choice([1, 1, 1, 2, 3]))
        if way == "backwards":
            starts[-1], ends[-1] = g.choice([(any_integer(g), -END), (-1, any_integer(g))])
            steps[-1] = g.choice([-1, -1, -2])
        elif g.chance(10):
            steps[-1] = nonzero(g, any_integer(g))
    given = [axis - x.rank if g.chance(30) else axis for axis in axes]
    name = g.op("Slice", x, *(vector(g, v) for v in (starts, ends)), g.constant(given), vector(g, steps))
    for axis in axes:
        x = changed(x, name, axis, (0, x.dims[axis][1]))
    return [x]


def pad(g: Builder) -> Outcome:
    x = data(g)
    axis = g.rng.randint(0, x.rank - 1)
    amounts = [clamped(g, any_integer(g), 0, 50), g.choice([0, 1, 7])]
    low, high = x.dims[axis]
    if g.chance(25):  # crops what is there, so that no dimension becomes negative
        crop = apply(g, "Min", clamped(g, any_integer(g), 0, 9), as_scalar(g, cast(g, size_of(g, x, axis), INT64)))
        amounts[1], low = negated(g, crop), 0
    if g.chance(40):
        amounts.reverse()
    value = g.constant(g.choice([0, 5]), x.dtype)
    if g.chance(30):
        name = g.op("Pad", x, vector(g, amounts), value, g.constant([axis]))
    else:
        pads: list[Number | int] = [0] * (2 * x.rank)
        pads[axis], pads[axis + x.rank] = amounts
        name = g.op("Pad", x, vector(g, pads), value)
    return [changed(x, name, axis, (low, high + 60), 8)]


def tile(g: Builder) -> Outcome:
    x = data(g)
    axis = g.rng.randint(0, x.rank - 1)
    most = g.choice([2, 3, 5])
    repeats: list[Number | int] = [1] * x.rank
    repeats[axis] = clamped(g, any_integer(g), 0, most)
    return [changed(x, g.op("Tile", x, vector(g, repeats)), axis, (0, x.dims[axis][1] * most), most)]


def range_(g: Builder) -> Outcome:
    dtype = g.choice([INT64, INT64, INT64, INT32, FLOAT])
    limit = clamped(g, any_integer(g), -3000, 6000)
    start = clamped(g, any_integer(g), -3000, 6000) if g.chance(40) else g.number(g.choice([0, 1, 5, -3]))
    if g.chance(20):
        start, limit = limit, start
    delta = g.number(g.choice([1, 1, 2, 3, -1, -2]))
    if g.chance(20):
        delta = nonzero(g, any_integer(g))
    elif dtype == FLOAT:
        delta = g.number(g.choice([0.5, 1, 1.5, -0.5]), FLOAT)
    parts = [as_scalar(g, cast(g, part, dtype)) for part in (start, limit, delta)]
    most = 2 * int(limit.size + start.size) + 1
    return [Tensor(g.op("Range", *parts), ((0, most),), most, dtype)]


def constant_of_shape(g: Builder) -> Outcome:
    limits = g.choice([(6000,), (2000, 4), (3, 2000), (1000, 1, 6)])
    parts = [clamped(g, any_integer(g), 0, most) if g.chance(60) else g.choice([1, 2, 3]) for most in limits]
    dtype, value = g.choice([(FLOAT, 1.5), (INT64, 3)])
    filled = [] if g.chance(20) else [("value", g.initializers[g.constant([value], dtype)])]
    name = g.op("ConstantOfShape", vector(g, parts), **dict(filled))
    dims = tuple((0, most) for most in limits)
    return [Tensor(name, dims, 12_000, dtype if filled else FLOAT)]


def expand(g: Builder) -> Outcome:
    """A new dimension of a computed size, before a tensor's or around a single number."""
    most = g.choice([3, 8])
    if g.chance(40):
        amount = clamped(g, any_integer(g), 0, 6000)
        value = g.constant(g.choice([[2.5], [[1.0], [2.0], [3.0]]]), FLOAT)
        rows = g.initializers[value].dims[0] if len(g.initializers[value].dims) == 2 else 0
        name = g.op("Expand", value, vector(g, [1, amount] if rows else [amount]))
        return [Tensor(name, (*([(3, 3)] if rows else []), (0, 6000)), 18_000)]
    x = data(g)
    amount = clamped(g, any_integer(g), 0, most)
    others: list[Number | int] = [1] * x.rank
    if g.chance(50):
        others = [size_of(g, x, axis) for axis in range(x.rank)]
    name = g.op("Expand", g.op("Unsqueeze", x, g.constant([0])), vector(g, [amount, *others]))
    return [replace(x, name=name, dims=((0, most), *x.dims), elements=x.elements * most, ramp=False)]


def flattened(g: Builder, x: Tensor) -> Tensor:
    """One dimension, by -1 or by the product of the sizes."""
    way = g.choice(["rest", "ReduceProd", "Mul", "Mul"])
    target = g.constant([-1])
    if way == "ReduceProd":
        target = g.op("ReduceProd", g.op("Shape", x), g.constant([0]))
    elif way == "Mul":
        size = size_of(g, x, 0)
        for axis in range(1, x.rank):
            size = apply(g, "Mul", size, cast(g, size_of(g, x, axis), size.dtype))
        target = vector(g, [size])
    low = 1 if all(low for low, _ in x.dims) else 0
    return replace(x, name=g.op("Reshape", x, target), dims=((low, x.elements),), ramp=x.ramp)


def reshape(g: Builder) -> Outcome:
    x = data(g)
    way = g.choice(["flat", "windows", "windows", "merged", "zero", "added"])
    if way == "flat" or (way in ("merged", "zero") and x.rank < 2):
        return [flattened(g, x)]
    if way == "zero":
        return [replace(x, name=g.op("Reshape", x, g.constant([0, -1])), dims=(x.dims[0], (0, x.elements)))]
    if way == "added":
        target = vector(g, [1, *(size_of(g, x, axis) for axis in range(x.rank))])
        return [replace(x, name=g.op("Reshape", x, target), dims=((1, 1), *x.dims))]
    if way == "merged":
        first, second = (cast(g, size_of(g, x, axis), INT64) for axis in (0, 1))
        rest = [size_of(g, x, axis) for axis in range(2, x.rank)]
        if rest and g.chance(50):
            rest[-1:] = [-1]
        dims = ((0, x.elements), *x.dims[2:])
        return [replace(x, name=g.op("Reshape", x, vector(g, [apply(g, "Mul", first, second), *rest])), dims=dims)]
    return [_windows(g, flattened(g, x))]


def _windows(g: Builder, flat: Tensor) -> Tensor:
    """Cuts one dimension to a multiple of a width, then makes it two."""
    width = g.number(g.choice([2, 3, 4, 8])) if g.chance(70) else clamped(g, any_integer(g), 1, 9)
    size = as_scalar(g, cast(g, size_of(g, flat, 0), INT64))
    count = apply(g, "Div", size, width)
    cut = apply(g, "Mul", count, width)
    if g.chance(30):
        cut = apply(g, "Sub", size, apply(g, "Mod", size, width))
    body = g.op("Slice", flat, g.constant([0]), vector(g, [cut]), g.constant([0]))
    target = g.choice([(count, width), (-1, width), (width, -1), (count, -1), (width, count)])
    bounds = {id(count): (0, flat.elements), id(width): (1, 9)}
    dims = tuple(bounds.get(id(part), (0, flat.elements)) for part in target)
    return replace(flat, name=g.op("Reshape", body, vector(g, target)), dims=dims, ramp=False)


def resize(g: Builder) -> Outcome:
    """The last dimension to a computed size, or by a computed scale, as an image of one to four dimensions."""
    options = [x for x in g.tensors if x.ramp and x.rank <= 3 and all(low for low, _ in x.dims)]
    if not options:
        return slice_(g)
    x = g.choice(options)
    image = g.op("Unsqueeze", x, g.constant(list(range(4 - x.rank))))
    mode = g.choice(["nearest", "linear"])
    if mode == "nearest":
        coordinates, rounding = g.choice([("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")])
        attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    else:
        attributes = {"coordinate_transformation_mode": g.choice(["half_pixel", "asymmetric", "align_corners"])}
    kept = [1] * (4 - x.rank) + [size_of(g, x, axis) for axis in range(x.rank - 1)]
    if g.chance(50):
        target = clamped(g, any_integer(g), 1, 60)
        name = g.op("Resize", image, "", "", vector(g, [*kept, target]), mode=mode, **attributes)
        dims = (*x.dims[:-1], (1, 60))
    else:
        scale = g.choice([0.5, 2.0, 1.5])
        if g.chance(60):
            scale = _scale(g, x)
        one = g.constant([1.0, 1.0, 1.0], FLOAT)
        last = g.constant([scale], FLOAT) if isinstance(scale, float) else as_vector(g, scale).name
        name = g.op("Resize", image, "", g.op("Concat", one, last, axis=0), mode=mode, **attributes)
        dims = (*x.dims[:-1], (0, x.dims[-1][1] * 3))
    exact = x.exact and mode == "nearest"
    dims = (*[(1, 1)] * (4 - x.rank), *dims)
    return [Tensor(name, dims, max(x.elements * 3, x.elements * 60 // x.dims[-1][1]), exact=exact)]


def _scale(g: Builder, x: Tensor) -> Number:
    """A scale as quotient of a computed and the present size, or from a small computed number."""
    if g.chance(50):
        target = cast(g, clamped(g, any_integer(g), 1, 60), FLOAT)
        size = cast(g, size_of(g, x, x.rank - 1), FLOAT)
        return Number(g.op("Div", target, size), 0, 60, FLOAT, max(target.rank, size.rank))
    number = cast(g, clamped(g, any_integer(g), 1, 3), FLOAT)
    return apply(g, "Mul", number, g.number(g.choice([1.0, 0.5]), FLOAT))


def gather(g: Builder) -> Outcome:
    """One or several places along an axis, counted from its start or its end."""
    x = data(g)
    axis = g.rng.randint(0, x.rank - 1)
    size = cast(g, size_of(g, x, axis), INT64)
    if g.chance(60):
        number = apply(g, "Max", any_integer(g), g.number(0))
        index = apply(g, "Min", number, apply(g, "Sub", size, g.number(1)))
        if g.chance(40):
            index = apply(g, "Sub", index, size)
        index = as_scalar(g, index) if g.chance(50) else as_vector(g, index)
        dims = (*x.dims[:axis], *[(1, 1)] * index.rank, *x.dims[axis + 1 :])
        return [replace(x, name=g.op("Gather", x, index, axis=axis), dims=dims, ramp=False)]
    count = clamped(g, any_integer(g), 0, 50)
    indices = g.op("Range", g.constant(0), as_scalar(g, count), g.constant(1))
    indices = g.op("Mod", indices, apply(g, "Max", size, g.number(1)))
    return [changed(x, g.op("Gather", x, indices, axis=axis), axis, (0, 50), 50 if x.dims[axis][1] < 50 else 1)]


def concat(g: Builder) -> Outcome:
    """A tensor with a part of it, or two tensors as one dimension."""
    x = data(g)
    if g.chance(50):
        axis = g.rng.randint(0, x.rank - 1)
        part = g.op("Slice", x, g.constant([0]), vector(g, [any_integer(g)]), g.constant([axis]))
        both = [x.name, part] if g.chance(70) else [part, x.name]
        return [changed(x, g.op("Concat", *both, axis=axis), axis, (x.dims[axis][0], 2 * x.dims[axis][1]), 2)]
    y = g.choice([y for y in g.tensors if y.rank])
    parts = [flattened(g, value) for value in (x, y)]
    if y.dtype != x.dtype:
        parts[1] = replace(parts[1], name=g.op("Cast", parts[1], to=x.dtype), dtype=x.dtype)
    total = x.elements + y.elements
    name = g.op("Concat", *parts, axis=0)
    return [Tensor(name, ((parts[0].dims[0][0], total),), total, x.dtype, x.exact and y.exact)]


def arithmetic(g: Builder) -> Outcome:
    """Data with a computed number."""
    x = data(g)
    number = cast(g, any_number(g), x.dtype)
    operator = g.choice(["Add", "Mul", "Sub"])
    if operator == "Mul" and number.size > 10**4:
        operator = "Add"
    inputs = [x, as_scalar(g, number)] if g.chance(70) else [as_scalar(g, number), x]
    return [replace(x, name=g.op(operator, *inputs), exact=x.dtype != FLOAT)]


def selected(g: Builder) -> Outcome:
    """One of two tensors of a shape, chosen by sizes."""
    x = data(g)
    other = g.op("Neg", x) if g.chance(50) else g.constant(7, x.dtype)
    inputs = [x.name, other] if g.chance(50) else [other, x.name]
    return [replace(x, name=g.op("Where", as_scalar(g, condition(g)), *inputs), ramp=False)]


def _test(g: Builder, x: Tensor) -> str:
    """A bool for each element, decided by data."""
    if g.chance(50):
        return g.op("Greater", x, g.constant(g.choice([0, 3, -2, 100]), x.dtype))
    whole = g.op("Cast", g.op("Mul", x, g.constant(8, x.dtype)), to=INT64)
    return g.op("Equal", g.op("Mod", whole, g.constant(3)), g.constant(1))


def nonzero_places(g: Builder) -> Outcome:
    x = data(g, exact=True)
    return [Tensor(g.op("NonZero", _test(g, x)), ((x.rank, x.rank), (0, x.elements)), x.elements * x.rank, INT64)]


def top_k(g: Builder) -> Outcome:
    x = data(g, exact=True)
    axis = g.rng.randint(0, x.rank - 1)
    size = cast(g, size_of(g, x, axis), INT64)
    number = apply(g, "Max", any_integer(g), g.number(0))
    k = as_vector(g, apply(g, "Min", number, size))
    values, places = g.ops("TopK", 2, x, k, axis=axis, largest=int(g.chance(70)))
    result = changed(x, values, axis, (0, x.dims[axis][1]))
    return [result, replace(result, name=places, dtype=INT64, exact=True)] if g.chance(50) else [result]


def compress(g: Builder) -> Outcome:
    """The elements that data choose, or every third row."""
    x = data(g, exact=True)
    if g.chance(60):
        flat = g.op("Reshape", x, g.constant([-1]))
        name = g.op("Compress", flat, _test(g, replace(x, name=flat)), **({"axis": 0} if g.chance(50) else {}))
        return [replace(x, name=name, dims=((0, x.elements),), ramp=False)]
    axis = g.rng.randint(0, x.rank - 1)
    places = g.op("Range", g.constant(0), as_scalar(g, cast(g, size_of(g, x, axis), INT64)), g.constant(1))
    chosen = g.op("Equal", g.op("Mod", places, g.constant(3)), g.constant(1))
    return [changed(x, g.op("Compress", x, chosen, axis=axis), axis, (0, x.dims[axis][1]))]


def _branch(g: Builder, x: Tensor) -> Tensor:
    """One way of an If: rank and dtype stay."""
    if g.chance(30):
        step(g)
    way = g.choice(["same", "slice", "pad", "tile", "arithmetic"])
    g.tensors = [x]
    if way == "same":
        return x
    return {"slice": slice_, "pad": pad, "tile": tile, "arithmetic": arithmetic}[way](g)[0]


def if_(g: Builder) -> Outcome:
    """A tensor made in one of two ways, chosen by sizes."""
    x = data(g)
    test = as_scalar(g, condition(g))
    graphs, results = [], []
    for _ in range(2):
        with g.inner() as nodes:
            result = _branch(g, x)
            result = replace(result, name=g.op("Identity", result))
            graphs.append(g.subgraph(nodes, [(result.name, x.dtype)]))
        results.append(result)
    name = g.op("If", test, then_branch=graphs[0], else_branch=graphs[1])
    dims = tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(results[0].dims, results[1].dims, strict=True))
    elements, exact = max(r.elements for r in results), all(r.exact for r in results)
    return [replace(x, name=name, dims=dims, elements=elements, exact=exact, ramp=False)]


def loop(g: Builder) -> Outcome:
    """A tensor that grows or changes in at most five passes, or a number from each pass."""
    x = data(g)
    trips = as_scalar(g, clamped(g, any_integer(g), 0, 5))
    index, going, carried = g.name("index"), g.name("going"), g.name("carried")
    way = g.choice(["scan", "arithmetic", "grow"])
    with g.inner() as nodes:
        kept = g.op("Identity", going)
        if way == "scan":
            result = g.op("Mul", index, as_scalar(g, clamped(g, any_integer(g), -1000, 9000)))
        elif way == "grow":
            result = g.op("Concat", carried, x, axis=0)
        else:
            result = g.op("Add", carried, g.op("Cast", index, to=x.dtype))
        inputs = [(index, INT64), (going, BOOL)]
        body = g.subgraph(nodes, [(kept, BOOL), (result, INT64 if way == "scan" else x.dtype)], inputs)
    if way == "scan":
        return [Tensor(g.op("Loop", trips, "", body=body), ((0, 5),), 5, INT64)]
    info = body.input.add()
    info.name, info.type.tensor_type.elem_type = carried, x.dtype
    name = g.op("Loop", trips, "", x, body=body)
    if way == "grow":
        return [changed(x, name, 0, (x.dims[0][0], 6 * x.dims[0][1]), 6)]
    return [replace(x, name=name, exact=x.dtype != FLOAT)]


CONSUMERS: tuple[Callable[[Builder], Outcome], ...] = (
    slice_,
    slice_,
    range_,
    constant_of_shape,
    expand,
    pad,
    tile,
    reshape,
    reshape,
    gather,
    arithmetic,
    concat,
    selected,
    resize,
    resize,
    if_,
    if_,
    loop,
    nonzero_places,
    top_k,
    compress,
)
