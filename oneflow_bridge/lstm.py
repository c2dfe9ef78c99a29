"""Finds the LSTMs that a job unrolls over time."""

from __future__ import annotations

import onnx_ir as ir


def raise_lstms(model: ir.Model) -> None:
    """Later."""
