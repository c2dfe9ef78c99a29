"""Scans that cut a signal into windows which overlap, as speech front ends of onnxscript do.

The state is the end of the window before, an item is what the next window adds: a window is both, one after the other,
and the next state is what the window holds behind its first items. All windows are views of the signal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

_ENDLESS = np.iinfo(np.int32).max
"""Exporters write an end of this size or above for a slice that goes on to the end."""


class Windows(NamedTuple):
    """A Scan of windows.

    Attributes:
        axis: the axis of a window along which it holds state and item.
        kept: the size of the state along this axis.
        added: the size of an item along this axis, by which a window is behind the one before.
    """

    axis: int
    kept: int
    added: int


def sliding_windows(body: ir.Graph, states: int, rank: int) -> Windows | None:
    """Returns the windows that the body of a Scan cuts, None for any other body.

    Args:
        body: takes the states, then an item of each scanned value.
        states: the number of states.
        rank: the rank of an item.
    """
    if states != 1 or len(body.inputs) != 2 or not body.outputs:
        return None
    following, *windows = map(_origin, body.outputs)
    joined = windows[0].producer() if windows else None
    if joined is None or joined.op_type != "Concat" or joined.domain or list(joined.inputs) != list(body.inputs):
        return None
    if any(window is not windows[0] for window in windows):
        return None
    attribute = joined.attributes.get("axis")
    if attribute is None or attribute.is_ref() or not -rank <= attribute.as_int() < rank:
        return None
    axis = attribute.as_int() % rank
    cut, kept = _cut(following, windows[0], axis, rank), _size(body.inputs[0], axis)
    if cut is None or cut == 0:
        return None
    kept = -cut if cut < 0 else kept
    added = cut if cut > 0 else _size(body.inputs[1], axis)
    return None if not kept or not added else Windows(axis, kept, added)


def _cut(value: ir.Value, window: ir.Value, axis: int, rank: int) -> int | None:
    """Returns where the slice of a window starts that is `value` and goes on to the end; None for other values."""
    node = value.producer()
    if node is None or node.op_type != "Slice" or node.domain or len(node.inputs) < 4 or node.inputs[0] is not window:
        return None
    start, end, along, *step = map(_number, node.inputs[1:])
    if start is None or end is None or along is None or step not in ([], [1]):
        return None
    return start if end >= _ENDLESS and along in (axis, axis - rank) else None


def _number(value: ir.Value | None) -> int | None:
    """Returns the integer in a constant of one element, None for other values."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return int(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _origin(value: ir.Value) -> ir.Value:
    """Returns the value of which `value` is a copy."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _size(value: ir.Value, axis: int) -> int | None:
    """Returns a dimension that the file declares, None where it does not."""
    size = value.shape[axis] if value.shape is not None and axis < len(value.shape) else None
    return size if isinstance(size, int) else None
