"""Constant folding: evaluates nodes whose inputs are known at import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from onnx2nn.fx.constants import Constant
from onnx2nn.fx.origins import Origins
from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.guards import Guards
from onnx2nn.fx.values.ratio import Ratio
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.ground.limits import Account
from onnx2nn.ground.pass_times import timed
from onnx2nn.importing import bounded
from onnx2nn.optable.row import NeedsValues, Row
from onnx2nn.optable.shape_values import MAX_NUMBERS, ShapeValues, evaluate
from onnx2nn.sizes.conditions import Truth, at_most, conjunction
from onnx2nn.sizes.expression import Size
from onnx2nn.sizes.reals import DIGITS, is_exact


@timed("folding")
def fold(
    row: Row,
    inputs: Sequence[Any],
    arguments: Sequence[Any],
    attributes: dict[str, Any],
    origins: Origins,
    account: Account,
) -> Any:
    """Returns the result of `row` for constants.

    Args:
        row: the row.
        inputs: the constants.
        arguments: the constants in the form that the row's body takes.
        attributes: the node's.
        origins: notes tensors that are computed from a weight.
        account: counts what the result takes.

    Raises:
        TooLargeError: the result takes more than the limits allow.
    """
    with torch.no_grad():
        result = bounded.run(row, torch, arguments, attributes, account)
    weight = next((value for value in inputs if isinstance(value, Constant) and value.weight), None)
    if "dequantises" in row.traits:
        origins.note_steps(*inputs[:3])
    if weight is not None and "quantises" in row.traits:
        origins.note_quantised(result, weight)
    elif weight is not None:
        origins.note_computed(result if isinstance(result, (tuple, list)) else (result,), weight)
    return result


def read_shape(row: Row, tensor: Tensor, attributes: dict[str, Any], guards: Guards) -> ShapeValues:
    """Returns the result of `row`, which reads the shape of a tensor alone."""
    assert row.on_shape_values is not None
    guards.integers.note(tensor.spec.shape or ())
    return ShapeValues(np.asarray(row.on_shape_values(tensor, **attributes), dtype=object), np.dtype(np.int64))


def evaluate_numbers(row: Row, inputs: Sequence[Any], attributes: dict[str, Any], guards: Guards) -> Any:
    """Returns the result of `row`, which has a `on_shape_values`, for shape values.

    Raises:
        NeedsValues: the row reads a number that is unknown at import, or there are too many numbers.
    """
    arrays: list[Any] = []
    for value in inputs:
        if isinstance(value, Constant):
            if math.prod(value.shape) > MAX_NUMBERS:
                raise NeedsValues("a large constant among numbers computed from shapes")
            arrays.append(value.numpy().astype(object))
        else:
            arrays.append(None if value is None else value.array)
    dtypes = [None if v is None else v.dtype if isinstance(v, ShapeValues) else v.numpy().dtype for v in inputs]
    guards.integers.check(row, [value for value in inputs if isinstance(value, ShapeValues)])
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
            fits = conjunction((at_most(int(limits.min), number.expr), at_most(number.expr, int(limits.max))))
            if limits.bits < 32:
                guards.limit(fits)
            else:
                _hold(fits, limits.dtype.name, guards)


def _hold(condition: Truth, kind: str, guards: Guards) -> None:
    """Makes sure that a type of integers holds numbers: by a limit on dimensions, or a guard on several of them.

    Args:
        condition: that it holds them.
        kind: the type; a tensor of as many elements as it does not hold is larger than most memories.
        guards: of the program.

    Raises:
        TraceError: it holds them for no sizes.
    """
    try:
        guards.limit(condition)
    except TraceError:
        if guards.facts.decide(condition) is False:
            raise
        guards.demand(condition, f"{kind} holds the numbers that the file computes of sizes")


def settle(value: Any, origins: Origins) -> Any:
    """Returns a result in the form that the scope holds: constant shape values become a constant."""
    if isinstance(value, ShapeValues) and not any(isinstance(item, (Dim, Ratio)) for item in value.array.flat):
        return Constant.of(torch.from_numpy(value.array.astype(value.dtype)))
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return Constant.of(value, origins.find(value))
    return [settle(item, origins) for item in value] if isinstance(value, list) else value
