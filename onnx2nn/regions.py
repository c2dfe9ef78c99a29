"""Modules that hold imported subgraphs, and how the importer makes them: If, Loop, Scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch import nn

from onnx2nn.constants import Constant, Host
from onnx2nn.errors import OperatorError
from onnx2nn.naming import split_path
from onnx2nn.table import Row
from onnx2nn.tracing import Dim, Spec, Tensor, Tracer

if TYPE_CHECKING:
    from onnx2nn.importer import Walk


class RenameInputs:
    """Forward pre-hook that lets a module be called with input names that are no Python identifiers."""

    def __init__(self, names: Mapping[str, str]):
        self.names = dict(names)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the call's arguments under the names that the module's forward has."""
        return args, {self.names.get(name, name): value for name, value in kwargs.items()}


class If(nn.Module):
    """ONNX If: runs one of two submodules; `torch.cond` while the module is being exported or compiled."""

    def __init__(self, then_branch: nn.Module, else_branch: nn.Module, split: int):
        super().__init__()
        self.then_branch, self.else_branch, self.split = then_branch, else_branch, split

    def forward(self, cond: Any, *captured: Any) -> Any:
        """Returns the outputs of the branch that `cond`, a bool tensor of one element or a bool, chooses."""

        def then(*values: Any) -> Any:
            return self.then_branch(*values[: self.split])

        def otherwise(*values: Any) -> Any:
            return self.else_branch(*values[self.split :])

        if torch.compiler.is_compiling() and isinstance(cond, torch.Tensor):
            return torch.cond(cond.reshape(()), then, otherwise, captured)
        return then(*captured) if cond else otherwise(*captured)


def run(walk: Walk, node: ir.Node, row: Row, inputs: list[Any]) -> Any:
    """Imports a node whose attributes are graphs."""
    importer = _IMPORTERS.get(row.operator)
    if importer is None:
        raise OperatorError("its subgraph cannot be imported.")
    return importer(walk, node, inputs)


def trace_graph(walk: Walk, graph: ir.Graph, bindings: Mapping[ir.Value, Any], tracer: Tracer) -> list[Any]:
    """Imports `graph` with `tracer`, its inputs bound to `bindings`; returns its outputs."""
    from onnx2nn.importer import Scope, Walk  # a subgraph is walked like the graph around it

    scope = Scope(walk.scope)
    for value, known in bindings.items():
        scope[value] = known
    inner = Walk(walk.owner, tracer, scope, graph, walk.opsets)
    inner.attributes = walk.attributes
    inner.by_memory = walk.by_memory
    if tracer is walk.tracer:
        try:
            return inner.run()
        finally:
            tracer.constant_name, tracer.layer_name = walk._constant_name, walk._layer_name
            tracer.inline = walk._inline
    return inner.run()


def _import_if(walk: Walk, node: ir.Node, inputs: list[Any]) -> Any:
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    (condition,) = inputs
    if isinstance(condition, Host):
        condition = condition.array.item()
    if isinstance(condition, Constant):
        return trace_graph(walk, branches[0 if bool(condition.numpy().all()) else 1], {}, walk.tracer)
    if isinstance(condition, Dim) and len(set(map(bool, condition.values))) == 1:
        # The sizes of the samples agree: import that branch alone, and let sizes that choose the other one fail.
        chosen = bool(condition.values[0])
        expected = condition if chosen else condition == False  # noqa: E712 (records the comparison)
        walk.tracer.record("call_function", torch._check, (expected,))
        return trace_graph(walk, branches[0 if chosen else 1], {}, walk.tracer)
    traced = [Tracer(walk.tracer.points, walk.tracer) for _ in branches]
    outputs = [trace_graph(walk, graph, {}, tracer) for graph, tracer in zip(branches, traced, strict=True)]
    specs = tuple(
        unify(walk.tracer, a, b)
        for a, b in zip(*([output_spec(v, walk.tracer) for v in o] for o in outputs), strict=True)
    )
    modules = [t.finish(tuple(o), name) for t, o, name in zip(traced, outputs, ("Then", "Else"), strict=True)]
    captured = (condition, *traced[0].captured, *traced[1].captured)
    module = If(modules[0], modules[1], len(traced[0].captured))
    return walk.tracer.call_module(_name(node), module, captured, specs)


def _name(node: ir.Node) -> list[str]:
    return split_path(node.name or node.outputs[0].name or node.op_type.lower())


def output_spec(value: Any, tracer: Tracer) -> Spec | None:
    """Returns what is known of a subgraph's output."""
    if isinstance(value, torch.Tensor):
        return Spec((tuple(value.shape),) * tracer.points, value.dtype)
    return value.spec if isinstance(value, Tensor) else None


def unify(tracer: Tracer, a: Spec | None, b: Spec | None) -> Spec | None:
    """Returns what holds of a value that is either of two: a dimension in which they differ is known at run time."""
    if a is None or b is None:
        return None
    dtype = a.dtype or b.dtype
    if a.shapes is None or b.shapes is None or len(a.shapes[0]) != len(b.shapes[0]):
        return Spec(None, dtype)
    columns = [
        m if m == n else tracer.fresh_dimension()
        for m, n in zip(zip(*a.shapes, strict=True), zip(*b.shapes, strict=True), strict=True)
    ]
    return Spec(tuple(zip(*columns, strict=True)) if columns else a.shapes, dtype)


_IMPORTERS: dict[str, Callable[[Walk, ir.Node, list[Any]], Sequence[Any]]] = {"If": _import_if}
