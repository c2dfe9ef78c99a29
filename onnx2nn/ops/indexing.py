"""Elements read and written by position: gather, scatter, slice, where, top-k, unique."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.arithmetic import binary, larger, ordered, smaller, sortable, widened
from onnx2nn.ops.axes import distinct, from_front
from onnx2nn.ops.shape import chosen, demand, demand_equal, fixed, moves_elements, partly_known, scalar
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import Counted, Lookup, NeedsValues, has_values
from onnx2nn.optable.shape_values import sized
from onnx2nn.optable.traits import BINARY

_FAR = (1 << 31) - 1
"""Ends from here on mean "to the end": exporters write int32's or int64's maximum."""


def _integers(array: Any) -> Any:
    """Returns shape values that are indices as numpy integers.

    Raises:
        NeedsValues: a dynamic dimension is among them.
    """
    if not all(fixed(number) for number in np.ravel(array)):
        raise NeedsValues("an index computed from a dynamic dimension")
    return np.asarray(array).astype(np.int64)


def _from_front(F: Any, indices: Any, size: Any) -> Any:
    """Returns `indices` with negative ones counted from the front, as torch's gather needs them.

    Constants of the file without negative ones are what the file has, under their name.
    """
    if has_values(F, indices) and not bool((indices < 0).any()):
        return indices.to(F.int64)
    return F.where(indices < 0, indices + size, indices).to(F.int64)


def _values_of_gather(data: Any, indices: Any, *, axis: int = 0) -> Any:
    return np.asarray(np.take(data, _integers(indices), axis), dtype=object)


@op(
    "Gather",
    1,
    numbers=["indices"],
    on_shape_values=_values_of_gather,
    traits=["value_preserving"],
    lookups=(Lookup("indices", "data", "axis"),),
)
def gather(F: Any, data: Any, indices: Any, *, axis: int = 0) -> Any:
    """A constant float table becomes `nn.Embedding`, where negative indices are errors."""
    axis = from_front(axis, data.ndim)
    if not hasattr(indices, "ndim"):
        return data.select(axis, indices)
    if indices.ndim == 0:
        return gather(F, data, indices.reshape(1), axis=axis).squeeze(axis)
    # int64, as torch.onnx.export writes invalid ONNX for indices of int32.
    return data[(slice(None),) * axis + (indices.to(F.int64) if indices.dtype == F.int32 else indices,)]


def _values_of_gather_elements(data: Any, indices: Any, *, axis: int = 0) -> Any:
    indices = _integers(indices)
    grid = list(np.indices(indices.shape))
    grid[axis] = indices
    return np.asarray(data[tuple(grid)], dtype=object)


@op("GatherElements", 11, on_shape_values=_values_of_gather_elements, traits=["value_preserving"])
@moves_elements
def gather_elements(F: Any, data: Any, indices: Any, *, axis: int = 0) -> Any:
    return data.gather(axis, _from_front(F, indices, data.shape[axis]))


def _coordinates(F: Any, indices: Any, data: Any, batch_dims: int = 0) -> tuple[Any, ...]:
    """Returns the index tensors of the batch dimensions, then the index tensors in the last axis of `indices`."""
    rank = indices.ndim - 1
    grid = [
        F.arange(data.shape[axis]).reshape([-1 if i == axis else 1 for i in range(rank)]) for axis in range(batch_dims)
    ]
    return (*grid, *indices.unbind(-1))


def _values_of_gather_nd(data: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    indices = _integers(indices)
    grid = np.indices(indices.shape[:-1])[:batch_dims]
    places = (*grid, *np.moveaxis(indices, -1, 0))
    if not places:
        return np.broadcast_to(data, (*indices.shape[:-1], *data.shape))
    return np.asarray(data[places], dtype=object)


@op("GatherND", 12, on_shape_values=_values_of_gather_nd, traits=["value_preserving"])
def gather_nd(F: Any, data: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    """Indices without coordinates, which the standard does not have, give all of `data`, as in ONNX Runtime."""
    if not 0 <= batch_dims < min(indices.ndim, data.ndim):
        raise OperatorError(f"batch_dims={batch_dims} of data {[*data.shape]} and indices {[*indices.shape]}.")
    if indices.ndim == 1:  # torch reads the number in an index without dimensions, which a meta tensor does not have
        return gather_nd(F, data, indices.unsqueeze(0)).squeeze(0)
    coordinates = _coordinates(F, indices, data, batch_dims)
    return data[coordinates] if coordinates else data.expand([*indices.shape[:-1], *data.shape])


revision(gather_nd, 11, without=["batch_dims"])


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
_HOST_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": max,
    "min": min,
}


def _values_of_scatter(data: Any, grid: Sequence[Any], updates: Any, reduction: str) -> Any:
    reduce = _HOST_REDUCTIONS[reduction]
    result = data.copy()
    for position in np.ndindex(*np.shape(grid[0])):
        where = tuple(axis[position] for axis in grid)
        result[where] = reduce(result[where], updates[position])
    return result


def _values_of_scatter_elements(
    data: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none"
) -> Any:
    indices = _integers(indices)
    grid = list(np.indices(indices.shape))
    grid[axis] = indices
    return _values_of_scatter(data, grid, updates, reduction)


@moves_elements
def _replace(F: Any, data: Any, updates: Any, *, axis: int, indices: Any) -> Any:
    return data.scatter(axis, indices, updates)


def _reduce(F: Any, data: Any, updates: Any, *, axis: int, indices: Any, reduction: str) -> Any:
    of_unsigned = ordered if reduction in ("min", "max") else widened
    return of_unsigned(_scatter_reduce)(F, data, updates, axis=axis, indices=indices, reduction=reduction)


def _scatter_reduce(F: Any, data: Any, updates: Any, *, axis: int, indices: Any, reduction: str) -> Any:
    if data.dtype == F.bool:  # torch's kernels take no bool
        wide = data.to(F.uint8).scatter_reduce(axis, indices, updates.to(F.uint8), _REDUCTIONS[reduction])
        return wide.to(F.bool)
    return data.scatter_reduce(axis, indices, updates, _REDUCTIONS[reduction])


@op("ScatterElements", 16, choices={"reduction": ("none", *_REDUCTIONS)}, on_shape_values=_values_of_scatter_elements)
def scatter_elements(F: Any, data: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none") -> Any:
    """Without reduction, the standard leaves open which of several updates of one element stays."""
    demand_equal(indices.shape, updates.shape, "the shapes of indices and updates")
    indices = _from_front(F, indices, data.shape[axis])
    if reduction == "none":
        return _replace(F, data, updates, axis=axis, indices=indices)
    return _reduce(F, data, updates, axis=axis, indices=indices, reduction=reduction)


scatter_elements_11 = revision(scatter_elements, 11, without=["reduction"])
scatter = revision(scatter_elements_11, 9, operator="Scatter")


def _values_of_scatter_nd(data: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    indices = _integers(indices)
    result, reduce = data.copy(), _HOST_REDUCTIONS[reduction]
    elementwise = np.frompyfunc(reduce, 2, 1)
    for position in np.ndindex(*indices.shape[:-1]):
        where = tuple(indices[position])
        result[where] = elementwise(result[where], updates[position])
    return result


@op("ScatterND", 16, choices={"reduction": ("none", *_REDUCTIONS)}, on_shape_values=_values_of_scatter_nd)
def scatter_nd(F: Any, data: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    rows = [*indices.shape[:-1], *data.shape[indices.shape[-1] :]]
    demand_equal(updates.shape, rows, "the shape of updates, and that of what the indices name,")
    if reduction == "none":
        return _put(F, data, updates, indices=indices)
    depth = indices.shape[-1]
    position: Any = 0
    for axis, part in enumerate(indices.unbind(-1)):
        position = position * data.shape[axis] + _from_front(F, part, data.shape[axis])
    rest = data.shape[depth:]
    rows = updates.reshape(-1, *rest)
    position = position.reshape(-1, *[1] * len(rest)).expand(rows.shape)
    flat = data.reshape(-1, *rest)
    return _reduce(F, flat, rows, axis=0, indices=position, reduction=reduction).reshape(data.shape)


@moves_elements
def _put(F: Any, data: Any, updates: Any, *, indices: Any) -> Any:
    return data.index_put(indices.unbind(-1), updates)


revision(scatter_nd, 11, without=["reduction"])


@op("TensorScatter", 24, choices={"mode": ("linear", "circular")})
@moves_elements
def tensor_scatter(
    F: Any, past_cache: Any, update: Any, write_indices: Any = None, *, axis: int = -2, mode: str = "linear"
) -> Any:
    axis = from_front(axis, update.ndim)
    steps = F.arange(update.shape[axis])
    positions = steps.unsqueeze(0) if write_indices is None else write_indices.unsqueeze(1) + steps
    if mode == "circular":
        positions = positions % past_cache.shape[axis]
    index = positions.reshape(-1, *[1] * (axis - 1), update.shape[axis], *[1] * (update.ndim - axis - 1))
    return past_cache.scatter(axis, index.expand(update.shape), update)


def _plan_slices(rank: int, starts: Any, ends: Any, axes: Any, steps: Any) -> list[tuple[int, Any, Any, Any]]:
    """Returns `(axis, start, end, step)` of a Slice, axes counted from the front; a step that stays open is positive.

    Raises:
        OperatorError: an input is a number, no vector, they have different lengths, there are more than the data have
            axes, an axis has two, or a step is 0.
    """
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    if numbers := [name for name, value in given.items() if fixed(value)]:
        raise OperatorError(f"{' and '.join(numbers)}: a number where a Slice takes a vector.")
    lengths = {name: len(value) for name, value in given.items() if value is not None}
    if len(set(lengths.values())) > 1:
        raise OperatorError(
            f"{', '.join(f'{name} has {n} numbers' for name, n in lengths.items())}: different lengths."
        )
    axes = distinct(range(len(starts)) if axes is None else axes, rank)
    steps = [1] * len(starts) if steps is None else steps
    plan = [(axis, *rest) for axis, *rest in zip(axes, starts, ends, steps, strict=True)]
    if any(fixed(step) and step == 0 for *_, step in plan):
        raise OperatorError("a step of a slice is 0.")
    for step in (step for *_, step in plan if not fixed(step)):
        if (step >= 0) is not True:
            raise NeedsValues("a step computed from a dynamic dimension, of which the sign is open")
        demand(step >= 1, "a step of a slice is not 0")
    return plan


def _forward(data: Any, axis: int, start: Any, end: Any, step: Any) -> slice:
    """Returns the Python slice with a positive step; Python clamps its ends as ONNX does."""
    first = None if fixed(start) and (start == 0 or start <= -_FAR) else start
    through = end >= _FAR if fixed(end) else (end >= data.shape[axis]) is True
    last = None if through else end
    return slice(first, last, None if fixed(step) and step == 1 else step)


def _backward(start: Any, end: Any, step: int, size: Any) -> slice:
    """Returns the slice of the flipped axis that a negative step takes.

    `end` at int32's or int64's maximum means "through the first element", as in ONNX Runtime.
    """
    if not (fixed(start) and fixed(end)) or (not fixed(size) and start < -1):
        return _open_backward(start, end, step, size)
    if end >= _FAR or end <= -_FAR:
        last = None
    else:
        last = -(end + 1)  # counted from the front of the flipped axis where negative, else from its back
        if end < 0:
            last = None if fixed(size) and last >= size else last
        elif fixed(size):
            last = max(size + last, 0)
    first = -(start + 1)
    if fixed(size):
        start = min(max(start + size if start < 0 else start, 0), max(size - 1, 0))
        first = size - 1 - start
    first = None if first == 0 or first < -_FAR else first
    return slice(first, last, None if step == -1 else -step)


def _open_backward(start: Any, end: Any, step: int, size: Any) -> slice:
    """Returns the slice of `_backward` for an axis or ends whose sizes stay open: both ends clamp by numbers."""
    first = smaller(larger(size - 1 - chosen(start < 0, start + size, start), 0), size - 1)
    if fixed(end) and abs(end) >= _FAR:
        last = None
    else:
        last = larger(size - 1 - chosen(end < 0, end + size, end), 0)
    return slice(None if fixed(first) and first == 0 else first, last, None if step == -1 else -step)


@moves_elements
def _flip(F: Any, data: Any, *, axes: Sequence[int]) -> Any:
    return data.flip(axes)


def _values_of_slice(data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    numbers = [None if v is None else _integers(v).tolist() for v in (starts, ends, axes, steps)]
    for axis, start, end, step in _plan_slices(data.ndim, *numbers):
        if fixed(step) and step < 0:
            data = np.flip(data, axis)
            part = _backward(start, end, step, data.shape[axis])
        else:
            part = _forward(data, axis, start, end, step)
        data = data[(slice(None),) * axis + (part,)]
    return data


def _results_of_slice(F: Any, data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    cut = range(len(partly_known(starts))) if axes is None else partly_known(axes)
    sizes = [*data.shape]
    for axis in cut if None not in cut else range(data.ndim):
        sizes[axis] = f"part_{axis % data.ndim}"
    return [(sizes, data.dtype)]


@op(
    "Slice",
    10,
    static=["starts", "ends", "axes", "steps"],
    on_shape_values=_values_of_slice,
    results=_results_of_slice,
    sized_by="ends",
    traits=["value_preserving", "keeps_rank"],
)
def slice_(F: Any, data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    """torch has no negative steps: the axis is flipped first."""
    most = data.ndim if axes is None or fixed(axes) or any(axis < 0 for axis in axes) else None
    rank = max([-1, *map(from_front, axes)]) + 1 if most is None else most
    parts = [slice(None)] * rank
    flipped = []
    for axis, start, end, step in _plan_slices(rank, starts, ends, axes, steps):
        if not (fixed(step) and step < 0) and not has_values(F):
            # torch.compile's integers may be numbers that data decide: no condition may depend on them, and it fails
            # where one call slices several axes by them.
            data = data[(slice(None),) * axis + (slice(start, end, step),)]
        elif not fixed(step) or step > 0:
            parts[axis] = _forward(data, axis, start, end, step)
        else:
            parts[axis] = _backward(start, end, step, data.shape[axis])
            flipped.append(axis)
    if flipped:
        data = _flip(F, data, axes=flipped)
    while parts and parts[-1] == slice(None):
        parts.pop()
    return data[tuple(parts)] if parts else data


revision(slice_, 1, without=["steps"], as_attributes=["starts", "ends", "axes"])
# Experimental in opset 1.
revision(slice_, 1, operator="DynamicSlice", without=["steps"])


def _values_of_where(condition: Any, X: Any, Y: Any) -> Any:
    """A choice that depends on a size records a guard: the forward raises for sizes that would choose otherwise."""

    def choose(c: Any, x: Any, y: Any) -> Any:
        if x is y or (fixed(x) and fixed(y) and x == y):
            return x
        return c.choose(x, y) if hasattr(c, "choose") else x if c else y

    return np.asarray(np.frompyfunc(choose, 3, 1)(condition, X, Y), dtype=object)


@op("Where", 9, on_shape_values=_values_of_where, typed_by="X", traits=BINARY)
def where(F: Any, condition: Any, X: Any, Y: Any) -> Any:
    """PyTorch up to 1.1 has no bool and casts conditions to uint8."""
    return F.where(condition if condition.dtype == F.bool else condition != 0, X, Y)


def _values_of_one_hot(indices: Any, depth: Any, values: Any, *, axis: int = -1) -> Any:
    depth = int(depth.item())
    sized([*indices.shape, depth])
    off, on = values
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    classes = np.arange(depth).reshape([depth] + [1] * (indices.ndim - axis)).astype(object)
    equal, either = binary(lambda a, b: a == b), binary(lambda a, b: a | b)
    places = np.expand_dims(indices, axis)  # sizes, which stay choices: each element is of one class at some sizes
    return _values_of_where(either(equal(places, classes), equal(places, classes - depth)), on, off)


@op("OneHot", 9, static=["depth"], on_shape_values=_values_of_one_hot, typed_by="values")
def one_hot(F: Any, indices: Any, depth: Any, values: Any, *, axis: int = -1) -> Any:
    """An index out of range gives a row of `off_value`; a negative index counts from the back."""
    depth = scalar(depth)
    depth = int(depth) if isinstance(depth, float) else depth
    indices = _from_front(F, indices.to(F.int64), depth)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    classes = F.arange(depth).reshape(-1, *[1] * (indices.ndim - axis))
    return F.where(indices.unsqueeze(axis) == classes, values[1], values[0])


def _values_of_non_zero(X: Any) -> Any:
    return np.stack(np.nonzero(np.atleast_1d(X))).astype(np.int64)


def _results_of_non_zero(F: Any, X: Any) -> Any:
    return [((max(X.ndim, 1), Counted("found", math.prod(X.shape))), F.int64)]


@op(
    "NonZero", 9, call="opaque", on_shape_values=_values_of_non_zero, results=_results_of_non_zero, traits=["magnitude"]
)
def non_zero(F: Any, X: Any) -> Any:
    """A scalar counts as a vector of one element, as in ONNX Runtime."""
    X = X.reshape(1) if X.ndim == 0 else X
    return (X != 0).nonzero().t()


def _values_of_compress(input: Any, condition: Any, *, axis: int | None = None) -> Any:
    size = input.size if axis is None else input.shape[axis]
    return np.compress(condition.reshape(-1)[:size].astype(bool), input, axis)


def _results_of_compress(F: Any, input: Any, condition: Any, *, axis: int | None = None) -> Any:
    kept = [None] if axis is None else [*input.shape]
    kept[axis or 0] = Counted("kept", math.prod(input.shape) if axis is None else input.shape[axis])
    return [(kept, input.dtype)]


@op(
    "Compress",
    9,
    call="opaque",
    on_shape_values=_values_of_compress,
    results=_results_of_compress,
    traits=["value_preserving"],
)
def compress(F: Any, input: Any, condition: Any, *, axis: int | None = None) -> Any:
    """Elements behind a condition that is shorter than the axis are dropped, as what a longer one has behind it.

    A condition of other than one dimension, which paddle2onnx writes for an index of truths, is flattened, as in ONNX
    Runtime.
    """
    if axis is None:
        input, axis = input.flatten(), 0
    kept = condition.flatten()[: input.shape[axis]].nonzero().flatten()
    return input[kept] if input.ndim == 1 else input.index_select(axis, kept)  # torch selects no uint16


def _values_of_top_k(X: Any, K: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    order = np.argsort(-X if largest else X, axis, kind="stable").take(np.arange(int(K.item())), axis)
    return np.take_along_axis(X, order, axis), order.astype(np.int64)


_LONG = 4096
"""The length of an axis from which finding the threshold of a few largest elements is faster than sorting all."""


def _few(F: Any, X: Any, count: int, axis: int, largest: bool) -> tuple[Any, Any]:
    """Returns TopK of a long axis, NaN being equal to infinity; of equal elements the first are taken."""
    inf = float("inf")
    numbers = X.nan_to_num(inf, inf, -inf) if X.dtype.is_floating_point else X
    border = numbers.topk(count, axis, largest)[0].narrow(axis, count - 1, 1)
    inside, reached = (numbers > border, numbers >= border) if largest else (numbers < border, numbers <= border)
    place = F.arange(X.shape[axis], dtype=F.int32).reshape([-1, *[1] * (X.ndim - 1 - axis)])
    rank = (inside.to(F.int32) + reached) * X.shape[axis] - place
    indices = rank.topk(count, axis)[1]
    values, order = X.gather(axis, indices).sort(dim=axis, descending=largest, stable=True)
    return values, indices.gather(axis, order)


def _results_of_top_k(F: Any, X: Any, K: Any, *, axis: int = -1, **_: Any) -> Any:
    sizes = [*X.shape]
    sizes[axis] = Counted("count", X.shape[axis])
    return [(sizes, X.dtype), (sizes, F.int64)]


@op(
    "TopK",
    11,
    static=["K"],
    on_shape_values=_values_of_top_k,
    results=_results_of_top_k,
    traits=["magnitude", "along_axis"],
)
def top_k(F: Any, X: Any, K: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Any, ...]:
    """Of equal values, the lower index comes first, which torch's topk does not guarantee."""
    count = scalar(K)
    size = X.shape[axis]
    if fixed(size) and fixed(count) and count > size:
        raise OperatorError(f"K={count} exceeds the {size} elements of the axis.")
    keys = sortable(F, X)
    if keys is not X:
        indices = keys.sort(dim=axis, descending=bool(largest), stable=True)[1].narrow(axis, 0, count)
        return gather_elements(F, X, indices, axis=axis), indices
    if fixed(size) and fixed(count) and size >= _LONG and 0 < 8 * count <= size:
        return _few(F, X, count, from_front(axis, X.ndim), bool(largest))
    values, indices = X.sort(dim=axis, descending=bool(largest), stable=True)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


top_k_10 = revision(top_k, 10, without=["largest", "sorted"])
revision(top_k_10, 1, as_attributes=["K"], renamed={"K": "k"})


def _values_of_unique(X: Any, *, axis: int | None = None, sorted: int = 1) -> Any:
    rows = X.reshape(-1) if axis is None else np.moveaxis(X, axis, 0)
    keys = [tuple(np.ravel(row)) for row in rows]
    firsts = list(dict.fromkeys(keys))
    if sorted:
        firsts.sort()
    place = {key: i for i, key in enumerate(firsts)}
    inverse = np.array([place[key] for key in keys], dtype=np.int64)
    indices = np.array([keys.index(key) for key in firsts], dtype=np.int64)
    values = rows[indices] if axis is None else np.moveaxis(rows[indices], 0, axis)
    return values, indices, inverse, np.bincount(inverse, minlength=len(place)).astype(np.int64)


_FEW_COLUMNS = 64
"""Largest number of columns at which one sort a column is faster than torch.unique's comparison of slices."""


def _unique_slices(F: Any, X: Any, axis: int) -> tuple[Any, Any, Any]:
    """Returns the unique slices in order, the place of each slice among them, and their counts.

    Slices without elements are equal; torch.unique refuses them.
    """
    rows = X.movedim(axis, 0).flatten(1)
    if rows.shape[0] and rows.shape[1] > _FEW_COLUMNS:
        values, inverse, counts = F.unique(X, sorted=True, return_inverse=True, return_counts=True, dim=axis)
        return values, inverse, counts
    order = F.arange(rows.shape[0])
    for column in reversed(rows.unbind(1)):
        order = order[F.sort(column[order], dim=0, stable=True)[1].to(F.int64)]
    ordered = rows[order]
    begins = F.cat([F.ones([1], dtype=F.bool), (ordered[1:] != ordered[:-1]).any(1)])[: rows.shape[0]]
    place = F.cumsum(begins.to(F.int64), 0) - 1
    firsts = begins.nonzero().reshape(-1)
    ends = F.cat([firsts[1:], F.full([1], rows.shape[0], dtype=F.int64)])[: firsts.shape[0]]
    return X.index_select(axis, order[firsts]), F.zeros_like(place).scatter(0, order, place), ends - firsts


def _results_of_unique(F: Any, X: Any, *, axis: int | None = None, sorted: int = 1) -> Any:
    length = math.prod(X.shape) if axis is None else X.shape[axis]
    kept = Counted("kept", length)
    values = [kept] if axis is None else [*X.shape]
    values[axis or 0] = kept
    return [(values, X.dtype), ([kept], F.int64), ([length], F.int64), ([kept], F.int64)]


@op(
    "Unique",
    11,
    call="opaque",
    on_shape_values=_values_of_unique,
    results=_results_of_unique,
    traits=["column_by_column", "magnitude"],
)
def unique(F: Any, X: Any, *, axis: int | None = None, sorted: int = 1) -> tuple[Any, ...]:
    if axis is None or X.ndim == 1:
        values, inverse, counts = F.unique(X, sorted=True, return_inverse=True, return_counts=True)
        inverse = inverse.reshape(-1)
    else:
        values, inverse, counts = _unique_slices(F, X, axis)
    places = F.arange(inverse.shape[0])
    indices = F.full([counts.shape[0]], inverse.shape[0], dtype=F.int64)
    indices = indices.scatter_reduce(0, inverse, places, "amin")
    if sorted:
        return values, indices, inverse, counts
    order = indices.argsort()
    values = values[order] if values.ndim == 1 else values.index_select(axis, order)  # torch selects no uint16
    return values, indices[order], order.argsort()[inverse], counts[order]


def _values_of_reverse_sequence(input: Any, sequence_lens: Any, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    result = np.moveaxis(input, (batch_axis, time_axis), (0, 1)).copy()
    for row, length in zip(result, _integers(sequence_lens), strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(result, (0, 1), (batch_axis, time_axis))


@op("ReverseSequence", 10, on_shape_values=_values_of_reverse_sequence, traits=["value_preserving"])
def reverse_sequence(F: Any, input: Any, sequence_lens: Any, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    steps = F.arange(input.shape[time_axis])
    lengths = sequence_lens.unsqueeze(1)
    places = F.where(steps < lengths, lengths - 1 - steps, steps)
    rows = F.arange(input.shape[batch_axis])
    if batch_axis == 1 and time_axis == 0:
        return input[places.t(), rows]
    return input[rows.unsqueeze(1), places]
