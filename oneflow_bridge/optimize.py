"""Simplifies an exported graph with onnx-ir's passes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common


def optimize(model: ir.Model) -> ir.Model:
    """Removes what does nothing."""
    common.RemoveUnusedNodesPass()(model)
    return model
