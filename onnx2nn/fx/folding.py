"""Constant folding: evaluates nodes whose inputs are known at import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from onnx2nn.errors import OperatorError
from onnx2nn.fx.constants import Constant
from onnx2nn.fx.dim import Dim
from onnx2nn.fx.guards import Guards
from onnx2nn.fx.origins import Origins
from onnx2nn.fx.ratio import Ratio
from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.optable.row import Row
from onnx2nn.optable.shape_values import ShapeValues, evaluate
from onnx2nn.sizes.conditions import at_most, conjunction
from onnx2nn.sizes.expression import Size
from onnx2nn.sizes.reals import DIGITS, is_exact

MAX_CONSTANT_BYTES = 8 << 30
"""The most memory of a constant that is computed at import; a file of a few bytes can require more."""

_MAX_NUMBERS = 4096
"""The most elements of a constant that is combined with shape values."""


def fold(
    row: Row, inputs: Sequence[Any], arguments: Sequence[Any], attributes: dict[str, Any], origins: Origins
) -> Any:
    """Returns the result of `row` for constants.

    Args:
        row: the row.
        inputs: the constants.
        arguments: the constants in the form that the row's body takes.
        attributes: the node's.
        origins: notes tensors that are computed from a weight.

    Raises:
        OperatorError: the result takes more memory than `MAX_CONSTANT_BYTES`.
    """
    if row.static and row.call != "opaque":
        _check_size(row, arguments, attributes)
    with torch.no_grad():
        result = row.run(torch, *arguments, **attributes)
    weight = next((value for value in inputs if isinstance(value, Constant) and value.weight), None)
    if weight is not None:
        origins.note_computed(result if isinstance(result, (tuple, list)) else (result,), weight)
    return result


def _check_size(row: Row, values: Sequence[Any], attributes: dict[str, Any]) -> None:
    small = all(v.numel() < 1 << 16 for v in values if isinstance(v, torch.Tensor))
    if not small:
        return
    try:
        with torch.device("meta"):
            metas = [v.to("meta") if isinstance(v, torch.Tensor) else v for v in values]
            result = row.body(torch, *metas, **attributes)
    except OperatorError:
        raise
    except Exception:  # of any class, by what reads a meta tensor
        return  # the body needs the values; no such operator has large results
    items = result if isinstance(result, (tuple, list)) else (result,)
    total = sum(item.numel() * item.element_size() for item in items if isinstance(item, torch.Tensor))
    if total > MAX_CONSTANT_BYTES:
        raise OperatorError(f"it makes a constant of {total >> 20} MiB, the limit is {MAX_CONSTANT_BYTES >> 20} MiB.")


def evaluate_numbers(row: Row, inputs: Sequence[Any], attributes: dict[str, Any], guards: Guards) -> Any:
    """Returns the result of `row`, which has a `on_shape_values`, for shape values.

    Raises:
        NeedsValues: the row reads a number that is unknown at import.
    """
    arrays: list[Any] = []
    for value in inputs:
        if isinstance(value, Constant):
            if math.prod(value.shape) > _MAX_NUMBERS:
                raise TraceError("a large constant among numbers computed from shapes")
            arrays.append(value.numpy().astype(object))
        else:
            arrays.append(None if value is None else value.array)
    dtypes = [None if v is None else v.dtype if isinstance(v, ShapeValues) else v.numpy().dtype for v in inputs]
    result = evaluate(row, arrays, dtypes, attributes)
    for values in result if isinstance(result, tuple) else (result,):
        if values.dtype.name in DIGITS or (values.dtype.kind in "iu" and values.dtype.itemsize < 8):
            _check_range(values, guards)
    return result


def _check_range(values: ShapeValues, guards: Guards) -> None:
    """Makes sure that integers fit into their type: an integer type would wrap around, and a float type would round."""
    for number in values.array.flat:
        if not isinstance(number, Dim) or not isinstance(number.expr, Size):
            continue
        if (digits := DIGITS.get(values.dtype.name)) is not None:
            guards.limit(is_exact(number.expr, digits))
        else:
            limits = np.iinfo(values.dtype)
            guards.limit(conjunction((at_most(int(limits.min), number.expr), at_most(number.expr, int(limits.max)))))


def settle(value: Any, origins: Origins) -> Any:
    """Returns a result in the form that the scope holds: constant shape values become a constant."""
    if isinstance(value, ShapeValues) and not any(isinstance(item, (Dim, Ratio)) for item in value.array.flat):
        return Constant.of(torch.from_numpy(value.array.astype(value.dtype)))
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return Constant.of(value, origins.find(value))
    return [settle(item, origins) for item in value] if isinstance(value, list) else value
