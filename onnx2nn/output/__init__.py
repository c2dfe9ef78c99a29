"""What a module becomes: saved files, ONNX, NCNN, Python source; and simplified ONNX."""
