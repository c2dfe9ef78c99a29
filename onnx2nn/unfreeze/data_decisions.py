"""Control flow that data decide: with several samples there is one decision, though each sample needs its own."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping

import onnx_ir as ir

from onnx2nn.importing.node_facts import inner_graphs

_SIZES_ONLY = ("Shape", "Size")
"""Operators that read no elements."""


def data_decision(model: ir.Model, inputs: Collection[str], sized: Container[ir.Value]) -> ir.Node | None:
    """Returns an If, or a Loop with a condition or trip count, that depends on elements of inputs; None for none.

    Args:
        model: the model.
        inputs: the names of the inputs.
        sized: the values whose shapes follow from those of the inputs; the shapes of others may depend on elements.
    """
    known = {value for value in model.graph.inputs if value.name in inputs}
    return _Search(model.functions, sized).first(model.graph, known)


class _Search:
    """Follows values that depend on elements of inputs, through inner graphs and functions.

    Args:
        functions: the model's functions.
        sized: the values whose shapes do not depend on elements.
    """

    def __init__(self, functions: Mapping[ir.OperatorIdentifier, ir.Function], sized: Container[ir.Value]):
        self._functions, self._sized = functions, sized

    def first(self, graph: Iterable[ir.Node], known: set[ir.Value]) -> ir.Node | None:
        """Returns the first decision among nodes in order; adds the values that depend on `known` to it."""
        for node in graph:
            found = self._inside(node, known)
            if found is not None:
                return found
        return None

    def _inside(self, node: ir.Node, known: set[ir.Value]) -> ir.Node | None:
        """Follows the values into a node and to its outputs; returns the first decision."""
        read = [value for value in node.inputs if node.op_type not in _SIZES_ONLY or value not in self._sized]
        depends = not known.isdisjoint(read)
        decided = {"If": 1, "Loop": 2}.get(node.op_type, 0) if not node.domain else 0
        if not known.isdisjoint(node.inputs[:decided]):
            return node
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
                return node
            depends |= not known.isdisjoint(graph.outputs)
        function = self._functions.get(node.op_identifier())
        if function is not None and depends:
            own = {f for f, given in zip(function.inputs, node.inputs, strict=False) if given in known}
            found = self.first(function, own)
            if found is not None:
                return found
        if depends:
            known.update(node.outputs)
        return None
