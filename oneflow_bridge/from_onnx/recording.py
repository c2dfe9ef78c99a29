"""Records the calls that a row's body makes while it runs on sample values.

Inside a body a tensor is a `Traced`, which has the shape, dtype and values of a sample. Every call of the namespace on
it is recorded as a `Call`. Constants are plain namespace tensors: a call on constants only is evaluated and not
recorded. The importer runs a body on samples of several sizes and uses the recorded calls only where they are equal for
all samples, so that no sample's size becomes a constant of the module.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow_bridge import namespace
from oneflow_bridge.from_onnx.layers import Layer, layer_for
from oneflow_bridge.namespace import Names, dtypes
from oneflow_bridge.namespace.methods import BINARY, COMPARISONS
from oneflow_bridge.namespace.tensor import Deferred, Size, Tensor
from onnx2nn.optable.row import NeedsValues

_PLAIN = frozenset({"promote_types", "result_type", "is_tensor", "broadcast_shapes", "is_floating_point", "is_complex"})
_PLAIN |= {"finfo", "iinfo", "can_cast", "get_default_dtype", "numel", "no_grad"}
"""Functions of the namespace that do not return a tensor."""

_DATA_DEPENDENT = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"})
_DATA_DEPENDENT |= {"repeat_interleave", "equal", "allclose"}
"""Functions with a data-dependent result shape or value, which a sample cannot tell."""

_MAX_FOLDED = 1 << 16
"""Largest number of elements of a tensor that is created at import; larger tensors are created at run time."""


@dataclass(frozen=True)
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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Call):
            return NotImplemented
        return _same(self._facts(), other._facts())

    def _facts(self) -> tuple[Any, ...]:
        """Returns the attributes that equal calls share; the arguments of a layer's call are left out."""
        if self.layer is not None:
            return (self.layer.kind, self.layer.config, self.layer.state, self.layer.inputs, self.results)
        return (self.kind, self.target, self.args, self.kwargs, self.results)

    __hash__ = None  # type: ignore[assignment]


def _same(a: Any, b: Any) -> bool:
    """Returns whether two arguments are equal, the values of tensors included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Traced):
        return a.name == b.name
    if isinstance(a, Tensor):
        return a.dtype is b.dtype and a.shape == b.shape and bool(np.array_equal(a.numpy(), b.numpy(), equal_nan=False))
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, slice):
        return _same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    return bool(a == b) or a is b


class Traced(Deferred):
    """A run time tensor, with the methods, operators and attributes of the namespace's `Tensor`.

    Attributes:
        recorder: records the calls on it.
        name: its variable in the program.
        sample: its value for the sample inputs.
    """

    __slots__ = ("name", "recorder", "sample")
    __array_priority__ = 1000
    __array__ = __array_interface__ = __array_struct__ = None  # numpy must not convert it to an array
    __hash__ = object.__hash__

    def __init__(self, recorder: Recorder, name: str, sample: Tensor):
        self.recorder, self.name, self.sample = recorder, name, sample

    shape = property(lambda self: self.sample.shape)
    ndim = property(lambda self: self.sample.ndim)
    dtype = property(lambda self: self.sample.dtype)
    device = property(lambda self: self.sample.device)

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
        return self.sample.size(dim)

    def dim(self) -> int:
        """The rank."""
        return self.sample.ndim

    def numel(self) -> int:
        """How many elements."""
        return self.sample.numel()

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.sample.element_size()

    def is_floating_point(self) -> bool:
        """Whether the type is a float type."""
        return self.sample.is_floating_point()

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
        return len(self.sample)

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
    """Returns whether `value` is, or holds, a run time tensor."""
    if isinstance(value, (list, tuple)):
        return any(map(is_traced, value))
    if isinstance(value, dict):
        return any(map(is_traced, value.values()))
    if isinstance(value, slice):
        return is_traced((value.start, value.stop, value.step))
    return isinstance(value, Traced)


def sampled(value: Any) -> Any:
    """Returns `value` with the sample in place of every traced tensor."""
    if isinstance(value, Traced):
        return value.sample
    if isinstance(value, (list, tuple)) and not isinstance(value, Size):
        return type(value)(map(sampled, value))
    if isinstance(value, dict):
        return {name: sampled(item) for name, item in value.items()}
    if isinstance(value, slice):
        return slice(sampled(value.start), sampled(value.stop), sampled(value.step))
    return value


class Recorder:
    """Records the calls of one body on one set of samples.

    Args:
        prefix: prefix of the names of results; a number follows.
        layers: whether calls with constant weights become layers.
    """

    def __init__(self, prefix: str, layers: bool = True):
        self.prefix, self.layers = prefix, layers
        self.calls: list[Call] = []
        self.count = 0
        self.F = RecordingNames(self, "", namespace)

    def call(self, kind: str, target: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Records a call and returns its result."""
        layer = layer_for(target.rsplit(".", 1)[-1], args, kwargs) if self.layers and kind != "method" else None
        result = function(*sampled(args), **sampled(kwargs))
        wrapped = self._wrap(result)
        self.calls.append(Call(kind, target, tuple(args), kwargs, _names(wrapped), layer))
        return wrapped

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

    def _wrap(self, result: Any) -> Any:
        if isinstance(result, (list, tuple)):
            return tuple(map(self._wrap, result))
        if result is None:
            return None
        if not isinstance(result, Tensor):
            raise NeedsValues(f"a call returns a {type(result).__name__}, not a tensor")
        self.count += 1
        return Traced(self, f"{self.prefix}_{self.count}", result)


Traced.tracer = property(lambda self: self.recorder)  # type: ignore[attr-defined]


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
    return lambda *args, **kwargs: function(*sampled(args), **sampled(kwargs))


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    if isinstance(value, dict):
        return any(map(_has_tensor, value.values()))
    return isinstance(value, Tensor)
