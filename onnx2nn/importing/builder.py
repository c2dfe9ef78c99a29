"""The interface between the walk and a framework: how nodes become calls of a program and parts of a module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import onnx_ir as ir

from onnx2nn.importing.import_state import ImportState
from onnx2nn.importing.placement import Position
from onnx2nn.importing.plan import TypeOf
from onnx2nn.optable.row import NeedsValues, Row

Region = Callable[[Any, ir.Node, list[Any]], Sequence[Any]]
"""Imports a node whose attributes are graphs: takes the walk, the node and its inputs; returns its outputs."""

Regions = Callable[[], Mapping[tuple[str, int], Region]]
"""Returns the functions that import nodes with graphs, by operator and the revision of its row; called where a node is
one, as few models have any."""

B = TypeVar("B", bound="Builder")


class Builder(ABC):
    """Builds the program and the module of a graph, with the inner graphs that are imported in place.

    A value is a constant (`importing.constants.Constant`), a list for a sequence of known values, None where it is
    absent, or an object of the framework's builder for a run-time value.

    Args:
        state: what all graphs of the import share.
        regions: how nodes whose attributes are graphs are imported.
    """

    passing: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors that end the import, or the import of an enclosing graph, instead of being a problem of the node."""

    def __init__(self, state: ImportState, regions: Regions):
        self.state, self.regions = state, regions
        self.at = Position()

    # Inputs and outputs of a graph

    @abstractmethod
    def initializer(self, graph: ir.Graph, value: ir.Value) -> Any:
        """Returns an initializer of `graph` as a constant."""

    @abstractmethod
    def inputs(self, node: ir.Node, values: Sequence[Any]) -> list[Any]:
        """Returns the inputs of a node as values of this program; values of an enclosing graph become arguments."""

    @abstractmethod
    def output(self, value: Any) -> Any:
        """Returns a value in its form as an output of a graph."""

    @abstractmethod
    def type_of(self, value: Any) -> TypeOf:
        """Returns the ONNX type of a run-time value."""

    # One node

    def begin(self, node: ir.Node) -> None:
        """Counts a node; all calls that are recorded from now on are attributed to it."""
        self.at.step += 1

    def stored(self, node: ir.Node, tensor: ir.TensorProtocol) -> Any:
        """Returns the tensor of a Constant node, in the form that the scope holds."""
        self.begin(node)
        return self.settle(self.attribute(tensor))

    @staticmethod
    def passes(value: Any) -> bool:
        """Returns whether a node whose result is its input gives a value as it is, without a run of its row."""
        return False

    def replay(self, node: ir.Node, version: int, inputs: Sequence[Any]) -> tuple[Hashable, Any]:
        """Returns the signature of a node's call, and its result where a call with the same signature is known."""
        return None, None

    def learn(self, key: Hashable, row: Row, inputs: Sequence[Any], run: Callable[[], Any]) -> Any:
        """Returns the result of `run`, which imports a node with a signature for which `replay` had no result."""
        return run()

    @abstractmethod
    def attribute(self, tensor: ir.TensorProtocol) -> Any:
        """Returns a tensor attribute in the form that a row's body takes."""

    def numbers(self, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Returns the result of `row` as shape values, None where it has none."""
        return None

    @abstractmethod
    def fold(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the result of `row` for inputs that are all known.

        The result is a constant, unless folding would take a weight out of the module.
        """

    def compute(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns the result of `row` at run time: of the calls in its body, else of one opaque call."""
        if row.call != "opaque":
            try:
                return self.record(node, row, inputs, attributes)
            except NeedsValues:
                pass
        return self.record_opaque(node, row, inputs, attributes)

    @abstractmethod
    def record(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Adds the calls in the body of `row` to the program; returns the result.

        Raises:
            NeedsValues: the calls depend on values that are known at run time only.
        """

    @abstractmethod
    def record_opaque(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Adds one opaque call of the operator to the program; returns its result."""

    def settle(self, value: Any) -> Any:
        """Returns a result in the form that the scope holds."""
        return value

    def keep(self, value: ir.Value, result: Any) -> None:  # noqa: B027  # not every framework notes it
        """Notes that `result` is the file's `value`."""

    # Inner graphs

    @abstractmethod
    def for_function(self: B, inputs: Mapping[str, Any]) -> B:
        """Returns the builder for the body of a function, of which a call gives some inputs by its own names."""

    @abstractmethod
    def called(self: B, node: ir.Node, function: ir.Function, body: B, outputs: Sequence[Any]) -> Sequence[Any]:
        """Returns the outputs of a node that calls `function`, whose body `body` built with these outputs."""
