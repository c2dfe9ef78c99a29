"""The module that an import gives: a `torch.fx.GraphModule` that knows where its names come from."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.fx.constants import memory_of
from onnx2nn.fx.deferred import DeferredModule
from onnx2nn.fx.exportable import for_exporter
from onnx2nn.provenance.naming_reports import NamingReport, naming_report


class ImportedModule(DeferredModule):
    """A model as a `torch.fx.GraphModule` that knows where its names come from.

    A pickle of it holds a plain GraphModule with its `meta`, so that `torch.load` needs no onnx2nn where no operator
    does; `onnx2nn.naming_report` reads what this class's method reads.
    """

    # torch.jit.script compiles all properties but these
    __jit_unused_properties__ = [*DeferredModule.__jit_unused_properties__, "_version"]  # noqa: RUF012, it is torch's

    @property
    def _version(self) -> int:  # type: ignore[override]  # a class attribute of nn.Module
        """The version that state_dict notes of this module, see `state_versions`; in `meta`, which copies keep."""
        return int(self.meta.get("onnx2nn", {}).get("version", fx.GraphModule._version))

    @_version.setter
    def _version(self, version: int) -> None:
        self.meta["onnx2nn"]["version"] = version

    @property
    def graph(self) -> fx.Graph:
        """The program; while torch.onnx.export runs, in the operations that it writes as they are meant.

        It interprets the graph of a GraphModule, and calls one that is part of another module.
        """
        graph = super().graph
        return for_exporter(self, graph) if torch.onnx.is_in_onnx_export() else graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        fx.GraphModule.graph.fset(self, graph)  # type: ignore[attr-defined]  # mypy sees the value, not the property

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs for inputs by position or by name."""
        if torch.onnx.is_in_onnx_export():
            return self._interpreted(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _interpreted(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs, node by node of `graph`."""
        program = fx.Interpreter(self)
        names = [str(node.target) for node in program.graph.nodes if node.op == "placeholder"]

        def forward(*args: Any, **kwargs: Any) -> Any:
            return program.run(*args, *(kwargs[name] for name in names[len(args) :]))

        self.forward = forward  # for this call, whose hooks run as always
        try:
            return super().__call__(*args, **kwargs)
        finally:
            del self.forward

    def naming_report(self) -> NamingReport:
        """Returns which keys of the author's state_dict this module has, and why others are missing."""
        return naming_report(self)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()
        return rebuild, arguments, {"meta": self.meta, "_version": self._version}  # torch's own way forgets it


def lay_out_state(module: nn.Module) -> None:
    """Makes each tensor of the state contiguous that a file holds in another layout, as the matrix of an `nn.Linear`.

    Tools count on that: safetensors and `parameters_to_vector` refuse a view. What shares its memory keeps its layout.
    """
    state = [*module.parameters(), *module.buffers()]
    if all(tensor.is_contiguous() for tensor in state):
        return
    views = [view for view in _alone(state) if not view.is_contiguous()]
    count = torch.get_num_threads()  # torch turns a matrix in one
    room = max((view.nbytes for view in views), default=0)
    spare = [torch.empty(room, dtype=torch.uint8) for _ in views[:count]]
    with ThreadPoolExecutor(count) as threads:
        for first in range(0, len(views), count):
            some = views[first : first + count]
            for view, tensor in zip(some, threads.map(_straight, some, spare), strict=False):
                view.data = tensor


def _alone(state: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns those that have their memory for themselves, each element once."""
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


def _straight(view: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    """Returns a view contiguous, in the memory that it has; new memory would be made page by page, at half the speed.

    Args:
        view: all of its memory in another order, or a part of it, which gets memory of its own.
        spare: bytes to copy by way of.
    """
    storage = view.untyped_storage()
    if storage.nbytes() > view.nbytes:
        return view.data.clone(memory_format=torch.contiguous_format)
    copied = spare[: view.nbytes].view(view.dtype).view(view.shape).copy_(view.data)
    return torch.empty(0, dtype=view.dtype).set_(storage).view(view.shape).copy_(copied)
