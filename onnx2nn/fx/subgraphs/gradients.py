"""The import of Gradient: the differentiated nodes are imported a second time, as the body of its module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnx2nn.control_flow import Gradient
from onnx2nn.errors import OperatorError
from onnx2nn.fx.builder import TorchBuilder, TorchWalk
from onnx2nn.fx.subgraphs.region_specs import spec_of
from onnx2nn.importing.node_facts import Scope
from onnx2nn.importing.walk import UNKNOWN, Walk


def import_gradient(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Imports the nodes between the values in `xs` and `zs` and the differentiated value `y`."""
    named = {value.name: value for value in [*walk.graph.inputs, *_initializers(walk.graph)]}
    named |= {value.name: value for other in walk.graph for value in other.outputs}
    xs = list(node.attributes["xs"].as_strings())
    zs = list(node.attributes["zs"].as_strings()) if "zs" in node.attributes else []
    y = node.attributes["y"].as_string()
    missing = [name for name in (*xs, *zs, y) if name not in named]
    if missing:
        raise OperatorError(f"it names the value {missing[0]!r}, which its graph does not have.")
    if len(inputs) != len(xs) + len(zs):
        raise OperatorError(f"it has {len(inputs)} inputs and names {len(xs) + len(zs)} values.")
    tracer, child = walk.builder.tracer, walk.builder.child()
    values = [walk.builder.tensor(value) for value in inputs]
    bindings = {
        named[name]: child.tracer.placeholder(f"value_{i}", spec_of(value))
        for i, (name, value) in enumerate(zip([*xs, *zs], values, strict=True))
    }
    module = child.tracer.finish((_import_slice(walk, named[y], bindings, child),), "Body")
    specs = tuple(spec_of(value) for value in values[: len(xs)])
    arguments = (*values, *child.tracer.captured)
    outcome: Sequence[Any] = tracer.call_module(
        walk.builder.placement.of_graphs(node), Gradient(module, len(xs)), arguments, specs
    )
    return outcome


def _initializers(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    return list(graph.initializers.values()) if isinstance(graph, ir.Graph) else []


def _import_slice(walk: TorchWalk, end: ir.Value, bindings: Mapping[ir.Value, Any], builder: TorchBuilder) -> Any:
    """Imports the nodes that compute `end` from `bindings` with `builder`; returns the value of `end`."""
    needed, pending = set(), [end]
    while pending:
        value = pending.pop()
        maker = value.producer()
        if value not in bindings and maker is not None and maker not in needed:
            needed.add(maker)
            pending += [item for item in maker.inputs if item is not None]
    scope = Scope(walk.scope)
    for value in _initializers(walk.graph):
        name = value.name or ""
        if name in walk.builder.state.constants:  # the walk drops a value after its last use
            scope[value] = walk.builder.state.constants[name]
    for value, known in bindings.items():
        scope[value] = known
    inner = Walk(builder, scope, walk.graph, walk.opsets, walk.attributes)
    for node in walk.graph:
        if node in needed:
            builder.at.node = node
            for value, result in zip(node.outputs, inner.run_node(node), strict=False):
                if value not in bindings:
                    scope[value] = result
    if scope[end] is UNKNOWN:
        raise OperatorError("the differentiated nodes include nodes that cannot be imported, named on their own.")
    return builder.output(scope[end])
