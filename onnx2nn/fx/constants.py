"""Constants as torch tensors, and the conversion of values between numpy and torch."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onnx2nn.errors import ModelFileError
from onnx2nn.fx.missing_types import MISSING, missing_type
from onnx2nn.ground.element_types import BY_NAME
from onnx2nn.importing import constants
from onnx2nn.importing.boundary import from_module, to_module

_ELEMENTS = {ir.DataType[name]: element for name, element in BY_NAME.items() if name in ir.DataType.__members__}
_TORCH = {kind: getattr(torch, element.dtype) for kind, element in _ELEMENTS.items() if kind not in MISSING}
_TRAVELS_AS = {kind: np.dtype(element.dtype) for kind, element in _ELEMENTS.items() if element.travels_wider}
"""ONNX types that torch cannot compute with, and the wider types in which their values travel."""

_ONNX = {dtype: kind for kind, dtype in _TORCH.items() if kind not in _TRAVELS_AS}


def torch_dtype(kind: ir.DataType | int) -> torch.dtype:
    """Returns the torch dtype for values of an ONNX element type.

    int2 and int4 travel as int8, uint2 and uint4 as uint8, float4 and float6 as float32.

    Raises:
        ModelFileError: no torch dtype exists (strings are not held in tensors).
        OperatorError: the dtype exists in newer versions of PyTorch only.
    """
    try:
        return _TORCH[kind]  # type: ignore[index]  # an ir.DataType is its number
    except KeyError:
        if kind in MISSING:
            raise missing_type(MISSING[kind]) from None
        raise ModelFileError(f"Element type {kind} has no torch dtype.") from None


def onnx_type(dtype: torch.dtype) -> ir.DataType:
    """Returns the ONNX element type of a torch dtype."""
    return _ONNX[dtype]


def to_torch(array: np.ndarray[Any, Any], kind: ir.DataType) -> torch.Tensor:
    """Returns a numpy array of ONNX element type `kind` as a tensor.

    A writable array's memory is shared if the tensor has all of it, or if it is a mapped file's, which costs nothing.
    """
    if kind in _TRAVELS_AS:
        return torch.from_numpy(array.astype(_TRAVELS_AS[kind], order="C"))
    dtype = torch_dtype(kind)
    if not (array.flags.writeable and (array.flags.c_contiguous or _is_mapped(array))):  # may be unaligned
        array = np.array(array, order="C")
    if _is_lacking(dtype):
        return torch.from_numpy(array.view(np.uint16 if dtype.itemsize == 2 else np.uint8)).view(dtype)
    return torch.from_numpy(array if array.dtype.isnative else array.view(array.dtype.newbyteorder("=")))


def _is_lacking(dtype: torch.dtype) -> bool:
    """Returns whether numpy has no such type: bfloat16, or a float of 8 bits."""
    return dtype is torch.bfloat16 or (dtype.itemsize == 1 and dtype.is_floating_point)


def _is_mapped(array: np.ndarray[Any, Any]) -> bool:
    """Returns whether an array is a view of a mapped file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, memoryview) and isinstance(base.obj, mmap.mmap)


def memory_of(tensor: torch.Tensor) -> int:
    """Returns the address of the memory of which `tensor` is a view, without creating a storage object."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


class Constant(constants.Constant):
    """A tensor that is known at import, as a torch tensor."""

    __slots__ = ()

    tensor_of = staticmethod(to_torch)

    @staticmethod
    def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        """Returns a tensor as a numpy array; bfloat16 and float8, which numpy lacks, become float32."""
        tensor = tensor.detach()
        return tensor.float().numpy() if _is_lacking(tensor.dtype) else tensor.numpy()

    @classmethod
    def stored(cls, tensor: torch.Tensor) -> ir.TensorProtocol:
        """Returns a tensor as one of a file, which shares its memory."""
        return ir.tensor(tensor.contiguous())

    @staticmethod
    def kind_of(tensor: torch.Tensor) -> ir.DataType:
        """Returns the ONNX element type of a torch tensor."""
        return onnx_type(tensor.dtype)


def to_boundary(value: Any, kind: onnx.TypeProto) -> Any:
    """Returns a numpy value of ONNX type `kind` in the form that imported modules take, see `boundary.to_module`."""
    return to_module(value, kind, lambda array, element: to_torch(np.array(array), element))


def from_boundary(value: Any, kind: onnx.TypeProto) -> Any:
    """Returns an output of an imported module as numpy values of ONNX type `kind`."""
    return from_module(value, kind, _to_numpy)


def _to_numpy(value: Any, number: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    element = ir.DataType(number)
    wanted = element.numpy() if element != ir.DataType.UNDEFINED else onnx_type(value.dtype).numpy()
    if _is_lacking(value.dtype):
        raw = value.contiguous().view(torch.uint16 if value.dtype.itemsize == 2 else torch.uint8).numpy()
        return raw.view(onnx_type(value.dtype).numpy())
    array = value.resolve_conj().numpy()
    return array.astype(wanted) if element in _TRAVELS_AS else array


def identity_of(tensor: torch.Tensor) -> Any:
    """Returns a key that two tensors share if they are the same elements in the same memory and layout."""
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else id(tensor)
