"""Names that modules saved by onnx2nn 0.1 hold."""

from onnx2nn.fx.modules.renamed_inputs import RenameInputs

__all__ = ["RenameInputs"]
