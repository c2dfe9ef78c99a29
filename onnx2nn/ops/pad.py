"""Pad and CenterCropPad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.arithmetic import larger
from onnx2nn.ops.axes import from_front
from onnx2nn.ops.shape import demand, fixed, moves_elements, partly_known
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import NeedsValues
from onnx2nn.optable.shape_values import sized

_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


def _by_axis(rank: int, pads: Sequence[Any], axes: Sequence[int] | None) -> list[tuple[Any, Any]]:
    """Returns the pads before and behind each axis.

    Raises:
        OperatorError: there are not two pads of each axis, or the data have no such axis.
    """
    axes = range(rank) if axes is None else axes
    count = len(axes)
    if len(pads) != 2 * count:
        raise OperatorError(f"pads has {len(pads)} numbers; two for each of {count} axes are {2 * count}.")
    result: list[tuple[Any, Any]] = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        result[from_front(axis, rank)] = (pads[place], pads[place + count])
    return result


def _crop(data: Any, pads: list[tuple[Any, Any]]) -> tuple[Any, list[tuple[Any, Any]]]:
    """Returns `data` cropped by its negative pads, and the other pads."""
    negative = [fixed(p) and p < 0 for pair in pads for p in pair]
    if not any(negative):
        return data, pads
    for axis, pair in enumerate(pads):
        if cropped := sum(-p for p in pair if fixed(p) and p < 0):
            demand(data.shape[axis] >= cropped, f"the negative pads of axis {axis} crop no more than it has")
    parts = [slice(-b if fixed(b) and b < 0 else None, e if fixed(e) and e < 0 else None) for b, e in pads]
    left = [tuple(0 if fixed(p) and p < 0 else p for p in pair) for pair in pads]
    return data[tuple(parts)], left  # type: ignore[return-value]


def _positions(F: Any, size: Any, begin: Any, end: Any, mode: str) -> Any:
    """Returns the index in the axis that each position of the padded axis is read from.

    A pad that is negative at some sizes crops there, and the other pad repeats what is left.
    """
    before, behind = larger(-begin, 0), larger(-end, 0)
    cropped = [part for part in (before, behind) if not (fixed(part) and part == 0)]
    if cropped:
        size, begin, end = size - sum(cropped), larger(begin, 0), larger(end, 0)
        demand(size >= 1, f"negative pads leave an element for mode={mode!r} to read")
    places = _repeated(F, size, F.arange(-begin, size + end), mode)
    return places if fixed(before) else places + before


def _repeated(F: Any, size: Any, places: Any, mode: str) -> Any:
    """Returns the index in an axis that each place, also one outside of it, is read from."""
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap":
        return places % _like(F, size, places)
    folded = places % _like(F, larger(2 * (size - 1), 1), places)  # a single element is all that there is to read
    return size - 1 - (folded - (size - 1)).abs()


def _like(F: Any, number: Any, places: Any) -> Any:
    """Returns a size as a divisor; a dynamic size as a tensor: torch.onnx.export has no remainder by a symbolic int."""
    return number if fixed(number) else F.full_like(places, number)


def _values_of_pad(
    data: Any, pads: Any, constant_value: Any = None, axes: Any = None, *, mode: str = "constant"
) -> Any:
    axes = None if axes is None else [int(axis) for axis in axes]
    pairs = _by_axis(data.ndim, [int(p) for p in pads], axes)
    data, pairs = _crop(data, pairs)
    sized([size + before + after for size, (before, after) in zip(data.shape, pairs, strict=True)])
    if mode != "constant":
        return np.pad(data, pairs, mode=mode)  # type: ignore[call-overload]
    empty = "" if any(isinstance(item, str) for item in data.flat) else 0
    return np.pad(data, pairs, constant_values=empty if constant_value is None else constant_value.item())


def _easy(data: Any, pads: list[tuple[Any, Any]], mode: str) -> bool:
    """Returns whether torch's pad takes these pads: of spatial dimensions only, no larger than its mode permits.

    Of the dimensions only the first may be empty.
    """
    lead = data.ndim - 2 if data.ndim > 2 else 0
    if data.ndim not in (3, 4, 5) or not data.dtype.is_floating_point or mode == "wrap":
        return False
    if any(fixed(size) and size == 0 for size in data.shape[1:]):
        return False
    if any(not (fixed(p) and p == 0) for pair in pads[: data.ndim - lead] for p in pair):
        return False
    return all(_is_within(size, pair, mode) for size, pair in zip(data.shape[2:], pads[2:], strict=True))


def _is_within(size: Any, pair: tuple[Any, Any], mode: str) -> bool:
    return all(fixed(p) and (mode == "edge" or not fixed(size) or p < size) for p in pair)


def _easy_line(data: Any, axis: int, pair: tuple[Any, Any], mode: str) -> bool:
    """Returns whether torch's pad takes the pads of a single axis, of up to three, once it is the last axis.

    Of the others only the first may be empty.
    """
    if data.ndim > 3 or not data.dtype.is_floating_point or mode == "wrap":
        return False
    size, others = data.shape[axis], [other for place, other in enumerate(data.shape) if place != axis]
    if any(not fixed(other) or other == 0 for other in others[1:]):
        return False
    return not (fixed(size) and size == 0) and _is_within(size, pair, mode)


def _pad_line(F: Any, data: Any, axis: int, pair: tuple[Any, Any], mode: str) -> Any:
    last, missing = data.ndim - 1, 3 - data.ndim
    lines = data.movedim(axis, last) if axis < last else data
    for _ in range(missing):  # rows are images of one channel
        lines = lines.unsqueeze(-2)
    lines = F.nn.functional.pad(lines, list(pair), mode=_MODES[mode])
    for _ in range(missing):
        lines = lines.squeeze(-2)
    return lines.movedim(last, axis) if axis < last else lines


def _results_of_pad(F: Any, data: Any, pads: Any, constant_value: Any = None, axes: Any = None, **_: Any) -> Any:
    amounts = partly_known(pads)
    padded = range(data.ndim) if axes is None else partly_known(axes)
    sizes = [*data.shape]
    for axis, before, after in zip(padded, amounts[: len(padded)], amounts[len(padded) :], strict=True):
        if axis is None:
            raise NeedsValues("data-dependent axes")
        if not (fixed(before) and before == 0 and fixed(after) and after == 0):
            sizes[axis] = f"size_{axis % data.ndim}"
    return [(sizes, data.dtype)]


@op(
    "Pad",
    18,
    static=["pads", "axes"],
    numbers=["constant_value"],
    on_shape_values=_values_of_pad,
    results=_results_of_pad,
    traits=["keeps_rank"],
)
def pad(F: Any, data: Any, pads: Any, constant_value: Any = None, axes: Any = None, *, mode: str = "constant") -> Any:
    """Negative pads crop. Where torch's pad does not take a mode, elements are gathered by computed indices."""
    if mode not in _MODES:
        raise OperatorError(f"mode={mode!r} is none of {', '.join(_MODES)}.")
    data, pairs = _crop(data, _by_axis(data.ndim, pads, axes))
    padded = [axis for axis, pair in enumerate(pairs) if any(not (fixed(p) and p == 0) for p in pair)]
    if not padded:
        return data
    if mode == "constant":
        return _pad_constant(F, data, pairs[padded[0] :], 0 if constant_value is None else constant_value)
    if _easy(data, pairs, mode):
        order = [p for pair in reversed(pairs[2:]) for p in pair]
        return F.nn.functional.pad(data, order, mode=_MODES[mode])
    if len(padded) == 1 and _easy_line(data, padded[0], pairs[padded[0]], mode):
        return _pad_line(F, data, padded[0], pairs[padded[0]], mode)
    for axis in padded:
        if fixed(data.shape[axis]) and data.shape[axis] == 0:
            for amount in pairs[axis]:
                demand(amount <= 0, f"axis {axis} is empty, and mode={mode!r} needs an element to read")
            continue
        places = _positions(F, data.shape[axis], *pairs[axis], mode)
        data = _picked(F, data, places, axis=axis)
    return data


@moves_elements
def _picked(F: Any, data: Any, places: Any, *, axis: int) -> Any:
    return data.index_select(axis, places)


_EXACT = 1 << 53
"""The largest integer up to which torch's pad, which takes a float64, has all of them."""


def _pad_constant(F: Any, data: Any, pairs: list[tuple[Any, Any]], value: Any) -> Any:
    order = [p for pair in reversed(pairs) for p in pair]
    if isinstance(value, int) and abs(value) > _EXACT:
        value = F.tensor(value, dtype=data.dtype)
    if not hasattr(value, "dtype"):
        return _pad_number(F, data, order=order, value=value)
    inside = F.nn.functional.pad(F.ones_like(data, dtype=F.bool), order)
    return F.where(inside, _pad_number(F, data, order=order, value=0), value.reshape(()))


def _pad_number(F: Any, data: Any, *, order: list[Any], value: Any) -> Any:
    if value == 0:
        return _pad_zero(F, data, order=order)
    return F.nn.functional.pad(data, order, value=value)


@moves_elements
def _pad_zero(F: Any, data: Any, *, order: list[Any]) -> Any:
    return F.nn.functional.pad(data, order)


pad_11 = revision(pad, 11, without=["axes"])
pad_2 = revision(
    pad_11,
    2,
    as_attributes=["pads", "constant_value"],
    renamed={"constant_value": "value"},
    defaults={"constant_value": 0.0},
)
revision(pad_2, 1, renamed={"pads": "paddings"})


@op("CenterCropPad", 18, static=["shape"])
def center_crop_pad(F: Any, input_data: Any, shape: Any, *, axes: Sequence[int] | None = None) -> Any:
    """Of an odd difference, the larger part is cropped or padded behind."""
    axes = range(input_data.ndim) if axes is None else axes
    begins, ends = [], []
    for axis, target in zip(axes, shape, strict=True):
        missing = target - input_data.shape[axis]
        if not fixed(missing):
            raise NeedsValues("a crop or pad of a dynamic dimension")
        begin = missing // 2 if missing >= 0 else -(-missing // 2)
        begins.append(begin)
        ends.append(missing - begin)
    return pad(F, input_data, [*begins, *ends], axes=list(axes))
