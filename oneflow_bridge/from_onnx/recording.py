"""Records the calls that a row's body makes while it runs on run time tensors whose values are not known.

Inside a body a tensor is a `Traced`, which has a dtype and a shape of ints and symbolic numbers (`dim.Dim`). Every call
of the namespace on it is recorded as a `Call`. Constants are plain namespace tensors: a call on constants only is
evaluated and not recorded. A body that needs an undecided size, as a number or for a branch, raises `NeedsValues`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from oneflow_bridge import namespace
from oneflow_bridge.from_onnx.dim import Dim, Sizes, unknown_size
from oneflow_bridge.from_onnx.layers import Layer, layer_for
from oneflow_bridge.from_onnx.shape_rules import COUNTS_RESULTS, RULES, Uncovered
from oneflow_bridge.from_onnx.trials import Point, Trials, is_symbolic, leaves, replaced, stand_in, symbols_in
from oneflow_bridge.namespace import Names, dtypes
from oneflow_bridge.namespace.dtypes import DType, flow
from oneflow_bridge.namespace.methods import BINARY, COMPARISONS
from oneflow_bridge.namespace.tensor import Deferred, Size, Tensor
from onnx2nn.errors import OperatorError
from onnx2nn.optable.row import NeedsValues
from onnx2nn.sizes.expression import Number
from onnx2nn.sizes.substitution import evaluated

_PLAIN = frozenset({"promote_types", "result_type", "is_tensor", "broadcast_shapes", "is_floating_point", "is_complex"})
_PLAIN |= {"finfo", "iinfo", "can_cast", "get_default_dtype", "no_grad"}
"""Functions of the namespace that do not return a tensor."""

_DATA_DEPENDENT = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"})
_DATA_DEPENDENT |= {"repeat_interleave", "equal", "allclose"}
"""Functions with a data-dependent result shape or value."""

_MAX_FOLDED = 1 << 16
"""Largest number of elements of a tensor that is created at import; larger tensors are created at run time."""


@dataclass(frozen=True, eq=False)
class Call:
    """One recorded call.

    Attributes:
        kind: `"function"` of the namespace, `"method"`, or `"operator"`.
        target: its dotted name, or the operator's name in the module `operator`.
        args: positional arguments, `Traced` for run time values.
        kwargs: keyword arguments.
        results: the names of the results, one or a tuple of them.
        layer: the layer that replaces the call, if one does.
    """

    kind: str
    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    layer: Layer | None = None

    @property
    def inputs(self) -> Any:
        """The arguments of the call, or of the layer that replaces it."""
        return (self.args, self.kwargs) if self.layer is None else self.layer.inputs

    @property
    def has_sizes(self) -> bool:
        """Whether a symbolic number is among them."""
        return any(isinstance(value, Dim) for value in leaves(self.inputs))


@dataclass(frozen=True, eq=False)
class Spec:
    """What is known of a run time tensor.

    Attributes:
        shape: its dimensions: ints, or size expressions in the dimensions of inputs.
        dtype: its type.
        zeros: whether all its elements are 0.
    """

    shape: tuple[Number, ...]
    dtype: DType
    zeros: bool = False

    @property
    def is_static(self) -> bool:
        """Whether all dimensions are known."""
        return all(isinstance(size, int) for size in self.shape)


class Traced(Deferred):
    """A run time tensor, with the methods, operators and attributes of the namespace's `Tensor`.

    Attributes:
        recorder: records the calls on it.
        name: its variable in the program.
        spec: its shape and dtype.
    """

    __slots__ = ("name", "recorder", "spec")
    __array_priority__ = 1000
    __array__ = __array_interface__ = __array_struct__ = None  # numpy must not convert it to an array
    __hash__ = object.__hash__

    def __init__(self, recorder: Recorder, name: str, spec: Spec):
        self.recorder, self.name, self.spec = recorder, name, spec

    @property
    def shape(self) -> Size:
        """The dims: ints where they are known, else symbolic numbers."""
        return Size(map(self.recorder.sizes.number, self.spec.shape))

    ndim = property(lambda self: len(self.spec.shape))
    dtype = property(lambda self: self.spec.dtype)
    device = property(lambda self: flow.device("cpu"))

    @property
    def T(self) -> Traced:
        """The dims reversed."""
        result: Traced = self.permute(*range(self.ndim - 1, -1, -1))
        return result

    @property
    def mT(self) -> Traced:
        """The last two dims swapped."""
        result: Traced = self.transpose(-2, -1)
        return result

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one dim of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The rank."""
        return len(self.spec.shape)

    def numel(self) -> Any:
        """How many elements."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.spec.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the type is a float type."""
        return self.spec.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Never."""
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not callable(getattr(Tensor, name, None)):
            raise AttributeError(name)
        if name in _DATA_DEPENDENT or name in ("item", "tolist", "numpy"):
            raise NeedsValues(f"the body reads the values of a tensor (.{name}())")
        function = getattr(Tensor, name)
        return lambda *args, **kwargs: self.recorder.call("method", name, function, (self, *args), kwargs)

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        if any(isinstance(item, Traced) and item.dtype is dtypes.bool_ for item in items):
            raise NeedsValues("the body selects by a mask")
        return self.recorder.call("operator", "getitem", operator.getitem, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        raise NeedsValues("the body writes to a tensor")

    def __len__(self) -> int:
        return operator.index(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        raise NeedsValues("a branch depends on the values of a tensor")

    __index__ = __int__ = __float__ = __bool__


def _attach_operators() -> None:
    def binary(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        function = getattr(operator, f"{name}_" if name in ("and", "or") else name)

        def forward(self: Traced, other: Any) -> Any:
            return self.recorder.call("operator", name, function, (self, other), {})

        def reflected(self: Traced, other: Any) -> Any:
            return self.recorder.call("operator", name, function, (other, self), {})

        return forward, reflected

    def unary(name: str) -> Callable[..., Any]:
        function = getattr(operator, name)
        return lambda self: self.recorder.call("operator", name, function, (self,), {})

    for name in BINARY:
        forward, reflected = binary(name)
        setattr(Traced, f"__{name}__", forward)
        setattr(Traced, f"__r{name}__", reflected)
    for name in COMPARISONS:
        setattr(Traced, f"__{name}__", binary(name)[0])
    for name in ("neg", "invert", "abs"):
        setattr(Traced, f"__{name}__", unary(name))


_attach_operators()


def is_traced(value: Any) -> bool:
    """Returns whether `value` is, or holds, a run time tensor or a symbolic number."""
    return any(map(is_symbolic, leaves(value)))


class Recorder:
    """Records the calls of the body of one node.

    Args:
        prefix: prefix of the names of results; a number follows.
        sizes: what is known of sizes.
        trials: runs calls for the types of their results.
        fits: returns whether a layer may replace a call with constant weights.

    Attributes:
        calls: the calls.
    """

    def __init__(self, prefix: str, sizes: Sizes, trials: Trials, fits: Callable[[Layer], bool] = lambda layer: True):
        self.prefix, self.sizes, self.trials, self._fits = prefix, sizes, trials, fits
        self.calls: list[Call] = []
        self.count = 0
        self.F = RecordingNames(self, "", namespace)

    def call(self, kind: str, target: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Records a call and returns its result.

        Raises:
            NeedsValues: its result depends on values, or on undecided sizes in more than its shape.
            Exception: it fails whatever the values of its inputs are.
        """
        name = target.rsplit(".", 1)[-1]
        layer = layer_for(name, args, kwargs) if kind != "method" else None
        if layer is not None and (symbols_in(layer.config) or not self._fits(layer)):
            layer = None  # a constructor of OneFlow's that is given a symbol may end the process
        symbols = symbols_in((args, kwargs))
        shapes = self._shapes(target if target in RULES else name, args, kwargs) if symbols else None
        result, point = self.trials.run(function, args, kwargs, symbols, self.sizes.facts, shapes)
        if shapes is not None:
            _check_rule(target, result, shapes, point)
        wrapped = self._wrap(result, _unknown(result) if symbols and shapes is None else shapes)
        if name in ("zeros", "new_zeros", "zeros_like"):
            wrapped.spec = replace(wrapped.spec, zeros=True)
        self.calls.append(Call(kind, target, tuple(args), kwargs, _names(wrapped), layer))
        return wrapped

    def needed(self, result: Any) -> list[Call]:
        """Returns the calls on which the result of the body depends."""
        names, kept = set(_traced_names(result)), []
        for call in reversed(self.calls):
            if not names.isdisjoint(_result_names(call.results)):
                kept.append(call)
                names.update(_traced_names(call.inputs))
        return kept[::-1]

    def _shapes(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Returns the shapes of a call's results by its rule, nested as they are; None where no rule covers it."""
        try:
            found = RULES[name](*args, **kwargs) if name in RULES else None
        except (Uncovered, ZeroDivisionError):
            found = None
        if found is None and name in COUNTS_RESULTS:
            raise NeedsValues(f"the results of {name} depend on sizes")
        return found

    def call_opaque(self, function: Any, args: Any, kwargs: Any, specs: Any) -> Any:
        """Refuses a body that returns strings, so that the row becomes one call at run time; the op table calls it.

        Raises:
            NeedsValues: always.
        """
        raise NeedsValues("the body returns strings")

    @property
    def tracer(self) -> Recorder:
        """The recorder itself, under the name that `registry.at_run_time` uses."""
        return self

    def _wrap(self, result: Any, shapes: Any) -> Any:
        """Returns the result of a trial as traced tensors of some shapes, of its own where all sizes are known."""
        if isinstance(result, (list, tuple)):
            parts = [None] * len(result) if shapes is None else shapes
            return tuple(self._wrap(item, shape) for item, shape in zip(result, parts, strict=True))
        if result is None:
            return None
        if not isinstance(result, Tensor):
            raise NeedsValues(f"a call returns a {type(result).__name__}, not a tensor")
        return self.traced(Spec(tuple(result.shape if shapes is None else shapes), result.dtype))

    def traced(self, spec: Spec) -> Traced:
        """Returns the next result of the body."""
        self.count += 1
        return Traced(self, f"{self.prefix}_{self.count}", spec)


def _unknown(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return [_unknown(item) for item in result]
    return tuple(unknown_size() for _ in result.shape) if isinstance(result, Tensor) else None


def _check_rule(target: str, result: Any, shapes: Any, point: Point) -> None:
    """Compares the shapes of a rule with those of a trial.

    Raises:
        OperatorError: they differ: the rule is wrong.
    """
    if isinstance(result, (list, tuple)) and isinstance(shapes, list) and len(result) == len(shapes):
        for item, shape in zip(result, shapes, strict=True):
            _check_rule(target, item, shape, point)
    elif isinstance(result, Tensor):
        known = [size if _is_unknown(size, point) else evaluated(size, point) for size in shapes]
        if len(known) != result.ndim or any(a != b for a, b in zip(known, result.shape, strict=True) if type(a) is int):
            raise OperatorError(f"the shape rule of {target} says {known} where the result has {tuple(result.shape)}.")
    elif result is not None:
        raise OperatorError(f"the shape rule of {target} has other results than the call.")


def _is_unknown(size: Number, point: Point) -> bool:
    """Returns whether a size has symbols that stand for sizes of results."""
    return not isinstance(size, int) and not size.symbols <= point.keys()


Traced.tracer = property(lambda self: self.recorder)  # type: ignore[attr-defined]


def _traced_names(value: Any) -> list[str]:
    return [item.name for item in leaves(value) if isinstance(item, Traced)]


def _result_names(results: Any) -> list[str]:
    return list(leaves(results))


def _names(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(map(_names, result))
    return "_" if result is None else result.name


class RecordingNames:
    """The namespace, or a part of it, as row bodies see it while they are recorded."""

    def __init__(self, recorder: Recorder, path: str, names: Any):
        self._recorder, self._path, self._names = recorder, path, names

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._names, name)
        path = f"{self._path}.{name}" if self._path else name
        if isinstance(value, Names):
            value = RecordingNames(self._recorder, path, value)
        elif callable(value) and not isinstance(value, (type, dtypes.DType)):
            value = _plain(value) if name in _PLAIN else self._recording(path, value)
        self.__dict__[name] = value
        return value

    def _recording(self, path: str, function: Callable[..., Any]) -> Callable[..., Any]:
        recorder, name = self._recorder, path.rsplit(".", 1)[-1]

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_traced((args, kwargs)):
                if name in _DATA_DEPENDENT or (name == "where" and len(args) + len(kwargs) == 1):
                    raise NeedsValues(f"the result of {name} is data-dependent")
                return recorder.call("function", path, function, args, kwargs)
            result = function(*args, **kwargs)
            if isinstance(result, Tensor) and result.numel() > _MAX_FOLDED and not _has_tensor((args, kwargs)):
                return recorder.call("function", path, function, args, kwargs)
            return result

        return call


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that reads types and ranks only, on tensors that stand in for the run time ones."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, Dim) for value in leaves((args, kwargs))):
            raise NeedsValues("a function of sizes")
        given = replaced((args, kwargs), lambda value: _of_one_element(value) if isinstance(value, Traced) else value)
        return function(*given[0], **given[1])

    return call


def _of_one_element(value: Traced) -> Tensor:
    return stand_in((1,) * value.ndim, value.dtype, {})


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    if isinstance(value, dict):
        return any(map(_has_tensor, value.values()))
    return isinstance(value, Tensor)
