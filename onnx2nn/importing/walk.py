"""The walk over the nodes of a graph. It is the same for every framework; the framework supplies a `Builder`.

Each node is looked up in the plan. The body of a function is walked in turn. A node with graphs goes to one of the
builder's `regions`. Any other node is folded, recorded, or recorded as one opaque call. A node that cannot be imported
is noted as a problem, and its outputs are `UNKNOWN`, so that one import finds all problems.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, cast

import onnx_ir as ir

from onnx2nn.errors import LimitError, OperatorError
from onnx2nn.ground.limits import TooLargeError
from onnx2nn.ground.progress import tracked
from onnx2nn.importing.builder import B
from onnx2nn.importing.constants import Constant, is_constant
from onnx2nn.importing.node_facts import (
    Scope,
    attribute_values,
    call_attributes,
    check_inputs,
    facts,
    inner_graphs,
)
from onnx2nn.importing.plan import UNKNOWN_TYPE, TypeOf, version_of
from onnx2nn.optable.row import Row
from onnx2nn.optable.shape_values import ShapeValues


class Unknown:
    """Stands for the outputs of a node that could not be imported."""


UNKNOWN = Unknown()


class Walk(Generic[B]):
    """The import of one graph or function body.

    Args:
        builder: builds its program.
        scope: the known values: the graph's inputs, and the values of enclosing graphs.
        graph: the graph or function.
        opsets: opset versions by domain.
        attributes: attributes of the surrounding function's call, to which the nodes' may refer.
    """

    def __init__(
        self,
        builder: B,
        scope: Scope,
        graph: ir.Graph | ir.Function,
        opsets: Mapping[str, int],
        attributes: Mapping[str, ir.Attr] = MappingProxyType({}),
    ):
        self.builder, self.scope, self.graph, self.opsets = builder, scope, graph, opsets
        self.attributes = attributes
        self.state = builder.state

    def run(self) -> list[Any]:
        """Imports every node; returns the values of the graph's outputs, in the form that the scope holds."""
        builder, scope, at = self.builder, self.scope, self.builder.at
        if isinstance(self.graph, ir.Graph):
            for value in self.graph.initializers.values():
                scope[value] = builder.initializer(self.graph, value)
        nodes = list(self.graph)
        self.state.account.visit(len(nodes))
        last = {value: node for node in nodes for value in node.inputs}  # the last node that reads it
        for needed in (*self.graph.outputs, *_used_inside(nodes)):
            last.pop(needed, None)
        outer, at.step = (at.node, at.step), 0
        for node in tracked(nodes):
            at.node = node
            for value, result in zip(node.outputs, self.run_node(node), strict=False):
                scope[value] = result
                builder.keep(value, result)
            for used in node.inputs:
                if used is not None and last.get(used) is node:
                    scope.pop(used, None)  # frees its memory
        outputs = [scope[value] for value in self.graph.outputs]
        if outer[0] is not None:  # an inner graph was imported in place: the outer walk goes on
            at.node, at.step = outer
        return outputs

    def run_node(self, node: ir.Node) -> Sequence[Any]:
        """Imports one node; returns its outputs. They are `UNKNOWN` where it cannot be imported; a problem is noted."""
        scope, builder = self.scope, self.builder
        values = [None if value is None else scope[value] for value in node.inputs]
        if self.state.problems and any(value is UNKNOWN for value in values):
            return [UNKNOWN] * len(node.outputs)
        version = version_of(node, self.opsets)
        try:
            stored = _stored(node)
            if stored is not None:
                return (builder.stored(node, stored),)
            inputs = builder.inputs(node, values)
            types = functools.partial(self._types, node.inputs, inputs)
            entry = self.state.plan.find(node, version, types, self.attributes)
            if not isinstance(entry, Row):
                return [builder.settle(item) for item in self._call_function(node, entry, inputs)]
            is_passed = "passes_on" in entry.traits and len(inputs) == 1 and not node.attributes.data
            if is_passed and builder.passes(inputs[0]):
                builder.begin(node)
                return inputs
            key, result = builder.replay(node, version, inputs)
            if result is not None:
                return (result,)
            if key is None:
                result = self._run_row(node, entry, inputs)
            else:
                result = builder.learn(key, entry, inputs, functools.partial(self._run_row, node, entry, inputs))
            if not isinstance(result, tuple):  # a list is one sequence
                return (builder.settle(result),)
            return [builder.settle(item) for item in result]
        except builder.passing:
            raise
        except (OperatorError, TooLargeError) as error:
            self.state.report(node, version, str(error))
        except LimitError:
            raise
        except Exception as error:  # any error of the framework or of a body, for an inconsistent node
            self.state.report_failure(node, version, error)
        return [UNKNOWN] * len(node.outputs)

    def _run_row(self, node: ir.Node, row: Row, inputs: list[Any]) -> Any:
        """Returns the result of `row` for `inputs`."""
        builder = self.builder
        builder.begin(node)
        if row.call == "subgraph":
            return self._run_region(node, row, inputs)
        if "passes_on" in row.traits and inputs and inputs[0] is None and node.inputs[0] is not None:
            return None
        attributes = attribute_values(node, row, self.attributes, builder.attribute)
        if row.facts:
            attributes |= facts(self.state.plan, node, row, functools.partial(self._types, node.inputs, inputs))
        check_inputs(row, inputs, self.state.account)
        numbers = builder.numbers(row, inputs, attributes)
        if numbers is not None:
            return numbers
        if not row.random and all(map(is_constant, inputs)):
            return builder.fold(node, row, inputs, attributes)
        return builder.compute(node, row, inputs, attributes)

    def _run_region(self, node: ir.Node, row: Row, inputs: list[Any]) -> Any:
        """Imports a node whose attributes are graphs; returns its outputs as a tuple."""
        region = self.builder.regions().get((row.operator, row.since))
        if region is None:
            raise OperatorError("its subgraph cannot be imported.")
        missing = [name for name in row.demanded if name not in node.attributes]
        if missing:
            raise OperatorError(f"attribute {missing[0]!r} is missing.")
        check_inputs(row, inputs, self.state.account)
        return tuple(region(self, node, inputs))

    def _call_function(self, node: ir.Node, function: ir.Function, inputs: Sequence[Any]) -> Sequence[Any]:
        """Imports the body of a function that a node calls."""
        scope = Scope()
        for position, value in enumerate(function.inputs):
            scope[value] = inputs[position] if position < len(inputs) else None
        opsets = {**self.opsets, **function.opset_imports}
        attributes = call_attributes(node, function, self.attributes)
        body = self.builder.for_function({value.name or "": scope[value] for value in function.inputs})
        for value in function.inputs:
            body.keep(value, scope[value])
        outputs = Walk(body, scope, function, opsets, attributes).run()
        return self.builder.called(node, function, body, outputs)

    def inside(self, graph: ir.Graph, bindings: Mapping[ir.Value, Any], builder: B | None = None) -> list[Any]:
        """Imports the graph of one of this graph's nodes; returns its outputs.

        Args:
            graph: the graph.
            bindings: the values of its inputs.
            builder: builds a program of its own for it, whose outputs are returned; None: the graph becomes part of
                this program, where numbers computed from shapes stay numbers.

        Raises:
            OperatorError: the graph holds nodes that cannot be imported.
        """
        scope = Scope(self.scope)
        for value, known in bindings.items():
            scope[value] = known
        outputs = Walk(builder or self.builder, scope, graph, self.opsets, self.attributes).run()
        if any(value is UNKNOWN for value in outputs):
            raise OperatorError("its subgraph holds nodes that cannot be imported, named on their own.")
        return outputs if builder is None else list(map(builder.output, outputs))

    def _types(self, values: Sequence[ir.Value | None], known: Sequence[Any]) -> list[TypeOf]:
        return [self.type_of(value, item) for value, item in zip(values, known, strict=True)]

    def type_of(self, value: ir.Value | None, known: Any) -> TypeOf:
        """Returns a value's ONNX type as declared in the file, else as known to the import."""
        declared = self.state.plan.type_of(value) if value is not None else UNKNOWN_TYPE
        if declared != UNKNOWN_TYPE:
            return declared
        if isinstance(known, list):
            return self.type_of(None, known[0])[0] if known else None, "seq"
        if isinstance(known, Constant):
            return known.kind, ""
        if isinstance(known, ShapeValues):
            return ir.DataType.from_numpy(known.dtype), ""
        return self.builder.type_of(known)


def _stored(node: ir.Node) -> ir.TensorProtocol | None:
    """Returns the tensor of a Constant node, which is an initializer in another place; None for any other node.

    Some exporters write one for each weight, so that they are most nodes of a file; the row would do the same.
    """
    if node.op_type != "Constant" or node.domain or len(node.attributes.data) != 1 or node.inputs:
        return None
    attribute = node.attributes.data.get("value")
    if attribute is None or attribute.type != ir.AttributeType.TENSOR or attribute.is_ref():
        return None
    return cast("ir.TensorProtocol", attribute.value)


def _used_inside(nodes: Iterable[ir.Node]) -> set[ir.Value | None]:
    """Returns all values that nodes in subgraphs of `nodes` read, including values of the subgraphs."""
    used: set[ir.Value | None] = set()
    pending = inner_graphs(nodes)
    for body in pending:
        inside = list(body)
        used.update(value for node in inside for value in node.inputs)
        pending += inner_graphs(inside)
    return used
