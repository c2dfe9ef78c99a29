"""ONNX's backend interface on OneFlow, through which ONNX's own conformance suite runs this library."""

from __future__ import annotations

from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep

import onnx2nn
from oneflow_bridge.constants import from_border, to_border
from oneflow_bridge.namespace.dtypes import flow


class OneFlowRep(BackendRep):
    """An imported model that takes and gives numpy values."""

    def __init__(self, model: onnx.ModelProto, module: Any):
        self.module = module
        self._inputs = {value.name: value.type for value in model.graph.input}
        self._outputs = [value.type for value in model.graph.output]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the outputs for `inputs`, a sequence in the graph's order or a mapping by input name."""
        names = self.module.meta["onnx2nn"]["inputs"]
        values = [inputs[name] for name in names] if isinstance(inputs, dict) else list(inputs)
        with flow.no_grad():
            outputs = self.module(*(to_border(v, self._inputs[n]) for n, v in zip(names, values, strict=False)))
        results = outputs if isinstance(outputs, tuple) and len(self._outputs) != 1 else (outputs,)
        return tuple(from_border(value, kind) for value, kind in zip(results, self._outputs, strict=True))


class OneFlowBackend(Backend):
    """Runs models in OneFlow on the CPU."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> OneFlowRep:
        """Returns `model` imported.

        Raises:
            Onnx2nnError: it cannot be imported; the text says why.
        """
        return OneFlowRep(model, onnx2nn.load(model, framework="oneflow", **kwargs))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Returns the outputs of `model` for `inputs`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Returns whether `device` is the CPU."""
        return device == "CPU"


prepare = OneFlowBackend.prepare
run_model = OneFlowBackend.run_model
supports_device = OneFlowBackend.supports_device
