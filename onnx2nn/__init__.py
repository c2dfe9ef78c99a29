"""ONNX files as live modules: `onnx2nn.load("model.onnx")`.

The package's public names. ONNX files and modules come in; modules, reports and exported files go out. Only users,
`backend` and the commands import from here. A name is imported at its first use: a command answers an interrupt in its
own words from its first moment, not only after numpy and onnx are there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnx2nn.ground import deferred_import, gc_pause

if TYPE_CHECKING:
    from onnx2nn.checkpoint import OnnxReader
    from onnx2nn.ground.limits import Limits
    from onnx2nn.importing.plan import Report
    from onnx2nn.language import generate, to_transformers
    from onnx2nn.loading import check, load
    from onnx2nn.optable.registry import register
    from onnx2nn.optimization import optimize
    from onnx2nn.output.export import export_onnx
    from onnx2nn.output.ncnn import NcnnModel, to_ncnn
    from onnx2nn.output.python_source import to_python
    from onnx2nn.output.save import save
    from onnx2nn.output.simplify import simplify
    from onnx2nn.provenance.naming_reports import NamingReport, naming_report
    from onnx2nn.reporting.comparisons import compare
    from onnx2nn.reporting.model_comparison import ModelComparison
    from onnx2nn.reporting.model_report import ModelReport
    from onnx2nn.reporting.reports import report
    from onnx2nn.transferring import TransferReport, transfer
    from onnx2nn.verification.node_by_node import verify_nodes
    from onnx2nn.verification.node_reports import NodeVerification
    from onnx2nn.verification.outputs import verify

__all__ = [
    "Limits",
    "ModelComparison",
    "ModelReport",
    "NamingReport",
    "NcnnModel",
    "NodeVerification",
    "OnnxReader",
    "Report",
    "TransferReport",
    "check",
    "compare",
    "export_onnx",
    "generate",
    "load",
    "naming_report",
    "optimize",
    "register",
    "report",
    "save",
    "simplify",
    "to_ncnn",
    "to_python",
    "to_transformers",
    "transfer",
    "verify",
    "verify_nodes",
]

_HOMES = {
    "Limits": "ground.limits",
    "ModelComparison": "reporting.model_comparison",
    "ModelReport": "reporting.model_report",
    "NamingReport": "provenance.naming_reports",
    "NcnnModel": "output.ncnn",
    "NodeVerification": "verification.node_reports",
    "OnnxReader": "checkpoint",
    "Report": "importing.plan",
    "TransferReport": "transferring",
    "check": "loading",
    "compare": "reporting.comparisons",
    "export_onnx": "output.export",
    "generate": "language",
    "load": "loading",
    "naming_report": "provenance.naming_reports",
    "optimize": "optimization",
    "register": "optable.registry",
    "report": "reporting.reports",
    "save": "output.save",
    "simplify": "output.simplify",
    "to_ncnn": "output.ncnn",
    "to_python": "output.python_source",
    "to_transformers": "language",
    "transfer": "transferring",
    "verify": "verification.outputs",
    "verify_nodes": "verification.node_by_node",
}
"""Public name → the module that has it."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    path = f"{__name__}.{home or name}"
    with gc_pause.paused():  # a collection would search all objects of torch
        if home is not None:
            deferred_import.import_onnx_ir()
        try:
            found = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name != path:
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        gc_pause.set_aside()  # what was imported, which the first collection behind the pause would search
    return globals().setdefault(name, getattr(found, name) if home else found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
