"""What a framework supplies to the walk: how the nodes of a graph become lines of a program and parts of a module."""

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
"""Imports a node whose attributes are graphs: takes the walk, the node and its inputs, gives its outputs."""

Regions = Mapping[tuple[str, int], Region]
"""By operator and the revision of its row."""

B = TypeVar("B", bound="Builder")


class Builder(ABC):
    """Makes the program and the module of a graph, and of what is imported in place inside it.

    Values are what the framework's import knows them as: constants (`importing.constants.Constant`), lists for known
    sequences, None for absent ones, and the framework's own for those of run time.

    Args:
        state: what all graphs of the import share.
        regions: how nodes whose attributes are graphs are imported.
    """

    passing: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors that end the import, or that of a graph around a node, instead of being a problem of the node."""

    def __init__(self, state: ImportState, regions: Regions):
        self.state, self.regions = state, regions
        self.at = Position()

    # What goes in and out of a graph

    @abstractmethod
    def initializer(self, graph: ir.Graph, value: ir.Value) -> Any:
        """Returns the constant that an initializer of `graph` is."""

    @abstractmethod
    def inputs(self, node: ir.Node, values: Sequence[Any]) -> list[Any]:
        """Returns the inputs of a node as this program knows them; those of a graph around it become arguments."""

    @abstractmethod
    def output(self, value: Any) -> Any:
        """Returns a value in the form in which a graph gives it out."""

    @abstractmethod
    def type_of(self, value: Any) -> TypeOf:
        """Returns the ONNX type of a value of run time."""

    # One node

    def begin(self, node: ir.Node) -> None:
        """Counts a node, and lets what is recorded from now on say that it belongs to it."""
        self.at.step += 1

    def replay(self, node: ir.Node, version: int, inputs: Sequence[Any]) -> tuple[Hashable, Any]:
        """Returns what decides the call that a node makes, and its result where an equal one was recorded before."""
        return None, None

    def learn(self, key: Hashable, row: Row, inputs: Sequence[Any], run: Callable[[], Any]) -> Any:
        """Returns what `run` gives, which imports a node of this key that `replay` had no result for."""
        return run()

    @abstractmethod
    def attribute(self, tensor: ir.TensorProtocol) -> Any:
        """Returns an attribute that is a tensor as a row's body takes it."""

    def numbers(self, row: Row, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Returns what `row` gives as numbers that sizes decide, None where it gives none such."""
        return None

    @abstractmethod
    def fold(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns what `row` gives for inputs that are all known.

        That is a constant, unless the program is to hold an input that would be lost.
        """

    def compute(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns what `row` gives at run time: the calls that its body makes, else one call of the operator."""
        if row.call != "opaque":
            try:
                return self.record(node, row, inputs, attributes)
            except NeedsValues:
                pass
        return self.run_late(node, row, inputs, attributes)

    @abstractmethod
    def record(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns what `row` gives, and adds the calls that its body makes to the program.

        Raises:
            NeedsValues: what it calls depends on what is known at run time alone.
        """

    @abstractmethod
    def run_late(self, node: ir.Node, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        """Returns what `row` gives, and adds one call of the operator to the program."""

    def settle(self, value: Any) -> Any:
        """Returns a result as the scope holds it."""
        return value

    def keep(self, value: ir.Value, result: Any) -> None:  # noqa: B027  # not every framework notes it
        """Notes which value of the file a result is."""

    # Graphs inside this one

    @abstractmethod
    def for_function(self: B) -> B:
        """Returns what builds the body of a function that a node calls."""

    @abstractmethod
    def called(self: B, node: ir.Node, function: ir.Function, body: B, outputs: Sequence[Any]) -> Sequence[Any]:
        """Returns the outputs of a node that calls `function`, which `body` built with these outputs."""
