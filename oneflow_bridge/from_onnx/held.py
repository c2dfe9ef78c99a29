"""How a module holds a constant, and how the constant is read from what it holds."""

from __future__ import annotations

from typing import NamedTuple

from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.importing.placement import ConstantName


class HeldConstant(NamedTuple):
    """A constant in a module.

    Attributes:
        name: its path, and whether it is a parameter or a buffer.
        tensor: what is held: the author's weight, where the constant is another layout of one.
        view: the source behind it that makes the constant of it (`".T"`), `""` where they are the same.
    """

    name: ConstantName
    tensor: Tensor
    view: str = ""


def view_of(laid: Tensor, tensor: Tensor) -> str | None:
    """Returns the source behind `laid` that makes `tensor` of it, `""` for equal ones; None where none does.

    Values decide, and where these are equal both ways (zeros, an identity) the order of the memory.
    """
    if laid.value is tensor.value:
        return ""
    if laid.numel() != tensor.numel() or laid.dtype is not tensor.dtype:
        return None
    ours, theirs = laid.numpy(), tensor.numpy()
    equal = ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    if ours.ndim == 2 and ours.T.shape == theirs.shape and ours.T.tobytes() == theirs.tobytes():
        return "" if equal and same_order(laid, tensor) else ".T"
    if equal:
        return "" if same_order(laid, tensor) else None
    return f".reshape({', '.join(map(str, theirs.shape))})" if ours.tobytes() == theirs.tobytes() else None


def same_order(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors of one shape have their elements in the same order in the memory."""
    strides = zip(one.shape, one.value.stride(), other.value.stride(), strict=True)
    return all(step == step_ for size, step, step_ in strides if size > 1)
