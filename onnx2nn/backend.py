"""ONNX's backend interface, through which ONNX's own conformance suite runs this library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend.base import Backend, BackendRep

import onnx2nn
from onnx2nn.fx.constants import from_boundary, to_boundary
from onnx2nn.ground.device_placement import placed


class OnnxModule(BackendRep):
    """An imported model whose inputs and outputs are numpy values."""

    def __init__(
        self,
        model: onnx.ModelProto,
        module: torch.fx.GraphModule,
        program: Callable[..., Any] | None = None,
        device: str = "cpu",
    ):
        """Binds `module` to the types of `model`; `program`, a torch tool's form of it, is called in its place."""
        self.module, self._device = module, torch.device(device)
        self._program = program or module
        self._inputs = {value.name: value.type for value in model.graph.input}
        self._outputs = [value.type for value in model.graph.output]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the outputs for `inputs`, a sequence in the graph's order or a mapping by input name."""
        with torch.no_grad():
            outputs = self._program(*self.arguments(inputs))
        results = outputs if isinstance(outputs, tuple) and len(self._outputs) != 1 else (outputs,)
        return tuple(from_boundary(value, kind) for value, kind in zip(results, self._outputs, strict=True))

    def arguments(self, inputs: Any) -> list[Any]:
        """Returns the module's arguments for `inputs`, given as for `run`."""
        names = self.module.meta["onnx2nn"]["inputs"]
        values = [inputs[name] for name in names] if isinstance(inputs, dict) else list(inputs)
        given = [to_boundary(value, self._inputs[name]) for name, value in zip(names, values, strict=False)]
        return placed(given, self._device)


class OnnxBackend(Backend):
    """Runs models in PyTorch, on the CPU or a GPU of NVIDIA."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> OnnxModule:
        """Returns the imported `model`.

        Raises:
            Onnx2nnError: the model cannot be imported; the text says why.
        """
        return OnnxModule(model, onnx2nn.load(model, device=device.lower(), **kwargs), device=device.lower())

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Returns the outputs of `model` for `inputs`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[np.ndarray[Any, Any]],
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Returns the outputs of one node for `inputs`."""
        present = [name for name in node.input if name]
        infos = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in zip(present, inputs, strict=True)
        ]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", infos, outputs)
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        opsets = [onnx.helper.make_opsetid(node.domain, version)]
        return cls.run_model(onnx.helper.make_model(graph, opset_imports=opsets), inputs, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Returns whether `device` is the CPU, or a GPU that is there: "CUDA" or "CUDA:1"."""
        kind, _, index = device.partition(":")
        return device == "CPU" or (kind == "CUDA" and int(index or 0) < torch.cuda.device_count())


prepare = OnnxBackend.prepare
run_model = OnnxBackend.run_model
run_node = OnnxBackend.run_node
supports_device = OnnxBackend.supports_device
