"""Raising."""
import onnx_ir as ir
def raise_ops(model: ir.Model) -> None:
    pass
