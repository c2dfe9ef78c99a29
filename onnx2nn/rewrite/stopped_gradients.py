"""Stops gradients where the author did, as `x + (x.round() - x).detach()` of quantisers that are trained.

`torch.onnx.export(dynamo=True)` writes no node for `Tensor.detach`, but the calls that it notes on nodes name the
result of `detach` among their arguments. The value there gets an `onnx2nn::Detach` behind it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence, Set

import onnx_ir as ir

from onnx2nn.optable.row import OWN
from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.exporter_metadata import Call

_DETACHED = re.compile(r"%detach(_\d+)?")
"""Results of Tensor.detach among the arguments of a noted call."""

_NAME = re.compile(r"%(\w+)")
_OUTSIDE = re.compile(r"p_|b_|c_|sym_size_")
"""Parameters, buffers, constants and sizes, of which no value of the graph has the name."""

_SIZES = re.compile(r"val_\d+")
"""Values of the exporter's own."""


def stop_gradients(graph: ir.Graph) -> None:
    """Puts a Detach between a value and the nodes of which the file says that they read it detached."""
    if not any(exporter_metadata.is_in_call(node, "detach") for node in graph):
        return  # most files, whose notes need not be parsed
    names = {value.name or "" for node in graph for value in node.outputs} | {v.name or "" for v in graph.inputs}
    made: dict[ir.Value, ir.Value] = {}
    for _, found in itertools.groupby(list(graph), exporter_metadata.call_name):
        nodes = list(found)
        call = exporter_metadata.call_of(nodes[-1])
        for node, position in _detached(nodes, call, names) if call is not None else ():
            value = node.inputs[position]
            assert value is not None
            if value.dtype is not None and not value.dtype.is_floating_point():
                continue  # it has no gradient
            if value not in made:
                made[value] = _detach(graph, node, value)
            node.replace_input_with(position, made[value])


def _detached(nodes: Sequence[ir.Node], call: Call, names: Set[str]) -> list[tuple[ir.Node, int]]:
    """Returns the inputs that a call takes as results of Tensor.detach: nodes and positions.

    Args:
        nodes: what the call became.
        call: the call with its arguments in torch's order, which need not be the order of a node's inputs.
        names: the values of the graph, which have the names that calls use for them unless equal ones were merged.
    """
    if call.target == "aten.detach.default":
        return [(node, 0) for node in nodes if node.op_type == "Identity"]
    stopped = {text for text in call.arguments if _DETACHED.fullmatch(text)}
    if not stopped:
        return []
    (*before, last) = nodes
    if not before and _is_in_order(last, call, names):
        return [(last, i) for i, text in enumerate(call.arguments) if text in stopped]
    others = {name for text in call.arguments if text not in stopped for name in _NAME.findall(text)}
    if len(stopped) > 1 or not all(name in names or _OUTSIDE.match(name) for name in others):
        return []
    own = {value for node in nodes for value in node.outputs}
    read = [(node, i, value) for node in nodes for i, value in enumerate(node.inputs) if value is not None]
    read = [(node, i, value) for node, i, value in read if value not in own and not value.is_initializer()]
    read = [(node, i, value) for node, i, value in read if not _SIZES.fullmatch(value.name or "")]
    left = [(node, i, value) for node, i, value in read if value.name not in others]
    return [(node, i) for node, i, _ in left] if len({value for *_, value in left}) == 1 else []


def _is_in_order(node: ir.Node, call: Call, names: Set[str]) -> bool:
    """Returns whether the arguments of a noted call are the inputs of its only node, one by one."""
    if len(call.arguments) != len(node.inputs):
        return False
    return all(_may_be(text, value, names) for text, value in zip(call.arguments, node.inputs, strict=True))


def _may_be(argument: str, value: ir.Value | None, names: Set[str]) -> bool:
    """Returns whether an argument of a noted call may be this input of a node."""
    if value is None or not argument.startswith("%"):
        return value is not None and value.is_initializer()
    if _DETACHED.fullmatch(argument):
        return not value.is_initializer()
    name = argument.removeprefix("%")
    return name == value.name if name in names else not _OUTSIDE.match(name) or value.is_initializer()


def _detach(graph: ir.Graph, node: ir.Node, value: ir.Value) -> ir.Value:
    """Returns the value without gradients, computed in front of its first reader `node`, in that node's module."""
    made = ir.Node(OWN, "Detach", [value], version=1, name=f"{value.name}/Detach")
    made.outputs[0].name = made.name
    made.outputs[0].type, made.outputs[0].shape = value.type, value.shape
    made.metadata_props.update(node.metadata_props)
    graph.insert_before(node, made)
    return made.outputs[0]
