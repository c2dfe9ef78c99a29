"""Run time values of an imported module, and what is known of them at import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow_bridge.from_onnx.constants import Constant
from oneflow_bridge.from_onnx.dim import Dim
from oneflow_bridge.from_onnx.program import Program
from oneflow_bridge.from_onnx.recording import Spec, Traced
from oneflow_bridge.namespace.tensor import Tensor, from_array
from onnx2nn.optable.shape_values import ShapeValues


@dataclass(eq=False)
class Live:
    """A value that the forward computes at run time.

    Attributes:
        name: its variable in the forward's source.
        program: the program whose variable it is.
        known: what is known of it at import: the `Spec` of a tensor, or a `ShapeValues` of ints and symbolic numbers;
            None where nothing is.
        numbers: whether it is a `ShapeValues` at run time.
        fixed: whether it is computed from weights and constants only, not from inputs.
        checks: the tensors whose computation may fail at some sizes, so that what is known holds where it does not:
            they must be computed where only their shapes are used.
    """

    name: str
    program: Program
    known: Spec | ShapeValues | None
    numbers: bool = False
    fixed: bool = False
    checks: frozenset[str] = frozenset()


def is_known(value: Any) -> bool:
    """Returns whether a value is a constant or something is known of it."""
    if isinstance(value, list):
        return all(map(is_known, value))
    return not isinstance(value, Live) or value.known is not None


def is_numbers(value: Any) -> bool:
    """Returns whether a value is a run time value of shape values."""
    return isinstance(value, Live) and value.numbers


def flat(values: Any) -> list[Any]:
    """Returns the values in nested lists."""
    return [x for value in values for x in (flat(value) if isinstance(value, (list, tuple)) else [value])]


def is_static(inputs: Any) -> bool:
    """Returns whether the shapes of all run time values are known, so that a call fails at all sizes or at none."""
    live = [value for value in flat(inputs) if isinstance(value, Live)]
    return all(isinstance(value.known, Spec) and value.known.is_static and not value.checks for value in live)


def checks_of(inputs: Any) -> frozenset[str]:
    """Returns the tensors that must be computed where only what is known of the inputs is used."""
    return frozenset().union(*(value.checks for value in flat(inputs) if isinstance(value, Live)))


def known_of(result: Any) -> Any:
    """Returns what is known of the result of a body: specs of its tensors."""
    if isinstance(result, (list, tuple)):
        return type(result)(map(known_of, result))
    if isinstance(result, Traced):
        return result.spec
    return Spec(tuple(result.shape), result.dtype) if isinstance(result, Tensor) else None


def constant_numbers(known: Any) -> Constant | None:
    """Returns shape values that are the same at all sizes as a constant, else None."""
    if not isinstance(known, ShapeValues) or any(isinstance(number, Dim) for number in known.array.flat):
        return None
    return Constant.of(from_array(np.asarray(known.array.astype(known.dtype))))
