"""OneFlow: ONNX files as OneFlow modules, and OneFlow jobs as ONNX files."""
