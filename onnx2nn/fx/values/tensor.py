"""Traced values: the tensors that row bodies compute with during an import, and other run-time values."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.ratio import Ratio
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.expression import Size

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer


class Tensor:
    """A tensor of the traced program, with the methods, operators and attributes of `torch.Tensor`."""

    __slots__ = ("_shape", "elements", "node", "spec", "tracer")
    __array_priority__ = 1000
    __array__ = __array_interface__ = __array_struct__ = None  # numpy must not take it for an array

    def __init__(self, tracer: Tracer, node: fx.Node, spec: Spec):
        self.tracer, self.node, self.spec = tracer, node, spec
        tracer.specs[node] = spec
        self._shape: tuple[Any, ...] | None = None
        self.elements: tuple[Any, ...] = ()  # of a vector of sizes: known ones, None for others

    @property
    def shape(self) -> tuple[Any, ...]:
        """The dimensions: an int where static, a `Dim` where dynamic."""
        if self._shape is None:
            if self.spec.shape is None:
                raise TraceError("the rank of a tensor is unknown")
            self._shape = tuple(map(self.dimension, range(len(self.spec.shape))))
        return self._shape

    def dimension(self, index: int) -> Any:
        """Returns one dimension as this tensor has it at run time: an int, or a `Dim` that reads it."""
        assert self.spec.shape is not None
        size = self.spec.shape[index]
        if isinstance(size, int):
            return size
        self.tracer.symbols.confirm((size,))
        size = self.tracer.guards.facts.settled(size)
        return size if isinstance(size, int) else self.reading(index, size)

    def reading(self, index: int, size: Size) -> Dim:
        """Returns the number that reads a dimension, of which `size` is known."""
        return Dim(self.tracer, size, lambda: self.tracer.record("call_method", "size", (self, index)))

    @property
    def ndim(self) -> int:
        """The rank."""
        if self.spec.shape is None:
            raise TraceError("the rank of a tensor is unknown")
        return len(self.spec.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        if self.spec.dtype is None:
            raise TraceError("the dtype of a tensor is unknown")
        return self.spec.dtype

    @property
    def device(self) -> Any:
        """The device at run time, for the `device=` of a factory function."""
        return Reference(self.tracer, self.tracer.record("call_function", getattr, (self, "device")))

    @property
    def T(self) -> Tensor:
        """The transposed matrix."""
        return self.tracer.call("call_method", "t", (self,), {})

    @property
    def mT(self) -> Tensor:
        """The last two dimensions swapped."""
        return self.tracer.call("call_method", "transpose", (self, -2, -1), {})

    @property
    def real(self) -> Any:
        """The real part."""
        return self.tracer.call("call_function", torch.real, (self,), {})

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return self.tracer.call("call_function", torch.imag, (self,), {})

    def dim(self) -> int:
        """Returns the rank."""
        return self.ndim

    def size(self, index: int | None = None) -> Any:
        """Returns the shape, or the dimension at `index`."""
        return self.shape if index is None else self.shape[index]

    def numel(self) -> Any:
        """Returns the number of elements."""
        return math.prod(self.shape)

    def is_floating_point(self) -> bool:
        """Returns whether the dtype is a floating point type."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Returns whether the dtype is complex."""
        return self.dtype.is_complex

    def element_size(self) -> int:
        """Returns the bytes an element takes."""
        return self.dtype.itemsize

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not callable(getattr(torch.Tensor, name, None)):
            raise AttributeError(name)
        if name in ("item", "tolist", "numpy"):
            raise TraceError(f"the body reads the values of a tensor (.{name}())")
        return lambda *args, **kwargs: self.tracer.call("call_method", name, (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.tracer.call("call_function", operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TraceError("the body writes to a tensor")

    def __len__(self) -> int:
        return operator.index(self.shape[0])

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        raise TraceError("a branch depends on the values of a tensor")

    __index__ = __int__ = __float__ = __bool__
    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records a call of a torch function with a traced tensor among its arguments."""
        tracer = next(arg.tracer for arg in leaves((args, kwargs or {})) if isinstance(arg, (Tensor, Dim, Ratio)))
        function = getattr(function, "__wrapped__", function) if function is torch.Tensor.__pow__ else function
        name = getattr(function, "__name__", "")
        if function is torch.Tensor.__getitem__:
            data, index = args
            index = index[0] if isinstance(index, tuple) and len(index) == 1 else index
            return tracer.call("call_function", operator.getitem, (data, index), {})
        if function in _WRITTEN and len(args) == 2 and not kwargs:
            return tracer.call("call_function", _WRITTEN[function], args, {})
        if getattr(torch.Tensor, name, None) is function:
            if name == "__setitem__" or name[-1] == "_" != name[-2]:
                raise TraceError(f"a constant is written to (.{name})")  # its later uses would not see it
            return tracer.call("call_method", name, args, kwargs or {})
        return tracer.call("call_function", function, args, kwargs or {})


_WRITTEN = {
    getattr(torch.Tensor, name): getattr(operator, name) for name in ("add", "sub", "mul", "lt", "le", "gt", "ge")
}
"""The operator that is written for a method, where a number on its left computes what a tensor there does: `1 - x`.

`1 / x` is none of them: torch multiplies the reciprocal.
"""


def _operators() -> None:
    binary = [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    ]
    for name in binary:
        function = getattr(operator, f"__{name}__")
        function = getattr(operator, f"{name}_" if name in ("and", "or") else name, function)

        def forward(self: Tensor, other: Any, function: Any = function) -> Any:
            return self.tracer.call("call_function", function, (self, other), {})

        def reflected(self: Tensor, other: Any, function: Any = function) -> Any:
            return self.tracer.call("call_function", function, (other, self), {})

        setattr(Tensor, f"__{name}__", forward)
        setattr(Tensor, f"__r{name}__", reflected)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):

        def compare(self: Tensor, other: Any, function: Any = getattr(operator, name)) -> Any:  # noqa: B008  # the name of this round
            return self.tracer.call("call_function", function, (self, other), {})

        setattr(Tensor, f"__{name}__", compare)
    for name in ("neg", "invert", "abs"):

        def unary(self: Tensor, function: Any = getattr(operator, name)) -> Any:  # noqa: B008  # the name of this round
            return self.tracer.call("call_function", function, (self,), {})

        setattr(Tensor, f"__{name}__", unary)


_operators()
for _kind in (Dim, Ratio):  # constant * Dim
    _kind.__torch_function__ = vars(Tensor)["__torch_function__"]  # type: ignore[union-attr]  # the classes have none


class Reference:
    """A run-time value that is neither a tensor nor a number, such as a device."""

    __slots__ = ("node", "tracer")

    def __init__(self, tracer: Tracer, node: fx.Node):
        self.tracer, self.node = tracer, node


class Opaque:
    """A run-time value without a spec: a sequence, an optional, strings, a map."""

    __slots__ = ("node", "tracer")

    def __init__(self, tracer: Tracer, node: fx.Node):
        self.tracer, self.node = tracer, node


TRACED = (Tensor, Dim, Ratio, Opaque, Reference)


def leaves(value: Any) -> Iterable[Any]:
    """Yields the items of nested sequences, dicts and slices."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


PLAIN = frozenset({int, bool, float, str, type(None), torch.dtype, torch.Tensor})
"""Types of most values that are not traced."""


def is_traced(value: Any) -> bool:
    """Returns whether `value` is or contains a traced value."""
    if type(value) in PLAIN:
        return False
    if isinstance(value, (list, tuple)):
        return any(map(is_traced, value))
    if isinstance(value, dict):
        return any(map(is_traced, value.values()))
    if isinstance(value, slice):
        return isinstance(value.start, TRACED) or isinstance(value.stop, TRACED) or isinstance(value.step, TRACED)
    return isinstance(value, TRACED)
