"""Sizes that data decide, as symbols of their own, and where each symbol is read at run time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from onnx2nn import functional
from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.ground.limits import Limits
from onnx2nn.sizes.conditions import equal
from onnx2nn.sizes.expression import MAX_DIMENSION, Number, Size, Symbol, of_symbol
from onnx2nn.sizes.intervals import Bound

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer


class Symbols:
    """The symbols of one recorded program: dimensions of inputs, and sizes that data decide.

    Args:
        tracer: records the program.
        around: the symbols of the enclosing program, which are known here too.

    Attributes:
        inputs: the dimensions of inputs, with the number that reads each.
        own: the sizes that data decide in this program, with the number that reads each.
    """

    def __init__(self, tracer: Tracer, around: Symbols | None):
        self._tracer, self._around = tracer, around
        self.inputs: dict[Symbol, Dim] = {}
        self.own: dict[Symbol, Dim] = {}
        self._elements: dict[tuple[fx.Node, int], Dim] = {}
        self._sources: dict[Symbol, fx.Node] = {}
        self._proposed: dict[Symbol, Number] = {}
        self._places: dict[Symbol, tuple[str, int]] = {} if around is None else around._places
        self._numbers: Iterator[int] = itertools.count() if around is None else around._numbers

    def __iter__(self) -> Any:
        """Yields all symbols that are known here."""
        if self._around is not None:
            yield from self._around
        yield from self.inputs
        yield from self.own

    def known(self, symbol: Symbol) -> bool:
        """Returns whether a symbol can be read in this program."""
        return symbol in self.inputs or symbol in self.own or (self._around is not None and self._around.known(symbol))

    def add_input(self, symbol: Symbol, place: tuple[str, int], tensor: Tensor, axis: int) -> None:
        """Notes the input that a symbol is a dimension of, the input's name and the dimension."""
        self._places[symbol] = place

        def read() -> fx.Node:
            return self._tracer.record("call_method", "size", (tensor, axis))

        size = of_symbol(symbol)
        assert isinstance(size, Size)
        self.inputs[symbol] = Dim(self._tracer, size, read)

    def place_of(self, symbol: Symbol) -> tuple[str, int] | None:
        """Returns the name of the input of which a symbol is a dimension, and the dimension; None for others."""
        return self._places.get(symbol)

    def title(self, symbol: Symbol) -> str:
        """Returns what a symbol is, for messages."""
        place = self._places.get(symbol)
        if place is not None:
            return f"{symbol.name}, dimension {place[1]} of input {place[0]!r},"
        if symbol not in self._sources:
            return symbol.name if self._around is None else self._around.title(symbol)
        source = self._sources[symbol]
        _, operator, name = source.meta.get("onnx", ("", "", ""))
        inputs = ", ".join(map(repr, _inputs_of(source)))
        return f"{symbol.name}, which {operator} {name!r} computes{f' of {inputs}' if inputs else ''},"

    def read(self, symbol: Symbol) -> Dim:
        """Returns the number that reads a symbol in this program."""
        for known in (self.inputs, self.own):
            if symbol in known:
                return known[symbol]
        assert self._around is not None, f"nothing reads {symbol!r}"
        number: Dim = self._tracer.own(self._around.read(symbol))
        return number

    def fresh(self, name: str = "u", least: Bound = 0, most: Bound = MAX_DIMENSION) -> Number:
        """Returns a new size that data decide."""
        return of_symbol(Symbol(f"{name}{next(self._numbers)}", least, most, by_data=True))

    def proposed(self, size: Number) -> Number:
        """Returns a size that samples propose for a dimension of the next recorded tensor, which is then checked."""
        unknown = self.fresh()
        assert isinstance(unknown, Size)
        self._proposed[next(iter(unknown.symbols))] = size
        return unknown

    def place(self, tensor: Tensor) -> None:
        """Notes a recorded tensor, whose dimensions read the symbols that are dimensions of no other one."""
        for axis, size in enumerate(tensor.spec.shape or ()):
            if isinstance(size, Size) and len(size.terms) == 1:
                ((monomial, coefficient),) = size.terms
                symbol = monomial[0]
                if len(monomial) > 1 or coefficient != 1 or not isinstance(symbol, Symbol):
                    continue
                if symbol.by_data and not self.known(symbol):
                    self.own[symbol], self._sources[symbol] = tensor.reading(axis, size), tensor.node

    def confirm(self, sizes: Iterable[Number]) -> None:
        """Checks what samples propose for dimensions, as their sizes are asked for."""
        if not self._proposed:
            return
        for size in sizes:
            for symbol in size.symbols & self._proposed.keys() if isinstance(size, Size) else ():
                wanted = equal(of_symbol(symbol), self._proposed.pop(symbol))
                self._tracer.guards.demand(wanted, "other sizes were not foreseen where this was imported")

    def elements_of(self, vector: Tensor) -> list[Any]:
        """Returns the sizes in a vector: the known ones, and symbolic numbers that are read from it at run time.

        Raises:
            TraceError: the tensor is no vector of integers, or its length is dynamic.
        """
        if vector.ndim != 1 or vector.dtype not in (torch.int64, torch.int32) or not isinstance(vector.shape[0], int):
            raise TraceError("data-dependent sizes that are no vector of a fixed length")
        if vector.shape[0] > Limits.elements:
            raise TraceError(f"{vector.shape[0]} data-dependent sizes, more than {Limits.elements}")
        known = vector.elements or (None,) * vector.shape[0]
        return [self._element(vector, i) if item is None else item for i, item in enumerate(known)]

    def _element(self, vector: Tensor, index: int) -> Dim:
        key = (vector.node, index)
        if key not in self._elements:

            def read() -> fx.Node:
                node = self._tracer.record("call_function", functional.onnx2nn__SizeAt, (vector,), {"index": index})
                node.meta["opaque"] = True
                return node

            size = self.fresh("element", 0, None)
            assert isinstance(size, Size)
            symbol = next(iter(size.symbols))
            self._elements[key] = self.own[symbol] = Dim(self._tracer, size, read)
            self._sources[symbol] = vector.node
        return self._elements[key]


def _inputs_of(node: fx.Node) -> list[str]:
    """Returns the names of a program's arguments that a value is computed of, in their order."""
    found, pending = {node}, [node]
    while pending:
        inputs = [value for value in pending.pop().all_input_nodes if value not in found]
        found.update(inputs)
        pending += inputs
    return [str(value.target) for value in sorted(value for value in found if value.op == "placeholder")]
