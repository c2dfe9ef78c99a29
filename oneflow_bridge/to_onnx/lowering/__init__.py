"""Lowering: a graph of OneFlow ops comes in, an ONNX model at a chosen opset goes out. The exporter calls `lower`.

`registry` holds how each op is written, `builder` writes nodes in the form that the opset asks for; the functions of
`emit` use these two.
"""

from __future__ import annotations

from oneflow_bridge.to_onnx.lowering.lower import lower

__all__ = ["lower"]
