"""Shape rules: the symbolic shapes of the results of the namespace's functions, by name.

A rule has the parameters of its function. Tensors arrive as they are, run time ones as `Traced`; it returns the shape of
the result where the call succeeds, or a list of shapes where the function has several results. A dimension of which it
knows nothing is an `unknown_size`. It raises `Uncovered` for calls that it does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oneflow_bridge.from_onnx.dim import Dim, expression_of, unknown_size
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.optable.row import NeedsValues
from onnx2nn.sizes import selection
from onnx2nn.sizes.expression import Number, Size, bounds, product

Shape = tuple[Number, ...]
Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""The rules, by the last part of a function's or method's name, or by its full name where that alone decides."""

COUNTS_RESULTS = frozenset({"split", "split_with_sizes", "chunk", "tensor_split", "unbind", "squeeze"})
"""Functions of which sizes may decide the number of results or their rank; each other one has a fixed rank."""


class Uncovered(Exception):
    """A rule does not cover a call."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for functions of these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def shape_of(value: Any) -> Shape:
    """Returns the shape of a tensor, or of a number."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    spec = getattr(value, "spec", None)
    if spec is not None:
        return tuple(spec.shape)
    if isinstance(value, (int, float, Dim)):
        return ()
    raise Uncovered


def _number(value: Any) -> Number:
    """Returns an int or `Dim` as a size expression."""
    expr = expression_of(value)
    if isinstance(expr, bool) or not isinstance(expr, (int, Size)):
        raise Uncovered
    return expr


def _size(value: Any) -> Number:
    """Returns a number that cannot be negative, and so stands for itself."""
    expr = _number(value)
    least = bounds(expr)[0]
    return expr if least is not None and least >= 0 else unknown_size()


def _numbers(args: Sequence[Any]) -> list[Any]:
    """Returns the numbers of `f(1, 2)` or `f([1, 2])`."""
    return list(args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args)


def _axis(dim: Any, rank: int) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int) or not -max(rank, 1) <= dim < max(rank, 1):
        raise Uncovered
    return dim % max(rank, 1)


def _axes(dims: Any, rank: int) -> list[int]:
    return [_axis(dim, rank) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]


def _put(shape: Shape, axis: int, *sizes: Number) -> Shape:
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def _per_axis(value: Any, count: int) -> list[int]:
    items = list(value) if isinstance(value, (list, tuple)) else [value] * count
    items = items * count if len(items) == 1 else items
    if len(items) != count or not all(isinstance(item, int) for item in items):
        raise Uncovered
    return items


def _known(*numbers: Number) -> Number:
    """Returns one of numbers that must be equal, a known one if there is one."""
    return next((number for number in numbers if isinstance(number, int)), numbers[0])


def broadcast(*shapes: Sequence[Number]) -> Shape:
    """Returns the common shape of tensors that are broadcast together."""
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return tuple(selection.broadcast(*sizes) for sizes in zip(*padded, strict=True))


_SAME = (
    "abs absolute acos acosh asin asinh atan atanh bitwise_not celu ceil clone contiguous cos cosh cummax cummin "
    "cumprod cumsum detach double dropout elu erf erfc erfinv exp exp2 expm1 fix flip float float_ floor frac gelu "
    "group_norm half hardshrink hardsigmoid hardswish hardtanh int instance_norm invert isfinite isinf isnan isneginf "
    "isposinf layer_norm leaky_relu lgamma local_response_norm log log10 log1p log2 log_softmax logical_not logit "
    "logsigmoid long mish nan_to_num neg negative normalize ones_like positive prelu rand_like randn_like reciprocal "
    "relu relu6 rms_norm roll round rsqrt selu sgn sigmoid sign signbit silu sin sinc sinh softmax softmin softplus "
    "softshrink softsign sqrt square tan tanh tanhshrink threshold to tril triu trunc type type_as zeros_like "
    "batch_norm channel_shuffle bool bfloat16 full_like bernoulli argsort scatter scatter_add scatter_reduce index_fill index_copy "
    "index_put index_add masked_fill alpha_dropout cpu cuda"
)


@rule(*_SAME.split())
def _same(x: Any, *_: Any, **__: Any) -> Shape:
    return shape_of(x)


@rule(
    *"add sub subtract mul multiply div divide truediv floordiv floor_divide true_divide mod remainder fmod pow".split(),
    *"maximum minimum fmax fmin eq ne lt le gt ge greater greater_equal less less_equal not_equal atan2".split(),
    *"and or xor lshift rshift bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split(),
    *"logical_and logical_or logical_xor copysign hypot logaddexp xlogy".split(),
)
def _elementwise(x: Any, y: Any, **_: Any) -> Shape:
    return broadcast(shape_of(x), shape_of(y))


@rule("where")
def _where(condition: Any, x: Any, y: Any) -> Shape:
    return broadcast(shape_of(condition), shape_of(x), shape_of(y))


@rule("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(x: Any, min: Any = None, max: Any = None) -> Shape:
    return broadcast(*(shape_of(value) for value in (x, min, max) if value is not None))


def _reduced(x: Any, dim: Any, keepdim: Any) -> Shape:
    shape = shape_of(x)
    every = dim is None or (isinstance(dim, (list, tuple)) and not dim)
    axes = range(len(shape)) if every else _axes(dim, len(shape))
    if keepdim:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


@rule("sum", "nansum", "mean", "prod", "amax", "amin", "all", "any", "logsumexp", "argmax", "argmin", "count_nonzero")
def _reduction(x: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> Shape:
    return _reduced(x, dim, keepdim)


@rule("var", "std")
def _variance(x: Any, dim: Any = None, unbiased: Any = True, keepdim: Any = False, *, correction: Any = None) -> Shape:
    return _reduced(x, None if isinstance(dim, bool) else dim, keepdim)


@rule("norm", "vector_norm")
def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: Any = False, *, ord: Any = 2, dtype: Any = None) -> Shape:
    return _reduced(x, dim, keepdim)


@rule("max", "min")
def _extreme(x: Any, dim: Any = None, keepdim: Any = False) -> Any:
    if dim is None:
        return ()
    if not isinstance(dim, int):
        return broadcast(shape_of(x), shape_of(dim))
    return [_reduced(x, dim, keepdim)] * 2


@rule("sort")
def _sort(x: Any, *_: Any, **__: Any) -> Any:
    return [shape_of(x)] * 2


@rule("topk")
def _topk(x: Any, k: Any, dim: Any = -1, *_: Any, **__: Any) -> Any:
    shape = shape_of(x)
    return [_put(shape, _axis(dim, len(shape)), _size(k))] * 2


@rule("matmul", "mm", "bmm")
def _matmul(x: Any, y: Any) -> Shape:
    a, b = shape_of(x), shape_of(y)
    if not a or not b:
        raise Uncovered
    return (*broadcast(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


@rule("linear")
def _linear(x: Any, weight: Any, bias: Any = None) -> Shape:
    return (*shape_of(x)[:-1], *shape_of(weight)[:-1])


@rule("addmm", "baddbmm")
def _addmm(x: Any, a: Any, b: Any, **_: Any) -> Shape:
    return _matmul(a, b)


@rule("scaled_dot_product_attention")
def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Shape:
    q, k, v = map(shape_of, (query, key, value))
    return (*broadcast(q[:-2], k[:-2], v[:-2]), q[-2], v[-1])


@rule("nn.functional.embedding")
def _embedding(index: Any, weight: Any, *_: Any, **__: Any) -> Shape:
    return (*shape_of(index), *shape_of(weight)[1:])


@rule("embedding")
def _embedding_of_weight(weight: Any, index: Any, *_: Any, **__: Any) -> Shape:
    return _embedding(index, weight)


def _window(size: Number, kernel: int, stride: int, pad: int, dilation: int) -> Number:
    return (size + (2 * pad - dilation * (kernel - 1) - 1)) // stride + 1


@rule("conv1d", "conv2d", "conv3d")
def _convolution(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Shape:
    shape, w = shape_of(x), shape_of(weight)
    rank = len(w) - 2
    settings = [_per_axis(value, rank) for value in (stride, padding, dilation)]
    sizes = [_window(*one) for one in zip(shape[-rank:], _per_axis(w[2:], rank), *settings, strict=True)]
    return (*shape[: -rank - 1], w[0], *sizes)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Shape:
    shape, w = shape_of(x), shape_of(weight)
    rank = len(w) - 2
    settings = [_per_axis(value, rank) for value in (stride, padding, output_padding, dilation)]
    sizes = [
        (size - 1) * step - 2 * pad + spread * (kernel - 1) + extra + 1
        for size, kernel, step, pad, extra, spread in zip(shape[-rank:], _per_axis(w[2:], rank), *settings, strict=True)
    ]
    return (*shape[: -rank - 1], w[1] * groups, *sizes)


def _pool(name: str, rank: int) -> None:
    @rule(f"{name}{rank}d")
    def pool(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *args: Any, **kwargs: Any) -> Any:
        shape = shape_of(x)
        order = ("dilation", "ceil_mode", "return_indices") if name == "max_pool" else ("ceil_mode",)
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        kernels, pads = _per_axis(kernel_size, rank), _per_axis(padding, rank)
        strides = kernels if stride is None or stride == [] else _per_axis(stride, rank)
        spreads = _per_axis(given.get("dilation", 1), rank)
        sizes: list[Number] = []
        for one in zip(shape[-rank:], kernels, strides, pads, spreads, strict=True):
            sizes.append(unknown_size() if given.get("ceil_mode") else _window(*one))
        result = (*shape[:-rank], *sizes)
        return [result] * 2 if given.get("return_indices") else result

    @rule(f"adaptive_{name}{rank}d")
    def adaptive(x: Any, output_size: Any, return_indices: bool = False) -> Any:
        shape = shape_of(x)
        wanted = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size] * rank
        sizes = [old if new is None else _size(new) for old, new in zip(shape[-rank:], wanted, strict=True)]
        result = (*shape[:-rank], *sizes)
        return [result] * 2 if return_indices else result


for _name in ("max_pool", "avg_pool"):
    for _rank in (1, 2, 3):
        _pool(_name, _rank)


@rule("pad")
def _pad(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Shape:
    shape = list(shape_of(x))
    for place in range(len(pad) // 2):
        axis = len(shape) - 1 - place
        shape[axis] = shape[axis] + _number(pad[2 * place]) + _number(pad[2 * place + 1])
    return tuple(shape)


@rule("interpolate")
def _interpolate(x: Any, size: Any = None, scale_factor: Any = None, *_: Any, **__: Any) -> Shape:
    shape = shape_of(x)
    given = scale_factor if size is None else size
    each = list(given) if isinstance(given, (list, tuple)) else [given] * (len(shape) - 2)
    sizes = map(_size, each) if size is not None else map(_scaled, shape[2:], each)
    return (*shape[:2], *sizes)


def _scaled(size: Number, factor: Any) -> Number:
    if isinstance(size, int):
        return math.floor(size * float(factor))
    return size * int(factor) if float(factor).is_integer() else unknown_size()


@rule("reshape", "view")
def _reshape(x: Any, *dims: Any) -> Shape:
    sizes = _numbers(dims)
    if any(not isinstance(size, (int, Dim)) for size in sizes):  # a view as another type
        raise Uncovered
    if not any(isinstance(size, int) and size == -1 for size in sizes):
        return tuple(map(_size, sizes))
    known = [_size(size) for size in sizes if not (isinstance(size, int) and size == -1)]
    divisor = product(known)
    rest = unknown_size() if isinstance(divisor, int) and divisor == 0 else product(shape_of(x)) // divisor
    return tuple(rest if isinstance(size, int) and size == -1 else _size(size) for size in sizes)


@rule("flatten")
def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Shape:
    shape = shape_of(x)
    first, last = _axis(start_dim, len(shape)), _axis(end_dim, len(shape))
    return (*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :])


@rule("permute")
def _permute(x: Any, *dims: Any) -> Shape:
    shape = shape_of(x)
    return tuple(shape[axis] for axis in _axes(_numbers(dims), len(shape)))


@rule("transpose", "swapaxes", "swapdims")
def _transpose(x: Any, dim0: Any, dim1: Any) -> Shape:
    shape = list(shape_of(x))
    a, b = _axes([dim0, dim1], len(shape))
    shape[a], shape[b] = shape[b], shape[a]
    return tuple(shape)


@rule("t")
def _t(x: Any) -> Shape:
    return tuple(reversed(shape_of(x)))


@rule("unsqueeze")
def _unsqueeze(x: Any, dim: Any) -> Shape:
    shape = shape_of(x)
    axis = _axis(dim, len(shape) + 1)
    return (*shape[:axis], 1, *shape[axis:])


@rule("squeeze")
def _squeeze(x: Any, dim: Any = None) -> Shape:
    shape = shape_of(x)
    gone = []
    for axis in range(len(shape)) if dim is None else _axes(dim, len(shape)):
        if bool(x.shape[axis] == 1):  # undecided: the body needs its value
            gone.append(axis)
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


@rule("expand", "broadcast_to")
def _expand(x: Any, *sizes: Any) -> Shape:
    shape, wanted = shape_of(x), _numbers(sizes)
    padded = [None] * (len(wanted) - len(shape)) + list(shape)
    result: list[Number] = []
    for old, new in zip(padded, wanted, strict=True):
        result.append(old if isinstance(new, int) and new == -1 and old is not None else _size(new))
    return tuple(result)


@rule("expand_as")
def _expand_as(x: Any, other: Any) -> Shape:
    return shape_of(other)


@rule("repeat", "tile")
def _repeat(x: Any, *counts: Any) -> Shape:
    shape, times = shape_of(x), _numbers(counts)
    rank = max(len(times), len(shape))
    padded, counted = [1] * (rank - len(shape)) + list(shape), [1] * (rank - len(times)) + [_size(n) for n in times]
    return tuple(old * count for old, count in zip(padded, counted, strict=True))


@rule("cat")
def _cat(tensors: Any, dim: Any = 0) -> Shape:
    shapes = [shape_of(tensor) for tensor in tensors]
    rank = len(shapes[0])
    if not rank or any(len(shape) != rank for shape in shapes):
        raise Uncovered
    axis, columns = _axis(dim, rank), list(zip(*shapes, strict=True))
    return tuple(_sum(sizes) if place == axis else _known(*sizes) for place, sizes in enumerate(columns))


def _sum(sizes: Iterable[Number]) -> Number:
    total: Number = 0
    for size in sizes:
        total = total + size
    return total


@rule("stack")
def _stack(tensors: Any, dim: Any = 0) -> Shape:
    shapes = [shape_of(tensor) for tensor in tensors]
    axis = _axis(dim, len(shapes[0]) + 1)
    common = [_known(*sizes) for sizes in zip(*shapes, strict=True)]
    return (*common[:axis], len(shapes), *common[axis:])


@rule("split", "split_with_sizes")
def _split(x: Any, sizes: Any, dim: Any = 0) -> list[Shape]:
    shape = shape_of(x)
    axis = _axis(dim, len(shape))
    if not isinstance(sizes, (list, tuple)):
        sizes = _pieces(shape[axis], sizes)
    return [_put(shape, axis, _size(size)) for size in sizes]


@rule("chunk")
def _chunk(x: Any, chunks: int, dim: Any = 0) -> list[Shape]:
    size = shape_of(x)[_axis(dim, len(shape_of(x)))]
    if not isinstance(size, int):
        raise Uncovered
    return _split(x, -(-size // chunks), dim)


def _pieces(size: Number, length: Any) -> list[int]:
    """Returns the lengths of the pieces of a known size."""
    if not isinstance(size, int) or not isinstance(length, int) or length < 1 or not size:
        raise Uncovered
    return [length] * (size // length) + [size % length] * (size % length > 0)


@rule("unbind")
def _unbind(x: Any, dim: Any = 0) -> list[Shape]:
    shape = shape_of(x)
    axis = _axis(dim, len(shape))
    count = shape[axis]
    if not isinstance(count, int):
        raise Uncovered
    return [_put(shape, axis)] * count


@rule("gather")
def _gather(x: Any, dim: Any, index: Any) -> Shape:
    return shape_of(index)


@rule("index_select")
def _index_select(x: Any, dim: Any, index: Any) -> Shape:
    shape = shape_of(x)
    return _put(shape, _axis(dim, len(shape)), product(shape_of(index)))


@rule("getitem")
def _getitem(x: Any, key: Any) -> Shape:
    shape, items = shape_of(x), list(key) if isinstance(key, tuple) else [key]
    places = [place for place, item in enumerate(items) if item is Ellipsis] or [len(items)]
    rest = len(shape) - sum(item is not None and item is not Ellipsis for item in items)
    items[places[0] : places[0] + 1] = [slice(None)] * rest
    if sum(not isinstance(item, (slice, int, type(None))) for item in items) > 1:
        raise Uncovered
    indexed = any(not isinstance(item, (slice, int, type(None))) for item in items)
    result: list[Number] = []
    axis = 0
    for item in items:
        if item is None:
            result.append(1)
            continue
        if isinstance(item, slice):
            result.append(_sliced(shape[axis], item))
        elif isinstance(item, (bool, list)) or (isinstance(item, int) and indexed):
            raise Uncovered
        elif not isinstance(item, int):
            result += shape_of(item)
        axis += 1
    return tuple(result)


def _sliced(size: Number, part: slice) -> Number:
    """Returns the length of a slice, whose ends are clamped to the dimension."""
    step = 1 if part.step is None else part.step
    if not isinstance(step, int) or step < 1:
        return unknown_size()
    try:
        first = 0 if part.start is None else _end(part.start, size)
        last = size if part.stop is None else _end(part.stop, size)
    except (NeedsValues, Uncovered):
        return unknown_size()
    return selection.maximum((last - first + (step - 1)) // step, 0)


def _end(value: Any, size: Number) -> Number:
    """Returns an end of a slice, counted from the front.

    Raises:
        Uncovered: it may be counted from either side.
    """
    least, most = bounds(_number(value))
    if least is not None and least >= 0:
        return selection.minimum(_number(value), size)
    if most is not None and most < 0:
        return selection.maximum(size + _number(value), 0)
    raise Uncovered


@rule("zeros", "ones", "empty", "rand", "randn")
def _created(*size: Any, **_: Any) -> Shape:
    return tuple(map(_size, _numbers(size)))


@rule("full")
def _full(size: Any, *_: Any, **__: Any) -> Shape:
    return tuple(map(_size, _numbers((size,))))


@rule("new_zeros", "new_ones", "new_empty")
def _new(x: Any, *size: Any, **_: Any) -> Shape:
    return tuple(map(_size, _numbers(size)))


@rule("new_full")
def _new_full(x: Any, size: Any, *_: Any, **__: Any) -> Shape:
    return tuple(map(_size, _numbers((size,))))


@rule("arange")
def _arange(start: Any, end: Any = None, step: Any = 1, **_: Any) -> Shape:
    first, last = (0, _number(start)) if end is None else (_number(start), _number(end))
    if not isinstance(step, int) or step < 1:
        return (unknown_size(),)
    return (selection.maximum((last - first + (step - 1)) // step, 0),)


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(x: Any, hx: Any, *options: Any) -> list[Shape]:
    shape, states = shape_of(x), list(hx) if isinstance(hx, (list, tuple)) else [hx]
    *_, bidirectional, _batch_first = options
    hidden = shape_of(states[0])[-1] * (2 if bidirectional else 1)
    return [(*shape[:2], hidden), *map(shape_of, states)]


@rule("multi_head_attention_forward")
def _multi_head_attention(query: Any, *_: Any, need_weights: bool = True, **__: Any) -> list[Any]:
    if need_weights:
        raise Uncovered
    return [shape_of(query), None]


@rule("select")
def _select(x: Any, dim: Any, index: Any) -> Shape:
    shape = shape_of(x)
    return _put(shape, _axis(dim, len(shape)))


@rule("narrow")
def _narrow(x: Any, dim: Any, start: Any, length: Any) -> Shape:
    shape = shape_of(x)
    return _put(shape, _axis(dim, len(shape)), _size(length))


@rule("unflatten")
def _unflatten(x: Any, dim: Any, sizes: Any) -> Shape:
    shape = shape_of(x)
    if any(isinstance(size, int) and size == -1 for size in sizes):
        raise Uncovered
    return _put(shape, _axis(dim, len(shape)), *map(_size, sizes))


@rule("pixel_shuffle")
def _pixel_shuffle(x: Any, factor: int) -> Shape:
    *front, channels, height, width = shape_of(x)
    return (*front, channels // (factor * factor), height * factor, width * factor)


@rule("pixel_unshuffle")
def _pixel_unshuffle(x: Any, factor: int) -> Shape:
    *front, channels, height, width = shape_of(x)
    return (*front, channels * factor * factor, height // factor, width // factor)
