"""Pad and CenterCropPad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.arithmetic import larger
from onnx2nn.ops.axes import distinct
from onnx2nn.ops.shape import demand, fixed, moves_elements, partly_known
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import NeedsValues
from onnx2nn.optable.shape_values import sized

_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


Pairs = list[tuple[Any, Any]]
"""The pads before and behind each axis."""


def _by_axis(rank: int, pads: Sequence[Any], axes: Sequence[int] | None) -> Pairs:
    """Returns the pads before and behind each axis.

    Raises:
        OperatorError: there are not two pads of each axis, the data have no such axis, or it is named twice.
    """
    axes = range(rank) if axes is None else distinct(axes, rank)
    count = len(axes)
    if len(pads) != 2 * count:
        raise OperatorError(f"pads has {len(pads)} numbers; two for each of {count} axes are {2 * count}.")
    result: Pairs = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        result[axis] = (pads[place], pads[place + count])
    return result


def _apart(sizes: Sequence[Any], pads: Pairs, mode: str) -> tuple[Pairs, Pairs, Pairs]:
    """Returns what `pads` crop before they pad, what they pad, and what they crop of the padded axes.

    Cropping first moves fewer elements; an axis that has fewer than its negative pad crops loses elements that the
    other pad adds, which only a constant can be, or none, where another axis has no elements.
    """
    first, grown, last = Pairs(), Pairs(), Pairs()
    for axis, (size, (before, after)) in enumerate(zip(sizes, pads, strict=True)):
        if all(map(fixed, (size, before, after))) and size == 0 == before + after:
            before = after = 0  # of no elements none are left, whatever the mode reads
        crop = _negative(before), _negative(after)
        grow = before - crop[0], after - crop[1]
        cropped, added = -sum(crop), sum(grow)
        is_padded, is_enough = not (fixed(added) and added == 0), fixed(size) and size >= cropped
        is_late = cropped and is_padded and (not is_enough if mode == "constant" else fixed(size) and size < cropped)
        reason = f"the negative pads of axis {axis} crop no more than it has"
        if is_late and mode != "constant":
            demand(_others(sizes, axis) == 0, f"{reason}, or another axis has no elements")
        if is_late:
            demand(
                size + added >= cropped, f"the pads of axis {axis} crop no more than it has with those that they add"
            )
        elif cropped:
            demand(size >= cropped, reason)
        first.append((0, 0) if is_late else crop)
        grown.append(grow)
        last.append(crop if is_late else (0, 0))
    return first, grown, last


def _is_empty(sizes: Sequence[Any]) -> bool:
    return any(fixed(size) and size == 0 for size in sizes)


def _others(sizes: Sequence[Any], axis: int) -> Any:
    """Returns the number of elements for each index of an axis."""
    return math.prod(size for place, size in enumerate(sizes) if place != axis)


def _negative(pad: Any) -> int:
    """Returns a pad that crops, 0 for another one; one that only some sizes make negative is another one."""
    return int(pad) if fixed(pad) and pad < 0 else 0


def _crop(data: Any, pads: Pairs) -> Any:
    """Returns `data` without as many elements of each axis as its pads, none of which is positive, say."""
    if not any(p for pair in pads for p in pair):
        return data
    return data[tuple(slice(-before or None, after or None) for before, after in pads)]


def _crops(begin: Any, end: Any) -> list[Any]:
    """Returns what pads that are negative, or may be, crop of an axis."""
    return [part for part in (larger(-begin, 0), larger(-end, 0)) if not (fixed(part) and part == 0)]


def _is_read(size: Any, begin: Any, end: Any) -> Any:
    """Returns whether an axis, cropped by the pads that are negative, has an element to read, or stays empty."""
    cropped = _crops(begin, end)
    stays_empty = (begin + end == 0) & (size == 0) if cropped else begin + end == 0
    return (size - sum(cropped) >= 1) | stays_empty


def _positions(F: Any, size: Any, begin: Any, end: Any, mode: str) -> Any:
    """Returns the index in the axis that each position of the padded axis is read from.

    A pad that is negative at some sizes crops there, and the other pad repeats what is left.
    """
    before, cropped = larger(-begin, 0), _crops(begin, end)
    if cropped:
        size, begin, end = size - sum(cropped), larger(begin, 0), larger(end, 0)
    places = _repeated(F, size, F.arange(-begin, size + end), mode)
    return places if fixed(before) and before == 0 else places + before


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
    first, pairs, last = _apart(data.shape, _by_axis(data.ndim, [int(p) for p in pads], axes), mode)
    data = _crop(data, first)
    sized([size + before + after for size, (before, after) in zip(data.shape, pairs, strict=True)])
    if mode != "constant":
        return _crop(np.pad(data, pairs, mode=mode), last)  # type: ignore[call-overload]  # numpy has an overload for each mode
    empty = "" if any(isinstance(item, str) for item in data.flat) else 0
    return _crop(np.pad(data, pairs, constant_values=empty if constant_value is None else constant_value.item()), last)


def _easy(data: Any, pads: Pairs, mode: str) -> bool:
    """Returns whether torch's pad takes these pads: of spatial dimensions only, no larger than its mode permits.

    Of the dimensions only the first may be empty; one that it pads must have an element to repeat.
    """
    lead = data.ndim - 2 if data.ndim > 2 else 0
    if data.ndim not in (3, 4, 5) or not data.dtype.is_floating_point or mode == "wrap":
        return False
    for size, pair in zip(data.shape[1:], pads[1:], strict=True):
        is_padded = any(not (fixed(p) and p == 0) for p in pair)
        if (fixed(size) and size == 0) or not (is_padded or fixed(size) or (size >= 1) is True):
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
    choices={"mode": tuple(_MODES)},
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
    pairs = _by_axis(data.ndim, pads, axes)
    sizes = [size + before + after for size, (before, after) in zip(data.shape, pairs, strict=True)]
    if mode != "constant" and _is_empty(data.shape) and _is_empty(sizes):  # nothing is read, however large the pads are
        for axis, size in enumerate(sizes):
            demand(size >= 0, f"the pads of axis {axis} crop no more than it has")
        return data.reshape(sizes)
    first, pairs, last = _apart(data.shape, pairs, mode)
    data = _crop(data, first)
    padded = [axis for axis, pair in enumerate(pairs) if any(not (fixed(p) and p == 0) for p in pair)]
    if not padded:
        return data
    if mode == "constant":
        value = 0 if constant_value is None else constant_value
        return _crop(_pad_constant(F, data, pairs[padded[0] :], value), last)
    is_cropped = any(p for pair in last for p in pair)  # then another axis is empty, which torch's pad refuses
    if not is_cropped and _easy(data, pairs, mode):
        order = [p for pair in reversed(pairs[2:]) for p in pair]
        return F.nn.functional.pad(data, order, mode=_MODES[mode])
    if not is_cropped and len(padded) == 1 and _easy_line(data, padded[0], pairs[padded[0]], mode):
        return _pad_line(F, data, padded[0], pairs[padded[0]], mode)
    for axis in padded:
        is_read = _is_read(data.shape[axis], *pairs[axis])
        if is_read is False:
            data = _pad_empty(data, axis, pairs[axis], mode)
        else:
            demand(is_read, f"an element is left for mode={mode!r} to read")
            data = _picked(F, data, _positions(F, data.shape[axis], *pairs[axis], mode), axis=axis)
    return _crop(data, last)


def _pad_empty(data: Any, axis: int, pair: tuple[Any, Any], mode: str) -> Any:
    """Pads an axis of which no element is left to repeat, nor one to fill where another axis has none."""
    is_filled = _others(data.shape, axis) == 0
    if fixed(data.shape[axis]) and data.shape[axis] == 0:
        is_filled |= sum(pair) == 0
    demand(is_filled, f"an element is left in axis {axis} for mode={mode!r} to read, or none in another axis")
    sizes = [*data.shape]
    sizes[axis] += sum(pair)
    demand(sizes[axis] >= 0, f"the pads of axis {axis} crop no more than it has")
    return data.new_zeros(sizes)


@moves_elements
def _picked(F: Any, data: Any, places: Any, *, axis: int) -> Any:
    return data.index_select(axis, places)


_EXACT = 1 << 53
"""The largest integer up to which torch's pad, which takes a float64, has all of them."""


def _pad_constant(F: Any, data: Any, pairs: Pairs, value: Any) -> Any:
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
    axes = range(input_data.ndim) if axes is None else distinct(axes, input_data.ndim)
    begins, ends = [], []
    for axis, target in zip(axes, shape, strict=True):
        missing = target - input_data.shape[axis]
        if not fixed(missing):
            raise NeedsValues("a crop or pad of a dynamic dimension")
        begin = missing // 2 if missing >= 0 else -(-missing // 2)
        begins.append(begin)
        ends.append(missing - begin)
    return pad(F, input_data, [*begins, *ends], axes=list(axes))
