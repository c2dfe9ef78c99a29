"""OneFlow to ONNX: a module or a compiled job comes in, a checked ONNX file goes out."""
