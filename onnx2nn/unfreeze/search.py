"""Makes fixed dimensions dynamic: finds the constants that depend on them, and replaces these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from torch import fx

from onnx2nn.errors import FrozenDimensionError, InputError, UnsupportedModelError
from onnx2nn.fx.importer import import_graph, import_strictly
from onnx2nn.fx.trace_errors import ShapeConflictError
from onnx2nn.importing.inputs import InputShapes, input_dimensions, input_specs
from onnx2nn.importing.node_facts import node_name
from onnx2nn.importing.plan import Plan
from onnx2nn.unfreeze.candidates import candidates
from onnx2nn.unfreeze.joined_constants import join_constants
from onnx2nn.unfreeze.proof import verify, wish
from onnx2nn.unfreeze.rules import Frozen, Repair, Rules
from onnx2nn.unfreeze.size_points import NodeConflictError, SizePoints, Substituted
from onnx2nn.unfreeze.substitutions import Substitution, apply

_TRIALS = 200
"""The most constants to try; each costs a walk over the graph behind it."""

_MULTIPLES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
"""Factors of the size in the file at further points, different ones for every point and dimension."""

_OTHERS = ((7, 11, 13), (64, 128, 192), (224, 288, 352), (4, 6, 8), (1, 2, 3))
"""Sizes of the file's own dynamic dimensions; the ones at which the walk gets furthest are used."""


def import_dynamic(
    model: ir.Model, plan: Plan, dynamic: Mapping[str, Mapping[int, str]], *, input_shapes: InputShapes | None = None
) -> fx.GraphModule:
    """Returns `model`, which is changed, as a module with dynamic dimensions.

    Args:
        model: from `reader.read`.
        plan: from `plan.plan`.
        dynamic: input name → axis → name of the dimension; equal names are equal sizes.
        input_shapes: as for `load`; they replace the file's sizes, also of the dimensions in `dynamic`.

    Raises:
        FrozenDimensionError: a node works at the file's size only, or the results at other sizes are wrong.
        InputError: an unknown input or axis, or one name for two sizes.
        UnsupportedModelError: as for `load`.
    """
    given = {name: list(dims) for name, dims in (input_shapes or {}).items()}
    declared = input_dimensions(model, given)
    _check(declared, dynamic)
    opened = {name: _opened(dims, dynamic.get(name, {})) for name, dims in declared.items() if dims is not None}
    sizes = _frozen_sizes(model, plan, declared, dynamic, given)
    if not sizes:
        return import_graph(model, plan, input_shapes=opened)

    join_constants(model.graph)
    fixed = {name: [sizes.get(d, d) if isinstance(d, str) else d for d in dims] for name, dims in opened.items()}
    try:
        original = import_strictly(model, plan, input_shapes=fixed)
    except ShapeConflictError as error:  # of a dimension that is dynamic in the file, but baked into a constant
        raise FrozenDimensionError(_obstacle(error.node, str(error), sizes)) from None
    repairs = unfreeze(model, plan, opened, sizes)
    try:
        module = import_strictly(model, plan, input_shapes=opened)
        _refuse_fixed(module, sizes)
    except ShapeConflictError as error:
        raise FrozenDimensionError(_obstacle(error.node, str(error), sizes)) from None
    except UnsupportedModelError as error:
        raise FrozenDimensionError(f"{wish(sizes)} cannot be dynamic: {error}") from None
    verify(original, module, input_specs(model), opened, sizes)
    module.meta["onnx2nn"]["thawed"] = {
        "frozen": dict(sizes),
        "repairs": [f"{node_name(r.node)} ({r.node.op_type}): {r.kind} of input {r.position}" for r in repairs],
    }
    return module


def _refuse_fixed(module: fx.GraphModule, sizes: Mapping[str, int]) -> None:
    """Raises FrozenDimensionError where the imported model restricts a dimension that should be dynamic."""
    record = module.meta["onnx2nn"]
    for guard in record["guards"]:
        if any(name in record["fixed"] for name in guard["dimensions"] if name in sizes):
            raise FrozenDimensionError(
                f"{wish(sizes)} cannot be dynamic: node {guard['node']!r} ({guard['operator']}) works at some sizes "
                f"only, {guard['condition']}: {guard['reason']}. Export the model again with this dimension dynamic."
            )


def unfreeze(
    model: ir.Model, plan: Plan, shapes: Mapping[str, Sequence[int | str | None]], sizes: Mapping[str, int]
) -> list[Repair]:
    """Replaces constants that depend on freed dimensions by nodes: Shape, Gather, Concat and others.

    Args:
        model: the model, which is changed.
        plan: its plan.
        shapes: dimensions of the inputs, the freed ones by name.
        sizes: name of each dimension to make dynamic → its size in the file.

    Returns:
        The constants that no rule covers.

    Raises:
        FrozenDimensionError: a node works at the file's sizes only.
    """
    frozen = [Frozen(name, size, _source(model, shapes, name)) for name, size in sizes.items()]
    furthest: NodeConflictError | None = None
    for others in _OTHERS:
        points = SizePoints(model, plan, dict(_points(shapes, frozen, others)))
        substituted, conflict, repairs = _search(points, frozen)
        if substituted is not None:
            apply(_substitutions(substituted))
            return repairs
        assert conflict is not None
        if furthest is None or conflict.step > furthest.step:
            furthest = conflict
        if all(d in sizes for dims in shapes.values() for d in dims if not isinstance(d, int)):
            break  # there are no other dynamic dimensions
    assert furthest is not None
    raise FrozenDimensionError(_obstacle(furthest.node, str(furthest), sizes))


def _source(model: ir.Model, shapes: Mapping[str, Sequence[int | str | None]], name: str) -> tuple[ir.Value, int]:
    """Returns an input of the graph and its axis with the dimension `name`."""
    inputs = (value for value in model.graph.inputs if name in shapes.get(value.name or "", ()))
    value = next(inputs)
    return value, list(shapes[value.name or ""]).index(name)


def _points(
    shapes: Mapping[str, Sequence[int | str | None]], frozen: Sequence[Frozen], others: Sequence[int]
) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Yields the shapes of every input at the file's sizes and at two more points."""
    sizes: dict[int | str | None, Sequence[int]] = {
        f.name: (f.size, f.size * _MULTIPLES[2 * k % 12], f.size * _MULTIPLES[(2 * k + 1) % 12])
        for k, f in enumerate(frozen)
    }
    for name, dims in shapes.items():
        columns = [(d,) * 3 if isinstance(d, int) else sizes.get(d, others) for d in dims]
        yield name, [tuple(column[point] for column in columns) for point in range(3)]


def _substitutions(by_node: Mapping[ir.Node, Substituted]) -> Iterator[tuple[ir.Node, int, Substitution]]:
    for node, substituted in by_node.items():
        for position, substitution in substituted.items():
            yield node, position, substitution


def _check(declared: Mapping[str, list[int | str] | None], dynamic: Mapping[str, Mapping[int, str]]) -> None:
    if not isinstance(dynamic, Mapping) or not all(isinstance(axes, Mapping) for axes in dynamic.values()):
        raise InputError(f"dynamic={dynamic!r}: give names by input and axis, such as {{'x': {{0: 'batch'}}}}.")
    for name, axes in dynamic.items():
        dims = declared.get(name)
        if dims is None:
            raise InputError(f"dynamic names {name!r}. The model's inputs are {', '.join(map(repr, declared))}.")
        for axis, label in axes.items():
            if not isinstance(axis, int) or not 0 <= axis < len(dims):
                raise InputError(f"dynamic names axis {axis!r} of {name!r}. The input has {len(dims)} dimensions.")
            if not isinstance(label, str):
                raise InputError(f"dynamic has {label!r} for axis {axis} of {name!r}. Give a name, a str.")


def _opened(dims: Sequence[int | str], axes: Mapping[int, str]) -> list[int | str | None]:
    return [axes.get(axis, dim) for axis, dim in enumerate(dims)]


def _frozen_sizes(
    model: ir.Model,
    plan: Plan,
    declared: Mapping[str, list[int | str] | None],
    dynamic: Mapping[str, Mapping[int, str]],
    given: InputShapes,
) -> dict[str, int]:
    """Returns the fixed sizes, also of dimensions that are dynamic in the file, but baked into a constant."""
    sizes: dict[str, int] = {}
    baked: Mapping[str, Any] | None = None
    for name, axes in dynamic.items():
        for axis, label in axes.items():
            size: Any = (declared[name] or [])[axis]
            if isinstance(size, str):
                if baked is None:
                    baked = import_graph(model, plan, input_shapes=given).meta["onnx2nn"]["fixed"]
                size = baked.get(size)
            if isinstance(size, int) and sizes.setdefault(label, size) != size:
                raise InputError(
                    f"dynamic gives dimensions of {sizes[label]} and {size} the name {label!r}. Give them two names."
                )
    return sizes


def _search(
    points: SizePoints, frozen: Sequence[Frozen]
) -> tuple[dict[ir.Node, Substituted] | None, NodeConflictError | None, list[Repair]]:
    """Walks the graph repeatedly; replaces one more constant whenever the walk then gets further.

    Returns:
        The substitutions by node, or the error that ends the walk; and the replaced constants.
    """
    found: list[Repair] = []
    tried = 0

    def attempt(more: Sequence[Repair]) -> tuple[dict[ir.Node, Substituted] | None, NodeConflictError | None]:
        try:
            return points.run(Rules(frozen, [*found, *more])), None
        except NodeConflictError as error:
            return None, error

    done, conflict = attempt([])
    while conflict is not None:
        for repair in dict.fromkeys(candidates(conflict.node, conflict.inputs, frozen, conflict.values)):
            tried += 1
            if tried > _TRIALS:
                return None, conflict, found
            done, later = attempt([repair])
            if later is None or later.step > conflict.step:
                found.append(repair)
                conflict = later
                break
        else:
            return None, conflict, found
    return done, None, found


def _obstacle(node: ir.Node, reason: str, frozen: Mapping[str, int]) -> str:
    inputs = ", ".join(
        f"{value.name} {list(value.shape or [])}" if value.is_initializer() else str(value.name)
        for value in node.inputs
        if value is not None
    )
    return (
        f"{wish(frozen)} cannot be dynamic: node {node_name(node)!r} ({node.op_type} of {inputs}) works "
        f"at that size only: {reason}. No constant was found that could follow the dimension. "
        "Export the model again with this dimension dynamic."
    )
