"""What a shape rule is, the registry of rules, and what rules share.

A rule has the parameters of its function. Tensors arrive as they are, run time ones as `Traced`; it returns the shape
of the result where the call succeeds, or a list of shapes where the function has several results. A dimension of which
it knows nothing is an `unknown_size`. It raises `Uncovered` for calls that it does not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oneflow_bridge.from_onnx.dim import Dim, expression_of, unknown_size
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.sizes import selection
from onnx2nn.sizes.expression import Number, Size, bounds

Shape = tuple[Number, ...]
Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""The rules, by the last part of a function's or method's name, or by its full name where that alone decides."""

COUNTS_RESULTS = frozenset({"split", "split_with_sizes", "chunk", "tensor_split", "unbind", "squeeze"})
"""Functions of which sizes may decide the number of results or their rank; each other one has a fixed rank."""


class Uncovered(Exception):
    """A rule does not cover a call."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for functions of these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def shape_of(value: Any) -> Shape:
    """Returns the shape of a tensor, or of a number."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    spec = getattr(value, "spec", None)
    if spec is not None:
        return tuple(spec.shape)
    if isinstance(value, (int, float, Dim)):
        return ()
    raise Uncovered


def number_of(value: Any) -> Number:
    """Returns an int or `Dim` as a size expression."""
    expr = expression_of(value)
    if isinstance(expr, bool) or not isinstance(expr, (int, Size)):
        raise Uncovered
    return expr


def size_of(value: Any) -> Number:
    """Returns a number that cannot be negative, and so stands for itself."""
    expr = number_of(value)
    least = bounds(expr)[0]
    return expr if least is not None and least >= 0 else unknown_size()


def variadic(args: Sequence[Any]) -> list[Any]:
    """Returns the numbers of `f(1, 2)` or `f([1, 2])`."""
    return list(args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args)


def axis_of(dim: Any, rank: int) -> int:
    """Returns an axis, counted from the front."""
    if isinstance(dim, bool) or not isinstance(dim, int) or not -max(rank, 1) <= dim < max(rank, 1):
        raise Uncovered
    return dim % max(rank, 1)


def axes_of(dims: Any, rank: int) -> list[int]:
    """Returns axes, counted from the front."""
    return [axis_of(dim, rank) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]


def put(shape: Shape, axis: int, *sizes: Number) -> Shape:
    """Returns the shape with one dimension replaced by some, or by none."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def per_axis(value: Any, count: int) -> list[int]:
    """Returns a setting of windows as one known int for each axis."""
    items = list(value) if isinstance(value, (list, tuple)) else [value] * count
    items = items * count if len(items) == 1 else items
    if len(items) != count or not all(isinstance(item, int) for item in items):
        raise Uncovered
    return items


def known_one(*numbers: Number) -> Number:
    """Returns one of numbers that must be equal, a known one if there is one."""
    return next((number for number in numbers if isinstance(number, int)), numbers[0])


def broadcast(*shapes: Sequence[Number]) -> Shape:
    """Returns the common shape of tensors that are broadcast together."""
    rank = max(map(len, shapes))
    padded: list[list[Number]] = [[*[1] * (rank - len(shape)), *shape] for shape in shapes]
    return tuple(selection.broadcast(*sizes) for sizes in zip(*padded, strict=True))
