"""The import of If: one branch where the condition is known at import, else both branches as modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx2nn.control_flow import If
from onnx2nn.fx.builder import TorchBuilder, TorchWalk
from onnx2nn.fx.subgraphs.region_specs import outside, spec_of, unify
from onnx2nn.fx.subgraphs.shared_memory import views
from onnx2nn.fx.trace_errors import BranchConflictError
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.guards import Guards
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.importing.control_flow import BRANCHES, branches_of, constant_truth
from onnx2nn.optable.shape_values import ShapeValues
from onnx2nn.sizes.conditions import Condition, Truth, negation
from onnx2nn.sizes.expression import MAX_DIMENSION, Size
from onnx2nn.sizes.facts import Facts


def import_if(walk: TorchWalk, node: ir.Node, inputs: list[Any]) -> Sequence[Any]:
    """Imports an If; returns its outputs.

    Both branches are kept where sizes or data choose one. Where sizes do and the results of the branches have different
    ranks, the structure of the program depends on the choice: one branch is imported, and a guard checks the choice.
    """
    branches, builder = branches_of(node), walk.builder
    (condition,) = inputs
    if isinstance(condition, ShapeValues):
        condition = condition.array.item()
    truth = condition if isinstance(condition, bool) else constant_truth(condition)
    if truth is not None:
        return _inline(walk, branches, truth)
    tracer, sizes = builder.tracer, None
    if isinstance(condition, Dim):
        assert isinstance(condition.expr, Condition)
        sizes = condition.expr
        condition = tracer.F.scalar_tensor(condition.to_integer(), dtype=torch.int64) != 0
    path = _own_path(builder, dict(zip(BRANCHES, branches, strict=True)))
    children = [_child(builder, graph, slot, path) for graph, slot in zip(branches, BRANCHES, strict=True)]
    if sizes is not None:
        children[0].tracer.guards.facts.assume(sizes)
        children[1].tracer.guards.facts.assume(negation(sizes))
    outputs = []
    for graph, child in zip(branches, children, strict=True):
        try:
            outputs.append(walk.inside(graph, {}, child))
        except BranchConflictError as error:
            return _without(walk, branches, graph, condition, sizes, error)
    traced = [child.tracer for child in children]
    results = [[outside(tracer, spec_of(value)) for value in values] for values in outputs]
    if sizes is not None and any(map(_differ, *results)) and not sizes.by_data:
        return _inline(walk, branches, tracer.guards.choice(sizes))
    if sizes is None:
        _lift_common(tracer.guards, *(child.tracer.guards for child in children))
    elif not sizes.by_data:
        for child, chosen in zip(children, (sizes, negation(sizes)), strict=True):
            assert isinstance(chosen, Condition)
            tracer.guards.lift(child.tracer.guards, chosen)
    specs = tuple(unify(tracer, a, b) for a, b in zip(*results, strict=True))
    named = zip(children, outputs, ("Then", "Else"), strict=True)
    modules = [child.program(values, kind) for child, values, kind in named]
    captured = (condition, *traced[0].captured, *traced[1].captured)
    truths: Sequence[Truth] = (True, True) if sizes is None else (sizes, negation(sizes))
    serves = [_served(tracer, child, truth) for child, truth in zip(traced, truths, strict=True)]
    shared = views(captured[1:])
    module = If(modules[0], modules[1], len(traced[0].captured), serves if any(serves) else (), shared)
    name = builder.placement.of_graphs(node) if path is None else path.split(".")
    outcome: Sequence[Any] = tracer.call_module(name, module, captured, specs, own=path is not None)
    return outcome


def _lift_common(outer: Guards, first: Guards, second: Guards) -> None:
    """Moves the guards of both branches to the program around them: whichever branch runs, they must hold."""
    theirs = {guard.condition: guard for guard in second.found}
    for guard in [guard for guard in first.found if guard.condition in theirs and not guard.condition.by_data]:
        first.found.remove(guard)
        second.found.remove(theirs[guard.condition])
        outer.facts.assume(guard.condition)
        outer.found.append(guard)


def _differ(a: Spec | None, b: Spec | None) -> bool:
    """Returns whether two results cannot have a common spec of known rank."""
    if a is None or b is None:
        return (a is None) != (b is None)
    return a.dtype != b.dtype or (a.shape is None) != (b.shape is None) or len(a.shape or ()) != len(b.shape or ())


def _child(builder: TorchBuilder, branch: ir.Graph, slot: str, path: str | None) -> TorchBuilder:
    """Returns the builder of a branch, whose module is at `path` in the author's keys, if it has such a path."""
    own = None if path is None else f"{builder.placement.prefix}{path}.{slot}."
    child = builder.region(own, branch=branch)
    if own is not None:
        child.tracer.held.names.reserve(_inside(builder, own))
    return child


def _served(tracer: Tracer, child: Tracer, chosen: Truth) -> list[tuple[int, int, int, int]]:
    """Returns the sizes that a branch accepts: position among the captured values, axis, least and greatest size.

    Args:
        tracer: records the enclosing program.
        child: records the branch.
        chosen: the condition on sizes that chooses the branch; it limits when the branch runs, not what it accepts.
    """
    served = []
    facts, known, outer = child.guards.facts, tracer.guards.facts, Facts(tracer.guards.facts)
    outer.assume(chosen)
    for position, value in enumerate(child.captured):
        shape = value.spec.shape if isinstance(value, Tensor) else None
        for axis, size in enumerate(shape or ()):
            least, most = facts.bounds(facts.settled(size))
            first, last = outer.bounds(outer.settled(size))
            if (least, most) == (first, last) or least is None or (isinstance(size, Size) and size.by_data):
                continue
            if least != most:  # of a range, an end that the condition sets is not the branch's
                lowest, highest = known.bounds(known.settled(size))
                least = lowest if least == first and lowest is not None else least
                most = highest if most == last else most
            served.append((position, axis, least, MAX_DIMENSION if most is None else most))
    return served


def _without(
    walk: TorchWalk,
    branches: Sequence[ir.Graph],
    refused: ir.Graph,
    condition: Any,
    sizes: Condition | None,
    error: BranchConflictError,
) -> Sequence[Any]:
    """Imports the other branch than `refused`, with a guard or an assertion that it is chosen.

    The branch `refused` has a shape conflict for all sizes of the inputs.

    Raises:
        OperatorError: the other branch has a shape conflict too.
    """
    truth, tracer = refused is branches[1], walk.builder.tracer
    if sizes is not None and not sizes.by_data:
        tracer.guards.demand(sizes if truth else negation(sizes), f"in the other branch, {str(error).rstrip('.')}")
        return _inline(walk, branches, truth)
    condition = condition.reshape(())
    message = f"The other branch does not take inputs of these sizes: {error}"
    tracer.record("call_function", torch._assert_async, (condition if truth else ~condition, message))
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
