"""The result of an import: a `torch.fx.GraphModule` with a record of its file."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.fx.blocks.block import SharedProgram
from onnx2nn.fx.constants import memory_of
from onnx2nn.provenance.naming_reports import NamingReport, naming_report


class ImportedModule(SharedProgram):
    """A model as a `torch.fx.GraphModule` with a record of its file in `meta`.

    Its pickle is a plain GraphModule with `meta`: `torch.load` needs onnx2nn only if an operator does. For such a
    module `onnx2nn.naming_report` returns the result of this class's method.
    """

    # torch.jit.script does not compile these properties
    __jit_unused_properties__ = [*SharedProgram.__jit_unused_properties__, "_version"]  # noqa: RUF012, it is torch's

    @property
    def _version(self) -> int:  # type: ignore[override]  # a class attribute of nn.Module
        """The version of this module in state_dict, see `state_versions`; held in `meta`, which copies keep."""
        return int(self.meta.get("onnx2nn", {}).get("version", fx.GraphModule._version))

    @_version.setter
    def _version(self, version: int) -> None:
        self.meta["onnx2nn"]["version"] = version

    def naming_report(self) -> NamingReport:
        """Returns which keys of the author's state_dict this module has, and why others are missing."""
        return naming_report(self)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments, outside = super().__reduce__()
        outside |= {"meta": self.meta, "_version": self._version}  # torch leaves `meta` out
        return rebuild, arguments, outside


def lay_out_state(module: nn.Module) -> None:
    """Makes the state contiguous; files hold some tensors in another layout, such as the weights of `nn.Linear`.

    safetensors and `parameters_to_vector` refuse views. Tensors with shared memory keep their layout.
    """
    state = [*module.parameters(), *module.buffers()]
    if all(tensor.is_contiguous() for tensor in state):
        return
    views = [view for view in _unshared(state) if not view.is_contiguous()]
    count = torch.get_num_threads()  # torch transposes a matrix in one thread
    room = max((view.nbytes for view in views), default=0)
    spare = [torch.empty(room, dtype=torch.uint8) for _ in views[:count]]
    with ThreadPoolExecutor(count) as threads:
        for first in range(0, len(views), count):
            some = views[first : first + count]
            for view, tensor in zip(some, threads.map(_contiguous, some, spare), strict=False):
                view.data = tensor


def _unshared(state: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors that share no memory with others and whose elements do not overlap."""
    alone: list[torch.Tensor] = []
    end, shared = 0, True
    for tensor in sorted(state, key=memory_of):
        start, size = memory_of(tensor), tensor.untyped_storage().nbytes()
        if start < end and not shared:
            alone.pop()
        shared = start < end or size < tensor.nbytes
        if not shared:
            alone.append(tensor)
        end = max(end, start + size)
    return alone


def _contiguous(view: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    """Returns a view as a contiguous tensor in the same memory; allocating new memory would take twice as long.

    Args:
        view: a view of all elements of its memory; a view of a part of them is copied to new memory.
        spare: a buffer for the copy.
    """
    storage = view.untyped_storage()
    if storage.nbytes() > view.nbytes:
        return view.data.clone(memory_format=torch.contiguous_format)
    copied = spare[: view.nbytes].view(view.dtype).view(view.shape).copy_(view.data)
    return torch.empty(0, dtype=view.dtype).set_(storage).view(view.shape).copy_(copied)
