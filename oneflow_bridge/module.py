"""A name that modules saved by onnx2nn 0.1 hold."""

from oneflow_bridge.from_onnx.module import ImportedModule

__all__ = ["ImportedModule"]
