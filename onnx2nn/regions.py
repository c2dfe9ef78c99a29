"""Names that modules saved by onnx2nn 0.1 hold."""

from onnx2nn.fx.subgraphs.loops import RenameInputs

__all__ = ["RenameInputs"]
