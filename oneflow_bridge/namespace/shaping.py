"""Layout, concatenation and slicing of tensors; no element changes its value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.comparison import where
from oneflow_bridge.namespace.creation import arange, new_zeros
from oneflow_bridge.namespace.dtypes import as_dtype, flow
from oneflow_bridge.namespace.tensor import (
    Size,
    Tensor,
    as_tensor,
    axes,
    axis,
    broadcast_shapes,
    convert,
    expanded,
    ints,
    moved,
    result_type,
    rows,
)
from onnx2nn.errors import OperatorError


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The elements in another shape; one dim may be -1.

    Raises:
        OperatorError: the number of elements differs.
    """
    dims = list(ints(shape))
    known = Size(d for d in dims if d != -1).numel()
    if dims.count(-1) == 1 and known and x.numel() % known == 0:
        dims[dims.index(-1)] = x.numel() // known
    if -1 in dims or Size(dims).numel() != x.numel():
        raise OperatorError(f"A tensor of shape {tuple(x.shape)} cannot be reshaped to {tuple(ints(shape))}.")
    return x if tuple(dims) == x.shape else rows(lambda v: v.reshape(dims), x)


def view(x: Tensor, *shape: Any) -> Tensor:
    """`reshape`; with a type, the bits read as another type of the same size.

    Raises:
        OperatorError: OneFlow reads bits as another type only between signed and unsigned integers.
    """
    if len(shape) == 1 and isinstance(shape[0], dtypes.DType):
        wanted = as_dtype(shape[0])
        if wanted.bits == x.dtype.bits and wanted.is_integer and x.dtype.is_integer:
            return convert(x, wanted)
        raise OperatorError(f"OneFlow 0.9 cannot read the bits of {x.dtype} as {wanted}.")
    return reshape(x, *shape)


def view_as(x: Tensor, other: Tensor) -> Tensor:
    """x in the shape of the other."""
    return reshape(x, other.shape)


reshape_as = view_as


def contiguous(x: Tensor, **_: Any) -> Tensor:
    """x in one piece of memory."""
    return rows(lambda v: v.contiguous(), x)


def permute(x: Tensor, *dims: Any) -> Tensor:
    """The dims in another order."""
    order = axes(ints(dims), x.ndim)
    return x if order == tuple(range(x.ndim)) else rows(lambda v: v.permute(*order), x)


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dims exchanged."""
    a, b = axis(dim0, x.ndim), axis(dim1, x.ndim)
    return x if a == b else rows(lambda v: v.transpose(a, b), x)


swapaxes = swapdims = transpose


def t(x: Tensor) -> Tensor:
    """The transposed matrix."""
    return transpose(x, 0, 1) if x.ndim == 2 else x


def movedim(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Dims moved to other places, the rest in order."""
    sources, targets = axes(source, x.ndim), axes(destination, x.ndim)
    rest = iter(d for d in range(x.ndim) if d not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return permute(x, [placed[d] if d in placed else next(rest) for d in range(x.ndim)])


moveaxis = movedim


def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    """Without dims of size 1: all of them, or those of `dim`."""
    dims = [d for d in (axes(dim, x.ndim) if x.ndim else ()) if x.shape[d] == 1]
    return reshape(x, [size for d, size in enumerate(x.shape) if d not in dims]) if dims else x


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """With a dim of size 1."""
    place = axis(dim, x.ndim + 1)
    return rows(lambda v: v.unsqueeze(place), x)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The dims from `start_dim` to `end_dim` as one."""
    if x.ndim == 0:
        return reshape(x, 1)
    start, end = axis(start_dim, x.ndim), axis(end_dim, x.ndim)
    return reshape(x, [*x.shape[:start], Size(x.shape[start : end + 1]).numel(), *x.shape[end + 1 :]])


def ravel(x: Tensor) -> Tensor:
    """One dim."""
    return reshape(x, x.numel())


def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """One dim as several."""
    place = axis(dim, x.ndim)
    part, known = list(sizes), Size(s for s in sizes if s != -1).numel()
    if -1 in part:
        part[part.index(-1)] = x.shape[place] // max(known, 1)
    return reshape(x, [*x.shape[:place], *part, *x.shape[place + 1 :]])


def expand(x: Tensor, *size: Any) -> Tensor:
    """Dims of size 1 repeated; -1 keeps a dim.

    Raises:
        OperatorError: a dim that is not 1 would change.
    """
    wanted = ints(size)
    kept = (1,) * (len(wanted) - x.ndim) + tuple(x.shape)
    shape = tuple(old if new == -1 else new for new, old in zip(wanted, kept, strict=True))
    if any(old not in (1, new) for new, old in zip(shape, kept, strict=True)):
        raise OperatorError(f"A tensor of shape {tuple(x.shape)} cannot be expanded to {wanted}.")
    return x if shape == x.shape else rows(lambda v: expanded(v, shape), x)


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """x expanded to the shape of the other."""
    return expand(x, other.shape)


def broadcast_to(x: Tensor, size: Sequence[int]) -> Tensor:
    """x expanded."""
    return expand(x, size)


def broadcast_tensors(*xs: Tensor) -> tuple[Tensor, ...]:
    """All expanded to their common shape."""
    shape = broadcast_shapes(*(x.shape for x in xs))
    return tuple(expand(x, shape) for x in xs)


def repeat(x: Tensor, *sizes: Any) -> Tensor:
    """Copies side by side, by reshaping around expanded dims."""
    times = ints(sizes)
    shape = (1,) * (len(times) - x.ndim) + tuple(x.shape)
    if len(times) < x.ndim:
        raise OperatorError(f"repeat{times} of a tensor of rank {x.ndim}.")
    apart = reshape(x, [size for dim in shape for size in (1, dim)])
    wide = expand(apart, [size for dim, n in zip(shape, times, strict=True) for size in (n, dim)])
    return reshape(wide, [dim * n for dim, n in zip(shape, times, strict=True)])


def tile(x: Tensor, *dims: Any) -> Tensor:
    """`repeat`, with missing counts in front taken as 1."""
    times = ints(dims)
    return repeat(x, (1,) * (x.ndim - len(times)) + times)


def cat(tensors: Sequence[Tensor], dim: int = 0, **names: Any) -> Tensor:
    """Joined along a dim, in their common type; empty 1-D tensors are left out, as in torch."""
    dim = names.get("axis", dim)
    parts = [as_tensor(x) for x in tensors]
    dtype = parts[0].dtype if all(x.dtype is parts[0].dtype for x in parts) else result_type(*parts)
    rank = max(x.ndim for x in parts)
    kept = [convert(x, dtype) for x in parts if not (x.shape == (0,) and rank > 1)]
    place = axis(dim, rank)
    for x in kept:
        if x.ndim != rank or any(
            a != b for d, (a, b) in enumerate(zip(x.shape, kept[0].shape, strict=True)) if d != place
        ):
            shapes = ", ".join(str(tuple(x.shape)) for x in kept)
            raise OperatorError(f"Tensors of shapes {shapes} cannot be joined along dim {dim}.")
    full = [x for x in kept if x.shape[place]] or kept[:1]
    return full[0] if len(full) == 1 else rows(lambda vs: flow.cat(vs, place), *full)


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joined along a new dim."""
    return cat([unsqueeze(x, axis(dim, x.ndim + 1)) for x in tensors], axis(dim, tensors[0].ndim + 1))


def atleast_1d(x: Tensor) -> Tensor:
    """x with at least one dim."""
    return reshape(x, 1) if x.ndim == 0 else x


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second dim (the first of 1-D tensors)."""
    parts = [atleast_1d(x) for x in tensors]
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined as rows."""
    return cat([unsqueeze(atleast_1d(x), 0) if x.ndim < 2 else x for x in tensors], 0)


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements of a dim from `start`."""
    place, start, length = axis(dim, x.ndim), int(start), int(length)  # numpy integers end the process
    start = start + x.shape[place] if start < 0 else start
    if not 0 <= start <= start + length <= x.shape[place]:
        raise OperatorError(f"Elements {start} to {start + length} of a dim of size {x.shape[place]}.")
    if length == x.shape[place]:
        return x
    return rows(lambda v: v[(slice(None),) * place + (slice(start, start + length),)], x)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """One element of a dim, which goes."""
    place = axis(dim, x.ndim)
    if not -x.shape[place] <= int(index) < x.shape[place]:
        raise OperatorError(f"Index {int(index)} in a dim of size {x.shape[place]}.")
    part = narrow(x, place, int(index) % x.shape[place], 1)
    return reshape(part, [*x.shape[:place], *x.shape[place + 1 :]])


def split(x: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of one size (the last may be smaller) or of the listed sizes."""
    place = axis(dim, x.ndim)
    total, sizes = x.shape[place], split_size_or_sections
    if not isinstance(sizes, (list, tuple)):
        size = int(sizes)
        if size <= 0 and total:
            raise OperatorError(f"split into pieces of size {size}.")
        sizes = [min(size, total - start) for start in range(0, total, max(size, 1))] or [0]
    sizes = [int(size) for size in sizes]
    if sum(sizes) != total:
        raise OperatorError(f"A dim of size {total} cannot be split into {sizes}.")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(narrow(x, place, start, size) for start, size in zip(starts, sizes, strict=True))


def split_with_sizes(x: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of the listed sizes."""
    return split(x, list(split_sizes), dim)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of one size, the last smaller."""
    total = x.shape[axis(dim, x.ndim)]
    return split(x, max(-(-total // chunks), 1), dim)


def tensor_split(x: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of nearly one size, or cut at the listed places."""
    total = x.shape[axis(dim, x.ndim)]
    if isinstance(indices_or_sections, int):
        size, more = divmod(total, indices_or_sections)
        return split(x, [size + (i < more) for i in range(indices_or_sections)], dim)
    ends = [min(max(i + total if i < 0 else i, 0), total) for i in indices_or_sections]
    starts = [0, *ends]
    return tuple(narrow(x, dim, a, max(b - a, 0)) for a, b in zip(starts, [*ends, total], strict=True))


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The elements of a dim, one by one."""
    return tuple(select(x, dim, i) for i in range(x.shape[axis(dim, x.ndim)]))


def flip(x: Tensor, *dims: Any) -> Tensor:
    """Dims in the opposite order."""
    places = [d for d in axes(ints(dims), x.ndim) if x.ndim and x.shape[d] > 1]
    return moved(lambda v: flow.flip(v, places), x) if places else x


def fliplr(x: Tensor) -> Tensor:
    """The second dim in the opposite order."""
    return flip(x, 1)


def flipud(x: Tensor) -> Tensor:
    """The first dim in the opposite order."""
    return flip(x, 0)


def roll(x: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Elements moved along dims, those that leave come in at the other end."""
    if dims is None:
        return reshape(roll(ravel(x), shifts, 0), x.shape)
    pairs = zip(*((v,) if isinstance(v, int) else v for v in (shifts, dims)), strict=True)
    for shift, dim in pairs:
        size = x.shape[dim]
        if size and shift % size:
            head, tail = split(x, [size - shift % size, shift % size], dim)
            x = cat([tail, head], dim)
    return x


def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """The plane of two dims rotated by k times 90 degrees."""
    for _ in range(k % 4):
        x = transpose(flip(x, dims[1]), dims[0], dims[1])
    return x


def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of a dim along a new last dim, Tensor.unfold."""
    place = axis(dimension, x.ndim)
    count = (x.shape[place] - size) // step + 1
    windows = [narrow(x, place, i * step, size) for i in range(count)]
    return movedim(stack(windows, place), place + 1, -1)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of a grid."""
    xs = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else list(tensors)
    if indexing == "xy" and len(xs) > 1:
        xs[0], xs[1] = xs[1], xs[0]
    shape = [x.numel() for x in xs]
    grids = [expand(reshape(x, [-1 if i == d else 1 for i in range(len(xs))]), shape) for d, x in enumerate(xs)]
    if indexing == "xy" and len(xs) > 1:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices whose diagonal is the last dim."""
    size = x.shape[-1] + (offset if offset >= 0 else -offset)
    padded = _zero_padded(x, *((offset, 0) if offset >= 0 else (0, -offset)))
    index = arange(size, device=x.device).value
    on_diagonal = Tensor(index.unsqueeze(0) == (index + offset).unsqueeze(1))
    matrix = where(on_diagonal, unsqueeze(padded, -2), convert(as_tensor(0, x), x.dtype))
    return movedim(matrix, (-2, -1), (dim1, dim2))


def _zero_padded(x: Tensor, before: int, after: int) -> Tensor:
    parts = [new_zeros(x, *x.shape[:-1], before), x, new_zeros(x, *x.shape[:-1], after)]
    return cat(parts, -1)


def _triangle(x: Tensor, diagonal: int, lower: bool) -> Tensor:
    if not x.numel():
        return x
    rows_, columns = (arange(x.shape[d], device=x.device).value for d in (-2, -1))
    distance = columns.unsqueeze(0) - rows_.unsqueeze(1)
    keep = distance <= diagonal if lower else distance >= diagonal
    return where(Tensor(keep), x, convert(as_tensor(0, x), x.dtype))


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle, zeros above."""
    return _triangle(x, int(diagonal), True)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle, zeros below."""
    return _triangle(x, int(diagonal), False)


def to(x: Tensor, *arguments: Any, dtype: Any = None, device: Any = None, copy: bool = False, **_: Any) -> Tensor:
    """x in another type or on another device, Tensor.to."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            dtype, device = argument.dtype, argument.device
        elif isinstance(argument, (dtypes.DType, flow.dtype)):
            dtype = argument
        elif isinstance(argument, (str, flow.device)):
            device = argument
    if device is not None and flow.device(str(device).split(":")[0]) != flow.device(str(x.device).split(":")[0]):
        x = Tensor(x.value.to(device), x.dtype)
    result = x if dtype is None else convert(x, as_dtype(dtype))
    return Tensor(result.value.clone(), result.dtype) if copy and result is x else result


def type(x: Tensor, dtype: Any = None) -> Any:
    """x in another type, Tensor.type."""
    return f"torch.{x.dtype}" if dtype is None else convert(x, as_dtype(dtype))


def type_as(x: Tensor, other: Tensor) -> Tensor:
    """x in the type of the other."""
    return convert(x, other.dtype)


def _cast(dtype: dtypes.DType) -> Any:
    return lambda x: convert(x, dtype)


float_, double, half, bfloat16_, long, int_, short, byte, char, bool_ = map(
    _cast,
    (
        dtypes.float32,
        dtypes.float64,
        dtypes.float16,
        dtypes.bfloat16,
        dtypes.int64,
        dtypes.int32,
        dtypes.int16,
        dtypes.uint8,
        dtypes.int8,
        dtypes.bool_,
    ),
)


def detach(x: Tensor) -> Tensor:
    """x cut off from its gradient."""
    return rows(lambda v: v.detach(), x)


def cpu(x: Tensor) -> Tensor:
    """x on the CPU."""
    return rows(lambda v: v.cpu(), x)


def cuda(x: Tensor, device: Any = None) -> Tensor:
    """x on a GPU."""
    return rows(lambda v: v.cuda(device) if device is not None else v.cuda(), x)


def is_tensor(x: Any) -> bool:
    """Whether x is a tensor."""
    return isinstance(x, Tensor)


def numel(x: Tensor) -> int:
    """How many elements."""
    return x.numel()
