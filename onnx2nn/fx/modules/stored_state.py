"""Which bytes of the file the tensors of a module's state are, for modules that do without their elements.

While a file is mapped, transposed matrices, parts of packed ones and tied weights are views of it. What the import
computes, such as reordered gates of recurrent layers, has memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Locate = Callable[[int, int], tuple[str, int] | None]
"""Returns the file that is mapped to memory of this address and length, and the offset there."""


def stored_state(module: nn.Module, locate: Locate) -> dict[str, dict[str, Any]]:
    """Returns the tensors of a state_dict that are bytes of a file, by key, in plain values.

    Each has `file` (a path), `offset` (bytes), `dtype` (a name in torch), `shape` and `stride` (elements).
    """
    found = {}
    for key, tensor in module.state_dict().items():
        strides = sorted(zip(tensor.stride(), tensor.shape, strict=True))
        extent = 1 + sum((size - 1) * stride for stride, size in strides)
        if not tensor.numel() or not _is_injective(strides) or tensor.is_conj() or tensor.is_neg():
            continue  # the last two are views whose elements are not what lies in memory
        place = locate(tensor.data_ptr(), extent * tensor.element_size())
        if place is not None:
            found[key] = {
                "file": place[0],
                "offset": place[1],
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": tuple(tensor.shape),
                "stride": tensor.stride(),
            }
    return found


def _is_injective(strides: list[tuple[int, int]]) -> bool:
    """Returns whether no two elements share memory, by the ascending strides and the sizes of the dimensions."""
    extent = 1
    for stride, size in strides:
        if size > 1 and stride < extent:
            return False
        extent += (size - 1) * stride
    return True
