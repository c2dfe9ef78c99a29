"""What a model computes of all samples of a batch, though each sample needs its own.

Control flow that data decide is one decision. A value that depends on elements of the samples, and has no dimension
with the batch, is one of them all (the largest of all samples), or of the first (a row that an index chose). One whose
number of elements is not in proportion to the batch has some that are no sample's own, or are those of two. Operators
such as Softmax mix the elements of an axis, recurrent ones those of the time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

import onnx_ir as ir

from onnx2nn.importing.node_facts import inner_graphs, node_name
from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import Row
from onnx2nn.sizes.expression import Number, Size, divided, product
from onnx2nn.unfreeze.request import Request
from onnx2nn.unfreeze.sized_values import Sized
from onnx2nn.unfreeze.symbolic_walk import NodeConflictError, SymbolicBuilder

_SIZES_ONLY = ("Shape", "Size")
"""Operators that read no elements."""


class SharedResultError(NodeConflictError):
    """A node has results of several samples."""


class _Shared(NamedTuple):
    """A node with results of several samples, and what they are, as an error says it."""

    node: ir.Node
    reason: str


def check_samples(walked: SymbolicBuilder, request: Request) -> None:
    """Raises SharedResultError for the first node on the way to an output that has results of several samples.

    Args:
        walked: has the values whose shapes follow from those of the inputs; shapes of others may depend on elements.
        request: the dimensions; where none of them counts samples there is nothing to check.
    """
    batch = request.batch()
    if batch is None:
        return
    model, sized = walked.state.model, walked.values
    axes = request.axes(batch)
    known = {value for value in model.graph.inputs if value.name in axes}
    counts = [sized[value].sizes[axes[value.name or ""]] for value in known if value in sized]
    if not counts or not isinstance(counts[0], Size):
        return
    found = _Search(model.functions, sized, counts[0], _read(model.graph)).first(model.graph, known)
    if found is not None:
        inputs = [None if value is None else sized.get(value) for value in found.node.inputs]
        raise SharedResultError(found.node, inputs, walked.steps.get(found.node, 0), sized, found.reason)


def _read(graph: ir.Graph) -> set[ir.Value]:
    """Returns the values that outputs of a graph depend on, and the outputs."""
    found = set(graph.outputs)
    for node in reversed(graph):
        if not found.isdisjoint(node.outputs):
            found.update(_inputs(node))
    return found


def _inputs(node: ir.Node) -> Iterable[ir.Value]:
    """Yields the values that a node reads, with those that its inner graphs do."""
    yield from (value for value in node.inputs if value is not None)
    for graph in inner_graphs([node]):
        yield from graph.outputs
        for inner in graph:
            yield from _inputs(inner)


class _Search:
    """Follows values that depend on elements of inputs, through inner graphs and functions.

    Args:
        functions: the model's functions.
        sized: the values whose shapes do not depend on elements.
        batch: the number of samples.
        read: the values that the outputs depend on.
    """

    def __init__(
        self,
        functions: Mapping[ir.OperatorIdentifier, ir.Function],
        sized: Mapping[ir.Value, Sized],
        batch: Size,
        read: Container[ir.Value],
    ):
        self._functions, self._sized, self._batch, self._read = functions, sized, batch, read

    def first(self, graph: Iterable[ir.Node], known: set[ir.Value]) -> _Shared | None:
        """Returns the first node with such results, in order; adds the values that depend on `known` to it."""
        for node in graph:
            found = self._inside(node, known)
            if found is not None:
                return found
        return None

    def _inside(self, node: ir.Node, known: set[ir.Value]) -> _Shared | None:
        """Follows the values into a node and to its outputs; returns the first node with results of several samples."""
        read = [value for value in node.inputs if node.op_type not in _SIZES_ONLY or value not in self._sized]
        depends = not known.isdisjoint(read)
        decided = {"If": 1, "Loop": 2}.get(node.op_type, 0) if not node.domain else 0
        if not known.isdisjoint(node.inputs[:decided]):
            return _decision(node)
        for graph in inner_graphs([node]):
            known.update(own for own, given in zip(graph.inputs, node.inputs, strict=False) if given in known)
            lead = 1 if node.op_type == "Loop" else 0  # a Loop's body takes a counter more than it returns
            count = -1
            while count < len(known):  # a value that is carried may depend on the inputs from a later round on
                count = len(known)
                found = self.first(graph, known)
                if found is not None:
                    return found
                carried = zip(graph.inputs[lead:], graph.outputs, strict=False)
                known.update(own for own, result in carried if result in known)
            if node.op_type == "Loop" and graph.outputs[0] in known:
                return _decision(node)
            depends |= not known.isdisjoint(graph.outputs)
        function = self._functions.get(node.op_identifier())
        if function is not None and depends:
            own = {f for f, given in zip(function.inputs, node.inputs, strict=False) if given in known}
            found = self.first(function, own)
            if found is not None:
                return found
        if not depends:
            return None
        known.update(node.outputs)
        return self._mixed(node)

    def _mixed(self, node: ir.Node) -> _Shared | None:
        """Returns a node whose results are of several samples, None for any other."""
        for value in node.outputs:
            if value not in self._read or value not in self._sized:
                continue
            count = product(self._sized[value].sizes)
            if count == 0:
                continue
            if not self._depends(count):
                return _Shared(node, f"{node.op_type} {node_name(node)!r} has one result for all samples")
            each = divided(count, self._batch) if isinstance(count, Size) else None
            if each is None or self._depends(each) or self._is_along(node):
                return _Shared(node, f"{node.op_type} {node_name(node)!r} mixes samples")
        return None

    def _depends(self, size: Number) -> bool:
        return not self._batch.symbols.isdisjoint(getattr(size, "symbols", ()))

    def _is_along(self, node: ir.Node) -> bool:
        """Returns whether an operator mixes the elements along an axis with samples."""
        row = None if node.domain else TABLE.newest("", node.op_type)
        data = node.inputs[0] if node.inputs else None
        if row is None or data is None or data not in self._sized:
            return False
        axis = _axis(node, row)
        sizes = self._sized[data].sizes
        return axis is not None and -len(sizes) <= axis < len(sizes) and self._depends(sizes[axis])


def _axis(node: ir.Node, row: Row) -> int | None:
    """Returns the axis all of whose elements a result depends on, None where there is none or it is not known."""
    if "recurrent" in row.traits:
        return 1 if node.attributes.get_int("layout", 0) else 0
    if "along_axis" not in row.traits:
        return None
    if "axis" not in row.inputs:
        return node.attributes.get_int("axis", None)
    given = node.inputs[list(row.inputs).index("axis")]
    number = None if given is None else ir.convenience.get_const_tensor(given)
    return None if number is None else int(number.numpy().item())


def _decision(node: ir.Node) -> _Shared:
    return _Shared(node, f"data decide {node.op_type} {node_name(node)!r}, once for all samples")
