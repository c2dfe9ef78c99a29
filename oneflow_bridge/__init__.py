"""OneFlow both ways: `onnx2nn.load(path, framework="oneflow")` for ONNX files, `export` for OneFlow models."""

from oneflow_bridge.to_onnx.compiled_job import CompiledJob
from oneflow_bridge.to_onnx.exporter import export
from oneflow_bridge.to_onnx.trace import compile_job

__all__ = ["CompiledJob", "compile_job", "export"]
