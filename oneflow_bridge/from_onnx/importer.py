"""The import of an ONNX model, planned by `plan.plan`, as a OneFlow module."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from oneflow_bridge.from_onnx.builder import FlowBuilder
from oneflow_bridge.from_onnx.import_state import FlowImport
from oneflow_bridge.from_onnx.module import ImportedModule
from oneflow_bridge.from_onnx.program import Program
from oneflow_bridge.from_onnx.subgraphs import REGIONS
from oneflow_bridge.namespace.dtypes import flow
from onnx2nn.errors import OperatorError, Problem
from onnx2nn.importing.inputs import input_dimensions, input_specs
from onnx2nn.importing.node_facts import Scope
from onnx2nn.importing.plan import Plan
from onnx2nn.importing.walk import Walk
from onnx2nn.provenance.author import Author


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
    state = FlowImport(model, plan, input_dimensions(model, input_shapes or {}))
    graph = model.graph
    reserved = () if state.author is None else state.author.names
    builder, scope = FlowBuilder(state, lambda: REGIONS, Program(reserved=reserved)), Scope()
    specs = {spec.name: spec for spec in input_specs(model)}
    for value in graph.inputs:
        try:
            known = state.spec(value)
        except OperatorError as error:
            problem = Problem("graph input", "", 0, str(error), "", [value.name or "?"])
            state.problems["", "input", 0, value.name or ""] = problem
            known = None
        scope[value] = builder.writer.argument(value, known)
    with flow.no_grad():
        outputs = list(map(builder.output, Walk(builder, scope, graph, dict(graph.opset_imports)).run()))
    state.raise_problems()
    module = builder.writer.finish(outputs)
    if state.author is not None:
        _keep_keys(module, state.author)
    module.meta["onnx2nn"] |= {
        "inputs": [value.name for value in graph.inputs],
        "outputs": [value.name for value in graph.outputs],
        "signature": [
            {**dataclasses.asdict(spec), "dtype": spec.dtype and spec.dtype.name, "shape": _shape(state, spec.name)}
            for spec in specs.values()
        ],
    }
    return module


def _keep_keys(module: ImportedModule, author: Author) -> None:
    """Registers a tied weight also under its keys that no node uses, unless something stands in such a key's way."""
    parameters = dict(_parameters(module, ""))
    for key, other in author.tied_keys(parameters.keys()):
        *steps, name = key.split(".")
        holder: Any = module
        for step in steps:
            if holder is not None and not hasattr(holder, step):
                holder.add_module(step, flow.nn.Module())
            holder = holder._modules.get(step) if holder is not None else None
        if holder is not None and not hasattr(holder, name):
            holder.register_parameter(name, parameters[other])
        parameters[key] = parameters[other]


def _parameters(module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields the parameters of a tree by key; a shared one under all its keys, as OneFlow has no option for that."""
    yield from ((prefix + name, value) for name, value in module._parameters.items() if value is not None)
    for name, inner in module._modules.items():
        yield from _parameters(inner, f"{prefix}{name}.")


def _shape(state: FlowImport, name: str) -> tuple[int | str, ...] | None:
    dims = state.inputs[name]
    return None if dims is None else tuple(dims)
