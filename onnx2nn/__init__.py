"""ONNX files as live modules: `onnx2nn.load("model.onnx")`.

The package's public names. ONNX files and modules come in; modules, reports and exported files go out. Only users,
`backend` and the commands import from here.
"""

from __future__ import annotations

from onnx2nn.importing.plan import Report
from onnx2nn.loading import check, load
from onnx2nn.optable.registry import register
from onnx2nn.output.export import export_onnx
from onnx2nn.output.ncnn import NcnnModel, to_ncnn
from onnx2nn.output.python_source import to_python
from onnx2nn.output.save import save
from onnx2nn.output.simplify import simplify
from onnx2nn.provenance.naming_reports import NamingReport, naming_report
from onnx2nn.verification.node_by_node import verify_nodes
from onnx2nn.verification.node_reports import NodeVerification
from onnx2nn.verification.outputs import verify

__all__ = [
    "NamingReport",
    "NcnnModel",
    "NodeVerification",
    "Report",
    "check",
    "export_onnx",
    "load",
    "naming_report",
    "register",
    "save",
    "simplify",
    "to_ncnn",
    "to_python",
    "verify",
    "verify_nodes",
]
