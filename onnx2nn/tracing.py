"""Names that modules saved by onnx2nn 0.1 hold."""

from onnx2nn.fx.tracing import Retracer

__all__ = ["Retracer"]
