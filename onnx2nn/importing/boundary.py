"""Values at a module's boundary: numpy values of an ONNX type as inputs, and outputs as numpy values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir


def to_module(value: Any, kind: onnx.TypeProto, tensor: Callable[[np.ndarray[Any, Any], ir.DataType], Any]) -> Any:
    """Returns a numpy value of ONNX type `kind` in the form that imported modules take.

    `tensor` makes tensors. Strings stay numpy object arrays, a sequence is a list, an empty optional is None.
    """
    if value is None or kind.HasField("map_type"):
        return value
    if kind.HasField("optional_type"):
        return to_module(value, kind.optional_type.elem_type, tensor)
    if kind.HasField("sequence_type"):
        return [to_module(item, kind.sequence_type.elem_type, tensor) for item in value]
    element, array = ir.DataType(kind.tensor_type.elem_type), np.asarray(value)
    if element == ir.DataType.STRING or array.dtype.kind in "OUS":
        return array.astype(object)
    return tensor(array, element)


def from_module(value: Any, kind: onnx.TypeProto, array: Callable[[Any, int], Any]) -> Any:
    """Returns an output of an imported module as numpy values of ONNX type `kind`.

    `array` takes a single value and the number of its element type; it returns values that are no tensors unchanged.
    """
    if kind.HasField("optional_type"):
        return from_module(value, kind.optional_type.elem_type, array)
    if isinstance(value, (list, tuple)):
        inner = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
        return [from_module(item, inner, array) for item in value]
    return array(value, kind.tensor_type.elem_type)
