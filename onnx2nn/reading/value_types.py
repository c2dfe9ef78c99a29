"""Types and shapes of values, decoded from `TypeProto`."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from onnx2nn.errors import ModelFileError
from onnx2nn.reading.protobuf_texts import checked_text


class ValueType(NamedTuple):
    """A type, None where the file gives none or onnx_ir has none, and a shape, None for an unknown rank."""

    type: ir.TypeProtocol | None
    shape: ir.Shape | None


class ValueTypes:
    """Decodes the types of a model's values; a model has few different ones, which are decoded once."""

    def __init__(self) -> None:
        self._tensor_types: dict[bytes, tuple[ir.DataType, ir.Shape | None]] = {}

    def read(self, proto: onnx.TypeProto, name: str) -> ValueType:
        """Returns the type of the value `name`; a shape of its own for each value."""
        # Decoding a type field by field costs several times as much as copying it.
        key = proto.SerializeToString()
        if key in self._tensor_types:
            dtype, shape = self._tensor_types[key]
            return ValueType(ir.TensorType(dtype), None if shape is None else shape.copy())
        decoded = read_type(proto, name)
        if isinstance(decoded.type, ir.TensorType):
            self._tensor_types[key] = decoded.type.dtype, decoded.shape
        return decoded


def read_type(proto: onnx.TypeProto, name: str) -> ValueType:
    """Returns the type of the value `name`.

    Raises:
        ModelFileError: an element type that this version does not know.
    """
    which = proto.WhichOneof("value")
    if which == "tensor_type":
        tensor = proto.tensor_type
        return ValueType(_element_type(ir.TensorType, tensor.elem_type, name), _shape(tensor))
    if which == "sparse_tensor_type":
        tensor = proto.sparse_tensor_type
        return ValueType(_element_type(ir.SparseTensorType, tensor.elem_type, name), _shape(tensor))
    if which in ("sequence_type", "optional_type"):
        inner = read_type(getattr(proto, which).elem_type, name)
        if inner.type is None:
            return inner
        container = ir.SequenceType if which == "sequence_type" else ir.OptionalType
        return ValueType(container(inner.type), inner.shape)
    return ValueType(None, None)  # onnx_ir has no map and opaque types.


def _element_type(kind: type[ir.TensorType] | type[ir.SparseTensorType], number: int, name: str) -> Any:
    if not number:
        return None
    try:
        return kind(ir.DataType(number))
    except ValueError:
        raise ModelFileError(
            f"The value {name!r} has data type {number}, which is not known here. "
            "A file from a newer exporter may need newer onnx and onnx-ir packages."
        ) from None


def _shape(tensor: Any) -> ir.Shape | None:
    if not tensor.HasField("shape"):
        return None
    dims: list[int | ir.SymbolicDim] = []
    for dim in tensor.shape.dim:
        # Exporters write -1 and an empty name for an unknown dimension.
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(ir.SymbolicDim(checked_text(dim.dim_param) or None))
    return ir.Shape(dims)
