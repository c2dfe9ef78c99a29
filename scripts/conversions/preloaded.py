"""Imports what measurements need, once: the server that their processes are forked from imports this module.

A source whose packages are not installed is left out. Nothing here starts a thread, which a fork would lose.
"""

from __future__ import annotations

import contextlib
import importlib

from onnx2nn.optable.registry import TABLE
from scripts.conversions import sources

MODULES = (
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "torch",
    "torch.export",
    "torch.onnx",
    "torch._dynamo",  # what the exporter imports at its first call, for seconds
    "onnx2nn.fx.importer",
    "onnx2nn.loading",
    "onnx2nn.verification.outputs",
    "onnx2torch",
    "onnx2pytorch",
    "onnx2fx",
)

for _source in sources.SOURCES.values():
    with contextlib.suppress(ImportError):
        _source()
for _module in MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)
TABLE.complete()
