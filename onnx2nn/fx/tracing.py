"""Records what row bodies do as a `torch.fx` graph.

Inside a body a tensor is a `Tensor` of this module: its shape, rank and dtype are real, every operation on it becomes
an fx node. Dimensions that may differ from call to call are `Dim`s. What a function does to shapes is found by running
it on meta tensors at a few *sample points*: each dynamic dimension of the model takes one value a point, and a result's
dimension that is the same at every point is static, any other is read from the tensor at run time (`x.size(i)`). No
formula over shapes is guessed, so none can be wrong; a model without dynamic dimensions has one point.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx, nn

from onnx2nn import functional
from onnx2nn.control_flow import CONTROL_FLOW
from onnx2nn.fx.deferred import DeferredModule
from onnx2nn.fx.layers import Layer, layer_for, unchecked
from onnx2nn.fx.placement_protocol import Anonymous, Placement
from onnx2nn.fx.shape_rules import RULES
from onnx2nn.ground.naming import Names
from onnx2nn.optable.row import NeedsValues


class TraceError(NeedsValues):
    """A body cannot be recorded here; it is then called as one function at run time."""


class ShapeMismatch(TraceError):
    """A recorded call fails on the shapes it gets at a sample point; the text is torch's own, `values` what it got.

    `point` is the first such point, 0 where that is not known.
    """

    def __init__(self, reason: str, values: Sequence[Any], point: int = 0):
        super().__init__(reason)
        self.values, self.point = values, point


class NeedsSamples(Exception):
    """A dimension depends on data, but the one sample point of a model of fixed shapes cannot show that it varies."""


class Spec(NamedTuple):
    """What is known of a tensor: its shape at every sample point (None: not even the rank), and its dtype."""

    shapes: tuple[tuple[int, ...], ...] | None
    dtype: torch.dtype | None


class Dim:
    """A number that is known only at run time: a dynamic dimension, or what is computed from some.

    It behaves like a Python int or float. `bool()` of a comparison answers where all sample points agree.
    """

    __slots__ = ("_make", "_node", "comparison", "quotient", "tracer", "values")

    def __init__(self, tracer: Tracer, values: tuple[Any, ...], make: Callable[[], fx.Node]):
        self.tracer, self.values, self._make = tracer, values, make
        self._node: fx.Node | None = None
        self.quotient: tuple[Any, Any] | None = None  # of two ints, where it is one
        self.comparison: tuple[Any, Dim, Any] | None = None  # an operator and what it compares, where it is one

    @property
    def node(self) -> fx.Node:
        """The fx node that computes it, recorded when first asked for."""
        if self._node is None:
            self._node = self._make()
        return self._node

    def __bool__(self) -> bool:
        truths = {bool(value) for value in self.values}
        if len(truths) > 1 or self.of_data:
            raise TraceError(f"a branch depends on a dynamic dimension (samples {self.values})")
        return truths.pop()

    @property
    def of_data(self) -> bool:
        """Whether data may decide it: it may then be 0, or whatever else, so that samples settle nothing."""
        return self.tracer.has_sizes_of_data and self.tracer.depends_on_data(self.node)

    def least(self, other: Any) -> Any:
        """Returns the smaller of two numbers, whatever the sizes are."""
        if isinstance(other, int) and other >= _UNREACHED:
            return self
        return self.tracer.number(functional.onnx2nn__SizeMin, self, other)

    def most(self, other: Any) -> Any:
        """Returns the larger of two numbers, whatever the sizes are."""
        return self.tracer.number(functional.onnx2nn__SizeMax, self, other)

    def choose(self, one: Any, other: Any) -> Any:
        """Returns `one` where this is true, else `other`; sizes that no data decide choose as the samples do."""
        if not self.of_data:
            return one if self.assume() else other
        return self.tracer.number(functional.onnx2nn__SizeWhere, self, one, other)

    def assume(self) -> bool:
        """Returns what a comparison says at every sample point, and lets sizes at which it says another thing fail."""
        truth = bool(self)
        if self.comparison is not None:
            self.tracer.assumed.append((self.comparison, truth))
        message = "A size for which the model chooses otherwise than for those that the import was made with."
        (self if truth else self.negated()).require(message)
        return truth

    def require(self, message: str) -> None:
        """Lets sizes at which this is false fail at run time."""
        self.tracer.record("call_function", torch._assert, (self, message))

    def __index__(self) -> int:
        raise TraceError(f"a dynamic dimension (samples {self.values}) is needed as a fixed number")

    __int__ = __float__ = __index__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Dim{self.values}"

    def __eq__(self, other: object) -> Any:
        return self._compare(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._compare(operator.ne, other)

    def __lt__(self, other: Any) -> Any:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(operator.ge, other)

    def negated(self) -> Any:
        """Returns whether this comparison is false."""
        if self.comparison is None:
            return self.tracer.number(torch.sym_not, self)
        function, one, other = self.comparison  # torch.sym_not of a size that is fixed while compiling is refused
        return one._compare(_OPPOSITE[function], other)

    def _compare(self, function: Callable[[Any, Any], bool], other: Any) -> Any:
        if self is other:
            return function(0, 0)
        if isinstance(self.values[0], bool) and not isinstance(other, Dim) and function in (operator.eq, operator.ne):
            # Of a torch.SymBool it would compare the object.
            return self if function(True, other) and not function(False, other) else self._of_bool(function, other)
        if not isinstance(other, (Dim, int, float, np.number)):
            return NotImplemented
        if not isinstance(other, Dim) and other < 0 and all(value >= 0 for value in self.values):
            return function(0, -1)  # a size is never negative, so that `shape == -1` is settled for all sizes
        result = self.tracer.number(function, self, other)
        if isinstance(result, Dim):
            result.comparison = (function, self, other)
        return result

    def _of_bool(self, function: Callable[[Any, Any], bool], other: Any) -> Any:
        return self.negated() if function(False, other) and not function(True, other) else function(True, other)

    def __neg__(self) -> Any:
        return self.tracer.number(operator.neg, self)

    def __abs__(self) -> Any:
        return self if all(value >= 0 for value in self.values) else self.tracer.number(abs, self)

    def __floor__(self) -> Any:
        if self._is_whole():
            return self
        if self.quotient is not None:
            return self.quotient[0] // self.quotient[1]
        if all(value >= 0 for value in self.values):
            return self.tracer.number(functional.onnx2nn__SizeFloor, self)
        raise TraceError("the whole part of a number that may be negative")

    def __ceil__(self) -> Any:
        if self._is_whole():
            return self
        if self.quotient is None:
            raise TraceError("a number computed from sizes is rounded up")
        return (self.quotient[0] + self.quotient[1] - 1) // self.quotient[1]

    def to_integer(self) -> Any:
        """Returns a whole number as it is, and 1 or 0 for a comparison; what else there is must not be negative."""
        if isinstance(self.values[0], bool):
            return self.tracer.number(functional.onnx2nn__SizeWhere, self, 1, 0)
        if not self._is_whole() and not self >= 0:
            raise TraceError("the whole part of a number that may be negative")
        return math.floor(self)

    def _is_whole(self) -> bool:
        return all(isinstance(value, int) for value in self.values)


_OPPOSITE = {operator.eq: operator.ne, operator.lt: operator.ge, operator.gt: operator.le}
_OPPOSITE |= {opposite: function for function, opposite in _OPPOSITE.items()}

_UNREACHED = (1 << 31) - 1
"""No size is larger; files have it for "all there are"."""


def _arithmetic(name: str) -> None:
    function = getattr(operator, name)

    def forward(self: Dim, other: Any) -> Any:
        return self.tracer.number(function, self, other) if _is_number(other) else NotImplemented

    def reflected(self: Dim, other: Any) -> Any:
        return self.tracer.number(function, other, self) if _is_number(other) else NotImplemented

    setattr(Dim, f"__{name}__", forward)
    setattr(Dim, f"__r{name}__", reflected)


def _fraction(args: tuple[Any, ...]) -> tuple[Dim, int, int] | None:
    """Returns a whole symbolic number and the fraction it is multiplied with, None where the product is not such."""
    for number, factor in (args, args[::-1]):
        if isinstance(number, Dim) and isinstance(factor, float) and isinstance(number.values[0], int):
            numerator, denominator = factor.as_integer_ratio()
            if 1 < denominator <= 1024:
                return number, numerator, denominator
    return None


def _shifted(function: Callable[[Any, Any], Any], args: tuple[Any, ...]) -> tuple[Any, Any] | None:
    """Returns the quotient that a quotient and a whole number make, None of anything else."""
    for number, other in (args, args[::-1]) if function is operator.add else (args,):
        if isinstance(number, Dim) and number.quotient is not None and not isinstance(other, Dim) and other % 1 == 0:
            above, below = number.quotient
            return function(above, below * int(other)), below
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (Dim, int, float, np.number, np.bool_))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _arithmetic(_name)

_NEUTRAL = {(operator.add, 0), (operator.sub, 0), (operator.mul, 1), (operator.floordiv, 1)}
_LEVELLING = {operator.floordiv, functional.onnx2nn__SizeMin, functional.onnx2nn__SizeMax}
"""Functions of which numbers that vary may make one that does not, until they are larger."""
_SELF_INVERSE = {operator.sub: 0, operator.floordiv: 1, operator.mod: 0}


class Tensor:
    """A tensor of the traced program; methods, operators and attributes are those of `torch.Tensor`."""

    __slots__ = ("_shape", "elements", "node", "spec", "tracer")
    __array_priority__ = 1000
    __array__ = __array_interface__ = __array_struct__ = None  # numpy must not take it for an array

    def __init__(self, tracer: Tracer, node: fx.Node, spec: Spec):
        self.tracer, self.node, self.spec = tracer, node, spec
        self._shape: tuple[Any, ...] | None = None
        self.elements: tuple[Any, ...] = ()  # of a vector of sizes: those that are known, None for what data decide

    @property
    def shape(self) -> tuple[Any, ...]:
        """The dimensions: an int where static, a `Dim` where dynamic."""
        if self._shape is None:
            if self.spec.shapes is None:
                raise TraceError("the rank of a tensor is unknown")
            self._shape = tuple(
                self._dimension(i, values) for i, values in enumerate(zip(*self.spec.shapes, strict=True))
            )
        return self._shape

    def _dimension(self, index: int, values: tuple[int, ...]) -> Any:
        if len(set(values)) == 1:
            return values[0]
        return Dim(self.tracer, values, lambda: self.tracer.record("call_method", "size", (self, index)))

    @property
    def ndim(self) -> int:
        """The rank."""
        if self.spec.shapes is None:
            raise TraceError("the rank of a tensor is unknown")
        return len(self.spec.shapes[0])

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        if self.spec.dtype is None:
            raise TraceError("the dtype of a tensor is unknown")
        return self.spec.dtype

    @property
    def device(self) -> Any:
        """The device at run time, for the `device=` of a factory function."""
        return _Reference(self.tracer, self.tracer.record("call_function", getattr, (self, "device")))

    @property
    def T(self) -> Tensor:
        """The matrix transposed."""
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
        """Records a call of torch that has one of these among its arguments."""
        tracer = next(arg.tracer for arg in _leaves((args, kwargs or {})) if isinstance(arg, (Tensor, Dim)))
        function = getattr(function, "__wrapped__", function) if function is torch.Tensor.__pow__ else function
        name = getattr(function, "__name__", "")
        if function is torch.Tensor.__getitem__:
            data, index = args
            index = index[0] if isinstance(index, tuple) and len(index) == 1 else index
            return tracer.call("call_function", operator.getitem, (data, index), {})
        if getattr(torch.Tensor, name, None) is function:
            if name == "__setitem__" or name[-1] == "_" != name[-2]:
                raise TraceError(f"a constant is written to (.{name})")  # its later uses would not see it
            return tracer.call("call_method", name, args, kwargs or {})
        return tracer.call("call_function", function, args, kwargs or {})


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

        def compare(self: Tensor, other: Any, function: Any = getattr(operator, name)) -> Any:  # noqa: B008
            return self.tracer.call("call_function", function, (self, other), {})

        setattr(Tensor, f"__{name}__", compare)
    for name in ("neg", "invert", "abs"):

        def unary(self: Tensor, function: Any = getattr(operator, name)) -> Any:  # noqa: B008
            return self.tracer.call("call_function", function, (self,), {})

        setattr(Tensor, f"__{name}__", unary)


_operators()
Dim.__torch_function__ = classmethod(Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]  # constant * Dim


class _Reference:
    """A run time value that is neither tensor nor number, such as a device."""

    __slots__ = ("node", "tracer")

    def __init__(self, tracer: Tracer, node: fx.Node):
        self.tracer, self.node = tracer, node


class Opaque:
    """A run time value of which nothing is known but that it exists: a sequence, an optional, strings, a map."""

    __slots__ = ("node", "tracer")

    def __init__(self, tracer: Tracer, node: fx.Node):
        self.tracer, self.node = tracer, node


TRACED = (Tensor, Dim, Opaque, _Reference)


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def is_traced(value: Any) -> bool:
    """Returns whether `value` is, or holds, something known only at run time."""
    return any(isinstance(leaf, TRACED) for leaf in _leaves(value))


_FACTORIES = {torch.zeros, torch.ones, torch.full, torch.arange, torch.empty, torch.eye, torch.tensor, torch.linspace}
_FACTORIES |= {torch.hann_window, torch.hamming_window, torch.blackman_window, torch.scalar_tensor}
_RANDOM = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal}
_MAKING = _FACTORIES | _RANDOM
_DRAWS = {torch.bernoulli, torch.multinomial, torch.nn.functional.dropout}
_NOT_TENSORS = {
    torch.finfo,
    torch.iinfo,
    torch.is_tensor,
    torch.promote_types,
    torch.is_floating_point,
    torch.is_complex,
}
_NOT_TENSORS |= {torch.can_cast, torch.broadcast_shapes, torch.get_default_dtype}
_SCALAR_OPERATORS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.pow: "**",
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_MAX_FOLDED = 1 << 16


class Namespace:
    """`torch` as row bodies see it while they are traced: a call with traced arguments is recorded, others run."""

    def __init__(self, tracer: Tracer, module: ModuleType = torch):
        self._tracer, self._module = tracer, module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, ModuleType):
            value = Namespace(self._tracer, value)
        elif callable(value) and not isinstance(value, (torch.dtype, type)) and value not in _NOT_TENSORS:
            value = self._recorder(value)
        self.__dict__[name] = value
        return value

    def _recorder(self, function: Callable[..., Any]) -> Callable[..., Any]:
        tracer = self._tracer

        def call(*args: Any, **kwargs: Any) -> Any:
            if function is torch.numel and isinstance(args[0], Tensor):
                return args[0].numel()
            traced = (args and type(args[0]) is Tensor) or is_traced((args, kwargs))
            if traced or function in _RANDOM or function in _DRAWS:
                return tracer.call("call_function", function, args, kwargs)
            if function in _FACTORIES and tracer.infer("call_function", function, args, kwargs).numel > _MAX_FOLDED:
                return tracer.call("call_function", function, args, kwargs)
            return function(*args, **kwargs)

        return call


class _Known(NamedTuple):
    """A result of `Tracer.infer`: one spec or a nested tuple of them."""

    specs: Any

    @property
    def numel(self) -> int:
        """Elements of a single result at its largest sample point."""
        return max(math.prod(shape) for shape in self.specs.shapes)


_TAKEN = frozenset(dir(nn.Module()))
_TAKEN_OUTSIDE = frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph()))) - _TAKEN


_set_args, _set_kwargs = fx.Node.args.fset, fx.Node.kwargs.fset  # type: ignore[attr-defined]  # mypy sees values, not properties


_ANONYMOUS = Anonymous()


class Retracer(fx.Tracer):
    """What unpickling a module runs its code with: buffers stay attributes, so that sizes may index and expand them."""

    proxy_buffer_attributes = True


class Tracer:
    """Builds one fx graph and the module tree its nodes refer to.

    Args:
        points: how many sample points the dynamic dimensions have.
        parent: the tracer of the enclosing graph, for a subgraph or function; what this graph uses of it becomes an
            argument of this graph's module (`captured`).
        inferred: what is known of calls already, from other traces; what this one finds out is added.
        kind: the class of the module.
        least: the first sample value of sizes that data decide, if not one of some that are small.
        window: which of the enclosing graph's sample points this graph has, all if None.
        placement: says where constants and layers are held in the module tree.
    """

    def __init__(
        self,
        points: int = 1,
        parent: Tracer | None = None,
        inferred: dict[Any, Any] | None = None,
        kind: type[DeferredModule] = DeferredModule,
        least: int | None = None,
        window: slice | None = None,
        placement: Placement = _ANONYMOUS,
    ):
        self.points = points
        self.parent = parent
        self.window = window
        self.graph = fx.Graph()
        self.root = kind(nn.Module(), self.graph)
        self.names = Names(_TAKEN, _TAKEN_OUTSIDE)
        self.F = Namespace(self)
        self.captured: list[Any] = []
        self.placement = placement
        self.meta: dict[str, Any] = {}
        self.assumed: list[tuple[tuple[Any, Dim, Any], bool]] = []  # comparisons, and what they were taken for
        self.recorded = 0  # nodes, without arguments and what picks one of several results
        self._captures: dict[int, Any] = {}
        self._numbers: dict[Any, Any] = {}
        self.collapsed = False  # whether the sample points hide that a quotient, or the larger of two numbers, varies
        self._attributes: dict[Any, fx.Node] = {}
        self._calls: dict[Any, Any] = {}
        self._elements: dict[tuple[fx.Node, int], Dim] = {}
        self._layers: dict[Any, str] = {}
        self._reference: Tensor | None = None
        self._last_placeholder: fx.Node | None = None
        self._keep: list[Any] = []
        shared = parent or self
        self._inferred: dict[Any, Any] = shared._inferred if parent else {} if inferred is None else inferred
        self._parameters: dict[Any, nn.Parameter] = shared._parameters if parent else {}
        self._fresh: list[tuple[int, ...]] = shared._fresh if parent else []
        self._least: int | None = shared._least if parent else least
        self._clean: set[fx.Node] = set()

    def placeholder(self, name: str, spec: Spec | None) -> Tensor | Opaque:
        """Adds an argument of the graph; `spec` None says that it is no tensor."""
        node = self._place(name)
        if spec is None:
            return Opaque(self, node)
        tensor = Tensor(self, node, spec)
        if self._reference is None:
            self._reference = tensor
        return tensor

    def _place(self, name: str) -> fx.Node:
        """Adds a placeholder behind the last one, also where calls have been recorded already."""
        if self._last_placeholder is None:
            self._last_placeholder = next(iter(self.graph.nodes), None)
            position = self.graph.inserting_before(self._last_placeholder)
        else:
            position = self.graph.inserting_after(self._last_placeholder)
        with position:
            self._last_placeholder = self.graph.placeholder(name)
        return self._last_placeholder

    @property
    def last(self) -> fx.Node:
        """The node recorded last."""
        return next(iter(reversed(self.graph.nodes)))

    def fresh_dimension(self) -> tuple[int, ...]:
        """Returns sample values for a dimension of which nothing is known, unlike those of any other.

        The first is small, however many there are: the smaller of it and a limit must not be the limit at every point.
        """
        if self.points == 1:
            raise NeedsSamples
        index = len(self._fresh)
        values = (3 + 2 * (index % 4) if self._least is None else self._least, 17 + 5 * index, 251 + 11 * index)
        self._fresh.append(tuple(values[point % 3] for point in range(self.points)))
        return self._fresh[-1]

    @property
    def has_sizes_of_data(self) -> bool:
        """Whether data decide any size of the model, so far."""
        return bool(self._fresh)

    def depends_on_data(self, node: fx.Node) -> bool:
        """Returns whether a call that gives sizes computed from data is among what `node` is computed from."""
        pending, seen = [node], set()
        while pending:
            item = pending.pop()
            if item in seen or item in self._clean:
                continue
            seen.add(item)
            outer = item.op == "placeholder" and self.parent is not None
            if outer or "opaque" in item.meta or (item.op == "call_module" and _runs_a_graph(self.root, item.target)):
                return True
            pending += item.all_input_nodes
        self._clean |= seen
        return False

    def elements(self, vector: Tensor) -> list[Any]:
        """Returns the sizes in a vector: those that are known, and numbers that are read from it at run time.

        Raises:
            TraceError: it is no vector of integers, or its length is dynamic.
        """
        if vector.ndim != 1 or vector.dtype not in (torch.int64, torch.int32) or not isinstance(vector.shape[0], int):
            raise TraceError("sizes that are computed from data, and are no vector of a fixed length")
        known = vector.elements or (None,) * vector.shape[0]
        return [self._element(vector, i) if item is None else item for i, item in enumerate(known)]

    def _element(self, vector: Tensor, index: int) -> Dim:
        key = (vector.node, index)
        if key not in self._elements:

            def read() -> fx.Node:
                node = self.record("call_function", functional.onnx2nn__SizeAt, (vector,), {"index": index})
                node.meta["opaque"] = True
                return node

            self._elements[key] = Dim(self, self.fresh_dimension(), read)
        return self._elements[key]

    def number(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns `function(*args)` of numbers, some dynamic: a `Dim`, or a plain number where it no longer varies."""
        args = tuple(arg.item() if isinstance(arg, np.generic) else arg for arg in args)
        if len(args) == 2:
            if not isinstance(args[1], Dim) and (function, args[1]) in _NEUTRAL:
                return args[0]
            if not isinstance(args[0], Dim) and (function, args[0]) in {(operator.add, 0), (operator.mul, 1)}:
                return args[1]
            if args[0] is args[1] and function in _SELF_INVERSE:
                return _SELF_INVERSE[function]
        key = (function, *((id(arg) if isinstance(arg, Dim) else (type(arg), arg)) for arg in args))
        if key not in self._numbers:
            columns = [arg.values if isinstance(arg, Dim) else (arg,) * self.points for arg in args]
            try:
                values = tuple(function(*column) for column in zip(*columns, strict=True))
            except ArithmeticError as error:
                raise TraceError(str(error)) from None
            self._keep.append(args)
            self.collapsed |= function in _LEVELLING and len(set(values)) == 1 < max(len(set(c)) for c in columns)
            number = Dim(self, values, lambda: self.record("call_function", function, args))
            whole = all(isinstance(item, int) for column in columns for item in column)
            if function is operator.truediv and whole and all(item > 0 for item in columns[1]):
                number.quotient = (args[0], args[1])
            if function is operator.mul and (fraction := _fraction(args)) is not None:
                factor, numerator, denominator = fraction
                number.quotient = (self.number(operator.mul, factor, numerator), denominator)
            if function in (operator.add, operator.sub):
                number.quotient = _shifted(function, args)
            self._numbers[key] = number
        return self._numbers[key]

    def record(self, kind: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> fx.Node:
        """Adds a node to the graph; equal size and attribute reads are recorded once."""
        fx_args = tuple([self.argument(arg) for arg in args])
        fx_kwargs = {name: self.argument(arg) for name, arg in kwargs.items()} if kwargs else {}
        once = target == "size" or target is getattr
        key = (target, fx_args) if once else None
        if key is not None and key in self._attributes:
            return self._attributes[key]
        node = self._create(kind, target, fx_args, fx_kwargs)
        node.meta.update(self.meta)
        if key is not None:
            self._attributes[key] = node
        return node

    def _create(self, kind: str, target: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> fx.Node:
        """Adds a node.

        `create_node` searches the arguments it is given for torch's symbolic numbers, of which there are none here;
        that, and making a name of a target that is one, takes three quarters of its time. The setters are called as
        functions because each assignment to a node takes it out of its graph's index and puts it back.
        """
        self.recorded += 1
        name = target if isinstance(target, str) else target.__name__
        node = self.graph.create_node(kind, target, name=name if name.islower() and name[0] != "_" else None)
        if args:
            _set_args(node, args)
        if kwargs:
            _set_kwargs(node, kwargs)
        return node

    def call(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call and returns its result as traced values.

        Raises:
            ShapeMismatch: torch refuses these shapes, at one of the sample points.
        """
        if target in _SCALAR_OPERATORS:
            args = self._inline_scalars(args)
        if self.parent is not None:
            args, kwargs = self.own(args), self.own(kwargs)
        specs = self.infer(kind, target, args, kwargs).specs
        layer = layer_for(target, args, kwargs) if kind == "call_function" else None
        if layer is not None and self.placement.fits(layer):
            node = self.record("call_module", self._add_layer(layer), layer.inputs)
            if layer.structure is None:
                return self.wrap(node, specs)
            return tuple(_leaves(self.wrap(node, _arranged(specs, layer.structure))))
        for size, other in unchecked(target, args):
            if isinstance(same := size == other, Dim):
                same.require("An initial state is for another batch than the sequence.")
        if target in _MAKING and "device" not in kwargs and self._reference is not None:
            kwargs = {**kwargs, "device": self._reference.device}
        return self.wrap(self.record(kind, target, args, kwargs), specs)

    def call_module(
        self, name: list[str], module: nn.Module, args: tuple[Any, ...], specs: Any, *, own: bool = False
    ) -> Any:
        """Adds `module` under `name`, records a call of it and returns its result, which is as `specs` say.

        Args:
            own: the author's keys say that it is called so.
        """
        path = self.names.claim(name, own=own, module=True)
        node = self.record("call_module", path, self.own(args))  # first, so that its arguments stand before it
        _set_attribute(self.root, path, module)
        return self.wrap(node, specs)

    def call_opaque(
        self, function: Callable[..., Any], args: Any, kwargs: Any, specs: Any, *, once: bool = False
    ) -> Any:
        """Records a call of `function`, one importable by name, whose result is as `specs` say (None: no tensor).

        Args:
            once: whether equal calls are recorded once, so that sizes that data decide are known to be equal.
        """
        args, kwargs = self.own(args), self.own(kwargs)
        key = (function, *map(id, args), repr(kwargs), isinstance(specs, Spec) or len(specs)) if once else None
        if key is None or key not in self._calls:
            node = self.record("call_function", function, args, kwargs)
            node.meta["opaque"] = True
            if not hasattr(function, "row"):
                node.meta["is_wrapped"] = True  # torch.fx.wrap: functions of the table record themselves
            result = self.wrap(node, specs)
            if key is None:
                return result
            self._calls[key] = (args, result)  # an id is that of what lives
        return self._calls[key][1]

    def wrap(self, node: fx.Node, specs: Any) -> Any:
        """Returns the traced values that stand for `node`, whose result has the structure of `specs`."""
        if isinstance(specs, Spec):
            return Tensor(self, node, specs)
        if specs is None:
            return Opaque(self, node)
        items = []
        for index, spec in enumerate(specs):
            item = self.graph.call_function(operator.getitem, (node, index))
            item.meta.update(self.meta)
            items.append(self.wrap(item, spec))
        return tuple(items)

    def attribute(self, tensor: torch.Tensor) -> Tensor:
        """Returns a constant as a parameter or buffer of the module; the same constant is held once."""
        whole = self.placement.whole(tensor)
        held = Tensor(self, self._held(whole), Spec((tuple(whole.shape),) * self.points, whole.dtype))
        return held if whole is tensor else _rearranged(held, whole, tensor)

    def _held(self, tensor: torch.Tensor) -> fx.Node:
        """Returns the node that reads a constant, which becomes a parameter or buffer."""
        steps, trainable, persistent, own, outer = self.placement.constant(tensor)
        identity = _identity(tensor)
        key = (identity, *steps) if own else identity
        node = self._attributes.get(key)
        if node is None and outer:
            assert self.parent is not None, "no graph is around this one"
            node = self._attributes[key] = self._capture(self.parent.attribute(tensor)).node
        elif node is None:
            path = self.names.claim(steps, own=own and not self._is_layers(steps, tensor))
            holder, name = container(self.root, path)
            if trainable and tensor.is_floating_point():
                # register_parameter would look for what `names` excludes
                holder._parameters[name] = self.parameter(tensor, identity)
            else:
                holder.register_buffer(name, tensor, persistent=persistent)
            self._keep.append(tensor)
            node = self._attributes[key] = self._create("get_attr", path)
        return node

    def _is_layers(self, steps: list[str], tensor: torch.Tensor) -> bool:
        """Whether a layer stands there that has a parameter of this name, another one or none: it would use this."""
        holder: Any = self.root
        for step in steps[:-1]:
            holder = getattr(holder, "_modules", {}).get(step)
        parameters = getattr(holder, "_parameters", {})
        held = parameters.get(steps[-1])
        return steps[-1] in parameters and (held is None or held is not self._parameters.get(_identity(tensor)))

    def _strings(self, array: np.ndarray[Any, Any]) -> fx.Node:
        """Returns the node that reads an array of strings, a plain attribute of the module."""
        if id(array) not in self._attributes:
            path = self.names.claim(["strings"])
            setattr(self.root, path, array)
            self._keep.append(array)
            self._attributes[id(array)] = self._create("get_attr", path)
        return self._attributes[id(array)]

    def parameter(self, tensor: torch.Tensor, identity: Any = None) -> nn.Parameter:
        """Returns the one `nn.Parameter` that holds `tensor`, whose `_identity` may be known already."""
        if type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter):
            return tensor
        key = identity or _identity(tensor)
        parameter = self._parameters.get(key)
        if parameter is None:
            parameter = self._parameters[key] = nn.Parameter(tensor)
        return parameter

    def finish(self, outputs: Any, name: str = "GraphModule") -> DeferredModule:
        """Returns the module whose forward computes `outputs`; its class is called `name`."""
        self.graph.output(self.argument(self.own(outputs)))
        self._erase_unused()
        for value in list(self.captured):
            node = self._captures[id(value)].node
            if not node.users:
                self.graph.erase_node(node)
                self.captured[:] = [other for other in self.captured if other is not value]  # == records a comparison
        buffers = {name for name, _ in self.root.named_buffers()}
        if any(node.op == "get_attr" and node.target in buffers for node in self.graph.nodes if buffers):
            self.graph._tracer_cls = self.root._tracer_cls = Retracer
        type(self.root).__name__ = name
        return self.root

    def _erase_unused(self) -> None:
        """Removes nodes that nothing reads, and from the module what only they referred to."""
        erased = []
        kept = ("placeholder", "output")
        for node in reversed(self.graph.nodes):
            if not node.users and node.op not in kept and node.target not in ASSERTIONS:
                erased += [node.target] if node.op in ("get_attr", "call_module") else []
                self.graph.erase_node(node)
        if not erased:
            return
        settled = {node.target for node in self.graph.nodes if node.op in ("get_attr", "call_module")}
        holders = {path for target in settled for path in _around(target)}
        for path in dict.fromkeys(erased):
            if path not in holders and settled.isdisjoint(_around(path)):
                _remove(self.root, path)
                settled.add(path)  # and with it what is inside

    def infer(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Known:
        """Returns the spec of the call's result, or a tuple of them."""
        try:
            key: Any = (target, *map(_key, args), _key(kwargs) if kwargs else None)
            known = self._inferred.get(key)
        except TypeError:
            key = known = None
        if known is None:
            rule = RULES.get(target)
            specs = rule(args, kwargs) if rule is not None else None
            if specs is None:
                known = _Known(self._run(target, args, kwargs))
            else:
                known = _Known(tuple(Spec(*spec) for spec in specs) if isinstance(specs, list) else Spec(*specs))
            if key is not None:
                self._inferred[key] = known
        return known

    def _run(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = getattr(torch.Tensor, target) if isinstance(target, str) else target
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        if function in _MAKING:
            kwargs["device"] = "meta"
        results = []
        for point in range(self.points):
            try:
                with torch.no_grad():
                    results.append(function(*_at(args, point), **_at(kwargs, point)))
            except TraceError:
                raise
            except NotImplementedError as error:
                raise TraceError(f"{_title(target)}: {error}") from None
            except Exception as error:
                reason = f"{_title(target)}: {str(error).strip().splitlines()[0]}"
                raise ShapeMismatch(reason, list(_leaves((args, kwargs))), point) from None
        return _merge(results)

    def _inline_scalars(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replaces a one-element constant beside a tensor by the Python number that means the same."""
        for arg in args:
            if type(arg) is not Tensor and isinstance(arg, torch.Tensor) and arg.numel() == 1:
                break
        else:
            return args
        traced = [arg for arg in args if isinstance(arg, Tensor)]
        if len(traced) != 1 or traced[0].spec.shapes is None:
            return args
        other = traced[0]

        def plain(arg: Any) -> Any:
            fits = isinstance(arg, torch.Tensor) and arg.numel() == 1 and arg.ndim <= other.ndim
            if not fits or arg.dtype != other.spec.dtype or not self.placement.inline(arg) or arg.dtype not in _INLINE:
                return arg
            value = arg.item()
            # The shortest decimal that means this float32: torch rounds it to float32 again before it computes.
            return float(str(np.float32(value))) if arg.dtype is torch.float32 else value

        return tuple(plain(arg) for arg in args)

    def _add_layer(self, layer: Layer) -> str:
        state = {name: tensor if tensor is None else _identity(tensor) for name, tensor in layer.state.items()}
        steps, own = self.placement.layer(layer)
        key = (layer.kind, repr(layer.config), tuple(state.items()), *(steps if own else ()))
        if not layer.state or key not in self._layers:
            for name, tensor in layer.state.items():
                if tensor is not None and not name.startswith("running_"):
                    layer.state[name] = self.parameter(tensor)
                self._keep.append(tensor)
            path = self.names.claim(steps, own=own, module=True)
            module = layer.build()
            self.placement.describe(module)
            _set_attribute(self.root, path, module)
            self._layers[key] = path
        return self._layers[key]

    def own(self, value: Any) -> Any:
        """Returns `value` with everything that belongs to an enclosing graph replaced by an argument of this one."""
        if self.parent is None:
            return value
        if isinstance(value, (list, tuple)):
            return (
                type(value)(self.own(item) for item in value)
                if type(value) in (list, tuple)
                else tuple(map(self.own, value))
            )
        if isinstance(value, dict):
            return {name: self.own(item) for name, item in value.items()}
        if isinstance(value, slice):
            return slice(self.own(value.start), self.own(value.stop), self.own(value.step))
        if isinstance(value, TRACED) and value.tracer is not self:
            return self._capture(value)
        return value

    def _capture(self, value: Any) -> Any:
        if id(value) not in self._captures:
            assert self.parent is not None, "a value of another trace"
            self.captured.append(value)
            known = self.parent.own(value)
            if isinstance(value, Dim):
                node = self._place(f"size_{len(self.captured)}")
                own: Any = Dim(self, self._seen(known.values), lambda: node)
                own.node  # noqa: B018 (the placeholder exists already)
            elif isinstance(value, _Reference):
                own = _Reference(self, self._place(f"value_{len(self.captured)}"))
            else:
                own = self.placeholder(f"outer_{len(self.captured)}", self._seen_spec(getattr(known, "spec", None)))
            self._captures[id(value)] = own
            self._keep.append(value)
        return self._captures[id(value)]

    def _seen(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns what is known at every sample point of the enclosing graph as it is at this one's."""
        return values if self.window is None else values[self.window]

    def _seen_spec(self, spec: Spec | None) -> Spec | None:
        return spec if spec is None or spec.shapes is None else Spec(self._seen(spec.shapes), spec.dtype)

    def argument(self, value: Any) -> Any:
        """Returns `value` as fx takes it."""
        if type(value) is Tensor and value.tracer is self:  # most are
            return value.node
        if isinstance(value, torch.Tensor):
            return self._held(value) if self.placement.whole(value) is value else self.attribute(value).node
        if isinstance(value, TRACED):
            return (value if value.tracer is self else self._capture(value)).node
        if isinstance(value, np.ndarray):
            return self._strings(value)
        if type(value) in (list, tuple):
            return type(value)(self.argument(item) for item in value)
        if isinstance(value, (list, tuple)):
            return tuple(self.argument(item) for item in value)
        if isinstance(value, dict):
            return {name: self.argument(item) for name, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(item) for item in (value.start, value.stop, value.step)))
        if isinstance(value, np.generic):
            return value.item()
        return value


ASSERTIONS = frozenset({torch._assert, torch._assert_async})
"""What a program calls though nothing reads a result: it ends where something is not so."""

_INLINE = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32}


def _rearranged(whole: Tensor, base: torch.Tensor, view: torch.Tensor) -> Tensor:
    """Returns what makes `view` of the recorded tensor that stands for `base`, whose elements it all has."""
    turned = base.ndim == 2 and view.shape == base.T.shape and view.stride() == base.T.stride()
    rearranged: Tensor = whole.t() if turned else whole.reshape(tuple(view.shape))
    return rearranged


def _identity(tensor: torch.Tensor) -> Any:
    """What makes two tensors the same values in the same memory."""
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else id(tensor)


def _runs_a_graph(root: nn.Module, path: Any) -> bool:
    return isinstance(root.get_submodule(path), CONTROL_FLOW)


def container(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Returns the module that holds what is at the dotted `path`, made where there is none, and its name there."""
    if "." not in path:
        return root, path
    *steps, name = path.split(".")
    for step in steps:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root._modules[step]  # type: ignore[assignment]
    return root, name


def _around(path: Any) -> Iterator[str]:
    """Yields a dotted path and those of the modules around what is there."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _remove(root: nn.Module, path: str) -> None:
    """Removes what is at the dotted `path`, and the modules around it that hold nothing else."""
    while path:
        around, _, name = path.rpartition(".")
        holder = root.get_submodule(around)
        delattr(holder, name)
        if type(holder) is not nn.Module or holder._modules or holder._parameters or holder._buffers:
            return
        path = around


def _set_attribute(root: nn.Module, path: str, module: nn.Module) -> None:
    """Puts `module` at the dotted `path`; what a container there holds already, constants, moves into it."""
    holder, name = container(root, path)
    before = holder._modules.get(name)
    if before is not None:
        _move(before, module)  # first: what does not fit leaves the container where it is
    holder.add_module(name, module)


def _move(source: nn.Module, target: nn.Module) -> None:
    """Gives `target` what `source` holds; under one key both must hold the same."""
    for name, value in (*source._parameters.items(), *source._buffers.items()):
        assert value is not None, "a container holds no empty slots"
        held = getattr(target, name, None)
        if isinstance(held, torch.Tensor) and _identity(held) == _identity(value):
            continue
        if hasattr(target, name):
            raise TraceError(f"a layer has another {name!r} than the constant called so")
        if isinstance(value, nn.Parameter):
            target.register_parameter(name, value)
        else:
            target.register_buffer(name, value, persistent=name not in source._non_persistent_buffers_set)
    for name, inner in source._modules.items():
        if inner is not None and isinstance(own := getattr(target, name, None), nn.Module):
            _move(inner, own)
        elif inner is not None:
            target.add_module(name, inner)


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
    if kind is _Reference:
        return "reference"
    if kind is Opaque:
        raise TraceError("a value that is no tensor is used as one")
    hash(value)
    return (kind, value)


def _at(value: Any, point: int) -> Any:
    """Returns `value` as it is at one sample point: meta tensors and plain numbers."""
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
        return {name: _at(item, point) for name, item in value.items() if not isinstance(item, _Reference)}
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


def _arranged(items: Sequence[Any], structure: Any) -> Any:
    """Returns `items` in nested tuples: `structure` holds their positions."""
    return items[structure] if isinstance(structure, int) else tuple(_arranged(items, part) for part in structure)


def _title(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
