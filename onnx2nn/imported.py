"""The module that an import gives: a `torch.fx.GraphModule` that knows where its names come from."""

from __future__ import annotations

from typing import Any

from torch import fx

from onnx2nn.naming_reports import NamingReport, naming_report


class ImportedModule(fx.GraphModule):
    """A model as a `torch.fx.GraphModule` that knows where its names come from.

    A pickle of it holds a plain GraphModule with its `meta`, so that `torch.load` needs no onnx2nn where no operator
    does; `onnx2nn.naming_report` reads what this class's method reads.
    """

    @property
    def _version(self) -> int:  # type: ignore[override]  # a class attribute of nn.Module
        """The version that state_dict notes of this module, see `state_versions`; in `meta`, which copies keep."""
        return int(self.meta.get("onnx2nn", {}).get("version", fx.GraphModule._version))

    @_version.setter
    def _version(self, version: int) -> None:
        self.meta["onnx2nn"]["version"] = version

    def naming_report(self) -> NamingReport:
        """Returns which keys of the author's state_dict this module has, and why others are missing."""
        return naming_report(self)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()
        return rebuild, arguments, {"meta": self.meta, "_version": self._version}  # torch's own way forgets it
