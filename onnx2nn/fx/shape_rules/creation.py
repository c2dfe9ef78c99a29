"""Shape rules of functions that make tensors from numbers: filled or drawn at random, ranges, windows, triangles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from onnx2nn.fx.shape_rules.operands import is_number, numbers, run, shape_of, variadic
from onnx2nn.fx.shape_rules.rule import Result, Rule, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.sizes.conditions import Condition, at_least_zero, at_most
from onnx2nn.sizes.expression import Number, Size


def _checked(sizes: Sizes, shape: list[Number]) -> Shape:
    for size in shape:
        sizes.require(at_least_zero(size), "the size of a new tensor")
    return tuple(shape)


def _given(size: tuple[Any, ...], options: dict[str, Any]) -> list[Number]:
    """Returns a size that is given by place, as ints or as one list, or by name."""
    named = options.get("size")
    return variadic(size) if named is None else numbers(named)


def _kind(number: Any) -> torch.dtype:
    """Returns the dtype of a tensor that is made from a number."""
    if type(number) is bool or isinstance(number, Condition):
        return torch.bool
    if is_number(number):
        return torch.int64
    if type(number) is float:
        return torch.get_default_dtype()
    if type(number) is complex:
        return torch.complex128 if torch.get_default_dtype() is torch.float64 else torch.complex64
    raise Uncovered


def _of_size(find: Callable[[], torch.dtype], *, floats: bool = False) -> Rule:
    """Returns the rule of a function of a size and options.

    Args:
        find: gives the dtype where none is asked for.
        floats: whether torch makes floats only.
    """

    def made(sizes: Sizes, *size: Any, dtype: torch.dtype | None = None, **options: Any) -> Result:
        shape = _given(size, options)
        found = find() if dtype is None else dtype
        if floats and not found.is_floating_point:
            raise Uncovered
        return Spec(_checked(sizes, shape), found)

    return made


for _function in (torch.zeros, torch.ones, torch.empty):
    rule(_function)(_of_size(torch.get_default_dtype))
for _function in (torch.rand, torch.randn):
    rule(_function)(_of_size(torch.get_default_dtype, floats=True))
rule(torch.randperm)(_of_size(lambda: torch.int64))


@rule("new_zeros", "new_ones", "new_empty")
def _new(sizes: Sizes, input: Spec, *size: Any, dtype: torch.dtype | None = None, **options: Any) -> Result:
    return Spec(_checked(sizes, _given(size, options)), input.dtype if dtype is None else dtype)


@rule("new_full")
def _new_full(
    sizes: Sizes, input: Spec, size: Any, fill_value: Any, dtype: torch.dtype | None = None, **options: Any
) -> Result:
    return Spec(_checked(sizes, numbers(size)), input.dtype if dtype is None else dtype)


@rule(torch.full)
def _full(sizes: Sizes, size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Result:
    if not isinstance(size, (list, tuple)):
        raise Uncovered
    return Spec(_checked(sizes, numbers(size)), _kind(fill_value) if dtype is None else dtype)


@rule(torch.randint)
def _randint(sizes: Sizes, *args: Any, dtype: torch.dtype | None = None, **options: Any) -> Result:
    size = options.get("size", args[-1] if args else None)
    if not isinstance(size, (list, tuple)):
        raise Uncovered
    return Spec(_checked(sizes, numbers(size)), torch.int64 if dtype is None else dtype)


@rule(torch.tensor, torch.as_tensor)
def _tensor(sizes: Sizes, data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Result:
    if isinstance(data, Spec):
        return Spec(shape_of(data), data.dtype if dtype is None else dtype)
    shape, kinds = _nested(data)
    inferred = reduce(torch.promote_types, kinds) if kinds else torch.get_default_dtype()
    return Spec(shape, inferred if dtype is None else dtype)


def _nested(data: Any) -> tuple[tuple[int, ...], set[torch.dtype]]:
    """Returns the shape of nested lists of numbers, and the dtypes of the numbers."""
    if not isinstance(data, (list, tuple)):
        return (), {_kind(data)}
    items = [_nested(item) for item in data]
    shapes = {shape for shape, _ in items}
    if len(shapes) > 1:
        raise Uncovered
    return (len(data), *(shapes.pop() if shapes else ())), set().union(*(kinds for _, kinds in items))


@rule(torch.scalar_tensor)
def _scalar_tensor(sizes: Sizes, s: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Result:
    _kind(s)
    return Spec((), torch.get_default_dtype() if dtype is None else dtype)


@rule(torch.arange)
def _arange(sizes: Sizes, *bounds: Any, dtype: torch.dtype | None = None, **options: Any) -> Result:
    if not 1 <= len(bounds) <= 3 or any(name in options for name in ("start", "end", "step")):
        raise Uncovered
    start, end, step = ((0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1))[:3]
    if all(type(bound) in (int, float) for bound in bounds):
        return _range_of_numbers(start, end, step, dtype)
    if not is_number(start, end) or type(step) is not int or step == 0:
        raise Uncovered
    sign = 1 if step > 0 else -1
    distance = (end - start) * sign
    sizes.require(at_least_zero(distance), "start and end of arange")
    length = (distance + (abs(step) - 1)) // abs(step)
    return Spec((length,), torch.int64 if dtype is None else dtype)


def _range_of_numbers(start: float, end: float, step: float, dtype: torch.dtype | None) -> Spec:
    """Its length is computed in float64, unless all are integers; torch's own on a meta tensor imports its compiler."""
    whole = all(type(bound) is int for bound in (start, end, step))
    distance = (end - start) * (1 if step > 0 else -1)
    rounded = not whole and dtype is not None and not dtype.is_floating_point  # torch rounds the bounds first
    if step == 0 or rounded or not 0 <= distance < math.inf:
        raise Uncovered
    length = -((start - end) // step) if whole else math.ceil((end - start) / step)
    if dtype is None:
        dtype = torch.int64 if whole else torch.get_default_dtype()
    return Spec((int(length),), dtype)


@rule(torch.eye)
def _eye(sizes: Sizes, n: Any, m: Any = None, *, dtype: torch.dtype | None = None, **options: Any) -> Result:
    shape = numbers([n, n if m is None else m])
    return Spec(_checked(sizes, shape), torch.get_default_dtype() if dtype is None else dtype)


@rule(torch.linspace)
def _linspace(
    sizes: Sizes, start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any
) -> Result:
    if _kind(start).is_complex or _kind(end).is_complex:
        raise Uncovered
    return Spec(_checked(sizes, numbers([steps])), torch.get_default_dtype() if dtype is None else dtype)


@rule(torch.hann_window, torch.hamming_window, torch.blackman_window, torch.bartlett_window)
def _window(sizes: Sizes, window_length: Any, *shape: Any, dtype: torch.dtype | None = None, **options: Any) -> Result:
    found = torch.get_default_dtype() if dtype is None else dtype
    if not found.is_floating_point:
        raise Uncovered
    return Spec(_checked(sizes, numbers([window_length])), found)


@rule(torch.triu, torch.tril, "triu", "tril")
def _triangle(sizes: Sizes, input: Spec, diagonal: Any = 0) -> Result:
    shape = shape_of(input)
    if len(shape) < 2 or not is_number(diagonal):
        raise Uncovered
    return Spec(shape, input.dtype)


def _indices(function: Any) -> Rule:
    def indices(
        sizes: Sizes, row: Any, col: Any, offset: Any = 0, *, dtype: torch.dtype = torch.int64, **options: Any
    ) -> Result:
        if all(type(number) is int for number in (row, col, offset)):
            return Spec(tuple(run(function, row, col, offset, device="meta").shape), dtype)
        if not isinstance(row, Size) or row is not col or type(offset) is not int:
            raise Uncovered
        beyond = offset if function is torch.triu_indices else -offset
        if beyond not in (0, 1):  # the other counts are limited by the size
            raise Uncovered
        sizes.require(at_most(0, row), "the size of a triangle")
        return Spec((2, row * (row + 1 - 2 * beyond) // 2), dtype)

    return indices


for _triangle_indices in (torch.triu_indices, torch.tril_indices):
    rule(_triangle_indices)(_indices(_triangle_indices))
