"""What shape rules share: axes, broadcasting, dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.rule import Result, Rule, Sizes, rule
from onnx2nn.fx.spec import Shape, Spec
from onnx2nn.sizes import selection
from onnx2nn.sizes.conditions import Condition, disjunction, equal, less, unequal
from onnx2nn.sizes.expression import Number, Size


class Uncovered(Exception):
    """A rule does not cover a call; it is raised inside of rules only."""


def partial_rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers a rule that raises `Uncovered` for calls that it does not cover."""

    def register(function: Rule) -> Rule:
        @wraps(function)
        def covering(*args: Any, **kwargs: Any) -> Result:
            try:
                return function(*args, **kwargs)
            except Uncovered:
                return None

        return rule(*targets)(covering)

    return register


def is_number(value: Any) -> bool:
    """Returns whether `value` is an int, known or symbolic; a bool is none."""
    return type(value) is int or isinstance(value, Size)


def numbers(value: Any) -> list[Number]:
    """Returns a sequence of ints, or one int, as a list."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(map(is_number, items)):
        raise Uncovered
    return items


def variadic(args: tuple[Any, ...]) -> list[Number]:
    """Returns the ints of `f(1, 2)` or `f([1, 2])`."""
    if not args:  # torch refuses `f()`
        raise Uncovered
    return numbers(args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else list(args))


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


def put(shape: Sequence[Number], axis: int, *sizes: Number) -> Shape:
    """Returns the shape with one dimension replaced by some, or by none."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def shape_of(value: Any) -> Shape:
    """Returns the shape of a tensor."""
    if not isinstance(value, Spec) or value.shape is None:
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


def chosen(sizes: Sizes, condition: Any, a: Number, b: Number) -> Number:
    """Returns `a` where the condition holds, else `b`; one of them where that is proven."""
    truth = sizes.decide(condition)
    return selection.choose(condition if truth is None else truth, a, b)


def broadcast(sizes: Sizes, shapes: Iterable[Shape], what: str = "operands that are broadcast") -> Shape:
    """Returns the common shape of tensors that are broadcast together; requires that they fit.

    Args:
        sizes: what is known of sizes.
        shapes: the shapes.
        what: the tensors, for messages.
    """
    result: list[Number] = []
    for shape in shapes:
        lead = len(shape) - len(result)
        result = [*shape[: max(lead, 0)], *result]
        for axis in range(len(shape)):
            at = len(result) - len(shape) + axis
            if lead <= axis:
                result[at] = _common(sizes, result[at], shape[axis], what)
    return tuple(result)


def _common(sizes: Sizes, a: Number, b: Number, what: str) -> Number:
    fits = equal(a, b)
    if sizes.decide(fits) is True:
        return b if isinstance(b, int) else a
    for one, other in ((a, b), (b, a)):
        if sizes.decide(equal(one, 1)) is True:
            return other
    sizes.require(disjunction([fits, equal(a, 1), equal(b, 1)]), f"the sizes of {what}")
    for one in (a, b):
        if sizes.decide(unequal(one, 1)) is True:
            return one
    return selection.broadcast(a, b)


_dtypes: dict[Any, Any] = {}

_RANDOM = frozenset({torch.rand_like, torch.randn_like, torch.bernoulli, torch.dropout, F.dropout, F.alpha_dropout})
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
        key = (
            function,
            torch.get_default_dtype(),
            *map(_key, args),
            *((name, _key(value)) for name, value in kwargs.items()),
        )
        if key not in _dtypes:
            _dtypes[key] = _run(function, args, kwargs)
    except TypeError:  # an argument that has no hash
        raise Uncovered from None
    found = _dtypes[key]
    if found is None:
        raise Uncovered
    return found


def _key(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.dtype, bool(value.shape)
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return type(value), None if isinstance(value, (Size, Condition)) else value


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

_LOGICAL = frozenset(
    {"and", "or", "xor", "eq", "ne", "invert", "logical_and", "logical_or", "logical_not", "logical_xor"}
)
"""Names of functions of which the CPU and meta tensors take the same booleans."""


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the dtypes of a call's result, None where torch refuses the call.

    On meta tensors some functions import torch's compiler, which takes seconds, so that the CPU is asked first. Two
    elements cannot be taken for a number; where a tensor without dimensions could be, meta tensors are asked alone.
    Operators take tensors for what they are. Of booleans the CPU takes more calls. Random numbers would change the
    state of the CPU's generator.
    """
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    specs = [value for value in (*args, *kwargs.values()) if isinstance(value, Spec)]
    plain = name.strip("_") in _OPERATORS and len(args) == 2 and not kwargs
    logical = name.strip("_") in _LOGICAL
    function = getattr(torch.Tensor, function) if isinstance(function, str) else function
    alone = not plain and any(not spec.shape for spec in specs)
    alone = alone or (not logical and any(spec.dtype is torch.bool for spec in specs))
    for elements, device in ((1, "meta"),) if alone or function in _RANDOM else ((2, "cpu"), (1, "meta")):
        try:
            stand_ins = [_stand_in(value, elements, device) for value in args]
            named = {name: _stand_in(value, elements, device) for name, value in kwargs.items()}
            return _dtype_of(run(function, *stand_ins, **named))
        except Uncovered:
            pass
    return None


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
