"""Shapes: reading and changing them, concatenation, splitting, and tensors that are made of a shape only."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError, UnfulfilledError
from onnx2nn.ground.limits import Limits
from onnx2nn.ops.arithmetic import larger
from onnx2nn.ops.axes import distinct, from_front, once
from onnx2nn.ops.cast import element_of
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import NeedsValues, TensorAttribute, Typed, has_values
from onnx2nn.optable.shape_values import sized
from onnx2nn.optable.traits import LAYOUT, UNARY

_SAME_WIDTH = {
    "float8_e4m3fn": "int8",
    "float8_e4m3fnuz": "int8",
    "float8_e5m2": "int8",
    "float8_e5m2fnuz": "int8",
    "float8_e8m0fnu": "int8",
    "uint16": "int16",
    "uint32": "int32",
    "uint64": "int64",
}


def moves_elements(body: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a body, which only moves elements, that views types without torch kernels as integers of their width."""

    @functools.wraps(body)
    def viewed(F: Any, *inputs: Any, **attributes: Any) -> Any:
        dtype = next((x.dtype for x in inputs if _width_of(x)), None)
        if dtype is None:
            return body(F, *inputs, **attributes)
        plain = [x.view(getattr(F, _width_of(x))) if _width_of(x) else x for x in inputs]
        return body(F, *plain, **attributes).view(dtype)

    return viewed


def _width_of(value: Any) -> str:
    return _SAME_WIDTH.get(str(getattr(value, "dtype", "")).rpartition(".")[2], "")


def fixed(number: Any) -> bool:
    """Returns whether a shape value is a plain integer, not computed from a dynamic dimension."""
    return isinstance(number, (int, np.integer))


def scalar(value: Any) -> Any:
    """Returns the number in a static input of one element, 0-D or 1-D."""
    while isinstance(value, (list, tuple)):
        (value,) = value
    return value


def partly_known(vector: Any) -> list[Any]:
    """Returns the numbers of an input for a row's `results`: None for a data-dependent number.

    Raises:
        NeedsValues: the vector has a dynamic length, or more numbers than are read one by one.
    """
    if isinstance(vector, (list, tuple)):
        return list(vector)
    if vector.ndim != 1 or not fixed(vector.shape[0]):
        raise NeedsValues("a vector of unknown length")
    if vector.shape[0] > Limits.elements:
        raise NeedsValues(f"a vector of {vector.shape[0]} numbers")
    return list(getattr(vector, "elements", ())) or [None] * vector.shape[0]


def _values_of_shape(data: Any, *, start: int = 0, end: int | None = None) -> Any:
    return np.array(list(data.shape[start:end]), dtype=object)


@op("Shape", 15, on_shape_values=_values_of_shape, reads_shape=True)
def shape(F: Any, data: Any, *, start: int = 0, end: int | None = None) -> Any:
    # Tensors, as torch.jit.trace would record a list of sizes as the constants of its example.
    dims = [F.tensor(size, dtype=F.int64).reshape(1) for size in data.shape[start:end]]
    return F.cat(dims) if dims else F.zeros(0, dtype=F.int64)


revision(shape, 1, without=["start", "end"])


@op("Size", 1, on_shape_values=lambda data: np.array(math.prod(data.shape), dtype=object), reads_shape=True)
def size(F: Any, data: Any) -> Any:
    return F.tensor(math.prod(data.shape), dtype=F.int64)


def _target(dims: Sequence[Any], current: Sequence[Any], allowzero: int) -> list[Any]:
    """Returns the target shape of a Reshape with every 0 replaced by the dimension that it copies.

    Whether a computed size is 0 stays open, unless the dimension that it would copy fits where it is 0 itself alone.
    Where several may be, they are required not to be: such choices would multiply from node to node, and what they
    copied would hardly have as many elements as the tensor. Where a size is known to fill the tensor, 0 too, a copied
    dimension is required to be this size.
    """
    if allowzero:
        return list(dims)
    target = [
        chosen(d == 0, current[i], d) if i < len(current) and (d == current[i]) is not True else d
        for i, d in enumerate(dims)
    ]
    open_ = [i for i, d in enumerate(dims) if not fixed(d) and (target[i] == d) is not True]
    if len(open_) > 1:
        for i in open_:
            demand(dims[i] >= 1, "a computed size is not 0, which would stand for the dimension of the tensor")
            target[i] = dims[i]
        return target
    for i in open_:
        wanted, given = _factors_besides(i, target, current)
        if fixed(wanted) and fixed(given):
            fits = dims[i] * wanted == current[i] * given if 0 < wanted != given > 0 else None
        elif (wanted >= 1) is True and (dims[i] * wanted == current[i] * given) is True:
            fits = (dims[i] != 0) | (current[i] == 0)
        else:
            fits = None
        if fits is not None:
            demand(fits, "the elements of a tensor and of its new shape")
            target[i] = dims[i]
    return target


def _factors_besides(axis: int, target: Sequence[Any], current: Sequence[Any]) -> tuple[Any, Any]:
    """Returns how many elements of a new and of an old shape stand for one along an axis, without what both have.

    Where they are known and differ, a copied dimension other than 0 would never fit.
    """
    given = [*current[:axis], *current[axis + 1 :]]
    wanted = []
    for size in (*target[:axis], *target[axis + 1 :]):
        twin = next((i for i, other in enumerate(given) if (size == other) is True), None)
        if twin is None:
            wanted.append(size)
        else:
            del given[twin]
    return math.prod(wanted), math.prod(given)


def same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Returns whether two shapes are known to be equal at all sizes."""
    return len(a) == len(b) and all((m == n) is True for m, n in zip(a, b, strict=True))


def chosen(condition: Any, a: Any, b: Any) -> Any:
    """Returns a shape value: `a` where the condition holds, a bool or a comparison of sizes, else `b`."""
    return condition.choose(a, b) if hasattr(condition, "choose") else a if condition else b


def demand_equal(a: Sequence[Any], b: Sequence[Any], what: str) -> None:
    """Requires two shapes to be equal, as far as their sizes are plain integers.

    Raises:
        OperatorError: they differ.
    """
    if len(a) != len(b) or any(fixed(m) and fixed(n) and m != n for m, n in zip(a, b, strict=True)):
        raise OperatorError(f"{what} differ: {[*a]} and {[*b]}.")


def demand(condition: Any, reason: str) -> None:
    """Requires a condition, a bool or a comparison of sizes, of which a guard is made.

    Raises:
        UnfulfilledError: it is False.
    """
    if hasattr(type(condition), "demand"):
        condition.demand(reason)
    elif not condition:
        raise UnfulfilledError(f"{reason}.")


def _values_of_reshape(data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    return data.reshape([int(d) for d in _target(shape.tolist(), data.shape, allowzero)])


def _results_of_reshape(F: Any, data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    known = partly_known(shape)
    sizes = []
    for axis, size in enumerate(known):
        if fixed(size) and size == 0 and not allowzero:
            size = data.shape[axis]
        sizes.append(f"size_{axis}" if size is None or (fixed(size) and size < 0) else size)
    return [(sizes, data.dtype)]


@op("Reshape", 14, static=["shape"], on_shape_values=_values_of_reshape, results=_results_of_reshape, traits=LAYOUT)
def reshape(F: Any, data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    target = _target(shape, data.shape, allowzero) if any((d != 0) is not True for d in shape) else shape
    if _is_flattened(data, target):
        return data.flatten(len(target) - 1)
    for size in target:
        if not fixed(size):
            demand(size >= 0, "a computed size is no -1, which would stand for the rest")
    return data.reshape(*target) if target else data.reshape(())


def _is_flattened(data: Any, target: Sequence[Any]) -> bool:
    """Returns whether a Reshape joins the last dimensions and keeps the others at all sizes, as Flatten does.

    One of the sizes may be -1: it is what the others leave.
    """
    last = len(target) - 1
    if last < 1 or not (shape := _known_shape(data)) or len(shape) <= len(target):
        return False
    sizes = [*shape[:last], math.prod(shape[last:])]
    kept = [size for size, wanted in zip(sizes, target, strict=True) if not (fixed(wanted) and wanted == -1)]
    return len(kept) >= last and same_shape(kept, [d for d in target if not (fixed(d) and d == -1)])


def _known_shape(data: Any) -> Sequence[Any]:
    """Returns the dimensions of a tensor, nothing where its rank is unknown."""
    try:
        return tuple(data.shape)
    except NeedsValues:
        return ()


revision(reshape, 5, without=["allowzero"])


@op("Reshape", 1, traits=LAYOUT)
def reshape_1(F: Any, data: Any, *, shape: Sequence[int] | None = None) -> Any:
    return reshape(F, data, list(shape or []))


def _values_of_flatten(input: Any, *, axis: int = 1) -> Any:
    axis = axis + input.ndim if axis < 0 else axis
    return input.reshape(math.prod(input.shape[:axis]), -1)


@op("Flatten", 1, on_shape_values=_values_of_flatten, traits=LAYOUT)
def flatten(F: Any, input: Any, *, axis: int = 1) -> Any:
    """The result always has two dimensions."""
    axis = axis if axis == input.ndim else from_front(axis, input.ndim)
    if axis == 0:
        return input.reshape(1, -1)
    if axis == input.ndim:
        return input.reshape(-1, 1)
    front = input if axis == 1 else input.flatten(0, axis - 1)
    return front if front.ndim == 2 else front.flatten(1)


def _values_of_squeeze(data: Any, axes: Any = None, *, _open_rank: bool = False, _leading_ones: bool = False) -> Any:
    chosen = () if axes is None else tuple(once(map(int, axes), data.ndim))
    return data.squeeze(chosen) if chosen else data.squeeze()


def _first_axis(shape: Sequence[Any]) -> int | None:
    """Returns the first axis that is not known to have size 1: a dynamic batch, which leads the result at any size."""
    return next((axis for axis, size in enumerate(shape) if not (fixed(size) and size == 1)), None)


@op("Squeeze", 13, static=["axes"], on_shape_values=_values_of_squeeze, traits=LAYOUT)
def squeeze(F: Any, data: Any, axes: Any = None, *, _open_rank: bool = False, _leading_ones: bool = False) -> Any:
    """An axis of another size than 1 is an error; torch would keep it. No axes are all that have size 1."""
    if not axes and _open_rank and not all(map(fixed, data.shape)):
        return data.squeeze()  # the number of dimensions is decided in each call
    if not axes:
        kept = _first_axis(data.shape) if _leading_ones else None
        axes = [axis for axis, size in enumerate(data.shape) if axis != kept and size == 1]
    axes = sorted(once(axes, data.ndim))
    for axis in axes:
        demand(data.shape[axis] == 1, f"axes={axes} of the shape {list(data.shape)} must have size 1")
    if not axes:
        return data
    if not all(fixed(data.shape[axis]) for axis in axes):  # 1 by a condition, which squeeze would not know in an export
        for axis in reversed(axes):
            data = data.select(axis, 0)
        return data
    return data.squeeze(axes[0]) if len(axes) == 1 else data.squeeze(tuple(axes))


revision(squeeze, 1, as_attributes=["axes"])


def _values_of_unsqueeze(data: Any, axes: Any) -> Any:
    axes = [int(axis) for axis in np.ravel(axes)]
    return np.expand_dims(data, tuple(distinct(axes, data.ndim + len(axes))))


@op("Unsqueeze", 13, static=["axes"], on_shape_values=_values_of_unsqueeze, traits=LAYOUT)
def unsqueeze(F: Any, data: Any, axes: Any) -> Any:
    if not isinstance(axes, (list, tuple)):
        axes = [axes]  # some exporters write a scalar, which ONNX Runtime takes
    positions = distinct(axes, data.ndim + len(axes))
    if len(axes) == 1:
        return data.unsqueeze(axes[0])  # as the author wrote it, from the end too
    for axis in sorted(positions):
        data = data.unsqueeze(axis)
    return data


revision(unsqueeze, 1, as_attributes=["axes"])


@op(
    "Transpose",
    1,
    on_shape_values=lambda data, *, perm=None: data.transpose(perm),
    traits=["value_preserving", "keeps_rank"],
)
def transpose(F: Any, data: Any, *, perm: Sequence[int] | None = None) -> Any:
    count = data.ndim if perm is None else len(perm)
    order = list(reversed(range(count))) if perm is None else [axis % count for axis in perm if -count <= axis < count]
    if sorted(order) != list(range(count)):
        raise OperatorError(f"perm={list(perm or ())} does not name every dimension once.")
    moved = [axis for axis, source in enumerate(order) if axis != source]
    if len(moved) > 2 or not _has_rank(data, count):
        return data.permute(*order)
    return data.transpose(*moved) if moved else data


def _has_rank(data: Any, rank: int) -> bool:
    """Returns whether a tensor is known to have this rank."""
    try:
        return bool(data.ndim == rank)
    except NeedsValues:
        return False


def _values_of_concat(*inputs: Any, axis: int) -> Any:
    return np.concatenate(inputs, axis)


@op("Concat", 4, on_shape_values=_values_of_concat)
def concat(F: Any, *inputs: Any, axis: int) -> Any:
    """ONNX Runtime leaves out tensors of other sizes that are empty along the axis, which ONNX does not allow."""
    if len(inputs) == 1:
        return inputs[0]
    try:
        return F.cat(inputs, axis)
    except RuntimeError:
        kept = [value for value in inputs if value.shape[axis]] if has_values(F, *inputs) else []
        if not 0 < len(kept) < len(inputs):
            raise
        return F.cat(kept, axis)


@op(
    "Concat", 1, on_shape_values=lambda *inputs, axis=None: _values_of_concat(*inputs, axis=1 if axis is None else axis)
)
def concat_1(F: Any, *inputs: Any, axis: int | None = None) -> Any:
    """The default axis is 1, as in Caffe2."""
    return concat(F, *inputs, axis=1 if axis is None else axis)


def _split_sizes(size: Any, parts: int, even: bool) -> list[int] | None:
    """Returns the lengths of `parts` parts of a dimension, the last of them the rest; None where it is dynamic."""
    if not fixed(size):
        return None
    length = -(-size // parts)
    last = size - length * (parts - 1)
    if last < 0 or (even and last != length):
        raise OperatorError(f"a dimension of size {size} cannot be split into {parts} parts.")
    return [length] * (parts - 1) + [last]


def _fills(size: Any, parts: int) -> bool:
    """Returns whether torch makes as many chunks as `parts` at all sizes: it makes none behind the last element."""
    is_filled: bool = (size % parts == 0) is True or (_length(size, parts) * (parts - 1) < size) is True
    return is_filled


def _length(size: Any, parts: int) -> Any:
    """Returns the length of all parts but the last."""
    return (size + (parts - 1)) // parts


def _slices(input: Any, axis: int, length: Any, parts: int) -> list[Any]:
    starts = [length * part if part else None for part in range(parts)]
    before, runs = (slice(None),) * from_front(axis, input.ndim), map(slice, starts, [*starts[1:], None])
    places = [(*before, run) for run in runs]
    return [input[place] for place in places]


def _one_or_all(parts: Sequence[Any]) -> Any:
    """Returns the parts as a body returns outputs: a tuple, or the only part."""
    return parts[0] if len(parts) == 1 else tuple(parts)


def _values_of_split(
    input: Any, split: Any = None, *, axis: int = 0, num_outputs: int | None = None, _outputs: int = 0
) -> Any:
    if split is None:
        split = _split_sizes(input.shape[axis], num_outputs or _outputs, num_outputs is None)
    ends = np.cumsum([int(length) for length in split])
    return _one_or_all(np.split(input, ends[:-1], axis))


def _results_of_split(F: Any, input: Any, split: Any = None, *, axis: int = 0, _outputs: int = 0, **_: Any) -> Any:
    lengths = [None] * _outputs if split is None else partly_known(split)
    sizes = [[*input.shape] for _ in lengths]
    for part, (of, length) in enumerate(zip(sizes, lengths, strict=True)):
        of[axis] = f"part_{part}" if length is None else length
    return [(of, input.dtype) for of in sizes]


@op(
    "Split",
    18,
    static=["split"],
    on_shape_values=_values_of_split,
    results=_results_of_split,
    traits=["value_preserving", "keeps_rank"],
)
def split(
    F: Any, input: Any, split: Any = None, *, axis: int = 0, num_outputs: int | None = None, _outputs: int = 0
) -> Any:
    """Without `split`, the parts have one length; from opset 18 on the last part may be shorter."""
    parts = num_outputs or _outputs
    if split is None:
        size = input.shape[axis]
        sizes = _split_sizes(size, parts, num_outputs is None)
        if sizes is None and num_outputs and not _fills(size, parts):
            return _one_or_all(_slices(input, axis, _length(size, parts), parts))
        if sizes is None and not num_outputs:
            demand(size % parts == 0, f"the parts of axis {axis} have one size")
        if sizes is None or len(set(sizes)) == 1:
            return _one_or_all(input.chunk(parts, axis))
        split = sizes
    return _one_or_all(input.split(split, axis))


split_13 = revision(split, 13, without=["num_outputs"])
revision(split_13, 2, as_attributes=["split"])
_split = split


@op("Split", 1, static=["split"], traits=["value_preserving", "keeps_rank"])
def split_1(F: Any, input: Any, split: Any = None, *, axis: int | None = None, _outputs: int = 0) -> Any:
    """`split` is an input or an attribute."""
    if axis is None:
        raise OperatorError("attribute axis is missing, and revision 1 of the standard has no default.")
    split = None if split is None else [int(length) for length in split]  # the file has them in the input's type
    return _split(F, input, split, axis=axis, _outputs=_outputs)


def broadcast(shape: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """Returns the shape to which two shapes broadcast; where they do not fit, `other`'s dimension."""
    rank = max(len(shape), len(other))
    left = [1] * (rank - len(shape)) + list(shape)
    right = [1] * (rank - len(other)) + list(other)
    return [_broadcast(a, b) for a, b in zip(left, right, strict=True)]


def _broadcast(size: Any, target: Any) -> Any:
    """Returns the common size; a target of another size than 1 is asked for as it is, so that misfits are refused."""
    if (size == 1) is True or (size == target) is True:
        return target
    return size if fixed(size) and fixed(target) and target == 1 else chosen(target == 1, size, target)


def _values_of_expand(input: Any, shape: Any) -> Any:
    return np.broadcast_to(input, sized([int(d) for d in broadcast(input.shape, shape.tolist())])).copy()


def _results_of_expand(F: Any, input: Any, shape: Any) -> Any:
    asked = partly_known(shape)
    rank = max(input.ndim, len(asked))
    sizes, wanted = [1] * (rank - input.ndim) + [*input.shape], [1] * (rank - len(asked)) + asked
    for axis, size in enumerate(wanted):
        if not (fixed(size) and size == 1):
            sizes[axis] = size if fixed(size) else f"size_{axis}"
    return [(sizes, input.dtype)]


@op(
    "Expand",
    8,
    static=["shape"],
    counts=["shape"],
    on_shape_values=_values_of_expand,
    results=_results_of_expand,
    sized_by="shape",
    traits=["value_preserving", "leading_ones"],
)
def expand(F: Any, input: Any, shape: Any) -> Any:
    """Broadcasts both ways: a 1 in `shape` keeps the input's dimension.

    The sizes are one list: fx.symbolic_trace finds traced sizes of a tensor that is not traced nowhere else.
    """
    target = broadcast(input.shape, shape)
    if len(target) == input.ndim and all((a == b) is True for a, b in zip(target, input.shape, strict=True)):
        return input
    return input.expand(target) if target else input


def _values_of_tile(input: Any, repeats: Any) -> Any:
    counts = [int(count) for count in repeats]
    sized([*input.shape, *counts])
    return np.tile(input, counts)


def _results_of_tile(F: Any, input: Any, repeats: Any) -> Any:
    pairs = enumerate(zip(input.shape, partly_known(repeats), strict=True))
    return [([size if fixed(n) and n == 1 else f"size_{axis}" for axis, (size, n) in pairs], input.dtype)]


@op(
    "Tile",
    6,
    static=["repeats"],
    counts=["repeats"],
    on_shape_values=_values_of_tile,
    results=_results_of_tile,
    sized_by="repeats",
    traits=["value_preserving", "keeps_rank"],
)
def tile(F: Any, input: Any, repeats: Any) -> Any:
    if len(repeats) != input.ndim:
        raise OperatorError(f"repeats has {len(repeats)} numbers for an input of {input.ndim} dimensions.")
    if all(fixed(count) and count == 1 for count in repeats):
        return input
    return input.repeat([*repeats])


@op("Tile", 1, static=["tiles", "axis"], traits=["value_preserving", "keeps_rank"])
def tile_1(F: Any, input: Any, tiles: Any, axis: Any) -> Any:
    """Both numbers have the input's type, so that they may be floats."""
    repeats = [1] * input.ndim
    repeats[int(scalar(axis))] = int(scalar(tiles))
    return tile(F, input, repeats)


@op("Identity", 1, on_shape_values=lambda input: input, traits=UNARY | {"passes_on", "value_preserving"})
def identity(F: Any, input: Any) -> Any:
    return input


@op("Constant", 12)
def constant(
    F: Any,
    *,
    sparse_value: TensorAttribute = None,
    value: TensorAttribute = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Any:
    """The importer passes a sparse value as a dense tensor."""
    given = (sparse_value, value, value_float, value_floats, value_int, value_ints, value_string, value_strings)
    if sum(item is not None for item in given) > 1:
        raise OperatorError("it has several attributes that hold its value. Give it one of them.")
    tensor = sparse_value if value is None else value
    numbers = value_float if value_floats is None else list(value_floats)
    integers = value_int if value_ints is None else list(value_ints)
    texts = value_string if value_strings is None else list(value_strings)
    if tensor is not None:
        return tensor
    if numbers is not None:
        return F.tensor(numbers, dtype=F.float32)
    if integers is not None:
        return F.tensor(integers, dtype=F.int64)
    if texts is not None:
        return np.array(texts, dtype=object)
    raise OperatorError("it has none of the attributes that hold its value.")


_PLAIN_VALUES = ["value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings"]
constant_11 = revision(constant, 11, without=_PLAIN_VALUES)
revision(constant_11, 1, without=["sparse_value"], required=["value"])


def _values_of_constant_of_shape(input: Any, *, value: Any = None) -> Any:
    if not all(fixed(d) for d in input):
        raise NeedsValues("a tensor of dynamic size")
    number = np.float32(0) if value is None else value.numpy().reshape(())
    return np.full(sized([int(d) for d in input]), number)


def _results_of_constant(F: Any, input: Any, *, value: Any = None) -> Any:
    if value is not None and not isinstance(value, F.Tensor):
        raise NeedsValues("a value of strings")
    sizes = [f"size_{axis}" if size is None else size for axis, size in enumerate(partly_known(input))]
    return [(sizes, F.float32 if value is None else value.dtype)]


@op(
    "ConstantOfShape",
    9,
    static=["input"],
    counts=["input"],
    on_shape_values=_values_of_constant_of_shape,
    results=_results_of_constant,
    sized_by="input",
)
def constant_of_shape(F: Any, input: Any, *, value: TensorAttribute = None) -> Any:
    if value is not None and not has_values(F, value):
        return value.reshape([1] * len(input)).expand([*input])
    number, dtype = (0, F.float32) if value is None else (value.reshape(()).item(), value.dtype)
    if number in (0, 1):  # torch.jit.trace cannot record full with a bool
        return (F.ones if number else F.zeros)(input, dtype=dtype)
    return F.full(input, number, dtype=dtype)


def _filled_shape(
    input: Any, shape: Sequence[int] | None, extra_shape: Sequence[int] | None, input_as_shape: int
) -> list[Any]:
    if input is None:
        return list(shape or ())
    sizes = list(input) if input_as_shape else list(np.shape(input))
    if not input_as_shape and 0 in sizes:
        raise OperatorError("its input has no elements, so that its shape is not known at import.")
    return [*sizes, *(extra_shape or ())]


def _values_of_constant_fill(
    input: Any = None,
    *,
    value: float = 0.0,
    dtype: int = 1,
    shape: Sequence[int] | None = None,
    extra_shape: Sequence[int] | None = None,
    input_as_shape: int = 0,
) -> Any:
    sizes = _filled_shape(input, shape, extra_shape, input_as_shape)
    if not all(fixed(size) for size in sizes):
        raise NeedsValues("a tensor of dynamic size")
    return Typed(np.full(sized([int(size) for size in sizes]), value), np.dtype(element_of(dtype).dtype))


@op("ConstantFill", 1, static=["input"], on_shape_values=_values_of_constant_fill)
def constant_fill(
    F: Any,
    input: Any = None,
    *,
    value: float = 0.0,
    dtype: int = 1,
    shape: Sequence[int] | None = None,
    extra_shape: Sequence[int] | None = None,
    input_as_shape: int = 0,
) -> Any:
    """Experimental in opset 1. PyTorch 0.4 writes it for the initial state of a recurrent layer."""
    sizes = _filled_shape(input, shape, extra_shape, input_as_shape)
    return F.full(sizes, value, dtype=F.float32).to(getattr(F, element_of(dtype).dtype))


def _range_length(start: Any, limit: Any, delta: Any) -> int:
    """Returns the number of elements, with the difference in the input's precision, as in ONNX Runtime."""
    return max(math.ceil(float(limit - start) / float(delta)), 0)


def _values_of_range(start: Any, limit: Any, delta: Any, *, _types: Sequence[Any] = ()) -> Any:
    numbers = [array.item() for array in (start, limit, delta)]
    if not all(fixed(number) for number in numbers):
        raise NeedsValues("a range of dynamic length")
    start, limit, delta = numbers
    if delta:  # numpy refuses a step of 0
        sized([max(0, math.ceil((limit - start) / delta))])
    return np.arange(start, limit, delta).astype(object)


def _results_of_range(F: Any, *numbers: Any, **_: Any) -> Any:
    dtypes = [number.dtype for number in numbers if hasattr(number, "dtype")]
    if not dtypes:
        raise NeedsValues("a range whose type is not known")
    return [(["count"], dtypes[0])]


@op("Range", 27, static=["start", "limit", "delta"], results=_results_of_range, sized_by="limit")
def range_(F: Any, start: Any, limit: Any, delta: Any, *, stash_type: int = 1, _types: Sequence[Any] = ()) -> Any:
    """float16 and bfloat16 are computed in float32, the default of `stash_type`."""
    start, limit, delta = scalar(start), scalar(limit), scalar(delta)
    kind = next((kind for kind in _types if kind), "FLOAT" if isinstance(delta, float) else "INT64")
    if kind in ("INT64", "INT32", "INT16"):
        return _integer_range(F, start, limit, delta, getattr(F, kind.lower()))
    return _float_range(F, start, limit, delta, kind)


def _integer_range(F: Any, start: Any, limit: Any, delta: Any, dtype: Any) -> Any:
    """A step away from the limit gives an empty range, which torch refuses."""
    if fixed(delta) and delta == 0:
        raise OperatorError("the step of a range is 0.")
    if not fixed(delta):
        raise NeedsValues("a range whose step depends on a size")
    if ((limit - start) * delta >= 0) is True:
        if (start == 0) is True and delta == 1:
            return F.arange(limit, dtype=dtype)
        return F.arange(start, limit, dtype=dtype) if delta == 1 else F.arange(start, limit, delta, dtype=dtype)
    count = larger(-((start - limit) // delta), 0)
    steps = F.arange(count, dtype=dtype)
    steps = steps if delta == 1 else steps * delta
    return steps if (start == 0) is True else steps + start


_PARTS = 16
"""Sizes of tensors less multiples of a 16th are exact in float32, so that a range from 0.5 is one from 0, and 0.5."""


def _float_range(F: Any, start: Any, limit: Any, delta: Any, kind: str) -> Any:
    dtype = {"DOUBLE": F.float64, "FLOAT16": F.float16, "BFLOAT16": F.bfloat16}.get(kind, F.float32)
    if all(isinstance(number, (int, float)) for number in (start, limit, delta)):
        precision = np.float64 if kind == "DOUBLE" else np.float32
        limit = _range_length(precision(start), precision(limit), precision(delta))
        steps = F.arange(limit, dtype=F.float64)
        return (steps * delta + start).to(dtype)
    start, limit, delta = (int(x) if isinstance(x, float) and x.is_integer() else x for x in (start, limit, delta))
    parted = isinstance(start, float) and (start * _PARTS).is_integer() and isinstance(delta, int)
    if parted and dtype in (F.float32, F.float64):
        whole = math.floor(start) if delta > 0 else math.ceil(start)
        return _float_range(F, whole, limit, delta, kind) + (start - whole)
    # Floats that are computed from sizes have no division that rounds down.
    if not fixed(delta) or any(isinstance(x, float) or not hasattr(x, "__floordiv__") for x in (start, limit)):
        raise NeedsValues("a range whose length depends on floats")
    if dtype in (F.float32, F.float64):  # which hold the sizes exactly, or the cast to them has a limit
        return _integer_range(F, start, limit, delta, dtype)
    return _integer_range(F, start, limit, delta, F.int64).to(dtype)


revision(range_, 11, without=["stash_type"], options={"on_shape_values": _values_of_range})


@op("DepthToSpace", 11, choices={"mode": ("DCR", "CRD")}, traits=["channels_first", "keeps_rank", "value_preserving"])
@moves_elements
def depth_to_space(F: Any, input: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    if mode == "CRD":
        return F.pixel_shuffle(input, blocksize)
    n, c, h, w = input.shape
    c = c // (blocksize * blocksize)
    blocks = input.reshape(n, blocksize, blocksize, c, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c, h * blocksize, w * blocksize)


revision(depth_to_space, 1, without=["mode"])


@op("SpaceToDepth", 28, choices={"mode": ("DCR", "CRD")}, traits=["channels_first", "keeps_rank", "value_preserving"])
@moves_elements
def space_to_depth(F: Any, input: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    if mode == "CRD":
        return F.pixel_unshuffle(input, blocksize)
    n, c, h, w = input.shape
    h, w = h // blocksize, w // blocksize
    blocks = input.reshape(n, c, h, blocksize, w, blocksize).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * blocksize * blocksize, h, w)


revision(space_to_depth, 1, without=["mode"])


@op("Trilu", 14, static=["k"], traits=["keeps_rank"])
@moves_elements
def trilu(F: Any, input: Any, k: Any = None, *, upper: int = 1) -> Any:
    diagonal = 0 if k is None else scalar(k)
    function = F.triu if upper else F.tril
    return function(input) if fixed(diagonal) and diagonal == 0 else function(input, diagonal)


@op("EyeLike", 9)
def eye_like(F: Any, input: Any, *, dtype: int | None = None, k: int = 0) -> Any:
    rows, columns = input.shape
    kind = input.dtype if dtype is None else getattr(F, element_of(dtype).dtype)
    if k == 0 and kind.is_floating_point:
        return F.eye(rows, columns, dtype=kind)
    return (F.arange(columns) - F.arange(rows).unsqueeze(1) == k).to(kind)
