"""ONNX to OneFlow: a planned model comes in, a `oneflow.nn.Module` goes out. `onnx2nn.loading` calls it."""
