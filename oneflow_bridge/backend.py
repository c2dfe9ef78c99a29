"""ONNX's backend interface on OneFlow, through which ONNX's own conformance suite runs this library."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

import onnx2nn
from oneflow_bridge.from_onnx.constants import from_boundary, to_boundary
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
            outputs = self.module(*(to_boundary(v, self._inputs[n]) for n, v in zip(names, values, strict=False)))
        results = outputs if isinstance(outputs, tuple) and len(self._outputs) != 1 else (outputs,)
        found = (from_boundary(value, kind) for value, kind in zip(results, self._outputs, strict=True))
        return tuple(_as_onnx_has_it(value, kind) for value, kind in zip(found, self._outputs, strict=True))


def _as_onnx_has_it(value: Any, kind: onnx.TypeProto) -> Any:
    """Returns an array of bfloat16 or int4 in the form of onnx before 1.19, the onnx that installs beside OneFlow."""
    custom = importlib.util.find_spec("onnx._custom_element_types")
    if not isinstance(value, np.ndarray) or custom is None:
        return value
    types = importlib.import_module("onnx._custom_element_types")
    element = kind.tensor_type.elem_type
    if element == onnx.TensorProto.BFLOAT16:
        return value.view(np.uint16)
    if element in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
        name = "int4" if element == onnx.TensorProto.INT4 else "uint4"
        return value.astype(np.int8 if name == "int4" else np.uint8).astype(getattr(types, name))
    return value


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
