"""The module that an import gives: a `torch.fx.GraphModule` that knows where its names come from."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.deferred import DeferredModule
from onnx2nn.exportable import for_exporter
from onnx2nn.naming_reports import NamingReport, naming_report


class ImportedModule(DeferredModule):
    """A model as a `torch.fx.GraphModule` that knows where its names come from.

    A pickle of it holds a plain GraphModule with its `meta`, so that `torch.load` needs no onnx2nn where no operator
    does; `onnx2nn.naming_report` reads what this class's method reads.
    """

    # torch.jit.script compiles all properties but these
    __jit_unused_properties__ = [*fx.GraphModule.__jit_unused_properties__, "_version"]  # noqa: RUF012, it is torch's

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
        fx.GraphModule.__dict__["graph"].__set__(self, graph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs for inputs by position or by name."""
        if not torch.onnx.is_in_onnx_export():
            return super().__call__(*args, **kwargs)
        program = fx.Interpreter(self)
        names = [node.target for node in program.graph.nodes if node.op == "placeholder"]
        return program.run(*args, *(kwargs[name] for name in names[len(args) :]))

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
    uses = Counter(tensor.untyped_storage().data_ptr() for tensor in state)
    views = []
    for tensor in state:
        storage = tensor.untyped_storage()
        expanded = storage.nbytes() < tensor.nbytes
        if not tensor.is_contiguous() and uses[storage.data_ptr()] == 1 and not expanded:
            views.append(tensor)
    count = torch.get_num_threads()  # torch turns a matrix in one
    with ThreadPoolExecutor(count) as threads:
        for first in range(0, len(views), count):
            some = views[first : first + count]
            # Allocated here, not in the threads, which have memory of their own: what was freed here is used again.
            laid = [torch.empty(view.shape, dtype=view.dtype) for view in some]
            for view, tensor in zip(some, threads.map(_copied, laid, some), strict=True):
                view.data = tensor


def _copied(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return target.copy_(source.data)
