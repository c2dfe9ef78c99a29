"""The module that an import gives: a `torch.fx.GraphModule` that knows where its names come from."""

from __future__ import annotations

from typing import Any

from torch import fx

from onnx2nn.author import NamingReport, naming_report


class ImportedModule(fx.GraphModule):
    """A model as a `torch.fx.GraphModule` that knows where its names come from.

    A pickle of it holds a plain GraphModule with its `meta`, so that `torch.load` needs no onnx2nn where no operator
    does; `onnx2nn.naming_report` reads what this class's method reads.
    """

    def naming_report(self) -> NamingReport:
        """Returns which keys of the author's state_dict this module has, and why others are missing."""
        return naming_report(self)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()
        return rebuild, arguments, {"meta": self.meta}  # torch's own way forgets it
