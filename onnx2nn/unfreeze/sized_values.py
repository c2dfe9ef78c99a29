"""The values of a model whose shapes follow from the dimensions of its inputs, as size expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx2nn.fx.constants import Constant, onnx_type, torch_dtype
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.importing.node_facts import known_array
from onnx2nn.optable.shape_values import ShapeValues
from onnx2nn.sizes.expression import Number, Size, Symbol
from onnx2nn.sizes.facts import Facts
from onnx2nn.sizes.substitution import evaluated
from onnx2nn.unfreeze.shape_tracer import ShapeTracer

MAX_ELEMENTS = 1 << 12
"""The most elements of a constant that are read; larger ones do not hold sizes."""


class Sized:
    """A value of known rank, each of whose dimensions is a number or a size expression.

    Args:
        tracer: knows the facts about sizes.
        value: a recorded tensor, numbers computed from sizes, or a constant.

    Attributes:
        value: see above.
    """

    __slots__ = ("_tracer", "value")

    def __init__(self, tracer: ShapeTracer, value: Tensor | ShapeValues | Constant):
        self._tracer, self.value = tracer, value

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        if isinstance(self.value, Tensor):
            assert self.value.spec.dtype is not None, "values of unknown type are unknown"
            return self.value.spec.dtype
        if isinstance(self.value, Constant):
            return torch_dtype(self.value.kind)
        return torch.from_numpy(np.empty(0, self.value.dtype)).dtype

    @property
    def kind(self) -> ir.DataType:
        """The ONNX element type."""
        return onnx_type(self.dtype)

    @property
    def sizes(self) -> tuple[Number, ...]:
        """The shape for all sizes of the inputs."""
        if isinstance(self.value, Tensor):
            return tuple(map(self._facts.settled, self.value.spec.shape or ()))
        return tuple(known_array(self.value).shape) if isinstance(self.value, ShapeValues) else self.value.shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape at the file's sizes."""
        return tuple(map(self._frozen, self.sizes))

    @property
    def spec(self) -> Spec:
        """The shape for all sizes of the inputs, and the element type."""
        return Spec(self.sizes, self.dtype)

    def varies(self, axis: int) -> bool:
        """Returns whether a dimension depends on sizes of the inputs."""
        return isinstance(self.sizes[axis], Size)

    @property
    def is_dynamic(self) -> bool:
        """Whether the shape depends on sizes of the inputs."""
        return any(isinstance(size, Size) for size in self.sizes)

    @property
    def is_known(self) -> bool:
        """Whether the elements are numbers or size expressions, few enough to hold sizes."""
        if isinstance(self.value, ShapeValues):
            return all(isinstance(item, (int, float, Dim)) for item in self.value.array.flat)
        return isinstance(self.value, Constant) and self.count <= MAX_ELEMENTS

    @property
    def is_zero(self) -> bool:
        """Whether all elements are known to be 0."""
        return isinstance(self.value, Constant) and not self.value.numpy().any()

    @property
    def count(self) -> int:
        """The number of elements at the file's sizes."""
        return math.prod(self.shape)

    def same(self, one: Number, other: Number) -> bool:
        """Returns whether two sizes are proven to be equal."""
        return self._facts.same(one, other)

    @property
    def elements(self) -> list[Any]:
        """The elements, where they are known: numbers, and size expressions for those that depend on sizes."""
        assert not isinstance(self.value, Tensor)
        numbers = known_array(self.value).reshape(-1).tolist()
        return [self._tracer.expr_of(number) for number in numbers]

    @property
    def frozen(self) -> list[Any]:
        """The elements at the file's sizes, where they are known."""
        return [self._frozen(item) for item in self.elements]

    def is_like(self, other: Any) -> bool:
        """Returns whether another value has the same shape for all sizes, and the same element type."""
        return isinstance(other, Sized) and self.spec == other.spec

    def unread(self) -> Sized:
        """Returns a value with this shape and type whose elements are not known."""
        return Sized(self._tracer, self._tracer.tensor(self.spec))

    def with_elements(self, elements: list[Any], shape: tuple[int, ...]) -> Sized:
        """Returns a value of this type with other elements, integers and size expressions."""
        array = np.empty(len(elements), dtype=object)
        array[:] = [self._tracer.number_of(item) for item in elements]
        if any(isinstance(item, Dim) for item in array):
            return Sized(self._tracer, ShapeValues(array.reshape(shape), self.kind.numpy()))
        return Sized(self._tracer, Constant.of(torch.tensor(array.tolist(), dtype=self.dtype).reshape(shape)))

    def with_shape(self, sizes: tuple[Number, ...]) -> Sized:
        """Returns a value of this type with another shape, whose elements are not known."""
        return Sized(self._tracer, self._tracer.tensor(Spec(sizes, self.dtype)))

    def argument(self) -> Any:
        """Returns the value in the form that an import takes; a large constant without its elements."""
        if isinstance(self.value, Constant) and self.count > MAX_ELEMENTS:
            return self._tracer.tensor(self.spec)
        return self.value

    @property
    def _facts(self) -> Facts:
        return self._tracer.guards.facts

    def _frozen(self, item: Any) -> Any:
        point: Mapping[Symbol, int] = self._tracer.point
        return evaluated(item, point) if getattr(item, "symbols", None) else item
