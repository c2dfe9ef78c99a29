"""Sequences, which are Python lists, and optionals, which are None or their element."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.shape import fixed
from onnx2nn.optable.registry import op


@op("SequenceConstruct", 11)
def sequence_construct(F: Any, *inputs: Any) -> Any:
    return list(inputs)


@op("SequenceEmpty", 11)
def sequence_empty(F: Any, *, dtype: int | None = None) -> Any:
    return []


def _position(position: Any, length: int) -> int:
    """Returns a position counted from the start.

    Raises:
        OperatorError: it lies outside `[-length, length)`.
    """
    position = position[0] if isinstance(position, list) else position
    if not -length <= position < length:
        raise OperatorError(f"position={position} lies outside a sequence of {length} elements.")
    return int(position) % length


@op("SequenceAt", 11, static=["position"])
def sequence_at(F: Any, input_sequence: Any, position: Any) -> Any:
    return input_sequence[_position(position, len(input_sequence))]


@op("SequenceErase", 11, static=["position"])
def sequence_erase(F: Any, input_sequence: Any, position: Any = None) -> Any:
    index = _position(-1 if position is None else position, len(input_sequence))
    return [item for i, item in enumerate(input_sequence) if i != index]


@op("SequenceInsert", 11, static=["position"])
def sequence_insert(F: Any, input_sequence: Any, tensor: Any, position: Any = None) -> Any:
    """The position may be the sequence's length, which appends."""
    length = len(input_sequence)
    if position is None or position in (length, [length]):
        return [*input_sequence, tensor]
    index = _position(position, length)
    return [*input_sequence[:index], tensor, *input_sequence[index:]]


@op("SequenceLength", 11)
def sequence_length(F: Any, input_sequence: Any) -> Any:
    return F.tensor(len(input_sequence))


@op("ConcatFromSequence", 11)
def concat_from_sequence(F: Any, input_sequence: Any, *, axis: int, new_axis: int = 0) -> Any:
    items = list(input_sequence)
    if any(isinstance(item, np.ndarray) for item in items):  # strings
        return np.stack(items, axis) if new_axis else np.concatenate(items, axis)
    return F.stack(items, axis) if new_axis else F.cat(items, axis)


def _split_strings(input: np.ndarray[Any, Any], split: Any, axis: int, keepdims: int) -> list[Any]:
    size = input.shape[axis]
    if isinstance(split, list):
        if sum(split) != size:
            raise OperatorError(f"the sum of split={split} is not {size}, the size of axis {axis}.")
        return np.split(input, np.cumsum(split)[:-1], axis)
    parts = [input.take(range(i, min(i + (split or 1), size)), axis) for i in range(0, size, split or 1)]
    return [part.reshape(np.delete(part.shape, axis)) for part in parts] if split is None and not keepdims else parts


@op("SplitToSequence", 11, static=["split"], traits=["takes_apart"])
def split_to_sequence(F: Any, input: Any, split: Any = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    """Without `split` the parts have length 1; a scalar `split` is their length, the last may be shorter.

    An axis without elements has no parts, where torch gives an empty one.
    """
    if isinstance(input, np.ndarray):
        return _split_strings(input, split, axis, keepdims)
    if not isinstance(split, list) and fixed(input.shape[axis]) and input.shape[axis] == 0:
        return []
    if split is None:
        return list(F.split(input, 1, axis) if keepdims else F.unbind(input, axis))
    return list(F.split(input, split, axis))


@op("Optional", 15)
def optional(F: Any, input: Any = None, *, type: Any = None) -> Any:
    return input


@op("OptionalHasElement", 15)
def optional_has_element(F: Any, input: Any = None) -> Any:
    return F.tensor(input is not None)


@op("OptionalGetElement", 15)
def optional_get_element(F: Any, input: Any) -> Any:
    if input is None:
        raise OperatorError("its optional input is empty.")
    return input
