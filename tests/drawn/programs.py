"""Programs: graphs of many operators with values of all types, inner graphs, sequences, and local functions.

A program grows step by step, and ONNX Runtime computes each node at once, inner graphs and calls of functions too. A
step takes values of the graph and of the graphs around it; one that ONNX Runtime refuses is taken back.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.drawn.draw import Draw
from tests.drawn.graphs import NoCallError
from tests.drawn.oracle import NO_CALL, session

SIZES = {"n": 3, "m": 5}
"""The dimensions that are open, at the sizes that are drawn first: no fixed dimension is equal to one of them."""

OPSETS = (9, 11, 12, 13, 14, 15, 16, 17, 18, 18, 18, 19, 20, 21, 22, 23)

F32, F64, F16, I64, I32, I8, U8 = np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8

MOST_ELEMENTS, LARGEST, DEPTH = 4_000, 1e4, 3

ODD_NAMES = (
    *("a.b", "a_b", "a/b", "a:b", "/model/layer.0/Add_output_0", "x.1", "x_1", "1", "007", "class", "self", "forward"),
    *("torch", "F", "input", "output", "None", "True", "lambda", "weight", "bias", "training", "_x", "__init__", "a b"),
    *("größe", "値", "x'y", 'x"y', "{x}", "%d", "\\n", "tab\there", "x" * 90, "a-b", "a+b", "getattr", "int", "math"),
)

TEXTS = ("", "a", "b", "ab", "größer", " a ", "A B", "0")


@dataclass(frozen=True)
class Item:
    """A value of a program.

    Attributes:
        name: its name.
        array: what it is at the sizes that were drawn: an array, a list of them, or None.
        type: its type, without a shape.
        exact: whether it was not rounded, so that what depends on it by steps does not depend on rounding.
    """

    name: str
    array: Any
    type: onnx.TypeProto
    exact: bool = True

    @property
    def is_tensor(self) -> bool:
        """Whether it is neither a sequence nor an optional."""
        return self.type.HasField("tensor_type")

    @property
    def dtype(self) -> np.dtype:
        """The type of a tensor's elements."""
        return np.dtype(self.array.dtype)

    @property
    def kind(self) -> str:
        """The letter of a tensor's type of elements in NumPy."""
        return self.dtype.kind if self.is_tensor else ""

    @property
    def shape(self) -> list[int]:
        """The shape of a tensor."""
        return list(self.array.shape)


@dataclass
class Function:
    """A local function.

    Attributes:
        proto: its definition.
        arguments: what it was drawn with.
        attributes: the values of its attributes.
        outputs: how many outputs it has.
        least: the names of its attributes without a default.
    """

    proto: onnx.FunctionProto
    arguments: list[Item]
    attributes: dict[str, Any]
    outputs: int
    least: frozenset[str]


@dataclass
class Given:
    """An input of the graph: its value, its dimensions, and the bounds of its elements."""

    item: Item
    dims: list[int | str]
    low: int | None = None
    high: int | None = None


Step = Callable[["Program"], Any]
STEPS: list[Step] = []


def step(times: int = 1) -> Callable[[Step], Step]:
    """Registers a step, that is chosen so many times as often as others."""

    def register(function: Step) -> Step:
        STEPS.extend([function] * times)
        return function

    return register


@dataclass
class Scope:
    """The graph or function that grows: its nodes, its constants, and what it sees."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    seen: list[Item] = field(default_factory=list)
    own: set[str] = field(default_factory=set)
    references: dict[str, Any] | None = None  # of a function: the attributes that its nodes refer to


class Program:
    """A program that grows.

    Args:
        d: makes all choices.
    """

    def __init__(self, d: Draw):
        self.d = d
        self.opset = d.one(OPSETS)
        self.odd = d.flag(3)
        self.scope = Scope()
        self.depth = 0
        self.count = self.emitted = 0
        self.taken: set[str] = set()
        self.given: list[Given] = []
        self.functions: list[Function] = []
        self.rtol = 1e-3
        for _ in range(d.int(1, 3)):
            self.leaf(d.one((F32, F32, F32, I64, d.one((F64, F16, np.bool_, I32, object)))), self.dims(), given=True)
        self.grow(d.int(4, 14))

    # Names and leaves

    def fresh(self, stem: str = "v") -> str:
        """Returns a name that nothing visible has."""
        if self.odd and self.d.flag(3):
            name = self.d.one(ODD_NAMES)
            if name not in self.taken:
                self.taken.add(name)
                return name
        while f"{stem}{self.count}" in self.taken:
            self.count += 1
        self.taken.add(f"{stem}{self.count}")
        return f"{stem}{self.count}"

    def dims(self) -> list[int | str]:
        """Returns dimensions of an input."""
        return [self.d.one(("n", "n", "m", 1, 2, 4)) for _ in range(self.d.one((0, 1, 1, 2, 2, 2, 3)))]

    def filled(self, shape: Sequence[int], dtype: Any, low: int | None = None, high: int | None = None) -> np.ndarray:
        """Returns an array; its floats are multiples of 1/8."""
        dtype = np.dtype(dtype)
        if dtype.kind == "O":
            return np.array([self.d.one(TEXTS) for _ in range(int(np.prod(shape)))], object).reshape(shape)
        if dtype.kind == "f":
            return np.asarray(self.d.np.integers(-16, 17, shape) / 8).astype(dtype)
        if dtype.kind in "iu" and low is None:  # ONNX Runtime sums large numbers in floats
            low, high = (0 if dtype.kind == "u" else -9), 9
        return np.asarray(self.d.array(shape, dtype, low, high))

    def add(self, name: str, array: Any, exact: bool = True, type_: onnx.TypeProto | None = None) -> Item:
        """Makes a value visible."""
        type_ = type_ or _tensor_type(array.dtype)
        item = Item(name, array, type_, exact or (type_.HasField("tensor_type") and array.dtype.kind != "f"))
        self.scope.seen.append(item)
        self.scope.own.add(name)
        return item

    def leaf(
        self,
        dtype: Any,
        dims: Sequence[int | str],
        given: bool = False,
        low: int | None = None,
        high: int | None = None,
    ) -> Item:
        """Returns an input of the graph, an initializer, or a constant."""
        shape = [SIZES[dim] if isinstance(dim, str) else dim for dim in dims]
        if self.scope.references is None and (given or self.d.flag(3)):
            item = Item(self.fresh("x"), self.filled(shape, dtype, low, high), _tensor_type(dtype))
            self.given.append(Given(item, list(dims), low, high))
            self.scope.seen.append(item)
            return item
        shape = [1 if isinstance(dim, str) else dim for dim in dims]
        return self.constant(self.filled(shape, dtype, low, high))

    def constant(self, array: Any) -> Item:
        """Returns an initializer of this graph, or what a node Constant gives."""
        array = np.asarray(array)
        name = self.fresh("c")
        if self.scope.references is not None or self.d.flag(4):
            tensor = _tensor(array, "")
            self.scope.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.scope.constants.append(_tensor(array, name))
        return self.add(name, array)

    def ints(self, *values: int) -> Item:
        """Returns a constant of int64."""
        return self.constant(np.array(values, I64))

    # Choices of values

    def pick(
        self, kinds: str = "f", least: int = 0, most: int = 9, exact: bool = False, fits: Any = None, new: int = 10
    ) -> Item:
        """Returns a visible tensor of some kinds and ranks, or a new one."""
        seen = [
            item
            for item in self.scope.seen
            if item.is_tensor
            and item.kind in kinds
            and least <= item.array.ndim <= most
            and (item.exact or not exact)
            and (fits is None or fits(item))
        ]
        if seen and not self.d.flag(new):
            return self.d.one(seen[-4:]) if self.d.flag() else self.d.one(seen)
        kind = self.d.one(kinds)
        dtype = {"f": self.d.one((F32, F32, F32, F64, F16)), "i": self.d.one((I64, I64, I32, I8)), "b": np.bool_}
        dims = self.dims()
        while not least <= len(dims) <= most:
            dims = [*dims, self.d.one((1, 2, 4))] if len(dims) < least else dims[1:]
        item = self.leaf(dtype.get(kind, U8 if kind == "u" else object), dims)
        if fits is not None and not fits(item):
            raise NoCallError("nothing fits")
        return item

    def beside(self, item: Item, broadcasts: bool = True) -> Item:
        """Returns a visible value of the same type whose shape broadcasts with `item`'s, or a new one."""

        def fits(other: Item) -> bool:
            if other.dtype != item.dtype or other.name == item.name:
                return False
            pairs = zip(other.shape[::-1], item.shape[::-1], strict=False)
            return all(a == b or (broadcasts and 1 in (a, b)) for a, b in pairs) and (
                broadcasts or other.shape == item.shape
            )

        seen = [other for other in self.scope.seen if other.is_tensor and fits(other)]
        if seen and self.d.mostly(4):
            return self.d.one(seen)
        sizes: list[int | str] = [{3: "n", 5: "m"}.get(size, size) for size in item.shape]
        if broadcasts:
            sizes = [1 if self.d.flag(4) else size for size in sizes]
        if any(isinstance(size, str) for size in sizes) and self.scope.references is None:
            return self.leaf(item.dtype, sizes, given=True)
        return self.leaf(item.dtype, [1 if isinstance(size, str) else size for size in sizes])

    def boolean(self) -> Item:
        """Returns one truth value."""
        if self.d.flag(3) and self.scope.references is None:
            return self.leaf(np.bool_, [], given=True)
        seen = [item for item in self.scope.seen if item.kind == "b" and item.array.ndim == 0]
        if seen and self.d.flag():
            return self.d.one(seen)
        numbers = self.pick("i", exact=True)
        total = self.emit("ReduceSum", [numbers], keepdims=0)[0] if numbers.array.ndim else numbers
        return self.emit("Less", [total, self.constant(np.array(self.d.int(-3, 5), total.dtype))])[0]

    # Nodes

    def emit(
        self, op: str, inputs: Sequence[Item | None], outputs: int | Sequence[bool] = 1, exact: bool = False,
        domain: str = "", opset: int = 1, references: bool = True, **attributes: Any,
    ) -> list[Item]:  # fmt: skip
        """Adds a node and computes it; an output that is False is left out.

        Raises:
            NoCallError: ONNX Runtime does not compute it, or gives very large numbers.
        """
        wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
        names = ["" if item is None else item.name for item in inputs]
        while names and not names[-1]:
            names.pop()
        results = [self.fresh() if is_wanted else "" for is_wanted in wanted]
        while results and not results[-1]:
            results.pop()
        node = helper.make_node(op, names, results, domain=domain, **attributes)
        read = [self.visible(name) for name in sorted(_reads(node))]
        used = [item for item in read if item is not None]
        exact = exact and all(item.exact for item in used)
        for name, (array, type_) in zip(filter(None, results), self.computed(node, used), strict=True):
            if type_.HasField("tensor_type") and array is None:
                raise NoCallError("an output that is not computed")
            _refuse_large(array)
            self.add(name, array, exact, type_)
        if self.scope.references is not None and references:
            _refer(node, self.scope.references, self.d)
        self.emitted += 1
        node.name = f"{self.d.one(ODD_NAMES)}{self.emitted}" if self.odd else ""
        self.scope.nodes.append(node)
        by_name = {item.name: item for item in self.scope.seen}
        return [by_name[name] for name in results if name]

    def visible(self, name: str) -> Item | None:
        """Returns the visible value of a name."""
        return next((item for item in reversed(self.scope.seen) if item.name == name), None)

    def computed(self, node: onnx.NodeProto, used: Sequence[Item]) -> list[tuple[Any, onnx.TypeProto]]:
        """Returns what ONNX Runtime gives for a node."""
        infos = [onnx.ValueInfoProto(name=item.name, type=_shaped(item)) for item in used]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        model = self.model_of(helper.make_graph([node], "one", infos, outputs))
        try:
            made = session(model)
            found = made.run(None, {item.name: item.array for item in used})
        except (*NO_CALL, TypeError, ValueError) as error:  # the last two of arrays that its Python does not take
            raise NoCallError(f"{node.op_type}: {error}") from error
        return [(array, _parsed(info.type)) for array, info in zip(found, made.get_outputs(), strict=True)]

    def model_of(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        """Returns the model of a graph with the functions so far."""
        imports = [helper.make_opsetid(name, version) for name, version in self.imports()]
        functions = [function.proto for function in self.functions]
        version = 11 if self.opset > 22 else 10
        return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=version)

    def imports(self) -> list[tuple[str, int]]:
        return [("", self.opset), ("local", 1), ("com.microsoft", 1), ("ai.onnx.ml", 3)]

    # Inner graphs

    @contextmanager
    def inner(self, *, is_function: bool = False, again: bool = False) -> Iterator[None]:
        """Makes an inner graph or a function the one that grows; a graph beside it may have its names `again`."""
        outer, taken = self.scope, set(self.taken)
        if is_function:
            self.scope, self.taken = Scope(references={}), set()
        else:
            self.scope = Scope(seen=list(outer.seen), references=outer.references)
        self.depth += 1
        inputs = len(self.given)
        try:
            yield
        finally:
            inner, self.scope, self.depth = self.scope, outer, self.depth - 1
            new = [given.item for given in self.given[inputs:]]
            if not is_function:
                self.scope.seen.extend(item for item in new if item.name not in inner.own)
                if again:
                    self.taken = taken | {item.name for item in new}
            else:
                self.taken = taken

    def grow(self, steps: int) -> None:
        """Takes steps; those that ONNX Runtime refuses leave nothing."""
        for _ in range(3 * steps):
            chosen = self.d.one(STEPS)
            if self.attempt(chosen):
                steps -= 1
            if steps <= 0:
                return

    def attempt(self, chosen: Step) -> bool:
        """Takes a step; returns whether it made something."""
        scope, depth, functions = self.scope, self.depth, len(self.functions)
        nodes, constants, seen = len(scope.nodes), len(scope.constants), list(scope.seen)
        given, own, taken = len(self.given), set(scope.own), set(self.taken)
        references = None if scope.references is None else dict(scope.references)
        try:
            chosen(self)
        except NoCallError:
            del scope.nodes[nodes:], scope.constants[constants:], self.given[given:], self.functions[functions:]
            scope.seen, scope.own, scope.references = seen, own, references
            self.scope, self.depth, self.taken = scope, depth, taken
            return False
        return True

    def result(
        self, like: Item | None = None, same_shape: bool = False, tensor: bool = False, made: bool = False
    ) -> Item:
        """Returns an output of an inner graph: a value of its own of the type of `like`, of a node if `made`."""

        def fits(item: Item) -> bool:
            if like is None:
                return item.is_tensor or not tensor
            if item.type != like.type:
                return False
            return not same_shape or item.shape == like.shape

        seen = [item for item in self.scope.seen if fits(item)]
        names = {name for node in self.scope.nodes for name in node.output} if made else self.scope.own
        own = [item for item in seen if item.name in names]
        if own and self.d.mostly(4):
            return self.d.one(own[-3:])
        if not seen:
            if like is None or not like.is_tensor:
                raise NoCallError("no value of this type")
            return self.emit("Identity", [self.constant(self.filled(like.shape, like.dtype))], exact=True)[0]
        return self.emit("Identity", [self.d.one(seen[-5:])], exact=True)[0]

    def graph(self, inputs: Sequence[Item], outputs: Sequence[Item], ranks: bool = False) -> onnx.GraphProto:
        """Returns the graph that grew.

        Raises:
            NoCallError: it has an output twice, for which ONNX Runtime gives memory that nothing wrote.
        """
        if len({item.name for item in outputs}) < len(outputs):
            raise NoCallError("an output twice")
        typed = _shaped if ranks else operator.attrgetter("type")
        infos = [onnx.ValueInfoProto(name=item.name, type=typed(item)) for item in inputs]
        results = [onnx.ValueInfoProto(name=item.name, type=typed(item)) for item in outputs]
        scope = self.scope
        return helper.make_graph(scope.nodes, self.d.one(("inner", "body", "g")), infos, results, scope.constants)

    # The model

    def model(self) -> onnx.ModelProto:
        """Returns the model.

        Raises:
            NoCallError: it has no outputs.
        """
        d, scope = self.d, self.scope
        read = set().union(*map(_reads, scope.nodes)) if scope.nodes else set()
        made = [item for item in scope.seen if item.name in scope.own and item.name not in _names(scope.constants)]
        outputs = [item for item in made if item.name not in read or d.flag(6)]
        constants = [item for item in scope.seen if item.name in _names(scope.constants)]
        for items in ([given.item for given in self.given], constants):
            if items and d.flag(10):
                outputs.append(d.one(items))
        outputs = d.shuffled({item.name: item for item in outputs}.values())
        if not outputs:
            raise NoCallError("no outputs")
        infos = []
        for given in self.given:
            dims = [dim if not isinstance(dim, str) or self.d.mostly(8) else None for dim in given.dims]
            dtype = helper.np_dtype_to_tensor_dtype(given.item.dtype)
            infos.append(helper.make_tensor_value_info(given.item.name, dtype, dims))
        sparse, dense = [], []
        for tensor in scope.constants:
            if d.flag(12) and tensor.data_type in (TensorProto.FLOAT, TensorProto.INT64) and len(tensor.dims) in (1, 2):
                sparse.append(_sparse(tensor))
                continue
            dense.append(tensor)
            if d.flag(12):  # an input with a default
                infos.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        results = [onnx.ValueInfoProto(name=item.name, type=item.type) for item in outputs]
        graph = helper.make_graph(scope.nodes, "program", infos, results, dense, sparse_initializer=sparse)
        return self.model_of(graph)

    def feeds(self) -> dict[str, np.ndarray]:
        """Returns the inputs that the program was drawn with."""
        return {given.item.name: given.item.array for given in self.given}

    def other_feeds(self, rng: random.Random, sizes: Sequence[int] = (1, 2, 3, 4, 5, 7)) -> dict[str, np.ndarray]:
        """Returns other inputs, at other sizes of the open dimensions."""
        chosen = {name: rng.choice(sizes) for name in SIZES}
        self.d = Draw(rng)
        return {
            given.item.name: self.filled(
                [chosen[dim] if isinstance(dim, str) else dim for dim in given.dims],
                given.item.dtype,
                given.low,
                given.high,
            )
            for given in self.given
        }


def _tensor_type(dtype: Any) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)


def _shaped(item: Item) -> onnx.TypeProto:
    """Returns the type of a value with its rank, that ONNX Runtime finds the types of nodes by."""
    if not item.is_tensor:
        return item.type
    return helper.make_tensor_type_proto(item.type.tensor_type.elem_type, [None] * item.array.ndim)


_ELEMENTS = {
    "float": TensorProto.FLOAT, "double": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64, "int32": TensorProto.INT32, "int16": TensorProto.INT16, "int8": TensorProto.INT8,
    "uint64": TensorProto.UINT64, "uint32": TensorProto.UINT32, "uint16": TensorProto.UINT16,
    "uint8": TensorProto.UINT8, "bool": TensorProto.BOOL, "string": TensorProto.STRING,
}  # fmt: skip


def _parsed(text: str) -> onnx.TypeProto:
    """Returns the type that ONNX Runtime writes as `seq(tensor(float))`."""
    outer, _, rest = text.partition("(")
    if outer == "tensor" and rest[:-1] in _ELEMENTS:
        return helper.make_tensor_type_proto(_ELEMENTS[rest[:-1]], None)
    if outer == "seq":
        return helper.make_sequence_type_proto(_parsed(rest[:-1]))
    if outer == "optional":
        return helper.make_optional_type_proto(_parsed(rest[:-1]))
    raise NoCallError(f"a value of the type {text}")


def _tensor(array: np.ndarray, name: str) -> onnx.TensorProto:
    if array.dtype.kind == "O":
        return helper.make_tensor(name, TensorProto.STRING, array.shape, [str(text).encode() for text in array.flat])
    return numpy_helper.from_array(array, name)


def _sparse(tensor: onnx.TensorProto) -> onnx.SparseTensorProto:
    array = numpy_helper.to_array(tensor).reshape(-1)
    places = np.flatnonzero(array)
    values = numpy_helper.from_array(array[places], tensor.name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(places, "places"), list(tensor.dims))


def _names(tensors: Sequence[onnx.TensorProto]) -> set[str]:
    return {tensor.name for tensor in tensors}


def _reads(node: onnx.NodeProto) -> set[str]:
    """Returns the names that a node and its inner graphs read, and some of what these make."""
    names = set(node.input)
    for attribute in node.attribute:
        names.update(*map(_reads, attribute.g.node), {output.name for output in attribute.g.output})
    return names - {""}


def _refuse_large(value: Any) -> None:
    arrays = value if isinstance(value, list) else [] if value is None else [value]
    for array in map(np.asarray, arrays):
        if array.size > MOST_ELEMENTS:
            raise NoCallError("too large")
        if array.dtype.kind == "f" and not (np.abs(array.astype(F64)).max(initial=0) <= LARGEST):
            raise NoCallError("large numbers")


def _refer(node: onnx.NodeProto, references: dict[str, Any], d: Draw) -> None:
    """Makes some attributes of a node refer to those of the function around it."""
    for attribute in node.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.TENSOR) or d.flag():
            continue
        value = helper.get_attribute_value(attribute)
        name = f"{attribute.name}{len(references)}" if d.flag() else attribute.name
        if references.setdefault(name, value) != value:
            continue
        kind, own = attribute.type, attribute.name
        attribute.Clear()
        attribute.name, attribute.type, attribute.ref_attr_name = own, kind, name
