"""Reading and writing by index.

OneFlow ends the process on some indices out of range and gives zeros or wrong elements for others, so indices are
checked here first. While a graph is traced there are no values to check: an index out of range is then clamped into
the range, so that the process lives. The value of such an element is undefined, as it is in ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow_bridge.namespace import comparison, dtypes
from oneflow_bridge.namespace.arithmetic import div, mul
from oneflow_bridge.namespace.comparison import clamp, maximum, minimum
from oneflow_bridge.namespace.creation import arange, full, tensor
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.shaping import (
    diag_embed,
    expand,
    flatten,
    flip,
    movedim,
    narrow,
    permute,
    ravel,
    reshape,
    select,
    unsqueeze,
)
from oneflow_bridge.namespace.tensor import (
    Size,
    Tensor,
    as_tensor,
    axis,
    broadcast_shapes,
    convert,
    expanded,
    from_array,
    known,
    moved,
    store,
    widened,
)
from onnx2nn.errors import OperatorError


class IndexRangeError(OperatorError):
    """An index lies outside its dim."""


def checked_index(index: Tensor, size: int, negative: bool = False) -> Any:
    """An int64 OneFlow tensor of indices into a dim of `size`, safe to hand to a kernel.

    Args:
        index: integers of any shape.
        size: the dim.
        negative: whether -1 means the last element.

    Raises:
        IndexRangeError: an index is out of range (not while a graph is traced).
        OperatorError: it is no integer.
    """
    if not index.dtype.is_integer:
        raise OperatorError(f"An index has type {index.dtype}; an integer type is needed.")
    value = widened(index)
    array = known(value)
    if array is None:
        if negative:
            value = value + (value < 0).to(flow.int64) * size
        return flow.clamp(value, 0, max(size - 1, 0))
    if not array.size:
        return value
    low, high = int(array.min()), int(array.max())
    if high >= size or low < (-size if negative else 0):
        raise IndexRangeError(f"Index {high if high >= size else low} in a dim of size {size}.")
    return value + (value < 0).to(flow.int64) * size if low < 0 else value


def take_rows(x: Tensor, dim: int, index: Any) -> Tensor:
    """numpy.take: `index`, an int64 OneFlow tensor of any rank that was checked, takes the place of the dim."""
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    if not Size(shape).numel():
        return full(shape, 0, dtype=x.dtype, device=x.device)
    return moved(lambda v: flow._C.gather(v, index, dim), x)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements of a dim chosen by a 1-D index."""
    place = axis(dim, x.ndim)
    return take_rows(x, place, checked_index(reshape(index, -1), x.shape[place]))


def embedding(index: Tensor, weight: Tensor, padding_idx: int | None = None, **_: Any) -> Tensor:
    """Rows of `weight` (N, D) chosen by an index of any shape: (*, D)."""
    return take_rows(weight, 0, checked_index(index, weight.shape[0]))


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """x[i][index[i][j][k]][k] for dim 1: an element of x for each element of `index`."""
    if x.ndim == 0 or index.ndim == 0:
        return reshape(gather(reshape(x, -1), 0, reshape(index, -1)), index.shape)
    place = axis(dim, x.ndim)
    checked = checked_index(index, x.shape[place])
    if not index.numel():
        return full(index.shape, 0, dtype=x.dtype, device=x.device)
    for d, (have, want) in enumerate(zip(x.shape, index.shape, strict=True)):
        if d != place and want < have:
            x = narrow(x, d, 0, want)
        elif d != place and want > have:
            raise OperatorError(f"gather: index of shape {tuple(index.shape)} in a tensor of shape {tuple(x.shape)}.")
    return moved(lambda v: flow.gather(v, place, checked), x)


def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather` whose other dims broadcast; negative indices count from the end."""
    if dim is None:
        return take_along_dim(ravel(x), ravel(indices), 0)
    place = axis(dim, x.ndim)
    shape = list(broadcast_shapes(*([s if d != place else 1 for d, s in enumerate(v.shape)] for v in (x, indices))))
    x, indices = (expand(v, [s if d != place else v.shape[place] for d, s in enumerate(shape)]) for v in (x, indices))
    return gather(x, place, Tensor(checked_index(indices, x.shape[place], negative=True)))


def take(x: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened x."""
    return take_rows(ravel(x), 0, checked_index(index, x.numel(), negative=True))


def getitem(x: Tensor, key: Any) -> Tensor:
    """x[key], with everything torch allows and negative steps as numpy has them."""
    items = list(key) if isinstance(key, tuple) else [key]
    if any(isinstance(item, (list, np.ndarray)) for item in items):
        items = [tensor(item, device=x.device) if isinstance(item, (list, np.ndarray)) else item for item in items]
    items = [_bool_index(item) if _is_mask(item) else [item] for item in items]
    items = _fill_ellipsis([part for group in items for part in group], x.ndim)
    indices: dict[int, Tensor] = {}
    dim = 0
    for item in items:
        if item is None:
            x, dim = unsqueeze(x, dim), dim + 1
        elif isinstance(item, slice):
            x, dim = _slice(x, dim, item), dim + 1
        elif isinstance(item, Tensor) and (item.ndim or item.is_lazy):
            indices[dim], dim = item, dim + 1
        else:
            x = select(x, dim, int(item))
    return _advanced(x, indices) if indices else x


def setitem(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value; what was a view of x keeps the old values."""
    places = getitem(reshape(arange(x.numel(), device=x.device), x.shape), key)
    if places.numel():
        source = expand(convert(as_tensor(value, x), x.dtype), places.shape)
        flat = scatter(reshape(x, -1), 0, reshape(places, -1), reshape(source, -1))
        x.value = reshape(flat, x.shape).value


def _is_mask(item: Any) -> bool:
    return isinstance(item, (bool, np.bool_)) or (isinstance(item, Tensor) and item.dtype is dtypes.bool_)


def _bool_index(mask: Any) -> list[Any]:
    """A mask as one integer index for each of its dims."""
    if isinstance(mask, (bool, np.bool_)) or mask.ndim == 0:
        raise OperatorError("An index is a single bool, which is not supported; use a mask with at least one dim.")
    return list(nonzero(mask, as_tuple=True))


def _fill_ellipsis(items: list[Any], ndim: int) -> list[Any]:
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > ndim:
        raise OperatorError(f"{used} indices are too many for a tensor of rank {ndim}.")
    place = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    return [*items[:place], *[slice(None)] * (ndim - used), *items[place + 1 :]]


def _slice(x: Tensor, dim: int, item: slice) -> Tensor:
    """One dim sliced; OneFlow refuses negative steps, which run forward over the flipped dim here."""
    bounds = (None if v is None else int(v) for v in (item.start, item.stop, item.step))
    start, stop, step = slice(*bounds).indices(x.shape[dim])
    count = len(range(start, stop, step))
    if step < 0:
        x, start, step = flip(x, dim), x.shape[dim] - 1 - start, -step
    if count == 0:
        return narrow(x, dim, 0, 0)
    if step == 1 or count == 1:
        return narrow(x, dim, start, count)
    place = (slice(None),) * dim + (slice(start, start + (count - 1) * step + 1, step),)
    return Tensor(x.value[place], x.dtype)


def _advanced(x: Tensor, indices: dict[int, Tensor]) -> Tensor:
    """Integer tensors in some dims: one gather over these dims taken as one."""
    dims = list(indices)
    if len(dims) == 1:
        return take_rows(x, dims[0], checked_index(indices[dims[0]], x.shape[dims[0]], negative=True))
    flat = _flat_index(x.shape, indices)
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    place = dims[0] if adjacent else 0
    rest = [d for d in range(x.ndim) if d not in dims]
    merged = flatten(permute(x, [*rest[:place], *dims, *rest[place:]]), place, place + len(dims) - 1)
    return take_rows(merged, place, flat)


def _flat_index(shape: Sequence[int], indices: dict[int, Tensor]) -> Any:
    """Indices of several dims as one into these dims flattened."""
    flat: Any = None
    wide = broadcast_shapes(*(index.shape for index in indices.values()))
    for dim, index in indices.items():
        checked = expanded(checked_index(index, shape[dim], negative=True), wide)
        flat = checked if flat is None else flat * shape[dim] + checked
    return flat


REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def scatter(x: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str | None = None) -> Tensor:
    """x with `src` (a tensor or number) written at the elements `index` names; the last of equal indices wins."""
    names = {"add": "sum", "multiply": "prod"}
    if reduce is not None:
        return scatter_reduce(x, dim, index, as_tensor_like(src, x, index), names.get(reduce, reduce))
    return _scatter(x, dim, index, as_tensor_like(src, x, index), lambda v, p, i, s: flow.scatter(v, p, i, s))


def as_tensor_like(src: Any, x: Tensor, index: Tensor) -> Tensor:
    """A number as a tensor of x's type with the shape of the index."""
    return src if isinstance(src, Tensor) else full(index.shape, src, dtype=x.dtype, device=x.device)


def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor, kernel: Callable[[Any, int, Any, Any], Any]) -> Tensor:
    if x.ndim == 0:
        return reshape(_scatter(reshape(x, 1), 0, reshape(index, -1), reshape(src, -1), kernel), ())
    place = axis(dim, x.ndim)
    checked = checked_index(index, x.shape[place])
    if not index.numel():
        return x
    if src.dtype is not x.dtype:
        raise OperatorError(f"scatter cannot write {src.dtype} into {x.dtype}; both need one type.")
    src = _leading_part(src, index.shape)
    target = widened(x)
    values = src.value.to(target.dtype)
    if x.dtype is dtypes.bool_:
        target, values = target.to(flow.int64), values.to(flow.int64)
    return store(kernel(target, place, checked, values), x.dtype)


def _leading_part(x: Tensor, shape: Sequence[int]) -> Tensor:
    for dim, size in enumerate(shape):
        x = narrow(x, dim, 0, size)
    return x


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """x with `src` added at the elements `index` names."""
    return _scatter(x, dim, index, src, flow.scatter_add)


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """x with `src` combined into the elements `index` names by sum, prod, mean, amax or amin.

    OneFlow adds alone; the others take the sources one after the other along `dim`, exact with equal indices too.
    """
    if reduce not in REDUCTIONS:
        raise OperatorError(f"reduce {reduce!r}; there are {', '.join(REDUCTIONS)}.")
    if not include_self and index.numel():
        x = scatter(x, dim, index, _identity(reduce, x.dtype))
    if reduce == "sum":
        return scatter_add(x, dim, index, src)
    if reduce == "mean":
        ones = full(index.shape, 1, dtype=x.dtype, device=x.device)
        start = full(x.shape, int(include_self), dtype=x.dtype, device=x.device)
        count = clamp(scatter_add(start, dim, index, ones), min=1)
        total = scatter_add(x, dim, index, src)
        return div(total, count, rounding_mode=None if x.dtype.is_floating_point else "floor")
    if x.ndim == 0:
        return reshape(scatter_reduce(reshape(x, 1), 0, reshape(index, -1), reshape(src, -1), reduce), ())
    place = axis(dim, x.ndim)
    combine = {"prod": mul, "amax": maximum, "amin": minimum}[reduce]
    for i in range(index.shape[place]):
        at = narrow(index, place, i, 1)
        part = narrow(_leading_part(src, index.shape), place, i, 1)
        x = scatter(x, place, at, convert(combine(gather(x, place, at), part), x.dtype))
    return x


def _identity(reduce: str, dtype: DType) -> Any:
    """What a reduction starts from."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    if dtype is dtypes.bool_:
        return reduce == "amin"
    limits = dtypes.IInfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """x with `values` written (or added) where the index tensors, one for each leading dim, point."""
    parts: list[Any] = []
    for item in indices:
        parts.extend(_bool_index(item) if _is_mask(item) else [item])
    given = {d: item for d, item in enumerate(parts) if item is not None}
    dims = list(given)
    rest = [d for d in range(x.ndim) if d not in dims]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    flat = _flat_index(x.shape, given)
    order = [*dims, *rest]
    merged = flatten(permute(x, order), 0, len(dims) - 1)
    wide = (*flat.shape, *merged.shape[1:])
    values = convert(as_tensor(values, x), x.dtype)
    if adjacent and dims[0] and values.ndim:  # their place in the result is that of the indexed dims
        shape = [*x.shape[: dims[0]], *flat.shape, *x.shape[dims[-1] + 1 :]]
        values = movedim(expand(values, shape), tuple(range(dims[0], dims[0] + flat.ndim)), tuple(range(flat.ndim)))
    values = (
        flatten(expand(values, wide), 0, max(flat.ndim - 1, 0)) if flat.ndim else unsqueeze(expand(values, wide), 0)
    )
    result = _put_rows(merged, flat.reshape([-1]), values, accumulate)
    back = [order.index(d) for d in range(x.ndim)]
    return permute(reshape(result, [x.shape[d] for d in order]), back)


def _put_rows(x: Tensor, index: Any, values: Tensor, accumulate: bool) -> Tensor:
    """Rows of x (N, ...) replaced or added to; `index` (M,) was checked, `values` (M, ...)."""
    if not values.numel():
        return x
    wide = index.reshape([-1] + [1] * (x.ndim - 1)).expand(*values.shape)
    write = scatter_add if accumulate else scatter
    return write(x, 0, Tensor(wide), values)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """x with slices added along a dim."""
    return _index_write(x, dim, index, source if alpha == 1 else mul(source, alpha), True)


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """x with slices replaced along a dim."""
    return _index_write(x, dim, index, source, False)


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """x with slices set to a number along a dim."""
    place = axis(dim, x.ndim)
    value = value.item() if isinstance(value, Tensor) else value
    shape = [*x.shape[:place], index.numel(), *x.shape[place + 1 :]]
    return _index_write(x, dim, index, full(shape, value, dtype=x.dtype, device=x.device), False)


def _index_write(x: Tensor, dim: int, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    place = axis(dim, x.ndim)
    checked = checked_index(reshape(index, -1), x.shape[place])
    result = _put_rows(movedim(x, place, 0), checked, movedim(source, place, 0), accumulate)
    return movedim(result, 0, place)


def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """x with one element of a dim replaced."""
    place = axis(dim, x.ndim)
    return slice_scatter(x, unsqueeze(src, place), place, int(index) % x.shape[place], int(index) % x.shape[place] + 1)


def slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """x with a slice of a dim replaced."""
    place = axis(dim, x.ndim)
    index = arange(*slice(start, end, step).indices(x.shape[place]), device=x.device)
    return index_copy(x, place, index, convert(src, x.dtype))


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """x with a number (or 0-d tensor) where the mask holds; the type is x's."""
    value = convert(value, x.dtype) if isinstance(value, Tensor) else value
    filled = comparison.where(mask, value, x)
    return filled if filled.dtype is x.dtype else convert(filled, x.dtype)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask holds, 1-D."""
    shape = broadcast_shapes(x.shape, mask.shape)
    return getitem(expand(x, shape), expand(mask, shape))


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """x with the elements where the mask holds replaced by those of `source`, in order."""
    mask = expand(mask, x.shape)
    order = flow.cumsum(ravel(mask).value.to(flow.int64), 0)
    index = flow.clamp(order - 1, 0, max(source.numel() - 1, 0))
    needed = known(mask.value)
    if needed is not None and int(needed.sum()) > source.numel():
        raise OperatorError(f"masked_scatter needs {int(needed.sum())} elements and has {source.numel()}.")
    return comparison.where(mask, reshape(take_rows(ravel(source), 0, index), x.shape), x)


def nonzero(x: Tensor, *, as_tuple: bool = False) -> Any:
    """Indices of the elements that are not zero: (count, rank), or one 1-D tensor for each dim."""
    found = np.stack(np.nonzero(np.atleast_1d(x.numpy())), 1)[:, : x.ndim].astype(np.int64)
    index = from_array(found, device=x.device)
    return tuple(select(index, 1, d) for d in range(x.ndim)) if as_tuple else index


def argwhere(x: Tensor) -> Tensor:
    """`nonzero`, int64 (OneFlow's gives int32)."""
    return nonzero(x)


def where(condition: Tensor, x: Any = None, y: Any = None) -> Any:
    """x where the condition holds, else y; with a condition alone `nonzero(as_tuple=True)`."""
    return nonzero(condition, as_tuple=True) if x is None else comparison.where(condition, x, y)


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """int64 ones at the index along a new last dim."""
    classes = int(x.numpy().max()) + 1 if num_classes < 0 else num_classes
    checked = checked_index(x, classes)
    return convert(Tensor(checked.unsqueeze(-1) == arange(classes, device=x.device).value), dtypes.int64)


def diag(x: Tensor, offset: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix with this diagonal."""
    return diagonal(x, offset) if x.ndim == 2 else diag_embed(x, offset)


def repeat_interleave(x: Tensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Each element several times in a row."""
    x, place = (ravel(x), 0) if dim is None else (x, axis(dim, x.ndim))
    if isinstance(repeats, Tensor):
        counts = repeats.tolist()
        counts = counts * x.shape[place] if isinstance(counts, list) and len(counts) == 1 else counts
        counts = counts if isinstance(counts, list) else [counts] * x.shape[place]
        chosen = [i for i, n in enumerate(counts) for _ in range(n)]
        return index_select(x, place, tensor(chosen, dtype=dtypes.int64, device=x.device))
    wide = expand(unsqueeze(x, place + 1), [*x.shape[: place + 1], repeats, *x.shape[place + 1 :]])
    return flatten(wide, place, place + 1)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two dims as a new last dim."""
    a, b = axis(dim1, x.ndim), axis(dim2, x.ndim)
    rest = [d for d in range(x.ndim) if d not in (a, b)]
    height, width = x.shape[a], x.shape[b]
    count = max(min(height, width - offset) if offset >= 0 else min(height + offset, width), 0)
    start = offset if offset >= 0 else -offset * width
    flat = flatten(permute(x, [*rest, a, b]), -2, -1)
    if not count:
        return narrow(flat, -1, 0, 0)
    return index_select(flat, flat.ndim - 1, arange(start, start + count * (width + 1), width + 1, device=x.device))
