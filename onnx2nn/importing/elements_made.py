"""How many elements a call of one of torch's kernels makes, before it runs.

Each estimate is an upper bound from the arguments' shapes and numbers. torch's own kernels for tensors without elements
would be exact, but many of them are written in Python and import sympy, which takes longer than most models' imports.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from onnx2nn.importing.upper_bounds import reach

PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1, "_int_mm": 0}
"""Products of matrices, and the position of their first factor."""

_NOT_LARGER = frozenset(
    {"_to_copy", "sort", "topk", "cumsum", "cumprod", "cummax", "cummin", "flip", "roll", "tril", "triu", "lift_fresh"}
) | {
    *("scatter", "scatter_add", "index_put", "_softmax", "_log_softmax", "_safe_softmax", "unique_dim", "_unique2"),
    *("_unsafe_view", "empty_like", "full_like", "ones_like", "zeros_like", "nll_loss_forward", "nll_loss2d_forward"),
    *(
        "scatter_reduce",
        "index_add",
        "bernoulli",
        "unsafe_split",
        "channel_shuffle",
        "pixel_shuffle",
        "pixel_unshuffle",
    ),
    *("_linalg_det", "linalg_inv_ex", "_fft_c2c", "dot"),
}
"""Functions each of whose results has at most the elements of the largest input."""

_POINTWISE = frozenset({"_prelu_kernel", "complex", "floor_divide", "hardswish", "rsub"})
"""Functions that compute by element though torch does not tag them so."""

_NORMALISATIONS = frozenset({"native_layer_norm", "native_batch_norm", "native_group_norm"})

_REDUCTIONS = frozenset(
    {"all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "linalg_vector_norm", "logsumexp"}
) | {"max", "mean", "min", "nansum", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean"}
"""Functions that torch tags as reductions, but not their variants that write to a given tensor."""


class _Form(NamedTuple):
    """What the declaration of one of torch's functions says.

    Attributes:
        name: its name without the overload's.
        makes: whether it makes tensors in new memory.
        pointwise: whether it computes each element of its result from one of each tensor.
        reduces: whether a result has at most the elements of the first tensor, or where that has none, those that its
            other sizes give.
        results: how many tensors it returns.
    """

    name: str
    makes: bool
    pointwise: bool
    reduces: bool
    results: int


@functools.cache  # a recurrent layer makes hundreds of calls of the same few functions
def _form_of(function: Any) -> _Form:
    name, tags = function.overloadpacket.__name__, function.tags
    own = any("Tensor" in str(result.type) and result.alias_info is None for result in function._schema.returns)
    makes = own or any(argument.is_out for argument in function._schema.arguments)
    reduces = name in _NORMALISATIONS or (name in _REDUCTIONS and function._overloadname != "other")
    results = sum("Tensor" in str(result.type) for result in function._schema.returns)
    return _Form(name, makes, torch.Tag.pointwise in tags or name in _POINTWISE, reduces, results)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors among values and in their lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def elements_made(function: Any, args: Sequence[Any], kwargs: Any) -> float:
    """Returns an upper bound of the elements in new memory that a call of an overload of `torch.ops.aten` makes.

    It is infinite for a function that is not known here: its calls on constants stay in the program.
    """
    form, tensors = _form_of(function), list(tensors_in((*args, *kwargs.values())))
    name = form.name
    if not form.makes:
        return 0
    if form.pointwise:
        return form.results * _broadcast(tensor.shape for tensor in tensors)
    if name in PRODUCTS:
        left, right = tensors[PRODUCTS[name]], tensors[PRODUCTS[name] + 1]
        return math.prod(left.shape[:-1]) * (right.shape[-1] if right.ndim > 1 else 1)
    if form.reduces:
        return form.results * reach(tensors[0].shape)
    if name in _NOT_LARGER:
        return form.results * max(reach(tensor.shape) for tensor in tensors)
    if name in ("cat", "stack"):
        return sum(tensor.numel() for tensor in tensors)
    return _MADE[name](*args) if name in _MADE else math.inf


def _broadcast(shapes: Iterable[Sequence[int]]) -> int:
    """Returns the elements of tensors that are broadcast to one shape."""
    sizes = itertools.zip_longest(*map(reversed, shapes), fillvalue=1)
    return math.prod(0 if 0 in along else max(along) for along in sizes)


def _selected(table: torch.Tensor, dim: int, indices: torch.Tensor) -> int:
    others = [size for axis, size in enumerate(table.shape) if axis != dim % table.ndim]
    return math.prod(others) * indices.numel()


def _indexed(table: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> int:
    """Returns the elements of an indexed tensor; a mask selects at most its own number of positions."""
    dim, others, chosen = 0, 1, list[Sequence[int]]()
    for index in indices:
        if index is None:
            others *= table.shape[dim]
            dim += 1
        else:
            masks = index.dtype in (torch.bool, torch.uint8)
            chosen.append((index.numel(),) if masks else index.shape)
            dim += index.ndim if masks else 1
    return others * _broadcast(chosen) * math.prod(table.shape[dim:])


def _range(*bounds: Any) -> int:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds[:3])
    return max(0, math.ceil((end - start) / step))


def _affine_grid(_: torch.Tensor, size: Sequence[int], *rest: Any) -> int:
    batch, _channels, *sizes = size
    return batch * math.prod(sizes) * len(sizes)


def _sampled(x: torch.Tensor, grid: torch.Tensor, *rest: Any) -> int:
    return math.prod(x.shape[:2]) * math.prod(grid.shape[1:-1])


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> int:
    """Returns the elements of the results of scaled_dot_product_attention, one for each row of scores among them."""
    return math.prod(query.shape[:-1]) * (value.shape[-1] + 1)


def _pooled(
    x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), *rest: Any
) -> int:
    """Returns the most elements of a pool's result, whose last position may lie behind the image, and of its indices.

    A list of one number is for all dimensions.
    """
    count = len(kernel)
    every = [list(values) * (count // len(values)) for values in (kernel, stride or kernel, padding)]
    sizes = zip(x.shape[-count:], *every, strict=False)
    made = math.prod(max(0, size + 2 * border - length) // max(1, step) + 2 for size, length, step, border in sizes)
    return 2 * math.prod(x.shape[:-count]) * made


def _convolved(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> int:
    """Returns the elements of a convolution's result, any number for arguments that torch refuses."""
    made = x.shape[0] * (weight.shape[1] * groups if transposed else weight.shape[0])
    parts = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding, strict=False)
    for size, kernel, step, border, spread, more in parts:
        reach = spread * (kernel - 1) - 2 * border
        made *= max(0, (size - 1) * step + reach + more + 1 if transposed else (size - reach - 1) // max(1, step) + 1)
    return made


def _packed(weight: torch.Tensor, *rest: Any) -> int:
    """Returns the elements of oneDNN's form of a weight, whose channels are filled up to vectors."""
    rows, columns, *kernel = weight.shape
    return (rows + 64) * (columns + 64) * math.prod(kernel)


def _columns_to_image(x: torch.Tensor, size: Sequence[int], *rest: Any) -> int:
    return math.prod(x.shape[:-1]) * math.prod(size)


def _padded(x: torch.Tensor, pad: Sequence[int], *rest: Any) -> int:
    more = [sum(pad[at : at + 2]) for at in range(0, len(pad), 2)]
    sizes = itertools.zip_longest(reversed(x.shape), more, fillvalue=0)
    return math.prod(max(0, size + by) for size, by in sizes)


def _quantized_convolved(x: torch.Tensor, scale: Any, zero: Any, weight: torch.Tensor, *rest: Any) -> int:
    stride, padding, dilation, groups = rest[3:7]
    return _convolved(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)


def _real_of_spectrum(x: torch.Tensor, dims: Sequence[int], mode: int, last: int) -> int:
    return math.prod(size for axis, size in enumerate(x.shape) if axis != dims[-1] % x.ndim) * last


def _recurrent(x: torch.Tensor, *rest: Any) -> int:
    """Returns the elements of the results of one direction of a layer: all steps', and both last states."""
    return math.prod(x.shape[:2]) * (states := rest[4]).shape[-1] + 2 * states.numel()


def _resized(x: torch.Tensor, size: Sequence[int], *rest: Any) -> int:
    return math.prod(x.shape[:2]) * math.prod(size)


_RESIZES = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")


def _bags(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *rest: Any) -> int:
    """Returns the sums, and for each of them its size and the largest indices; for each index its bag."""
    return offsets.numel() * (2 * table.shape[1] + 1) + indices.numel() + 1


_MADE: dict[str, Callable[..., float]] = {
    **dict.fromkeys(map("upsample_{}".format, _RESIZES), _resized),
    **dict.fromkeys(map("_upsample_nearest_exact{}d".format, (1, 2, 3)), _resized),
    **dict.fromkeys(map("_upsample_{}2d_aa".format, ("bilinear", "bicubic")), _resized),
    **dict.fromkeys(map("{}_window".format, ("hann", "hamming", "blackman")), lambda length, *rest: length + 1),
    **dict.fromkeys([f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)], _padded),
    **dict.fromkeys(("new_full", "new_zeros", "new_ones", "new_empty"), lambda x, size, *rest: math.prod(size)),
    **dict.fromkeys(("full", "zeros", "ones", "empty"), lambda size, *rest: math.prod(size)),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"), _pooled),
    **dict.fromkeys(("grid_sampler_2d", "grid_sampler_3d"), _sampled),
    "_scaled_dot_product_flash_attention_for_cpu": _attended,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bags),
    "_cdist_forward": lambda x, y, *rest: x.shape[-2] * y.shape[-2] * _broadcast([x.shape[:-2], y.shape[:-2]]),
    "_fft_c2r": _real_of_spectrum,
    "_fft_r2c": lambda x, *rest: 2 * x.numel(),
    "affine_grid_generator": _affine_grid,
    "arange": _range,
    "col2im": _columns_to_image,
    "constant_pad_nd": _padded,
    "convolution": _convolved,
    "diag_embed": lambda x, offset=0, *rest: x.numel() * (x.shape[-1] + abs(offset)),
    "embedding": lambda table, indices, *rest: _selected(table, 0, indices),
    "eye": lambda rows, columns=None, *rest: rows * (rows if columns is None else columns),
    "gather": lambda x, dim, index, *rest: index.numel(),
    "index": _indexed,
    "index_select": _selected,
    **dict.fromkeys(("qconv_prepack", "qlinear_prepack"), _packed),
    "mkldnn_rnn_layer": _recurrent,
    "nonzero": lambda x: x.numel() * max(1, x.ndim),
    "qconv_pointwise": _quantized_convolved,
    "repeat": lambda x, repeats: x.numel() * math.prod(repeats),
    "searchsorted": lambda borders, values, *rest: math.prod(getattr(values, "shape", ())),
    "scalar_tensor": lambda value: 1,
    "triu_indices": lambda rows, columns, *rest: 2 * rows * columns,
}
"""Upper bounds of what functions make, from their arguments by position."""
