"""`Tensor`: a OneFlow tensor with torch's methods, and the conversions of every operation.

An operation takes its operands in the type in which OneFlow's kernels are complete and exact (`operand`), computes, and
puts the result back into the type torch gives it (`store`). Half precision is computed in float32 because most of its
CPU kernels are absent; int8, uint8 and int32 in int64 because OneFlow's own additions saturate or go through float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

import numpy as np

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.dtypes import DType, as_dtype, flow
from onnx2nn.errors import OperatorError

TWO_63 = 2.0**63
TWO_64 = 2.0**64


class Size(tuple[int, ...]):
    """A shape: a tuple that counts its elements, torch.Size."""

    def numel(self) -> int:
        """The product of the dims."""
        return fold(lambda a, b: a * b, self, 1)


class Deferred:
    """A placeholder for a tensor while calls are recorded; a method of `Tensor` passes a call with one to its recorder.

    Attributes:
        recorder: has `call(kind, name, function, args, kwargs)`, which makes the call and returns its result.
    """

    __slots__ = ()
    recorder: Any


class Tensor:
    """A OneFlow tensor that behaves as torch's does.

    Methods and operators are torch's, attached by `methods.attach`. The methods here only read attributes and values.

    Attributes:
        value: the oneflow.Tensor.
        dtype: its type; `value` has int64 in place of an integer type that OneFlow lacks.
    """

    __slots__ = ("dtype", "value")
    __array_priority__ = 1000  # `array * tensor` calls our `__rmul__` instead of numpy's
    __hash__ = object.__hash__

    def __init__(self, value: Any, dtype: DType | None = None):
        self.value = value
        self.dtype = dtypes.NATIVE[value.dtype] if dtype is None else dtype

    @property
    def shape(self) -> Size:
        """The dims; Python ints, in a graph too."""
        return Size(self.value.shape)

    @property
    def ndim(self) -> int:
        """The rank."""
        return len(self.value.shape)

    @property
    def device(self) -> Any:
        """The OneFlow device."""
        return self.value.device

    @property
    def is_lazy(self) -> bool:
        """Whether the tensor belongs to a traced graph and has no values."""
        return bool(self.value.is_lazy)

    @property
    def requires_grad(self) -> bool:
        """As in torch."""
        return bool(self.value.requires_grad)

    @property
    def is_cuda(self) -> bool:
        """As in torch."""
        return bool(self.value.is_cuda)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one dim of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The rank."""
        return self.ndim

    def numel(self) -> int:
        """How many elements."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Bytes of an element in torch."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the type is a float type."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Never: OneFlow has no complex types."""
        return False

    def is_contiguous(self) -> bool:
        """As in torch."""
        return bool(self.value.is_contiguous())

    def get_device(self) -> int:
        """Index of the device, -1 for the CPU."""
        return self.value.device.index if self.is_cuda else -1

    def numpy(self) -> np.ndarray:
        """The values, in numpy's type of the same name (float32 for bfloat16).

        Raises:
            OperatorError: a graph is being traced.
        """
        array = known(self.value)
        if array is None:
            raise OperatorError("A tensor has no values while an oneflow.nn.Graph is traced, and the model reads them.")
        if self.dtype is dtypes.uint64:
            return array.view(np.uint64)
        return array.astype(self.dtype.name, copy=False) if self.dtype.emulated else array

    def item(self) -> Any:
        """The only element as a Python number."""
        return self.numpy().item()

    def tolist(self) -> Any:
        """The values as nested lists."""
        return self.numpy().tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer and self.dtype is not dtypes.bool_:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __repr__(self) -> str:
        shown = f", {self.value!r}" if self.numel() else ""  # OneFlow ends the process on empty ones
        return f"Tensor(shape={tuple(self.shape)}, dtype={self.dtype}{shown})"


def wrap(value: Any) -> Any:
    """OneFlow tensors, also those in lists, tuples and dicts, as `Tensor`; anything else as it is."""
    if isinstance(value, flow.Tensor):
        return Tensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(wrap(item) for item in value)
    if isinstance(value, dict):
        return {key: wrap(item) for key, item in value.items()}
    return value


def unwrap(value: Any) -> Any:
    """The inverse of `wrap`; a type that OneFlow lacks becomes int64."""
    if isinstance(value, Tensor):
        return value.value
    if isinstance(value, (list, tuple)):
        return tuple(unwrap(item) for item in value) if isinstance(value, tuple) else [unwrap(item) for item in value]
    if isinstance(value, dict):
        return {key: unwrap(item) for key, item in value.items()}
    return value


def known(value: Any) -> np.ndarray | None:
    """The values of a OneFlow tensor; None while a graph is traced, except of constants, which have theirs."""
    if value.is_lazy:
        return None
    array: np.ndarray = (value.detach() if value.requires_grad else value).numpy()
    return array


def as_tensor(value: Any, like: Tensor | None = None) -> Tensor:
    """A tensor as it is; a number or array as a tensor, on the device of `like`."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, flow.Tensor):
        return Tensor(value)
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return constant((), value, dtypes.scalar_dtype(value), like.device if like is not None else None)
    if isinstance(value, np.ndarray):
        return from_array(value, device=like.device if like is not None else None)
    raise TypeError(f"a tensor is needed, not {type(value).__name__}")


def constant(shape: Sequence[int], value: Any, dtype: DType, device: Any = None) -> Tensor:
    """A tensor filled with a number; in a graph an operator of its own, not a captured value."""
    if dtype is dtypes.uint64:
        value = wrapped_int(int(value), dtypes.int64)
    return Tensor(native_constant(shape, value, dtype.storage, device), dtype)


def native_constant(shape: Sequence[int], value: Any, dtype: Any, device: Any) -> Any:
    """A OneFlow tensor filled with a number, on the CPU where no device is named."""
    device = flow.device(device) if isinstance(device, str) else device
    return flow._C.constant(tuple(shape), value, dtype=dtype, device=device or flow.device("cpu"))


def from_array(array: np.ndarray, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor with the values of a numpy array; int16 and the wide unsigned types go into int64.

    Raises:
        OperatorError: strings, complex numbers and other types OneFlow cannot hold.
    """
    source = as_dtype(array.dtype)
    if source is dtypes.uint64:
        array = array.view(np.int64) if array.flags.c_contiguous else np.ascontiguousarray(array).view(np.int64)
    elif source.emulated:
        array = array.astype(np.int64)
    elif source is dtypes.bfloat16:
        array = array.astype(np.float32)
    value = flow.tensor(np.ascontiguousarray(array).reshape(array.shape), device=device)
    if source is dtypes.bfloat16:
        value = value.to(flow.bfloat16)
    tensor = Tensor(value, source)
    return tensor if dtype is None else convert(tensor, dtype)


def convert(x: Tensor, dtype: DType) -> Tensor:
    """Values of `x` in another type, as `x.to(dtype)` in torch: floats truncate, integers wrap.

    Raises:
        OperatorError: OneFlow cannot hold the type.
    """
    if x.dtype is dtype:
        return x
    dtype = as_dtype(dtype)
    value = x.value
    if dtype is dtypes.bool_:
        return Tensor(widened(x) != 0, dtype)
    if dtype.is_integer and x.dtype.is_floating_point:
        value = value.to(x.dtype.compute)
        if dtype is dtypes.uint64:
            high = value >= TWO_63
            value = flow.where(high, value - high.to(value.dtype) * TWO_64, value)
        return store(value.to(flow.int32 if dtype is dtypes.int32 else flow.int64), dtype)
    if x.dtype is dtypes.uint64 and dtype.is_floating_point:
        value = value.to(flow.float64)
        value = value + (value < 0).to(flow.float64) * TWO_64
    return store(value, dtype)


def store(value: Any, dtype: DType) -> Tensor:
    """A computed OneFlow tensor as a `Tensor` of `dtype`; integers wrap around as C's do."""
    if dtype is dtypes.bool_ and value.dtype is not flow.bool:
        return Tensor(value != 0, dtype)
    if value.dtype is not dtype.storage:
        value = value.to(dtype.storage)
    if dtype.emulated and dtype is not dtypes.uint64:
        value = _wrap_around(value, dtype)
    return Tensor(value, dtype)


def _wrap_around(value: Any, dtype: DType) -> Any:
    """An int64 tensor reduced into the range of a narrower integer type."""
    span = 2**dtype.bits
    low = span // 2 if dtype.kind == "i" else 0
    rest = flow.fmod(value + low if low else value, span)
    rest = rest + (rest < 0).to(flow.int64) * span
    return rest - low if low else rest


def wrapped_int(value: int, dtype: DType) -> int:
    """A Python int reduced into the range of an integer type."""
    low = 2 ** (dtype.bits - 1) if dtype.kind == "i" else 0
    return (value + low) % 2**dtype.bits - low


def widened(x: Tensor) -> Any:
    """The OneFlow tensor of `x` in the type kernels compute in."""
    value = x.value
    return value if value.dtype is x.dtype.compute else value.to(x.dtype.compute)


def operand(x: Any, dtype: DType) -> Any:
    """`x`, a tensor or a Python number, for a kernel that computes in `dtype`."""
    if isinstance(x, Tensor):
        return widened(x if x.dtype is dtype else convert(x, dtype))
    if dtype.is_floating_point:
        return float(x)
    return wrapped_int(int(x), dtypes.int64 if dtype is dtypes.uint64 else dtype) if dtype.is_integer else bool(x)


def result_type(*operands: Any) -> DType:
    """torch.result_type: tensors with dims decide, then 0-d tensors, then Python numbers, each within its category."""
    groups: list[DType | None] = [None, None, None]
    for item in operands:
        if isinstance(item, Tensor):
            group, dtype = (0 if item.value.shape else 1), item.dtype
        else:
            group, dtype = 2, dtypes.scalar_dtype(item)
        held = groups[group]
        groups[group] = dtype if held is None else dtypes.promote_types(held, dtype)
    found: DType | None = None
    for held in groups:
        if held is not None and (found is None or dtypes.category(held) > dtypes.category(found)):
            found = held if found is None else dtypes.promote_types(found, held)
    if found is None:
        raise TypeError("at least one operand is needed")
    return found


def rows(function: Callable[[Any], Any], *xs: Tensor) -> Tensor:
    """Apply a function that only moves elements to the storage, so that every type keeps its own.

    For one tensor `function(value)`, for several `function(values)`; they have one dtype.
    """
    return Tensor(function(xs[0].value if len(xs) == 1 else [x.value for x in xs]), xs[0].dtype)


def moved(function: Callable[[Any], Any], x: Tensor) -> Tensor:
    """As `rows`, for OneFlow kernels that lack the small types: the elements travel in the computing type."""
    return store(function(widened(x)), x.dtype)


def axis(dim: int, ndim: int) -> int:
    """`dim` counted from the front.

    Raises:
        OperatorError: there is no such dim.
    """
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise OperatorError(f"Dim {dim} is out of range for a tensor of rank {ndim}.")
    return int(dim) % max(ndim, 1)


def axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """The dims named by None (all), an int or a sequence, counted from the front."""
    if dim is None:
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, (int, np.integer)) else dim
    return tuple(axis(int(d), ndim) for d in dims)


def ints(arguments: Any) -> tuple[int, ...]:
    """Dims given as `(2, 3)` or as one sequence, each possibly a 0-d tensor, as Python ints."""
    if len(arguments) == 1 and isinstance(arguments[0], (list, tuple)):
        arguments = arguments[0]
    return tuple(int(item) for item in arguments)


def broadcast_shapes(*shapes: Sequence[int]) -> Size:
    """The shape that all broadcast to.

    Raises:
        OperatorError: they do not.
    """
    try:
        return Size(np.broadcast_shapes(*(tuple(shape) for shape in shapes)))
    except ValueError as error:
        raise OperatorError(f"Shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast.") from error


def expanded(value: Any, shape: Sequence[int]) -> Any:
    """A OneFlow tensor expanded to `shape`, itself where it has it."""
    return value if tuple(value.shape) == tuple(shape) else value.expand(*shape)
