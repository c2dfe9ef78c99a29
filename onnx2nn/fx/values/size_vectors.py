"""Vectors with known and data-dependent sizes, such as `(N, C, h, w)` of a resize."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx2nn.fx.constants import Constant
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.guards import Guards
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.optable.shape_values import ShapeValues, evaluate
from onnx2nn.sizes.expression import Size
from onnx2nn.sizes.reals import DIGITS, is_exact

MAX_ELEMENTS = 16
"""The maximum length of a vector of sizes."""

_KINDS = (ir.DataType.INT64, ir.DataType.FLOAT)
_DTYPES: dict[torch.dtype | None, np.dtype[Any]] = {
    torch.int64: np.dtype(np.int64),
    torch.float32: np.dtype(np.float32),
}


class _OfData:
    """A placeholder for a data-dependent number in an array: it can be moved, but not computed with."""

    def _refuse(self, *_: Any) -> Any:
        raise NeedsValues("a data-dependent number")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __float__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = _refuse
    __hash__ = object.__hash__


_OF_DATA: Any = _OfData()


def is_vector(value: Tensor) -> bool:
    """Returns whether a tensor may hold sizes or scale factors."""
    shape = value.spec.shape
    return shape is not None and len(shape) == 1 and value.spec.dtype in _DTYPES


def has_no_elements(value: Any) -> bool:
    """Returns whether a value is a recorded tensor of which `note_elements` notes nothing."""
    return type(value) is Tensor and not is_vector(value)


def note_elements(result: Any, row: Row, inputs: Sequence[Any], attributes: dict[str, Any], guards: Guards) -> None:
    """Notes the known numbers in a node's result, where it is a vector that may hold sizes or scale factors."""
    if row.on_shape_values is not None and type(result) is Tensor and is_vector(result):
        result.elements = _known_elements(row, inputs, attributes, result.shape[0], guards)


def _known_elements(
    row: Row, inputs: Sequence[Any], attributes: dict[str, Any], length: Any, guards: Guards
) -> tuple[Any, ...]:
    """Returns the known numbers in a node's result, a vector, with None for data-dependent ones.

    Args:
        row: the node's row, which has a `on_shape_values`.
        inputs: its inputs as values of the import.
        attributes: the attributes in the form that the row's body takes.
        length: the size of the result; a long one is not computed.
        guards: of the program; a number that a float or int64 may not hold is none of those that are known.

    Returns:
        The numbers; an empty tuple where none is known.
    """
    if not isinstance(length, int) or length > MAX_ELEMENTS:
        return ()
    if not any(isinstance(v, (Constant, ShapeValues)) or (isinstance(v, Tensor) and v.elements) for v in inputs):
        return ()
    found = [_numbers(value) for value in inputs]
    numbers = [values for values in found if values is not None]
    if len(numbers) < len(found) or not guards.integers.hold(row, numbers):
        return ()
    try:
        known = evaluate(row, [values.array for values in numbers], [values.dtype for values in numbers], attributes)
    except Exception:  # of numpy, on the placeholder; unknown numbers are read at run time
        return ()
    if not isinstance(known, ShapeValues) or known.array.shape != (length,):
        return ()
    digits = DIGITS.get(known.dtype.name)
    items = (None if item is _OF_DATA else item for item in known.array.tolist())
    return tuple(item if digits is None or _is_exact(item, digits, guards) else None for item in items)


def _is_exact(item: Any, digits: int, guards: Guards) -> bool:
    """Returns whether no float of so many digits rounds a number; that of a `Ratio` is looked at where it is used."""
    size = item.expr if isinstance(item, Dim) else None
    return not isinstance(size, Size) or guards.facts.decide(is_exact(size, digits)) is True


def _numbers(value: Any) -> ShapeValues | None:
    """Returns a number or vector with `_OF_DATA` for unknown elements, None for any other value."""
    if isinstance(value, ShapeValues):
        return value if value.array.ndim < 2 else None
    if isinstance(value, Constant):
        if len(value.shape) > 1 or math.prod(value.shape) > MAX_ELEMENTS or value.kind not in _KINDS:
            return None
        known = value.numpy()
        return ShapeValues(known.astype(object), known.dtype)
    if not isinstance(value, Tensor) or value.spec.shape is None:
        return None
    dtype = _DTYPES.get(value.spec.dtype)
    if dtype is None:
        return None
    shape = value.shape
    if len(shape) > 1 or not all(isinstance(size, int) and size <= MAX_ELEMENTS for size in shape):
        return None
    array = np.empty(shape, dtype=object)
    array[...] = _OF_DATA
    for position, item in enumerate(value.elements):
        array[position] = _OF_DATA if item is None else item
    return ShapeValues(array, dtype)
