"""A module that torch.onnx.export sees in another form, see `exported_program`."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from onnx2nn.fx.exporting.export_calls import as_call, is_traced, noted
from onnx2nn.fx.modules.deferred import DeferredModule
from onnx2nn.optable.row import in_onnx_export


class ExportableModule(DeferredModule):
    """A module whose program torch.onnx.export sees in the form that it exports correctly."""

    @property
    def graph(self) -> fx.Graph:
        """The program; while torch's exporters run, another that they export correctly.

        torch.export interprets the graph of a GraphModule: it gets one that calls the module. torch.onnx.export's older
        form calls a GraphModule, and reads names from its graph.
        """
        if torch.compiler.is_exporting() and is_traced(self):
            return as_call(self, _names(super().graph))
        return self._exported_graph()

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        DeferredModule.graph.fset(self, graph)  # type: ignore[attr-defined]  # mypy sees the value, not the property

    def _exported_graph(self) -> fx.Graph:
        """Returns the program; while torch.onnx.export runs, a copy that it exports correctly."""
        graph = super().graph
        if not in_onnx_export():
            return graph
        from onnx2nn.fx.exporting.exported_program import for_exporter  # here: few processes need it

        return for_exporter(self, graph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs for inputs by position or by name."""
        called = self._interpreted if in_onnx_export() else super().__call__
        if torch.compiler.is_exporting():
            return noted(self, called, args, kwargs)
        return called(*args, **kwargs)

    def _interpreted(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs by interpreting the program that is exported."""
        program = fx.Interpreter(self, graph=self._exported_graph())
        names = _names(program.graph)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return program.run(*args, *(kwargs[name] for name in names[len(args) :]))

        self.forward = forward  # for this call, so that hooks run
        try:
            return super().__call__(*args, **kwargs)
        finally:
            del self.forward


def _names(graph: fx.Graph) -> list[str]:
    """Returns the names of the arguments of a program."""
    return [str(node.target) for node in graph.nodes if node.op == "placeholder"]
