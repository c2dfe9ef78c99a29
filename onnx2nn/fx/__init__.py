"""ONNX to PyTorch: a planned model comes in, a `torch.fx.GraphModule` goes out. `onnx2nn.loading` calls it."""
