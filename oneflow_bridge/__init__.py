"""OneFlow and ONNX: `onnx2nn.load(path, framework="oneflow")` imports ONNX files, `export` writes them.

OneFlow modules, graphs and compiled jobs come in, checked ONNX files go out. This face is for users; `onnx2nn.loading`
calls the rooms `from_onnx` and `namespace` below it.
"""

from oneflow_bridge.to_onnx.compiled_job import CompiledJob
from oneflow_bridge.to_onnx.exporter import export
from oneflow_bridge.to_onnx.trace import compile_job

__all__ = ["CompiledJob", "compile_job", "export"]
