"""PT2E quantisation aware training (torchao), a step, written as ONNX with QDQ nodes and run by ONNX Runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.ecosystem.observing import Make, Rounded, number_of, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "QAT to a QDQ file (torchao, ONNX Runtime)"
PACKAGES = ("torchao", "onnxruntime")
HELD = True


def use(make: Make, subject: Subject) -> Any:
    """Returns how many weights the file holds as integers, and the outputs of ONNX Runtime."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    module = make()
    inputs = subject.inputs(2)
    (exact,) = outputs_of(module, subject)
    program = torch.export.export(module, inputs).module()
    configuration = x86.get_default_x86_inductor_quantization_config(is_qat=True)
    prepared = prepare_qat_pt2e(program, x86.X86InductorQuantizer().set_global(configuration))
    optimizer = torch.optim.SGD(prepared.parameters(), 0.0)  # a step that leaves folded norms as they are
    number_of(prepared(*inputs)).backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(convert_pt2e(prepared), inputs, str(path), dynamo=True, verbose=False)
        weights, outputs = _run(path, [x.numpy() for x in inputs])
    return {"weights": weights, "outputs": Rounded.beside(outputs, exact)}


def _run(path: Path, inputs: list[np.ndarray]) -> tuple[int, torch.Tensor]:
    import onnx
    import onnxruntime

    graph = onnx.load(path).graph
    held = {tensor.name for tensor in graph.initializer}
    weights = sum(node.op_type == "DequantizeLinear" and node.input[0] in held for node in graph.node)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    (outputs,) = session.run(None, dict(zip(names, inputs, strict=True)))
    return weights, torch.from_numpy(outputs)
