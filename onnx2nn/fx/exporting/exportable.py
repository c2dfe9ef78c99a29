"""A module that torch.onnx.export sees in another form, see `exported_program`."""

from __future__ import annotations

from typing import Any

from torch import fx

from onnx2nn.fx.modules.deferred import DeferredModule
from onnx2nn.optable.row import in_onnx_export


class ExportableModule(DeferredModule):
    """A module whose program torch.onnx.export sees in the form that it exports correctly."""

    @property
    def graph(self) -> fx.Graph:
        """The program; while torch.onnx.export runs, a copy that it exports correctly.

        torch.onnx.export interprets the graph of a GraphModule, and calls a GraphModule inside another module.
        """
        graph = super().graph
        if not in_onnx_export():
            return graph
        from onnx2nn.fx.exporting.exported_program import for_exporter  # here: few processes need it

        return for_exporter(self, graph)

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        DeferredModule.graph.fset(self, graph)  # type: ignore[attr-defined]  # mypy sees the value, not the property

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs for inputs by position or by name."""
        if in_onnx_export():
            return self._interpreted(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _interpreted(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs by interpreting `graph`."""
        program = fx.Interpreter(self)
        names = [str(node.target) for node in program.graph.nodes if node.op == "placeholder"]

        def forward(*args: Any, **kwargs: Any) -> Any:
            return program.run(*args, *(kwargs[name] for name in names[len(args) :]))

        self.forward = forward  # for this call, so that hooks run
        try:
            return super().__call__(*args, **kwargs)
        finally:
            del self.forward
