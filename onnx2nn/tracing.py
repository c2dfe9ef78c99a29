"""Names that modules saved by onnx2nn 0.1 hold."""

from onnx2nn.fx.retracer import Retracer

__all__ = ["Retracer"]
