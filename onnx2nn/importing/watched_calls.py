"""Estimates the calls of torch's kernels on constants before they run, so that no file makes an import do too much."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onnx2nn.ground.limits import Account
from onnx2nn.importing.upper_bounds import SMALL, upper_bound

_ELEMENTS_PER_SECOND = 1e9
_PRODUCTS_PER_SECOND = 2e10
_SECONDS_PER_CALL = 1e-5
_FREE_CALLS = 1000
"""Calls that a node may make on constants though no computing time is left; a node that computes sizes has few."""

_WIDEST = 16
"""Bytes of the widest element."""

_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""Products of matrices, and the position of their first factor."""

_NOT_LARGER = frozenset(
    {"_to_copy", "sort", "topk", "cumsum", "cumprod", "cummax", "cummin", "flip", "roll", "tril", "triu", "nonzero"}
) | {
    *("lift_fresh", "scatter", "scatter_add", "index_put", "unique_dim", "_softmax", "_log_softmax", "_safe_softmax"),
    *("native_layer_norm", "native_batch_norm", "native_group_norm"),
}
"""Functions whose results have at most the elements of their inputs, or as many indices."""

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
        reduces: whether its result has at most the elements of its inputs.
    """

    name: str
    makes: bool
    pointwise: bool
    reduces: bool


@functools.cache  # a recurrent layer makes hundreds of calls of the same few functions
def _form(function: Any) -> _Form:
    name, tags = function.overloadpacket.__name__, function.tags
    own = any("Tensor" in str(result.type) and result.alias_info is None for result in function._schema.returns)
    makes = own or any(argument.is_out for argument in function._schema.arguments)
    reduces = name in ("cat", "stack") or (name in _REDUCTIONS and function._overloadname != "other")
    return _Form(name, makes, torch.Tag.pointwise in tags or name == "rsub", reduces)


def watched(account: Account) -> Watch:
    """Returns a context in which the calls of torch's kernels count.

    A call raises `TooLargeError` before it takes more than the limits allow.
    """
    return Watch(account)


class Watch(TorchDispatchMode):
    """Estimates each call of torch's kernels before it runs.

    Args:
        account: counts what they take.
    """

    def __init__(self, account: Account):
        super().__init__()
        self._account, self._calls = account, 0

    def dispatch(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one call."""
        kwargs = kwargs or {}
        self._calls += 1
        if self._calls > _FREE_CALLS:
            self._account.take_seconds(_SECONDS_PER_CALL, "With the calls of a node, constants take")
        if upper_bound((*args, *kwargs.values())) > SMALL:
            self._estimate(function, args, kwargs)
        return function(*args, **kwargs)

    def _estimate(self, function: Any, args: Any, kwargs: Any) -> None:
        account, tensors = self._account, list(_tensors((*args, *kwargs.values())))
        if any(tensor.device.type == "meta" for tensor in tensors) or "meta" in str(kwargs.get("device")):
            return
        form = _form(function)
        account.too_large("sequence_length", _parts(form.name, args), "The length of a sequence is")
        made = _elements_made(function, form, args, kwargs, tensors)
        kind = kwargs.get("dtype")
        width = kind.itemsize if kind is not None else max((t.element_size() for t in tensors), default=_WIDEST // 2)
        if made * width > account.free_bytes:
            account.take_bytes(made * width, "With the result of a node, constants have")
        elements = made + sum(tensor.numel() for tensor in tensors)
        products = _multiplications(form.name, args, tensors, made)
        seconds = elements / _ELEMENTS_PER_SECOND + products / _PRODUCTS_PER_SECOND
        account.take_seconds(seconds, "With the result of a node, constants take")


# Set here, as torch wraps a method of the class's body in one that imports torch._dynamo, which takes seconds.
Watch.__torch_dispatch__ = Watch.dispatch  # type: ignore[assignment]  # see above


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _elements_made(
    function: Any, form: _Form, args: Sequence[Any], kwargs: Any, tensors: Sequence[torch.Tensor]
) -> int:
    """Returns an upper bound of the elements in new memory that a call makes."""
    name = form.name
    if not form.makes:
        return 0
    if form.pointwise:
        shapes = {tensor.shape for tensor in tensors}
        return math.prod(shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes))
    if name in _PRODUCTS:
        left, right = tensors[_PRODUCTS[name]], tensors[_PRODUCTS[name] + 1]
        return left.numel() // max(1, left.shape[-1]) * (right.shape[-1] if right.ndim > 1 else 1)
    stored = sum(tensor.numel() for tensor in tensors)
    if form.reduces:
        return stored
    if name in _NOT_LARGER:
        return max(tensor.numel() for tensor in tensors) * (tensors[0].ndim or 1 if name == "nonzero" else 1)
    if name == "gather":
        return int(args[2].numel())
    if name in ("index_select", "embedding"):
        table, indices = (args[0], args[2]) if name == "index_select" else args[:2]
        dim = args[1] % table.ndim if name == "index_select" else 0
        return int(table.numel() // max(1, table.shape[dim]) * indices.numel())
    if name in ("full", "zeros", "ones", "empty"):
        return math.prod(args[0])
    if name == "affine_grid_generator":
        batch, _, *sizes = args[1]
        return int(batch * math.prod(sizes) * len(sizes))
    if name == "arange":
        start, end, step = {1: (0, *args, 1), 2: (*args, 1)}.get(len(args), args[:3])
        return max(0, math.ceil((end - start) / step))
    return _elements_on_meta(function, args, kwargs)


def _elements_on_meta(function: Any, args: Sequence[Any], kwargs: Any) -> int:
    """Returns the elements that a call makes, by calling it on tensors without elements.

    A function that torch decomposes for them imports torch._dynamo, which takes seconds: `_elements_made` has rules for
    such functions.
    """

    def meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return type(value)(map(meta, value)) if isinstance(value, (list, tuple)) else value

    named = {name: torch.device("meta") if name == "device" else meta(value) for name, value in kwargs.items()}
    try:
        made = function(*map(meta, args), **named)
    except Exception:  # of any class, by a kernel that reads elements: its result is not larger than its inputs
        return 0
    return sum(tensor.numel() for tensor in _tensors(made if isinstance(made, (list, tuple)) else (made,)))


def _parts(name: str, args: Sequence[Any]) -> int:
    """Returns the number of tensors that a call of the function `name` makes of its first argument."""
    if name == "unbind":
        return int(args[0].shape[args[1] if len(args) > 1 else 0])
    if name == "split" and isinstance(args[1], int):
        return -(-int(args[0].shape[args[2] if len(args) > 2 else 0]) // max(1, args[1]))
    return len(args[1]) if name == "split_with_sizes" else 1


def _multiplications(name: str, args: Sequence[Any], tensors: Sequence[torch.Tensor], made: int) -> float:
    """Returns the multiplications of a call of the function `name` that makes so many elements."""
    if name in _PRODUCTS:
        return float(made * tensors[_PRODUCTS[name]].shape[-1])
    if name == "convolution":
        x, weight, transposed = args[0], args[1], args[6]
        return float((x.numel() if transposed else made) * math.prod(weight.shape[1:]))
    if "linalg" in name:
        return float(max((tensor.numel() for tensor in tensors), default=0)) ** 1.5
    return 0.0
