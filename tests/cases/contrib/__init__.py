"""Cases of the rows in `onnx2nn.ops.contrib`."""
