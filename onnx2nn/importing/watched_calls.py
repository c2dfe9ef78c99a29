"""Estimates the calls of torch's kernels on constants before they run, so that no file makes an import do too much."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onnx2nn.ground.limits import Account
from onnx2nn.importing.elements_made import PRODUCTS, elements_made, tensors_in
from onnx2nn.importing.upper_bounds import SMALL, upper_bound

_ELEMENTS_PER_SECOND = 1e9
_PRODUCTS_PER_SECOND = 2e10
_SECONDS_PER_CALL = 1e-5
_FREE_CALLS = 1000
"""Calls that a node may make on constants though no computing time is left; a node that computes sizes has few."""

_UNWATCHED = contextlib.nullcontext()

_WIDEST = 16
"""Bytes of the widest element."""


def watched(account: Account) -> Watch:
    """Returns a context in which the calls of torch's kernels count.

    A call raises `TooLargeError` before it takes more than the limits allow.
    """
    return Watch(account)


def watched_where_known(arguments: Sequence[Any], account: Account) -> contextlib.AbstractContextManager[Any]:
    """Returns a context for a body that is recorded: its calls on tensors that are known run, and count."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return watched(account)
    return _UNWATCHED


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
        account, tensors = self._account, list(tensors_in((*args, *kwargs.values())))
        if any(tensor.device.type == "meta" for tensor in tensors) or "meta" in str(kwargs.get("device")):
            return
        name = function.overloadpacket.__name__
        account.too_large("sequence_length", _parts(name, args), "The length of a sequence is")
        made = elements_made(function, args, kwargs)
        kind = kwargs.get("dtype")
        width = kind.itemsize if kind is not None else max((t.element_size() for t in tensors), default=_WIDEST // 2)
        if made * width > account.free_bytes:
            account.take_bytes(made * width, "With the result of a node, constants have")
        elements = made + sum(tensor.numel() for tensor in tensors)
        products = _multiplications(name, args, tensors, made)
        seconds = elements / _ELEMENTS_PER_SECOND + products / _PRODUCTS_PER_SECOND
        account.take_seconds(seconds, "With the result of a node, constants take")


# Set here, as torch wraps a method of the class's body in one that imports torch._dynamo, which takes seconds.
Watch.__torch_dispatch__ = Watch.dispatch  # type: ignore[assignment]  # see above


def _parts(name: str, args: Sequence[Any]) -> int:
    """Returns the number of tensors that a call of the function `name` makes of its first argument."""
    if name == "unbind":
        return int(args[0].shape[args[1] if len(args) > 1 else 0])
    if name == "split" and isinstance(args[1], int):
        return -(-int(args[0].shape[args[2] if len(args) > 2 else 0]) // max(1, args[1]))
    return len(args[1]) if name == "split_with_sizes" else 1


def _multiplications(name: str, args: Sequence[Any], tensors: Sequence[torch.Tensor], made: float) -> float:
    """Returns the multiplications of a call of the function `name` that makes so many elements."""
    if name in PRODUCTS:
        return float(made * tensors[PRODUCTS[name]].shape[-1])
    if name == "convolution":
        x, weight, transposed = args[0], args[1], args[6]
        return float((x.numel() if transposed else made) * math.prod(weight.shape[1:]))
    if "linalg" in name:
        return float(max((tensor.numel() for tensor in tensors), default=0)) ** 1.5
    return 0.0
