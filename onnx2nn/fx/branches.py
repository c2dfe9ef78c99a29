"""The import of If: one branch where the condition is known at import, else both branches as modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from onnx2nn.control_flow import If
from onnx2nn.fx.builder import TorchBuilder, TorchWalk
from onnx2nn.fx.dim import Dim
from onnx2nn.fx.import_state import Limit
from onnx2nn.fx.region_specs import spec_of, unify
from onnx2nn.fx.sample_sizes import BranchConflictError, Fixed, InBranch, Size, Sizes
from onnx2nn.fx.spec import Spec
from onnx2nn.importing.control_flow import BRANCHES, branches_of, constant_truth, module_path
from onnx2nn.optable.shape_values import ShapeValues


class _Branch(NamedTuple):
    """The dynamic dimensions in a branch of an If that is chosen at run time.

    Attributes:
        graph: the branch, or the outermost branch around it.
        sizes: the sample sizes in the branch.
        window: the branch's points among the enclosing graph's sample points, None for all.
        fixed: dimensions that are more restricted in the branch than outside.
    """

    graph: ir.Graph
    sizes: Sizes
    window: slice | None
    fixed: Fixed


def import_if(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Imports an If; returns its outputs."""
    branches, builder = branches_of(node), walk.builder
    (condition,) = inputs
    if isinstance(condition, ShapeValues):
        condition = condition.array.item()
    truth = constant_truth(condition)
    if truth is not None:
        return _inline(walk, branches, truth)
    if isinstance(condition, Dim) and len(set(map(bool, condition.values))) == 1 and not condition.data_dependent:
        # All samples choose one branch: import it alone, with a guard against sizes that choose the other branch.
        return _inline(walk, branches, condition.assume())
    if isinstance(condition, Dim):
        builder.state.split[node] = [bool(value) for value in condition.values]
        condition = builder.tracer.F.scalar_tensor(condition.to_integer(), dtype=torch.int64) != 0
    seen = [_branch(builder, graph) for graph in branches]
    path = _own_path(builder, dict(zip(BRANCHES, branches, strict=True)))
    children = [_child(builder, branch, slot, path) for branch, slot in zip(seen, BRANCHES, strict=True)]
    limits = [builder.state.guard(c.tracer, branch.fixed) for c, branch in zip(children, seen, strict=True)]
    outputs = []
    for graph, child in zip(branches, children, strict=True):
        try:
            outputs.append(walk.inside(graph, {}, child))
        except BranchConflictError as error:
            return _without(walk, branches, graph, condition, error)
    traced = [child.tracer for child in children]
    results = zip(*([spec_of(v, t) for v in o] for o, t in zip(outputs, traced, strict=True)), strict=True)
    specs = tuple(_either(builder, seen, a, b) for a, b in results)
    modules = [t.finish(tuple(o), name) for t, o, name in zip(traced, outputs, ("Then", "Else"), strict=True)]
    captured = (condition, *traced[0].captured, *traced[1].captured)
    serves = [_served(child.captured, limit) for child, limit in zip(traced, limits, strict=True)]
    module = If(modules[0], modules[1], len(traced[0].captured), serves if any(serves) else ())
    name = module_path(node) if path is None else path.split(".")
    outcome: Sequence[Any] = builder.tracer.call_module(name, module, captured, specs, own=path is not None)
    return outcome


def _branch(builder: TorchBuilder, graph: ir.Graph) -> _Branch:
    if builder.branch is not None or not builder.sizes.branches:
        return _Branch(builder.branch or graph, builder.sizes, None, {})
    window, sizes = builder.sizes.inside(graph)
    fixed: dict[str | InBranch, Size] = {
        key.name: size for key, size in builder.state.fixed.items() if isinstance(key, InBranch) and key.branch is graph
    }
    return _Branch(graph, sizes, window, fixed)


def _child(builder: TorchBuilder, branch: _Branch, slot: str, path: str | None) -> TorchBuilder:
    """Returns the builder of a branch, whose module is at `path` in the author's keys, if it has such a path."""
    own = None if path is None else f"{builder.placement.prefix}{path}.{slot}."
    child = builder.region(own, sizes=branch.sizes, branch=branch.graph, window=branch.window)
    if own is not None:
        child.tracer.names.reserve(_inside(builder, own))
    return child


def _either(builder: TorchBuilder, branches: Sequence[_Branch], a: Spec | None, b: Spec | None) -> Spec | None:
    """Returns the common spec of a result of two branches, each with its own sample points."""
    tracer = builder.tracer
    windows = [branch.window for branch in branches if branch.window is not None]
    if not windows or a is None or b is None or a.shapes is None or b.shapes is None:
        return unify(tracer, a, b)
    if len(a.shapes[0]) != len(b.shapes[0]):
        return Spec(None, a.dtype or b.dtype)
    pairs = zip(zip(*a.shapes, strict=True), zip(*b.shapes, strict=True), strict=True)
    columns = [_everywhere(builder, windows, pair) for pair in pairs]
    return Spec(tuple(zip(*columns, strict=True)) if columns else ((),) * tracer.points, a.dtype or b.dtype)


def _everywhere(builder: TorchBuilder, windows: Sequence[slice], parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the values of a dimension at all sample points; `parts` are its values at the points in `windows`."""
    sizes = set().union(*parts)
    if len(sizes) == 1:
        return (sizes.pop(),) * builder.tracer.points
    known = (values for values in builder.sizes.values.values() if [values[w] for w in windows] == list(parts))
    return next(known, None) or builder.tracer.fresh_dimension()


def _served(captured: Sequence[Any], limits: Sequence[Limit]) -> list[tuple[int, int, int, int]]:
    """Returns the sizes that a branch accepts: position among the captured values, axis, least and greatest size."""
    places = {id(value): position for position, value in enumerate(captured)}
    return [(places[id(limit.tensor)], *limit[1:]) for limit in limits]


def _without(
    walk: TorchWalk, branches: Sequence[ir.Graph], refused: ir.Graph, condition: Any, error: BranchConflictError
) -> Sequence[Any]:
    """Imports the other branch than `refused`, with an assertion that it is chosen.

    The branch `refused` has a shape conflict for all sizes of the inputs.

    Raises:
        OperatorError: the other branch has a shape conflict too.
    """
    truth = refused is branches[1]
    condition = condition.reshape(())
    message = f"The other branch does not take inputs of these sizes: {error}"
    walk.builder.tracer.record("call_function", torch._assert_async, (condition if truth else ~condition, message))
    return _inline(walk, branches, truth)


def _inline(walk: TorchWalk, branches: Sequence[ir.Graph], truth: bool) -> Sequence[Any]:
    """Imports the first or the second branch into the enclosing graph."""
    taken, other = branches if truth else reversed(branches)
    outputs = walk.inside(taken, {})
    # The step count is the same for both branches, so that imports can be compared.
    walk.builder.state.steps += sum(1 for _ in other.all_nodes())
    return outputs


def _inside(builder: TorchBuilder, prefix: str) -> list[str]:
    """Returns the author's keys that begin with `prefix`, without the prefix."""
    author = builder.state.author
    return [] if author is None else [key.removeprefix(prefix) for key in author.names if key.startswith(prefix)]


def _own_path(builder: TorchBuilder, graphs: Mapping[str, ir.Graph]) -> str | None:
    """Returns the path of the module that holds `graphs` in the author's keys, for a file exported from an import.

    In such a file the weights of a branch have its path as a prefix: `If_0.then_branch.conv.weight`. None unless the
    keys of all weights in `graphs` name one such module, whose weights are used in `graphs` only.
    """
    author, prefix = builder.state.author, builder.placement.prefix
    if author is None or builder.placement.outer:
        return None
    paths, found = set(), set()
    for slot, graph in graphs.items():
        uses = Counter(value for node in graph.all_nodes() for value in node.inputs if value is not None)
        for value, count in uses.items():
            if not value.is_initializer() or value.name not in author.names:
                continue
            key = value.name.removeprefix(prefix)
            path, within, _ = key.partition(f".{slot}.")
            if not within or not value.name.startswith(prefix) or len(value.uses()) != count:
                return None
            paths.add(path)
            found.add(key)
    if len(paths) != 1:
        return None
    (path,) = paths
    return path if all(key in found for key in _inside(builder, prefix) if f"{key}.".startswith(f"{path}.")) else None
