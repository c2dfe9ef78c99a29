"""Values of an ONNX file as OneFlow holds them, and the way of values over a module's border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from oneflow_bridge.namespace.dtypes import BY_NAME, DType, bfloat16, flow
from oneflow_bridge.namespace.tensor import Tensor, from_array
from onnx2nn.errors import OperatorError
from onnx2nn.ground.element_types import BY_NUMBER


def dtype_of(kind: ir.DataType | int) -> DType:
    """Returns the type in which values of an ONNX element type travel, see `onnx2nn.ground.element_types`.

    Raises:
        OperatorError: OneFlow has none that holds it.
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
        OperatorError: OneFlow cannot hold it.
    """
    dtype = dtype_of(kind)
    if dtype is bfloat16 and array.dtype == np.uint16:  # as onnx before 1.19 has it
        array = array.view(ir.DataType.BFLOAT16.numpy())
    if BY_NUMBER[int(kind)].travels_wider:
        array = array.astype(dtype.name)
    return from_array(np.ascontiguousarray(array).reshape(array.shape))


def to_strings(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array of bytes or str as an object array of str."""
    texts = np.empty(array.size, dtype=object)
    texts[:] = [item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in array.flat]
    return texts.reshape(array.shape)


@dataclass(eq=False)
class Constant:
    """A tensor that is known at import; read when first used.

    Attributes:
        name: name of the initializer it comes from, `""` where it is computed.
        kind: ONNX element type.
        source: the tensor in the file, None once read.
        weight: whether it is an initializer, whose float values are trainable.
    """

    name: str
    kind: ir.DataType
    source: ir.TensorProtocol | None = None
    weight: bool = False
    _value: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return tuple(self._value.shape) if self.source is None else tuple(self.source.shape.numpy())

    @property
    def value(self) -> Any:
        """The values: a namespace tensor, or a numpy object array of str for strings.

        Raises:
            OperatorError: OneFlow cannot hold them.
        """
        if self.source is not None:
            array = self.source.numpy()
            self._value = to_strings(array) if self.kind == ir.DataType.STRING else to_tensor(array, self.kind)
            self.source = None
        return self._value

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the values as a numpy array (object dtype for strings)."""
        if self.source is not None and self.kind != ir.DataType.STRING:
            array: np.ndarray[Any, Any] = self.source.numpy()
            return array.astype(dtype_of(self.kind).name) if BY_NUMBER[int(self.kind)].travels_wider else array
        value = self.value
        return value if isinstance(value, np.ndarray) else value.numpy()

    @classmethod
    def of(cls, value: Any, origin: Constant | None = None) -> Constant:
        """Returns the constant that holds a computed value; `origin` is the weight it is made of, if one."""
        kind = ir.DataType.STRING if isinstance(value, np.ndarray) else onnx_type(value.dtype)
        name, weight = ("", False) if origin is None else (origin.name, origin.weight)
        return cls(name, kind, None, weight, value)


def to_border(value: Any, kind: onnx.TypeProto) -> Any:
    """Returns a numpy value of ONNX type `kind` as imported modules take it.

    Tensors become OneFlow tensors, strings stay numpy object arrays, a sequence is a list, an empty optional None.

    Raises:
        OperatorError: OneFlow cannot hold it.
    """
    if value is None or kind.HasField("map_type"):
        return value
    if kind.HasField("optional_type"):
        return to_border(value, kind.optional_type.elem_type)
    if kind.HasField("sequence_type"):
        return [to_border(item, kind.sequence_type.elem_type) for item in value]
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return array.astype(object)
    return to_tensor(array, ir.DataType(kind.tensor_type.elem_type)).value


def from_border(value: Any, kind: onnx.TypeProto) -> Any:
    """Returns what an imported module gives as numpy values of ONNX type `kind`."""
    if kind.HasField("optional_type"):
        return from_border(value, kind.optional_type.elem_type)
    if isinstance(value, (list, tuple)):
        inner = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
        return [from_border(item, inner) for item in value]
    if not isinstance(value, flow.Tensor):
        return value
    element = BY_NUMBER.get(kind.tensor_type.elem_type)
    if element is None:
        return value.numpy()
    dtype = dtype_of(element.number)
    tensor = Tensor(value, dtype if value.dtype is dtype.storage else None)
    array = tensor.numpy()
    wider = element.travels_wider or dtype is bfloat16
    return array.astype(ir.DataType(element.number).numpy()) if wider and tensor.dtype is dtype else array
