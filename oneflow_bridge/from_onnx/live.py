"""Run time values of an imported module, with their samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow_bridge.from_onnx.constants import Constant
from oneflow_bridge.from_onnx.program import Program
from oneflow_bridge.from_onnx.recording import Traced
from oneflow_bridge.namespace.tensor import Tensor, from_array
from onnx2nn.optable.shape_values import ShapeValues


@dataclass(eq=False)
class Live:
    """A value that the forward computes at run time.

    Attributes:
        name: its variable in the forward's source.
        program: the program whose variable it is.
        samples: its value at each of the sample sizes, a tensor or a `ShapeValues`; None where it has no samples.
        numbers: whether it is a `ShapeValues`.
        fixed: whether it is computed from weights and constants only, not from inputs.
    """

    name: str
    program: Program
    samples: list[Any] | None
    numbers: bool = False
    fixed: bool = False


def has_samples(value: Any) -> bool:
    """Returns whether a value is a constant or has samples."""
    if isinstance(value, list):
        return all(map(has_samples, value))
    return not isinstance(value, Live) or value.samples is not None


def is_numbers(value: Any) -> bool:
    """Returns whether a value is a run time value of shape values."""
    return isinstance(value, Live) and value.numbers


def flat(values: Any) -> list[Any]:
    """Returns the values in nested lists."""
    return [x for value in values for x in (flat(value) if isinstance(value, (list, tuple)) else [value])]


def samples_of(result: Any) -> Any:
    """Returns the samples of the result of a recorded body."""
    if isinstance(result, (list, tuple)):
        return type(result)(map(samples_of, result))
    return result.sample if isinstance(result, Traced) else result


def same_results(a: Any, b: Any) -> bool:
    """Returns whether two runs of a body have the same results."""
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same_results, a, b))
    if isinstance(a, Traced):
        return isinstance(b, Traced) and a.name == b.name
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype is b.dtype and a.shape == b.shape and bool(np.array_equal(a.numpy(), b.numpy(), equal_nan=True))
    return type(a) is type(b) and bool(np.all(a == b))


def constant_numbers(samples: list[Any] | None) -> Constant | None:
    """Returns shape values that are equal at every sample size as a constant, else None."""
    if not samples or not all(isinstance(sample, ShapeValues) for sample in samples):
        return None
    first = samples[0].array
    if any(sample.array.shape != first.shape or (sample.array != first).any() for sample in samples[1:]):
        return None
    return Constant.of(from_array(np.asarray(first.astype(samples[0].dtype))))
