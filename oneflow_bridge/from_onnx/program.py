"""The lines of an imported module's forward, and the module tree that they refer to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from oneflow_bridge.from_onnx.blocks import nested
from oneflow_bridge.from_onnx.constants import Constant
from oneflow_bridge.from_onnx.held import HeldConstant
from oneflow_bridge.from_onnx.layers import Layer
from oneflow_bridge.from_onnx.lines import Line, member
from oneflow_bridge.from_onnx.module import RESERVED, ImportedModule
from oneflow_bridge.from_onnx.recording import Call, Traced
from oneflow_bridge.namespace.dtypes import NATIVE, DType, flow, numpy_dtype
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.ground.naming import Names, identifier
from onnx2nn.importing.placement import LayerName
from onnx2nn.optable.registry import name_of
from onnx2nn.optable.row import Row
from onnx2nn.optable.shape_values import ShapeValues

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "and": "&",
    "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "matmul": "@", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_UNARY = {"neg": "-", "invert": "~", "abs": "abs"}
_TAKEN = frozenset(dir(flow.nn.Module())) | {"code", "meta", "compile", "run"} | frozenset(vars(ImportedModule()))


class Program:
    """Builds one module: its source and its module tree.

    Args:
        parent: the program of the outer graph, for a subgraph; both share parameters of the same weight.
        reserved: the author's keys, which nothing else gets as its path.

    Attributes:
        required: names that are computed though no output needs them, because their lines check sizes.
        comment: the node whose lines are added now.
        scope: the path of the module in which the file says this node is, None where it says nothing.
    """

    def __init__(self, parent: Program | None = None, reserved: Iterable[str] = ()):
        self.module = ImportedModule()
        self.parameters: list[str] = []
        self.lines: list[Line] = []
        self.required: set[str] = set()
        self.comment = ""
        self.scope: tuple[str, ...] | None = None
        self._containers: set[tuple[str, ...]] = {()}
        self._paths = Names(_TAKEN)
        self._paths.reserve(reserved)
        self._taken: set[str] = set(RESERVED)
        self._stems: set[str] = set()
        self._prefixes: set[str] = set()
        self._registered: dict[Any, str] = {}
        self._string_arrays: dict[int, str] = {}
        self._layers: dict[Any, str] = {}
        self._keep: list[Any] = []
        self._shared: dict[int, Any] = parent._shared if parent is not None else {}
        self._keep_shared: list[Any] = parent._keep_shared if parent is not None else []

    def name(self, wanted: str) -> str:
        """Returns a unique variable name that is no `prefix` with a number either."""
        name = base = identifier(wanted)
        number = 0
        while name in self._taken or _stem(name) in self._prefixes:
            number += 1
            name = f"{base}_v{number}"
        self._taken.add(name)
        self._stems.add(_stem(name))
        return name

    def prefix(self, wanted: str) -> str:
        """Returns a prefix that gives unique names when a number is appended (`name_1`)."""
        name = self.name(wanted)
        while name in self._stems:
            name = self.name(f"{wanted}_v")
        self._prefixes.add(name)
        return name

    def parameter(self, tensor: Tensor) -> Any:
        """Returns the one parameter that holds `tensor`."""
        key = id(tensor.value)
        if key not in self._shared:
            self._shared[key] = flow.nn.Parameter(tensor.value.contiguous())
            self._keep_shared.append(tensor.value)
        return self._shared[key]

    def add_call(self, call: Call, path_of: Callable[[Tensor], HeldConstant], layer: LayerName | None) -> None:
        """Adds a recorded call.

        Args:
            call: the call.
            path_of: returns how the module holds a constant.
            layer: the path of its layer, if a layer replaces it.
        """
        uses: set[str] = set()
        if call.layer is not None:
            assert layer is not None
            path = self._layer(call.layer, layer)
            inputs = [self.argument(value, uses, path_of) for value in call.layer.inputs]
            if call.layer.index_limit is not None:
                text = f"rows({member(path)}, {inputs[0]}, {call.layer.index_limit})"
            else:
                text = f"call({', '.join([member(path), *inputs])})"
            self._add(call.results, text, uses, path)
            return
        values = _inline_scalars(call, path_of)
        args = [self.argument(value, uses, path_of) for value in values]
        kwargs = [f"{name}={self.argument(value, uses, path_of)}" for name, value in call.kwargs.items()]
        self._add(call.results, _expression(call, args, kwargs), uses)

    def add_operator(
        self, results: Any, row: Row, arguments: Sequence[str], uses: set[str], *, numbers: bool = False
    ) -> None:
        """Adds a line that evaluates a row at run time and takes the first results, as many as the node has outputs.

        `numbers`: whether the results are shape values at run time.
        """
        taken = f"[:{len(results)}]" if isinstance(results, tuple) else "[0]"
        text = f"ops.{name_of(row)}({', '.join(arguments)}){taken if row.several else ''}"
        self._add(results, text, uses, numbers=numbers)

    def add_module_call(self, results: Any, name: list[str], module: Any, arguments: str, uses: set[str]) -> None:
        """Adds `module` to the tree and a line that calls it."""
        path = self._paths.claim(name)
        holder, last = self._container(path)
        holder.add_module(last, module)
        self._add(results, f"{member(path)}({arguments})", uses, path)

    def _add(self, results: Any, text: str, uses: set[str], module: str = "", *, numbers: bool = False) -> None:
        self.lines.append(Line(results, text, uses, self.comment, self.scope, module, numbers))

    def argument(self, value: Any, uses: set[str], path_of: Callable[[Tensor], HeldConstant]) -> str:
        """Returns the source of an argument; adds the names that it reads to `uses`."""
        if isinstance(value, Traced):
            uses.add(value.name)
            return value.name
        if isinstance(value, Tensor):
            return self.held(value, path_of)
        if isinstance(value, ShapeValues):
            return f"host({value.array.tolist()!r}, {value.dtype.name!r})"
        if isinstance(value, np.ndarray):
            return self._strings(value)
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self.argument(item, uses, path_of) for item in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
        if isinstance(value, slice):
            parts = (self.argument(item, uses, path_of) for item in (value.start, value.stop, value.step))
            return f"slice({', '.join(parts)})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self.argument(v, uses, path_of)}" for k, v in value.items()) + "}"
        if isinstance(value, DType):
            return f"F.{value.name}"
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, flow.device):
            return repr(str(value.type))
        if value is Ellipsis:
            return "..."
        if value is not None and not isinstance(value, (bool, int, float, str, bytes)):
            raise TypeError(f"a {type(value).__name__} among the arguments of a recorded call")
        return repr(value)

    def held(self, tensor: Tensor, path_of: Callable[[Tensor], HeldConstant]) -> str:
        """Returns the source that reads a constant, which becomes a parameter or buffer of the module."""
        held = path_of(tensor)
        path, view = self._path_of(held), held.view
        emulated = NATIVE[tensor.value.dtype] is not tensor.dtype
        return (f"F.Tensor({member(path)}, F.{tensor.dtype.name})" if emulated else f"wrap({member(path)})") + view

    def _path_of(self, held: HeldConstant) -> str:
        """Returns the path of a parameter or buffer, which is registered at its first use."""
        name, tensor = held.name, held.tensor
        key = id(tensor.value), *(name.steps if name.own else ())
        if key not in self._registered:
            self._keep.append(tensor.value)
            value = self.parameter(tensor) if name.trainable and tensor.is_floating_point() else None
            path = ".".join(name.steps)
            if value is None or not name.own or not self._is_in_layer(path, value):
                path = self._paths.claim(name.steps, own=name.own)
                holder, last = self._container(path)
                if value is None:
                    holder.register_buffer(last, tensor.value, persistent=name.persistent)
                else:
                    holder.register_parameter(last, value)
            self._registered[key] = path
        return self._registered[key]

    def _is_in_layer(self, path: str, parameter: Any) -> bool:
        """Returns whether a layer holds a parameter under this path."""
        layer, _, slot = path.rpartition(".")
        if not self.has_layer(layer):
            return False
        holder, last = self._container(layer)
        return holder._modules[last]._parameters.get(slot) is parameter

    def _strings(self, array: np.ndarray[Any, Any]) -> str:
        if id(array) not in self._string_arrays:
            path = self._paths.claim(["strings"])
            setattr(self.module, path, array)
            self._keep.append(array)
            self._string_arrays[id(array)] = path
        return member(self._string_arrays[id(array)])

    def has_layer(self, path: str) -> bool:
        """Returns whether the module tree has a layer at this path."""
        return path in self._layers.values()

    def _layer(self, layer: Layer, name: LayerName) -> str:
        state = tuple((key, None if tensor is None else id(tensor.value)) for key, tensor in layer.state.items())
        key = (layer.kind, repr(layer.config), state, *(name.steps if name.own else ()))
        if not layer.state or key not in self._layers:
            path = self._paths.claim(name.steps, own=name.own, module=True)
            holder, last = self._container(path)
            module = layer.build(self.parameter)
            if last in holder._modules:
                _keep_members(holder._modules[last], module)
            holder.add_module(last, module)
            self._keep += [None if tensor is None else tensor.value for tensor in layer.state.values()]
            self._layers[key] = path
        return self._layers[key]

    def _container(self, path: str) -> tuple[Any, str]:
        *steps, last = path.split(".")
        holder: Any = self.module
        self._containers |= {tuple(steps[:end]) for end in range(1, len(steps) + 1)}
        for step in steps:
            if step not in holder._modules:
                holder.add_module(step, flow.nn.Module())
            holder = holder._modules[step]
        return holder, last

    def finish(self, outputs: Sequence[str], uses: set[str]) -> ImportedModule:
        """Returns the module whose forward returns `outputs`, which read the names `uses`."""
        held = [*self._layers.values(), *self._registered.values()]
        nested(self.module, self.parameters, self.lines, self._containers, held, outputs, uses, self.required)
        return self.module.eval()


def _keep_members(container: Any, layer: Any) -> None:
    """Gives a layer what a container in its place holds, but for the weights that are its own."""
    for before, now in (
        (container._parameters, layer._parameters),
        (container._buffers, layer._buffers),
        (container._modules, layer._modules),
    ):
        for name, value in before.items():
            now.setdefault(name, value)
    layer._non_persistent_buffers_set |= container._non_persistent_buffers_set


def _stem(name: str) -> str:
    """Returns the part of a name before its final number, `""` where there is none."""
    stem, _, number = name.rpartition("_")
    return stem if number.isdecimal() else ""


def _expression(call: Call, args: Sequence[str], kwargs: Sequence[str]) -> str:
    if call.kind == "operator":
        if call.target == "getitem":
            return f"{args[0]}[{args[1]}]"
        if call.target in _BINARY:
            return f"{args[0]} {_BINARY[call.target]} {args[1]}"
        return f"{_UNARY[call.target]}({args[0]})"
    function = f"{args[0]}.{call.target}" if call.kind == "method" else f"F.{call.target}"
    return f"{function}({', '.join([*(args[1:] if call.kind == 'method' else args), *kwargs])})"


_INLINED = {"add", "sub", "mul", "truediv", "pow", "eq", "ne", "lt", "le", "gt", "ge"}


def _inline_scalars(call: Call, path_of: Callable[[Tensor], HeldConstant]) -> tuple[Any, ...]:
    """Returns the arguments of a call, with a constant of one element beside a tensor as an equal Python number."""
    traced = [value for value in call.args if isinstance(value, Traced)]
    if call.kind != "operator" or call.target not in _INLINED or len(traced) != 1:
        return call.args
    other = traced[0]

    def plain(value: Any) -> Any:
        fits = isinstance(value, Tensor) and value.numel() == 1 and value.ndim <= other.ndim
        if not fits or value.dtype is not other.dtype or path_of(value).name.trainable:
            return value
        if value.dtype.name not in ("float32", "float64", "int64", "int32"):
            return value
        number = value.item()
        # The shortest decimal that rounds to this float32: it is rounded to float32 again before it is used.
        return float(str(numpy_dtype(value.dtype).type(number))) if isinstance(number, float) else number

    return tuple(plain(value) for value in call.args)


def literal(constant: Constant) -> ShapeValues | None:
    """Returns a short constant of numbers as a literal for the source, None for other constants."""
    if math.prod(constant.shape) > 64 or constant.kind.name == "STRING":
        return None
    array = constant.numpy()
    return ShapeValues(array.astype(object), array.dtype) if array.dtype.kind in "biuf" else None
