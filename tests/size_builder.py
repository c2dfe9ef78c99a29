"""What size graphs are built with: the nodes so far, and numbers and tensors with bounds.

Bounds hold at all sizes up to 5,000. They keep divisors from zero, integers from overflow and results small.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

T = TypeVar("T")

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 39, 40, 41, 64, 100, 255, 256, 1000, 1023, 5000)
"""What a dynamic dimension is; 0 too in graphs that allow it."""

PRODUCT = 20_000
"""The largest product of the sizes of two dynamic dimensions."""

LARGEST = 10**8
"""What numbers stay below: int32 holds it, and float32 rounds there."""

MANY = 60_000
"""Elements from which on a tensor is no longer made larger."""

INT32, INT64, FLOAT, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL

Bounds = tuple[int, int]


@dataclass(frozen=True)
class Number:
    """A scalar or a vector of one element, computed from sizes, with its bounds."""

    name: str
    low: float
    high: float
    dtype: int = INT64
    rank: int = 0

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class Tensor:
    """Data with the bounds of its dimensions."""

    name: str
    dims: tuple[Bounds, ...]
    elements: int
    dtype: int = FLOAT
    exact: bool = True  # integers, or floats that were moved and not computed with
    ramp: bool = False  # neighbours differ little, so that interpolation is well-conditioned

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclass
class Builder:
    """The nodes so far and what they made; `choice` and `randint` are the generator's."""

    rng: random.Random
    least: int = 1
    nodes: list[NodeProto] = field(default_factory=list)
    infos: list[ValueInfoProto] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    initializers: dict[str, TensorProto] = field(default_factory=dict)
    depth: int = 0
    count: int = 0

    def choice(self, options: Sequence[T]) -> T:
        return options[self.rng.randint(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        return self.rng.randint(1, 100) > 100 - percent

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem.lower()}_{self.count}"

    def op(self, operator: str, *inputs: Number | Tensor | str, **attributes: Any) -> str:
        """Adds a node of one output; returns the output's name."""
        return self.ops(operator, 1, *inputs, **attributes)[0]

    def ops(self, operator: str, outputs: int, *inputs: Number | Tensor | str, **attributes: Any) -> list[str]:
        names = [value if isinstance(value, str) else value.name for value in inputs]
        results = [self.name(operator) for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, names, results, **attributes))
        return results

    def constant(self, value: Any, dtype: int = INT64) -> str:
        """Returns the name of an initializer with a number or a list of numbers."""
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(dtype))
        text = "_".join(map(str, array.reshape(-1).tolist())).replace("-", "minus").replace(".", "p")
        name = f"{array.dtype}{'s' * array.ndim}_{text}"
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(array, name)
        return name

    def number(self, value: float, dtype: int = INT64, rank: int = 0) -> Number:
        return Number(self.constant([value] if rank else value, dtype), value, value, dtype, rank)

    def latest(self, options: Sequence[T]) -> T:
        """Chooses one, half of the time the last."""
        return options[-1] if self.chance(50) else self.choice(options)

    @contextmanager
    def inner(self) -> Iterator[list[NodeProto]]:
        """Collects the nodes of a subgraph; what they made cannot be used outside."""
        outer = self.nodes, list(self.numbers), list(self.tensors)
        self.nodes, self.depth = [], self.depth + 1
        try:
            yield self.nodes
        finally:
            self.nodes, self.numbers, self.tensors = outer
            self.depth -= 1

    def subgraph(
        self, nodes: list[NodeProto], outputs: Sequence[tuple[str, int]], inputs: Sequence[tuple[str, int]] = ()
    ) -> GraphProto:
        """Makes the graph of a branch or a body. Inputs, (name, dtype), are scalars; so are the outputs of a body."""
        scalars = [helper.make_tensor_value_info(name, dtype, []) for name, dtype in inputs]
        results = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs]
        return helper.make_graph(nodes, self.name("inner"), scalars, results)

    def model(self, outputs: Sequence[Number | Tensor]) -> onnx.ModelProto:
        """Returns the model of these outputs, without the nodes that they do not need."""
        results = [helper.make_tensor_value_info(value.name, value.dtype, None) for value in outputs]
        needed, kept = {value.name for value in outputs}, []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                kept.append(node)
                needed.update(_reads(node))
        constants = [tensor for name, tensor in self.initializers.items() if name in needed]
        graph = helper.make_graph(kept[::-1], "sizes", self.infos, results, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def _reads(node: NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _reads(inner)
        names.update(output.name for output in attribute.g.output)
    return names


def add_input(g: Builder, name: str, shape: Sequence[str | int]) -> None:
    """Adds a float input."""
    dynamic = [d for d in shape if isinstance(d, str)]
    bounds = tuple((d, d) if isinstance(d, int) else (g.least, SIZES[-1]) for d in shape)
    static = int(np.prod([d for d in shape if isinstance(d, int)]))
    g.infos.append(helper.make_tensor_value_info(name, FLOAT, shape))
    g.tensors.append(Tensor(name, bounds, static * (PRODUCT if len(dynamic) > 1 else SIZES[-1]), ramp=True))
