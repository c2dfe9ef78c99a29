"""Programs of imports in a form that torch.onnx.export writes as the operators that they are."""
