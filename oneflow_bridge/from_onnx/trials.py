"""Trial runs of calls on stand-ins for run time tensors.

They tell the types and the number of a call's results, and find functions that OneFlow lacks at import. Where all sizes
are known they tell the shapes too. Of other sizes they say nothing: `shape_rules` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from oneflow_bridge.from_onnx.dim import Dim
from oneflow_bridge.namespace import MissingNameError, dtypes
from oneflow_bridge.namespace.dtypes import DType, numpy_dtype
from oneflow_bridge.namespace.indexing import IndexRangeError
from oneflow_bridge.namespace.tensor import Size, Tensor, constant, from_array
from onnx2nn.optable.row import NeedsValues
from onnx2nn.sizes.expression import Number, Symbol
from onnx2nn.sizes.facts import Facts
from onnx2nn.sizes.substitution import evaluated

Point = Mapping[Symbol, int]

_TRIED = (5, 64, 224, 2, 32, 1)
"""What dynamic sizes are in a trial, one number after the other until the call succeeds."""

_BATCHES = (2, 1)
"""What the first dimension of an input is, on which few calls depend; the second for calls that fit no other size."""

_MOST = 1 << 26
"""Elements of the largest stand-in with dynamic sizes."""

_RANDOM = 1 << 12
"""Elements of the largest stand-in with random values; larger ones hold one value."""


def leaves(value: Any) -> Iterator[Any]:
    """Yields the items of nested sequences, dicts and slices."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        yield from leaves(tuple(value.values()))
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def replaced(value: Any, new: Callable[[Any], Any]) -> Any:
    """Returns nested sequences, dicts and slices with `new(item)` in place of each item."""
    if isinstance(value, (list, tuple)) and not isinstance(value, Size):
        return type(value)(replaced(item, new) for item in value)
    if isinstance(value, Size):
        return tuple(map(new, value))
    if isinstance(value, dict):
        return {name: replaced(item, new) for name, item in value.items()}
    if isinstance(value, slice):
        return slice(new(value.start), new(value.stop), new(value.step))
    return new(value)


def is_lacking(error: Exception) -> bool:
    """Returns whether an error says that OneFlow lacks something, whatever the sizes are."""
    return isinstance(error, MissingNameError) or "OneFlow 0.9 has no" in str(error)


class Trials:
    """Runs calls at sizes that are made up.

    Attributes:
        batches: the symbols of first dimensions of inputs.
    """

    def __init__(self) -> None:
        self.batches: set[Symbol] = set()
        self._order = list(_TRIED)

    def run(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        symbols: Collection[Symbol],
        facts: Facts,
        shapes: Any = None,
    ) -> tuple[Any, Point]:
        """Returns the result of a call on stand-ins, and the sizes at which it ran.

        Args:
            function: the function.
            args: its arguments: those with a `spec` stand for tensors, and `Dim`s for numbers.
            kwargs: its named arguments.
            symbols: the symbols in them, `symbols_in`.
            facts: what is known of the symbols, also what the node demands of them: other sizes are not tried.
            shapes: the shapes of its results, where a rule says them: too large ones are not computed.

        Raises:
            NeedsValues: it fails at all sizes that are tried, or it depends on values.
            Exception: the call has no dynamic sizes and fails, or OneFlow lacks what it needs.
        """
        if not symbols:
            return _run(function, args, kwargs, {}), {}
        failure: Exception | None = None
        for batch, size in itertools.product(_BATCHES, list(self._order)):
            point = _point({symbol: batch if symbol in self.batches else size for symbol in symbols}, facts)
            if point is None:
                continue
            try:
                _check_sizes(shapes, point)
                result = _run(function, args, kwargs, point)
            except Exception as error:  # OneFlow has no common class of errors
                if is_lacking(error):
                    raise
                failure = error
                continue
            self._order.sort(key=lambda tried: tried != size)  # later calls are likely to need it too
            return result, point
        raise NeedsValues(f"the call fits no size that is tried: {failure}")


def _point(sizes: dict[Symbol, int], facts: Facts) -> Point | None:
    """Returns the sizes nearest to some at which all facts hold, None where such are not found."""
    for symbol in sizes:
        least, most = facts.intervals.get(symbol, symbol.interval)
        sizes[symbol] = min(max(sizes[symbol], least or 0), sizes[symbol] if most is None else most)
    for symbol in sizes.keys() & facts.values.keys():
        number = facts.values[symbol]
        if isinstance(number, int) or number.symbols <= sizes.keys():
            sizes[symbol] = evaluated(number, sizes)
    conditions = (condition for condition in facts.assumed if condition.symbols <= sizes.keys())
    return sizes if all(evaluated(condition, sizes) for condition in conditions) else None


def is_symbolic(value: Any) -> bool:
    """Returns whether a value is a run time tensor or a symbolic number."""
    return isinstance(value, Dim) or hasattr(value, "spec")


def symbols_in(value: Any) -> set[Symbol]:
    """Returns the symbols in the shapes of tensors and in the numbers among nested arguments."""
    return {symbol for item in leaves(value) if is_symbolic(item) for symbol in _symbols_of(item)}


def _check_sizes(shapes: Any, point: Point) -> None:
    """Checks the shapes that a rule says, as far as they are known.

    Raises:
        ValueError: a size is negative, or a tensor is too large.
    """
    for shape in shapes if isinstance(shapes, list) else [shapes]:
        known = [size for size in shape or () if isinstance(size, int) or size.symbols <= point.keys()]
        sizes = [evaluated(size, point) for size in known]
        if any(size < 0 for size in sizes) or np.prod(sizes, dtype=float) > _MOST:
            raise ValueError(f"a result with the sizes {sizes}")


def _symbols_of(value: Any) -> Iterator[Symbol]:
    if isinstance(value, Dim):
        yield from value.expr.symbols
        return
    for size in value.spec.shape:
        yield from getattr(size, "symbols", ())


def _run(function: Callable[..., Any], args: Any, kwargs: Any, point: Point) -> Any:
    for fill in (1, 0):
        try:
            given = replaced((args, kwargs), lambda value: _stand_in(value, point, fill))  # noqa: B023  # called at once
            return function(*given[0], **given[1])
        except IndexRangeError:  # of an axis of one element, 0 is the only index
            if not fill:
                raise
    raise AssertionError("one of both returns or raises")


def _stand_in(value: Any, point: Point, fill: int) -> Any:
    if isinstance(value, Dim):
        return evaluated(value.expr, point)
    if not hasattr(value, "spec"):
        return value
    return stand_in(value.spec.shape, value.spec.dtype, point, fill)


def stand_in(shape: tuple[Number, ...], dtype: DType, point: Point, fill: int = 1) -> Tensor:
    """Returns a tensor with the sizes of a point: random floats, or ones.

    Raises:
        ValueError: a size is negative, or the tensor is too large.
    """
    sizes = tuple(evaluated(size, point) for size in shape)
    count = int(np.prod(sizes, dtype=float))
    if any(size < 0 for size in sizes) or (point and count > _MOST):
        raise ValueError(f"a tensor of shape {sizes}")
    if dtype.is_floating_point and count <= _RANDOM:
        array = np.random.default_rng(0).random(sizes, dtype=np.float32).astype(numpy_dtype(dtype))
        return from_array(array, dtype)
    if dtype.is_floating_point or dtype is dtypes.bool_:
        fill = 1
    return constant(sizes, fill, dtype)
