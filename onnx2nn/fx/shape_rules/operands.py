"""What shape rules share: numbers, axes, shapes, broadcasting, dtypes.

All of it raises `Uncovered` for arguments that are not of the kind that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.rule import Sizes, Uncovered
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.sizes import selection
from onnx2nn.sizes.conditions import Condition, Truth, disjunction, equal, less, unequal
from onnx2nn.sizes.expression import Number, Size


def is_number(*values: Any) -> bool:
    """Returns whether all values are ints, known or symbolic; a bool is none."""
    for value in values:  # noqa: SIM110  # a generator costs more than all else that most rules do
        if type(value) is not int and not isinstance(value, Size):
            return False
    return True


def numbers(value: Any) -> list[Number]:
    """Returns a sequence of ints, or one int, as a list."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not is_number(*items):
        raise Uncovered
    return items


def variadic(args: tuple[Any, ...]) -> list[Number]:
    """Returns the ints of `f(1, 2)` or `f([1, 2])`."""
    if not args:  # torch refuses `f()`
        raise Uncovered
    return numbers(args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args)


def positive_int(value: Any) -> int:
    """Returns a known int from 1 on."""
    if type(value) is not int or value < 1:
        raise Uncovered
    return value


def per_axis(value: Any, count: int) -> list[Number]:
    """Returns a setting of windows as one number for each axis."""
    items = numbers(value)
    if len(items) == 1:
        return items * count
    if len(items) != count:
        raise Uncovered
    return items


def known_per_axis(value: Any, count: int, least: int = 0) -> list[int]:
    """Returns a setting of windows as one known int for each axis, of which none is below `least`."""
    known = []
    for item in per_axis(value, count):
        if not isinstance(item, int) or item < least:
            raise Uncovered
        known.append(item)
    return known


def axis_of(dim: Any, rank: int) -> int:
    """Returns an axis, counted from the front."""
    if type(dim) is not int or not -rank <= dim < rank:
        raise Uncovered
    return dim % rank


def axes_of(dims: Any, rank: int) -> list[int]:
    """Returns different axes, counted from the front."""
    axes = [axis_of(dim, rank) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
    if len(set(axes)) < len(axes):
        raise Uncovered
    return axes


def axes_or_all(dims: Any, rank: int) -> list[int]:
    """Returns different axes, counted from the front; all of them for None and for an empty list."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    return axes_of(dims, max(rank, 1))  # torch takes a scalar's axis 0


def put(shape: Sequence[Number], axis: int, *sizes: Number) -> Shape:
    """Returns the shape with one dimension replaced by some, or by none."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def reduced(shape: Shape, axes: Iterable[int], keepdim: Any) -> Shape:
    """Returns the shape without some axes, or with 1 in their place."""
    gone = set(axes)
    if keepdim:
        return tuple(1 if axis in gone else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def shape_of(value: Any, *ranks: int) -> Shape:
    """Returns the shape of a tensor, which has one of the ranks if some are given."""
    if not isinstance(value, Spec) or value.shape is None or (ranks and len(value.shape) not in ranks):
        raise Uncovered
    return value.shape


def smaller(sizes: Sizes, a: Number, b: Number) -> Number:
    """Returns the smaller number, one of them where that is proven."""
    truth = sizes.decide(less(b, a))
    return selection.minimum(a, b) if truth is None else b if truth else a


def larger(sizes: Sizes, a: Number, b: Number) -> Number:
    """Returns the larger number, one of them where that is proven."""
    truth = sizes.decide(less(a, b))
    return selection.maximum(a, b) if truth is None else b if truth else a


def chosen(sizes: Sizes, condition: Truth, a: Number, b: Number) -> Number:
    """Returns `a` where the condition holds, else `b`; one of them where that is proven."""
    truth = sizes.decide(condition)
    return selection.choose(condition if truth is None else truth, a, b)


def positive(sizes: Sizes, numbers: Iterable[Number], reason: str) -> None:
    """Requires that no number is below 1."""
    for number in numbers:
        sizes.require(less(0, number), reason)


def equal_shapes(sizes: Sizes, a: Sequence[Number], b: Sequence[Number], reason: str) -> Shape:
    """Requires two shapes to be equal; returns the one of which more is known. It covers shapes of one rank."""
    if len(a) != len(b):
        raise Uncovered
    if a == b:  # sizes are the same where they are one object
        return tuple(a)
    return tuple(sizes.equal(m, n, reason) for m, n in zip(a, b, strict=True))


def broadcast(
    sizes: Sizes, shapes: Iterable[Sequence[Number]], reason: str = "the sizes of operands that are broadcast"
) -> Shape:
    """Returns the common shape of tensors that are broadcast together; requires that they fit.

    Args:
        sizes: what is known of sizes.
        shapes: the shapes.
        reason: what the tensors are, for messages.
    """
    result: list[Number] = []
    for shape in shapes:
        lead = len(shape) - len(result)
        if lead > 0:
            result, start = [*shape[:lead], *result], lead
        else:
            start = 0
        for axis in range(start, len(shape)):
            at = axis - len(shape)
            if result[at] != shape[axis]:
                result[at] = _common(sizes, result[at], shape[axis], reason)
    return tuple(result)


def _common(sizes: Sizes, a: Number, b: Number, reason: str) -> Number:
    fits = equal(a, b)
    if sizes.decide(fits) is True:
        return b if isinstance(b, int) else a
    for one, other in ((a, b), (b, a)):
        if sizes.decide(equal(one, 1)) is True:
            return other
    sizes.require(disjunction([fits, equal(a, 1), equal(b, 1)]), reason)
    for one in (a, b):
        if sizes.decide(unequal(one, 1)) is True:
            return one
    return selection.broadcast(a, b)


def expand_into(sizes: Sizes, shape: Shape, wanted: Shape, reason: str) -> None:
    """Requires that a tensor expands to a shape of at least its rank."""
    if len(shape) > len(wanted):
        raise Uncovered
    for size, target in zip(reversed(shape), reversed(wanted), strict=False):
        if size is not target:
            sizes.require(disjunction([equal(size, target), equal(size, 1)]), reason)


def common_dtype(*specs: Spec | None) -> torch.dtype:
    """Returns the dtype that all given specs have."""
    found = None
    for spec in specs:
        if spec is None:
            continue
        dtype = spec.dtype if isinstance(spec, Spec) else None
        if dtype is None or (found is not None and dtype is not found):
            raise Uncovered
        found = dtype
    if found is None:
        raise Uncovered
    return found


def common_float(*specs: Spec | None) -> torch.dtype:
    """Returns the floating dtype that all given specs have."""
    dtype = common_dtype(*specs)
    if not dtype.is_floating_point:
        raise Uncovered
    return dtype


def is_integral(dtype: torch.dtype | None) -> bool:
    """Returns whether a dtype is of integers or bools."""
    return dtype is not None and not dtype.is_floating_point and not dtype.is_complex


def summed(dtype: torch.dtype | None, given: torch.dtype | None) -> torch.dtype | None:
    """Returns the dtype of sums and products: the one asked for, else int64 for integers and bools."""
    return dtype or (torch.int64 if is_integral(given) else given)


_dtypes: dict[Any, Any] = {}

RANDOM = frozenset({torch.rand_like, torch.randn_like, torch.bernoulli, torch.dropout, F.dropout, F.alpha_dropout})
"""Functions that draw random numbers."""


def dtypes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the dtype of a call's result, or a tuple of dtypes, by running it on tensors of one element.

    This is for functions whose dtypes depend on the dtypes of the operands and on which of them have a dimension only.
    They run on the CPU: on the meta device some of them, such as `torch.relu`, are Python programs that import torch's
    compiler, which takes seconds.

    Args:
        function: a function, or the name of a tensor method.
        args: the arguments, tensors as specs.
        kwargs: the named arguments.
    """
    try:
        key: Any = (function, torch.get_default_dtype(), *[_key(value) for value in args])
        if kwargs:
            key += tuple([(name, _key(value)) for name, value in kwargs.items()])
        found = _dtypes.get(key, _dtypes)
    except TypeError:  # an argument that has no hash
        raise Uncovered from None
    if found is _dtypes:
        found = _dtypes[key] = _run(function, args, kwargs)
    if found is None:
        raise Uncovered
    return found


def _key(value: Any) -> Any:
    kind = type(value)
    if kind is Spec:
        return value.dtype, not value.shape
    if kind is list or kind is tuple:
        return tuple([_key(item) for item in value])
    return kind, None if isinstance(value, (Size, Condition)) else value


_OPERATORS = frozenset(
    {
        "add",
        "sub",
        "mul",
        "div",
        "truediv",
        "floordiv",
        "mod",
        "remainder",
        "fmod",
        "pow",
        "and",
        "or",
        "xor",
        "eq",
        "ne",
    }
    | {"lt", "le", "gt", "ge", "maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_or"}
)
"""Names of functions of two operands, of which a tensor is never taken for a number."""

_BOUNDED = frozenset({"clamp", "clip"})
"""Names of functions with two bounds. A tensor is taken for a number only beside a number."""

_SHIFTS = frozenset({"lshift", "rshift"})
"""Names of functions of which the CPU takes booleans and meta tensors do not."""


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the dtypes of a call's result, None where torch refuses the call.

    On meta tensors some functions import torch's compiler, which takes seconds, so that the CPU is asked first. Two
    elements cannot be taken for a number; where a tensor without dimensions could be, meta tensors are asked alone.
    Operators take tensors for what they are, and every function does so with its first operand. Of booleans only the
    CPU is asked, but for shifts, of which it takes more calls. Random numbers would change the state of the CPU's
    generator.
    """
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    specs = [*filter(_is_spec, (*args, *kwargs.values()))]
    if name in _BOUNDED:
        plain = all(_is_spec(value) or value is None for value in (*args, *kwargs.values()))
    else:
        plain = name.strip("_") in _OPERATORS and len(args) == 2 and not any(map(_is_spec, kwargs.values()))
    first = len(specs) == 1 and bool(args) and args[0] is specs[0]
    boolean = any(spec.dtype is torch.bool for spec in specs)
    function = getattr(torch.Tensor, function) if isinstance(function, str) else function
    if boolean and name.strip("_") in _SHIFTS:
        return None
    cpu, meta = (2, "cpu"), (1, "meta")
    if function in RANDOM or (not plain and not first and any(not spec.shape for spec in specs)):
        asked = [meta]
    else:
        asked = [cpu] if boolean else [cpu, meta]
    for elements, device in asked:
        try:
            stand_ins = [_stand_in(value, elements, device) for value in args]
            named = {name: _stand_in(value, elements, device) for name, value in kwargs.items()}
            return _dtype_of(run(function, *stand_ins, **named))
        except Uncovered:
            pass
    return None


def _is_spec(value: Any) -> bool:
    return isinstance(value, Spec)


def run(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the result of a call, which is not covered where torch refuses it."""
    try:
        with torch.no_grad():
            return function(*args, **kwargs)
    except Exception:  # torch refuses calls by errors of many classes; the importer's own run raises it again
        raise Uncovered from None


def _dtype_of(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.dtype
    return tuple(map(_dtype_of, result)) if isinstance(result, (list, tuple)) else None


def _stand_in(value: Any, elements: int, device: str) -> Any:
    if isinstance(value, Spec):
        if value.dtype is None:
            raise Uncovered
        return torch.ones((elements,) if value.shape else (), dtype=value.dtype, device=device)
    if isinstance(value, (list, tuple)):
        return type(value)(_stand_in(item, elements, device) for item in value)
    if isinstance(value, Size):
        return 1
    return True if isinstance(value, Condition) else value


def with_dtypes(shape: Shape, found: Any) -> Any:
    """Returns the spec of a shape and a dtype, or specs of one shape and several dtypes."""
    return tuple(with_dtypes(shape, dtype) for dtype in found) if isinstance(found, tuple) else Spec(shape, found)
