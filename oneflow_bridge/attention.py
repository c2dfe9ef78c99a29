"""A name that modules saved by onnx2nn 0.1 hold."""

from oneflow_bridge.from_onnx.attention import MultiheadAttention

__all__ = ["MultiheadAttention"]
