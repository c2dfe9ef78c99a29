"""The import of an ONNX model, planned by `plan.plan`, as a OneFlow module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from oneflow_bridge.from_onnx.builder import FlowBuilder
from oneflow_bridge.from_onnx.import_state import FlowImport, ShapeConflictError
from oneflow_bridge.from_onnx.module import ImportedModule
from oneflow_bridge.from_onnx.program import Program
from oneflow_bridge.from_onnx.subgraphs import REGIONS
from oneflow_bridge.namespace.dtypes import flow
from onnx2nn.errors import OperatorError, Problem
from onnx2nn.importing.inputs import input_dimensions, input_specs
from onnx2nn.importing.node_facts import Scope, node_name
from onnx2nn.importing.plan import Plan
from onnx2nn.importing.walk import Walk

FAMILIES = (
    lambda k, first: (2 + k, 3 + k) if first else (5 + 2 * k, 8 + 3 * k),
    lambda k, first: (2, 3) if first else (64 + 32 * k, 128 + 64 * k),
    lambda k, first: (2, 3) if first else (224 + 32 * k, 320 + 64 * k),
    lambda k, first: (2, 3) if first else (224, 320),
    lambda k, first: (2, 3) if first else (6, 8),
    lambda k, first: (1, 2),
    lambda k, first: (1, 1),
)
"""Sample sizes of the k-th dynamic dimension; `first`: it is the first of an input, on which few nodes depend."""


def import_graph(
    model: ir.Model, plan: Plan, *, input_shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> ImportedModule:
    """Returns `model` as a module in eval mode.

    Args:
        model: the model, read by `reader.read`.
        plan: the row or function that implements each node.
        input_shapes: input names → dimensions that replace the file's; a str or None is dynamic.

    Raises:
        UnsupportedModelError: nodes that cannot be imported, all of them.
    """
    inputs = input_dimensions(model, input_shapes or {})
    first = {dims[0] for dims in inputs.values() if dims and isinstance(dims[0], str)}
    names = list(dict.fromkeys(d for dims in inputs.values() if dims for d in dims if isinstance(d, str)))
    if not names:
        return _run(FlowImport(model, plan, inputs, {}, strict=True))
    refused: dict[str, set[str]] = {}
    for family in FAMILIES:
        sizes = {name: family(k, name in first) for k, name in enumerate(names)}
        try:
            return _run(FlowImport(model, plan, inputs, sizes, strict=True))
        except ShapeConflictError as error:
            refused.setdefault(node_name(error.node), set()).add(error.reason)
    # A node that fails at all sizes with the same reason fails at any size.
    always = {name: reasons.pop() for name, reasons in refused.items() if len(refused) == 1 and len(reasons) == 1}
    sizes = {name: FAMILIES[0](k, name in first) for k, name in enumerate(names)}
    return _run(FlowImport(model, plan, inputs, sizes, strict=False, refused=always))


def _run(state: FlowImport) -> ImportedModule:
    """Returns the module of an import at one choice of sample sizes.

    Raises:
        ShapeConflictError: a node fails at the sample sizes.
        UnsupportedModelError: nodes that cannot be imported, all of them.
    """
    graph = state.model.graph
    builder, scope = FlowBuilder(state, REGIONS, Program()), Scope()
    specs = {spec.name: spec for spec in input_specs(state.model)}
    for value in graph.inputs:
        try:
            samples = state.samples(value, specs[value.name or ""].limit if value.name in specs else None)
        except OperatorError as error:
            problem = Problem("graph input", "", 0, str(error), "", [value.name or "?"])
            state.problems["", "input", 0, value.name or ""] = problem
            samples = None
        scope[value] = builder.writer.argument(value, samples)
    with flow.no_grad():
        outputs = Walk(builder, scope, graph, dict(graph.opset_imports)).run()
    state.raise_problems()
    module = builder.writer.finish(outputs)
    module.meta["onnx2nn"] = {
        "inputs": [value.name for value in graph.inputs],
        "outputs": [value.name for value in graph.outputs],
        "signature": [
            {**dataclasses.asdict(spec), "dtype": spec.dtype and spec.dtype.name, "shape": _shape(state, spec.name)}
            for spec in specs.values()
        ],
    }
    return module


def _shape(state: FlowImport, name: str) -> tuple[int | str, ...] | None:
    dims = state.inputs[name]
    return None if dims is None else tuple(dims)
