"""ONNX to OneFlow: a planned model comes in, an `oneflow.nn.Module` goes out. Only `onnx2nn.loading` calls it."""
