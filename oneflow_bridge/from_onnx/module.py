"""The imported module: OneFlow layers, weights, and a forward whose source can be read."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from typing import Any

from oneflow_bridge import namespace
from oneflow_bridge.from_onnx import operators
from oneflow_bridge.from_onnx.constants import dtype_of
from oneflow_bridge.from_onnx.failed_nodes import CODE, named
from oneflow_bridge.namespace.dtypes import NATIVE, DType, flow
from oneflow_bridge.namespace.indexing import checked_index
from oneflow_bridge.namespace.tensor import Tensor, unwrap, wrap
from onnx2nn.errors import InputError
from onnx2nn.ground.element_types import BY_NAME


def call(layer: Any, *inputs: Any) -> Any:
    """Calls an `oneflow.nn` layer on namespace tensors; nested results are flattened."""
    results = list(_flat(wrap(layer(*unwrap(inputs)))))
    return results[0] if len(results) == 1 else tuple(results)


def _flat(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def rows(layer: Any, index: Tensor, count: int) -> Tensor:
    """Returns the rows of an embedding layer of `count` rows at `index`; -1 is the last row, as in ONNX.

    Raises:
        OperatorError: an index is out of range, which would abort the process in OneFlow.
    """
    return Tensor(layer(checked_index(index, count, negative=True)))


class Compiled(flow.nn.Module):  # type: ignore[misc]  # OneFlow has no types
    """A module whose forward is compiled from source.

    Attributes:
        code: Python source of the function that `forward` runs on namespace tensors (`oneflow_bridge.namespace`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.code = ""
        self._function: Any = None

    def compile(self, code: str) -> None:
        """Compiles `code`, the source of one function `forward`, as the module's computation."""
        self.code = code
        filename = f"{CODE}{id(self)}>"
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)  # for tracebacks
        scope = dict(_GLOBALS)
        exec(compile(code, filename, "exec"), scope)
        self._function = scope["forward"]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_function"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.compile(state["code"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        from copy import deepcopy

        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(deepcopy(self.__getstate__(), memo))
        return twin


class Block(Compiled):
    """A part of an ONNX graph, which stands where the author's module stood.

    It takes and returns OneFlow tensors. A value of which OneFlow has no dtype is a namespace tensor, and a size is a
    number.
    """

    @classmethod
    def of(cls, container: Any, code: str) -> Any:
        """Returns the block with the modules, parameters and buffers of `container` that runs `code`."""
        block = cls()
        for members in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            setattr(block, members, getattr(container, members))
        block.compile(code)
        return block

    def forward(self, *args: Any) -> Any:
        """Returns the block's result, or the tuple of its results, for its inputs by position."""
        return crossing(self._function(self, *map(wrap, args)))


class NumberedBlock(Block):
    """A block that holds numbered modules, as `oneflow.nn.Sequential` does: `block[0]`."""

    def __getitem__(self, number: int) -> Any:
        return list(self._modules.values())[number]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())


def crossing(value: Any) -> Any:
    """Returns a value as it passes the boundary of a block: a OneFlow tensor, where OneFlow has its dtype."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(crossing, value))
    return value.value if isinstance(value, Tensor) and NATIVE[value.value.dtype] is value.dtype else value


def block(module: Any, *inputs: Any) -> Any:
    """Calls a block on values of the forward around it."""
    return wrap(module(*map(crossing, inputs)))


_GLOBALS = {"F": namespace, "block": block, "call": call, "host": operators.host, "ops": operators, "rows": rows}
_GLOBALS |= {"wrap": wrap, "inf": float("inf"), "nan": float("nan")}

RESERVED = frozenset(_GLOBALS) | {"self"}
"""Names that the generated source uses, so that no variable may have them."""


class ImportedModule(Compiled):
    """An ONNX graph as a OneFlow module.

    Attributes:
        code: Python source of the function that `forward` runs on namespace tensors (`oneflow_bridge.namespace`).
        meta: `meta["onnx2nn"]` holds names and signature of the graph's inputs and outputs, in plain Python values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.meta: dict[str, Any] = {}

    def holders(self) -> Iterator[tuple[str, Any]]:
        """Yields path and module of itself and of all modules in it, a shared one under each of its paths."""
        yield from _holders("", self)

    def run(self, *values: Any) -> Any:
        """Returns the graph's outputs, a tuple, for namespace values."""
        return self._function(self, *values)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the graph's output, or the tuple of its outputs, for inputs by position or by name.

        Raises:
            InputError: an input is missing, unknown, or its dtype or shape contradicts the file.
            CallError: OneFlow cannot compute a node, which the text names; it is of the class of OneFlow's error too.
            OperatorError: what a node's operator demands is not so.
        """
        signature = self.meta["onnx2nn"]["signature"]
        values = [_entered(spec, value) for spec, value in zip(signature, _bound(signature, args, kwargs), strict=True)]
        try:
            results = [unwrap(operators.as_tensor(value)) for value in self._function(self, *values)]
        except Exception as error:  # they share no base class; none is swallowed: each goes on, named
            if (failed := named(error)) is not None:
                raise failed from error
            raise
        return results[0] if len(results) == 1 else tuple(results)


def _holders(path: str, module: Any) -> Iterator[tuple[str, Any]]:
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _holders(f"{path}.{name}" if path else name, child)


def _bound(signature: Sequence[dict[str, Any]], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the values of all inputs in order, None for an absent input that has a default."""
    names = [spec["name"] for spec in signature]
    if len(args) > len(names):
        raise InputError(f"{len(args)} inputs were given; the model has {len(names)}: {', '.join(names)}.")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names or name in given:
            raise InputError(f"Input {name!r} is unknown or given twice; the model's inputs are {', '.join(names)}.")
        given[name] = value
    missing = [spec["name"] for spec in signature if spec["name"] not in given and not spec.get("optional")]
    if missing:
        raise InputError(f"Input {missing[0]!r} is missing; the model's inputs are {', '.join(names)}.")
    return [given.get(name) for name in names]


def _entered(spec: dict[str, Any], value: Any) -> Any:
    """Returns an input as a namespace value, after a check of its dtype and shape."""
    if not isinstance(value, flow.Tensor):
        return wrap(value)
    if spec["dtype"] is None:
        return wrap(value)
    dtype: DType = dtype_of(BY_NAME[spec["dtype"]].number)
    if value.dtype is not dtype.storage:
        raise InputError(f"Input {spec['name']!r} has dtype {value.dtype}; the model takes {dtype.storage}.")
    shape = spec["shape"]
    if shape is not None and (
        len(shape) != value.ndim or any(isinstance(d, int) and d != n for d, n in zip(shape, value.shape, strict=True))
    ):
        raise InputError(f"Input {spec['name']!r} has shape {tuple(value.shape)}; the model takes {tuple(shape)}.")
    return Tensor(value, dtype)
