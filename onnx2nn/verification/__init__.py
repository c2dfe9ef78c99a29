"""An import compared with ONNX Runtime: its outputs, or every node. Takes a file and a module, gives reports."""
