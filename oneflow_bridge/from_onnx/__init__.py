"""ONNX to OneFlow: a planned model comes in, an `oneflow.nn.Module` goes out.

`onnx2nn.loading` calls `importer.import_graph`; `oneflow_bridge.backend` converts values by `constants`.
"""
