"""Shape inference: shapes and dtypes of results, by running calls on meta tensors at every sample point."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import torch

from onnx2nn.errors import first_line
from onnx2nn.fx.dim import Dim
from onnx2nn.fx.factories import MAKING
from onnx2nn.fx.shape_rules import RULES
from onnx2nn.fx.spec import Known, Spec
from onnx2nn.fx.tensor import Opaque, Reference, Tensor, leaves
from onnx2nn.fx.trace_errors import ShapeMismatch, TraceError


class Inference:
    """Infers the specs of calls' results; calls with the same signature run once.

    Args:
        points: the number of sample points.
        known: known specs by call; new ones are added.
    """

    def __init__(self, points: int, known: dict[Any, Any]):
        self._points, self._known = points, known

    def infer(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Known:
        """Returns the spec of the call's result, or a tuple of them."""
        try:
            key: Any = (target, *map(_key, args), _key(kwargs) if kwargs else None)
            known = self._known.get(key)
        except TypeError:
            key = known = None
        if known is None:
            rule = RULES.get(target)
            specs = rule(args, kwargs) if rule is not None else None
            if specs is None:
                known = Known(self.run(target, args, kwargs))
            else:
                known = Known(tuple(Spec(*spec) for spec in specs) if isinstance(specs, list) else Spec(*specs))
            if key is not None:
                self._known[key] = known
        return known

    def run(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the spec of the call's result, or a nested tuple of them, by running it."""
        function = getattr(torch.Tensor, target) if isinstance(target, str) else target
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        if function in MAKING:
            kwargs["device"] = "meta"
        results = []
        for point in range(self._points):
            try:
                with torch.no_grad():
                    results.append(function(*_at(args, point), **_at(kwargs, point)))
            except TraceError:
                raise
            except NotImplementedError as error:
                raise TraceError(f"{_title(target)}: {error}") from None
            except Exception as error:  # torch refuses shapes by errors of many classes
                reason = f"{_title(target)}: {first_line(error)}"
                raise ShapeMismatch(reason, list(leaves((args, kwargs))), point) from None
        return _merge(results)


def _key(value: Any) -> Any:
    kind = type(value)
    if kind is Tensor:
        return value.spec
    if kind is Dim:
        return ("dim", value.values)
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


def _at(value: Any, point: int) -> Any:
    """Returns `value` at one sample point, as meta tensors and plain numbers."""
    if isinstance(value, Tensor):
        if value.spec.shapes is None or value.spec.dtype is None:
            raise TraceError("the shape of a tensor is unknown")
        return torch.empty(value.spec.shapes[point], dtype=value.spec.dtype, device="meta")
    if isinstance(value, Dim):
        return value.values[point]
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, slice):
        return slice(_at(value.start, point), _at(value.stop, point), _at(value.step, point))
    if isinstance(value, (list, tuple)):
        return type(value)(_at(item, point) for item in value)
    if isinstance(value, dict):
        return {name: _at(item, point) for name, item in value.items() if not isinstance(item, Reference)}
    return value


def _merge(results: Sequence[Any]) -> Any:
    first = results[0]
    if isinstance(first, torch.Tensor):
        if len({result.ndim for result in results}) > 1:
            return Spec(None, first.dtype)
        return Spec(tuple(tuple(result.shape) for result in results), first.dtype)
    if isinstance(first, (list, tuple)):
        if len({len(result) for result in results}) > 1:
            raise TraceError("the number of results depends on a dynamic dimension")
        return tuple(_merge(items) for items in zip(*results, strict=True))
    if first is None:
        return None
    raise TraceError(f"a call gives a {builtins.type(first).__name__}, not a tensor")


def _title(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
