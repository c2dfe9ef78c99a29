"""Constants of an ONNX file as OneFlow tensors, and values at a module's boundary as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from oneflow_bridge.namespace.dtypes import BY_NAME, DType, bfloat16, flow
from oneflow_bridge.namespace.tensor import Tensor, from_array
from onnx2nn.errors import OperatorError
from onnx2nn.ground.element_types import BY_NUMBER
from onnx2nn.importing import constants
from onnx2nn.importing.boundary import from_module, to_module


def dtype_of(kind: ir.DataType | int) -> DType:
    """Returns the dtype that holds an ONNX element type, see `onnx2nn.ground.element_types`.

    Raises:
        OperatorError: OneFlow has no such dtype.
    """
    element = BY_NUMBER.get(int(kind))
    dtype = None if element is None else BY_NAME.get(element.dtype)
    if dtype is None or dtype.storage is None:
        name = element.name.lower() if element is not None else ir.DataType(kind).name.lower()
        raise OperatorError(f"OneFlow 0.9 has no tensors of {name}.")
    return dtype


def onnx_type(dtype: DType) -> ir.DataType:
    """Returns the ONNX element type of a namespace dtype."""
    return ir.DataType[{"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype.name, dtype.name.upper())]


def to_tensor(array: np.ndarray[Any, Any], kind: ir.DataType) -> Tensor:
    """Returns a numpy array of ONNX element type `kind` as a tensor.

    Raises:
        OperatorError: OneFlow has no dtype for it.
    """
    dtype = dtype_of(kind)
    if dtype is bfloat16 and array.dtype == np.uint16:  # the form of onnx before 1.19
        array = array.view(ir.DataType.BFLOAT16.numpy())
    if BY_NUMBER[int(kind)].travels_wider:
        array = array.astype(dtype.name)
    return from_array(np.ascontiguousarray(array).reshape(array.shape))


class Constant(constants.Constant):
    """A tensor that is known at import, as a tensor of the namespace."""

    __slots__ = ()

    tensor_of = staticmethod(to_tensor)

    @staticmethod
    def array_of(tensor: Tensor) -> np.ndarray[Any, Any]:
        """Returns a tensor as a numpy array."""
        return tensor.numpy()

    @staticmethod
    def kind_of(tensor: Tensor) -> ir.DataType:
        """Returns the ONNX element type of a tensor."""
        return onnx_type(tensor.dtype)


Typed = tuple[np.ndarray[Any, Any], ir.DataType]
"""An array and its ONNX element type."""


def run_on_arrays(module: Any, arrays: Sequence[Typed]) -> list[Typed | None]:
    """Returns what an imported module gives for arrays, without gradients; None for an output that is no tensor.

    Raises:
        OperatorError: OneFlow has no dtype for an input.
    """
    with flow.no_grad():
        outputs = module(*(to_tensor(*array).value for array in arrays))
    tensors = [
        Tensor(output) if isinstance(output, flow.Tensor) else None
        for output in (outputs if isinstance(outputs, tuple) else (outputs,))
    ]
    return [None if tensor is None else (Constant.array_of(tensor), Constant.kind_of(tensor)) for tensor in tensors]


def to_boundary(value: Any, kind: onnx.TypeProto) -> Any:
    """Returns a numpy value of ONNX type `kind` as an input of imported modules, see `boundary.to_module`.

    Raises:
        OperatorError: OneFlow has no dtype for it.
    """
    return to_module(value, kind, lambda array, element: to_tensor(array, element).value)


def from_boundary(value: Any, kind: onnx.TypeProto) -> Any:
    """Returns an output of an imported module as numpy values of ONNX type `kind`."""
    return from_module(value, kind, _to_numpy)


def _to_numpy(value: Any, number: int) -> Any:
    if not isinstance(value, flow.Tensor):
        return value
    element = BY_NUMBER.get(number)
    if element is None:
        return value.numpy()
    dtype = dtype_of(element.number)
    tensor = Tensor(value, dtype if value.dtype is dtype.storage else None)
    array = tensor.numpy()
    wider = element.travels_wider or dtype is bfloat16
    return array.astype(ir.DataType(element.number).numpy()) if wider and tensor.dtype is dtype else array
