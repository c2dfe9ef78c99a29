"""Shapes and dtypes of results: by `shape_rules`, else by running calls on meta tensors at sample sizes."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from onnx2nn.errors import LimitError, first_line
from onnx2nn.fx.shape_rules import RULES
from onnx2nn.fx.trace_errors import ShapeMismatch, TraceError
from onnx2nn.fx.tracing.factories import MAKING
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.ratio import Ratio
from onnx2nn.fx.values.spec import Known, Spec
from onnx2nn.fx.values.tensor import Opaque, Reference, Tensor, leaves
from onnx2nn.sizes.expression import Number
from onnx2nn.sizes.points import Point
from onnx2nn.sizes.substitution import evaluated

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer


_SOME_FLOAT = 1.5
"""Stands for a float computed from sizes, whose value no shape depends on, but for these functions."""

_COUNTED_BY_FLOATS = frozenset({torch.arange, torch.linspace})


class Inference:
    """Infers the specs of calls' results in one recorded program; calls with the same signature are inferred once.

    Args:
        tracer: records the program.
    """

    def __init__(self, tracer: Tracer):
        self._tracer = tracer
        self._known: dict[Any, Known] = {}

    def infer(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Known:
        """Returns the spec of the call's result, or a tuple of them.

        Raises:
            ShapeMismatch: the shapes fit for no sizes.
        """
        try:
            key: Any = (target, *map(_key, args), _key(kwargs) if kwargs else None)
            known = self._known.get(key)
        except TypeError:
            key = known = None
        if known is None:
            if target in _COUNTED_BY_FLOATS and any(isinstance(leaf, Ratio) for leaf in leaves((args, kwargs))):
                raise TraceError("a length that floats computed from sizes decide")
            rule = RULES.of(target)
            specs = None
            if rule is not None:
                named = {name: self._form(value) for name, value in kwargs.items() if name != "device"}
                specs = rule(self._tracer.guards, *map(self._form, args), **named)
            known = Known(self.run(target, args, kwargs) if specs is None else specs)
            self._check_ranks(known.specs)
            if key is not None:
                self._known[key] = known
        return known

    def _check_ranks(self, specs: Any) -> None:
        """Refuses results of too many dimensions: what is done with one takes time for each.

        Raises:
            LimitError: they have.
        """
        most = self._tracer.limits.rank
        if isinstance(specs, Spec):
            if specs.shape is not None and len(specs.shape) > most:
                raise LimitError("rank", len(specs.shape), most, "The number of dimensions of a result is")
        elif isinstance(specs, tuple):
            for spec in specs:
                self._check_ranks(spec)

    def _form(self, value: Any) -> Any:
        """Returns an argument as rules take it: a tensor as its spec, a symbolic number as an expression."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is Tensor:
            spec = value.spec
            if spec.shape is None or spec.dtype is None:
                raise TraceError("the shape of a tensor is unknown")
            self._tracer.symbols.confirm(spec.shape)
            return Spec(tuple(map(self._tracer.guards.facts.settled, spec.shape)), spec.dtype)
        if kind is Dim:
            return self._tracer.expr_of(value)
        if isinstance(value, torch.Tensor):
            return Spec(tuple(value.shape), value.dtype)
        if kind is slice:
            return slice(*map(self._form, (value.start, value.stop, value.step)))
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._form, value)) if kind in (list, tuple) else tuple(map(self._form, value))
        if kind is dict:
            return {name: self._form(item) for name, item in value.items()}
        if isinstance(value, Opaque):
            raise TraceError("a value that is no tensor is used as one")
        return _SOME_FLOAT if kind is Ratio else value

    def run(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the spec of the call's result, or a nested tuple of them, by running it on meta tensors.

        A dimension of the result that depends on sizes is proposed by sample sizes: it equals a dimension of an
        argument, or it is read at run time.
        """
        arguments = self._form((args, {name: value for name, value in kwargs.items() if name != "device"}))
        symbols = frozenset(s for leaf in _numbers(arguments) for s in getattr(leaf, "symbols", ()))
        reason = ""
        for points in self._tracer.guards.points(symbols) if symbols else iter([[{}]]):
            try:
                results = [_result(target, arguments, point) for point in points]
            except (TraceError, NotImplementedError):
                raise
            except Exception as failure:  # torch refuses shapes by errors of many classes
                reason = reason or first_line(failure)
            else:
                return self._merged(results, points, list(dict.fromkeys(_numbers(arguments))))
        raise ShapeMismatch(f"{_title(target)}: {reason}") from None

    def _merged(self, results: Sequence[Any], points: Sequence[Point], sizes: Sequence[Any]) -> Any:
        first = results[0]
        if isinstance(first, torch.Tensor):
            if len({result.ndim for result in results}) > 1:
                return Spec(None, first.dtype)
            columns = zip(*(result.shape for result in results), strict=True)
            return Spec(tuple(self._size(column, points, sizes) for column in columns), first.dtype)
        if isinstance(first, (list, tuple)):
            if len({len(result) for result in results}) > 1:
                raise TraceError("the number of results depends on a dynamic dimension")
            return tuple(self._merged(items, points, sizes) for items in zip(*results, strict=True))
        if first is None:
            return None
        raise TraceError(f"a call gives a {builtins.type(first).__name__}, not a tensor")

    def _size(self, column: Sequence[int], points: Sequence[Point], sizes: Sequence[Any]) -> Number:
        """Returns a size for its values at sample sizes."""
        if len(points) == 1:
            return column[0]
        for size in (column[0], *sizes):  # what the samples propose is checked at run time
            if all(_value(size, point) == value for point, value in zip(points, column, strict=True)):
                return self._tracer.symbols.proposed(size)
        return self._tracer.symbols.fresh()


def _numbers(value: Any) -> Iterator[Any]:
    """Yields the sizes in arguments that depend on symbols."""
    if isinstance(value, Spec):
        yield from (size for size in value.shape or () if not isinstance(size, int))
    else:
        for leaf in leaves(value) if isinstance(value, (list, tuple, dict, slice)) else (value,):
            if isinstance(leaf, Spec):
                yield from _numbers(leaf)
            elif getattr(leaf, "symbols", None):
                yield leaf


def _value(size: Any, point: Point) -> int:
    return size if isinstance(size, int) else evaluated(size, point)


def _result(target: Any, arguments: Any, point: Point) -> Any:
    function = getattr(torch.Tensor, target) if isinstance(target, str) else target
    args, kwargs = _at(arguments, point)
    if function in MAKING:
        kwargs["device"] = "meta"
    with torch.no_grad():
        return function(*args, **kwargs)


_PLAIN = frozenset({int, bool, float, str, type(None), torch.dtype})
"""Types of arguments that are their own form."""


def _key(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is Tensor:
        return value.spec
    if kind is Dim:
        return value.expr
    if kind is Ratio:
        return ("ratio", _key(value.numerator), _key(value.denominator), value.factor)
    if kind is list or kind is tuple:
        return tuple([_key(item) for item in value])
    if kind is dict:
        return tuple([(name, _key(item)) for name, item in value.items()])
    if isinstance(value, torch.Tensor):
        return ("tensor", value.shape, value.dtype)
    if kind is slice:
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    if kind is Reference:
        return "reference"
    if kind is Opaque:
        raise TraceError("a value that is no tensor is used as one")
    hash(value)
    return (kind, value)


def _at(value: Any, point: Point) -> Any:
    """Returns arguments at a sample point, as meta tensors and plain numbers."""
    if isinstance(value, Spec):
        shape = [_value(size, point) for size in value.shape or ()]
        return torch.empty(shape, dtype=value.dtype, device="meta")
    if getattr(value, "symbols", None) is not None:
        return evaluated(value, point)
    if isinstance(value, slice):
        return slice(_at(value.start, point), _at(value.stop, point), _at(value.step, point))
    if isinstance(value, (list, tuple)):
        return type(value)(_at(item, point) for item in value)
    if isinstance(value, dict):
        return {name: _at(item, point) for name, item in value.items() if not isinstance(item, Reference)}
    return value


def _title(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
