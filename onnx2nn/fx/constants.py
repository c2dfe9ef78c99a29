"""Values of a graph that are known at import: initializers, constants, and numbers computed from shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onnx2nn.errors import ModelFileError
from onnx2nn.ground.element_types import BY_NAME

_ELEMENTS = {ir.DataType[name]: element for name, element in BY_NAME.items() if name in ir.DataType.__members__}
_TORCH = {kind: getattr(torch, element.dtype) for kind, element in _ELEMENTS.items()}
_BORDER = {kind: np.dtype(element.dtype) for kind, element in _ELEMENTS.items() if element.travels_wider}
"""What the types that torch cannot compute with travel as; the values are those they denote."""

_ONNX = {dtype: kind for kind, dtype in _TORCH.items() if kind not in _BORDER}


def torch_dtype(kind: ir.DataType | int) -> torch.dtype:
    """Returns the torch dtype in which values of an ONNX element type travel.

    int2 and int4 travel as int8, uint2 and uint4 as uint8, float4 and float6 as float32.

    Raises:
        ModelFileError: no torch dtype holds it (strings do not travel as tensors).
    """
    try:
        return _TORCH[kind]  # type: ignore[index]  # an ir.DataType is its number
    except KeyError:
        raise ModelFileError(f"Element type {kind} has no torch dtype.") from None


def onnx_type(dtype: torch.dtype) -> ir.DataType:
    """Returns the ONNX element type of a torch dtype."""
    return _ONNX[dtype]


def to_torch(array: np.ndarray[Any, Any], kind: ir.DataType) -> torch.Tensor:
    """Returns a numpy array of ONNX element type `kind` as a tensor, sharing its memory where that may be written."""
    if kind in _BORDER:
        return torch.from_numpy(np.ascontiguousarray(array.astype(_BORDER[kind])))
    dtype = torch_dtype(kind)
    if not array.flags.carray:  # contiguous, and writable
        array = np.array(array, order="C")
    if dtype is torch.bfloat16 or (dtype.itemsize == 1 and dtype.is_floating_point):
        return torch.from_numpy(array.view(np.uint16 if dtype.itemsize == 2 else np.uint8)).view(dtype)
    return torch.from_numpy(array if array.dtype.isnative else array.view(array.dtype.newbyteorder("=")))


def memory_of(tensor: torch.Tensor) -> int:
    """Returns where the memory begins that `tensor` is a view of, without a lasting object for its storage."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


@dataclass(eq=False, slots=True)
class Constant:
    """A tensor that is known at import; loaded when first used.

    Attributes:
        name: name of the initializer or output it comes from, `""` where it is computed.
        kind: ONNX element type.
        source: the tensor in the file, None once computed.
        weight: whether it is an initializer, whose float values are trainable.
        tied: the constant whose memory it shares.
    """

    name: str
    kind: ir.DataType
    source: ir.TensorProtocol | None = None
    weight: bool = False
    _value: torch.Tensor | np.ndarray[Any, Any] | None = None
    tied: Constant | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        if self._value is not None:
            return tuple(self._value.shape)
        assert self.source is not None
        return tuple(self.source.shape.numpy())

    @property
    def value(self) -> torch.Tensor | np.ndarray[Any, Any]:
        """The values: a torch tensor, or a numpy object array of str for strings."""
        if self._value is None and self.tied is not None:
            self._value = self.tied.value
        if self._value is None:
            assert self.source is not None
            if self.kind == ir.DataType.STRING:
                texts = [
                    item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in self.source.numpy().flat
                ]
                array = np.empty(len(texts), dtype=object)
                array[:] = texts
                self._value = array.reshape(self.shape)
            else:
                self._value = to_torch(self.source.numpy(), self.kind)
            self.source = None
        return self._value

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the values as a numpy array (object dtype for strings)."""
        if self._value is None and self.source is not None and self.kind != ir.DataType.STRING:
            return self.source.numpy()
        value = self.value
        if isinstance(value, np.ndarray):
            return value
        return value.detach().float().numpy() if value.dtype is torch.bfloat16 else value.detach().numpy()

    @classmethod
    def of(cls, value: torch.Tensor | np.ndarray[Any, Any], name: str = "", weight: bool = False) -> Constant:
        """Returns the constant that holds `value`, a torch tensor or an object array of strings."""
        kind = ir.DataType.STRING if isinstance(value, np.ndarray) else onnx_type(value.dtype)
        return cls(name, kind, None, weight, value)


def to_border(value: Any, kind: onnx.TypeProto) -> Any:
    """Returns a numpy value of ONNX type `kind` as imported modules take it.

    Tensors become torch tensors, strings stay numpy object arrays, a sequence is a list, an empty optional None.
    """
    if value is None or kind.HasField("map_type"):
        return value
    if kind.HasField("optional_type"):
        return to_border(value, kind.optional_type.elem_type)
    if kind.HasField("sequence_type"):
        return [to_border(item, kind.sequence_type.elem_type) for item in value]
    element = ir.DataType(kind.tensor_type.elem_type)
    array = np.asarray(value)
    if element == ir.DataType.STRING:
        return array.astype(object)
    if array.dtype.kind in "OUS":
        return array
    return to_torch(np.array(array), element)


def from_border(value: Any, kind: onnx.TypeProto) -> Any:
    """Returns what an imported module gives as numpy values of ONNX type `kind`."""
    if kind.HasField("optional_type"):
        return from_border(value, kind.optional_type.elem_type)
    if isinstance(value, (list, tuple)):
        inner = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
        return [from_border(item, inner) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    element = ir.DataType(kind.tensor_type.elem_type)
    wanted = element.numpy() if element != ir.DataType.UNDEFINED else onnx_type(value.dtype).numpy()
    if value.dtype is torch.bfloat16 or (value.dtype.itemsize == 1 and value.dtype.is_floating_point):
        raw = value.contiguous().view(torch.uint16 if value.dtype.itemsize == 2 else torch.uint8).numpy()
        return raw.view(onnx_type(value.dtype).numpy())
    array = value.resolve_conj().numpy()
    return array.astype(wanted) if element in _BORDER else array


def identity_of(tensor: torch.Tensor) -> Any:
    """What makes two tensors the same values in the same memory."""
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else id(tensor)
