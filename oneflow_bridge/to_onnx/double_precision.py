"""Runs an exported file in float64, where rounding hides no error.

In an ill-conditioned model the rounding of float32 may be as large as the outputs. The same computation in float64 has
2**29 times less of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype")
"""Attributes that hold the element type of an operator's result."""


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model that computes in float64 what the given one computes in float32.

    A constant of one element, which an author wrote as a decimal number, becomes the float64 of the same decimal
    number; other constants keep their values.

    Args:
        model: with its weights.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _widen_graph(result.graph)
    return result


def _widen_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        kind = value.type.tensor_type
        kind.elem_type = TensorProto.DOUBLE if kind.elem_type == TensorProto.FLOAT else kind.elem_type
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.INT and attribute.name in _TYPE_ATTRIBUTES:
                attribute.i = TensorProto.DOUBLE if attribute.i == TensorProto.FLOAT else attribute.i
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                tensor = numpy_helper.from_array(np.array(numbers, np.float32))
                _widen_tensor(tensor)
                attribute.CopyFrom(helper.make_attribute("value", tensor))
            elif attribute.HasField("t"):
                _widen_tensor(attribute.t)
            for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                _widen_graph(inner)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type != TensorProto.FLOAT:
        return
    array = numpy_helper.to_array(tensor)
    wide = np.array(str(array.reshape(())), np.float64).reshape(array.shape) if array.size == 1 else array
    tensor.CopyFrom(numpy_helper.from_array(wide.astype(np.float64), tensor.name))


def run_widened(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """Returns the outputs of `widened(model)` by onnx.reference, which has all operators in float64."""
    from onnx.reference import ReferenceEvaluator

    wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in feeds.items()}
    return list(ReferenceEvaluator(widened(model)).run(None, wide))


__all__ = ["run_widened", "widened"]
