"""Constants: tensors that are known at import, in the tensors of any framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.element_types import BY_NUMBER

C = TypeVar("C", bound="Constant")


@dataclass(eq=False, slots=True)
class Constant:
    """A tensor that is known at import; it is read at its first use. A framework derives its own from it.

    It is no `ABC`: `isinstance` of one takes several times as long, and an import asks it of every input of every node.

    Attributes:
        name: name of its initializer or output, `""` for a computed tensor.
        kind: ONNX element type.
        source: the tensor in the file; None once it is read, and for a computed tensor.
        weight: whether it is an initializer, whose float values are trainable.
        tied: the constant with which it shares memory.
    """

    name: str
    kind: ir.DataType
    source: ir.TensorProtocol | None = None
    weight: bool = False
    _value: Any = None
    tied: Constant | None = None

    @staticmethod
    def tensor_of(array: np.ndarray[Any, Any], kind: ir.DataType) -> Any:
        """Returns the framework's tensor of a numpy array of ONNX element type `kind`."""
        raise NotImplementedError

    @staticmethod
    def array_of(tensor: Any) -> np.ndarray[Any, Any]:
        """Returns a tensor of the framework as a numpy array."""
        raise NotImplementedError

    @staticmethod
    def kind_of(tensor: Any) -> ir.DataType:
        """Returns the ONNX element type of a tensor of the framework."""
        raise NotImplementedError

    @classmethod
    def stored(cls, tensor: Any) -> ir.TensorProtocol:
        """Returns a tensor of the framework as one of a file, of the same element type."""
        kind = cls.kind_of(tensor)
        return ir.Tensor(np.ascontiguousarray(cls.array_of(tensor)).astype(kind.numpy(), copy=False), dtype=kind)

    @classmethod
    def initializer(cls: type[C], value: ir.Value) -> C:
        """Returns an initializer of a graph as a constant."""
        tensor = value.const_value
        assert tensor is not None
        return cls(value.name or "", ir.DataType(tensor.dtype), tensor, weight=True)

    @classmethod
    def of(cls: type[C], value: Any, origin: Constant | None = None) -> C:
        """Returns a computed value, a tensor or an object array of strings, as a constant.

        Args:
            value: the value.
            origin: the weight from which it is computed, if any.
        """
        kind = ir.DataType.STRING if isinstance(value, np.ndarray) else cls.kind_of(value)
        name, weight = ("", False) if origin is None else (origin.name, origin.weight)
        return cls(name, kind, None, weight, value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        if self._value is not None:
            return tuple(self._value.shape)
        assert self.source is not None
        return tuple(self.source.shape.dims)  # type: ignore[arg-type]  # a stored tensor has no symbolic ones

    @property
    def value(self) -> Any:
        """The values: a tensor of the framework, or a numpy object array of str for strings."""
        if self._value is None and self.tied is not None:
            self._value = self.tied.value
        if self._value is None:
            assert self.source is not None
            array = self.source.numpy()
            self._value = strings(array) if self.kind == ir.DataType.STRING else self.tensor_of(array, self.kind)
            self.source = None
        return self._value

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the values as a numpy array (object dtype for strings)."""
        if self._value is None and self.source is not None and self.kind != ir.DataType.STRING:
            array: np.ndarray[Any, Any] = self.source.numpy()
            element = BY_NUMBER[self.kind]
            return array.astype(element.dtype) if element.travels_wider else array
        value = self.value
        return value if isinstance(value, np.ndarray) else self.array_of(value)


def strings(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array of bytes or str as an object array of str."""
    texts = np.empty(array.size, dtype=object)
    texts[:] = [item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in array.flat]
    return texts.reshape(array.shape)


def is_constant(value: Any) -> bool:
    """Returns whether a node's input is known at import: a constant, a sequence of constants, or absent."""
    if value is None or isinstance(value, Constant):
        return True
    return isinstance(value, list) and all(map(is_constant, value))
