"""Frees dimensions that a file fixes: finds the constants that follow them, and proves the result by running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from onnx2nn.errors import FrozenDimensionError, InputError, UnsupportedModelError
from onnx2nn.fx.attempts import Attempts
from onnx2nn.fx.constants import to_torch
from onnx2nn.fx.import_state import Shapes
from onnx2nn.fx.importer import import_graph
from onnx2nn.fx.sample_sizes import StuckError
from onnx2nn.importing.inputs import InputShapes, InputSpec, example_inputs, input_dimensions, input_specs
from onnx2nn.importing.node_facts import node_name
from onnx2nn.importing.plan import Plan
from onnx2nn.unfreeze.freed_constants import Repair, Thaw, repairs

_TRIALS = 200
"""So many constants are tried in all; each costs about the time of an import."""
_TOLERANCE = 1e-4  # relative to an output's scale: a batch of three may be computed in another order than three of one


def import_dynamic(
    model: ir.Model, plan: Plan, dynamic: Mapping[str, Mapping[int, str]], *, input_shapes: InputShapes | None = None
) -> fx.GraphModule:
    """Returns `model` as a module whose `dynamic` dimensions may differ from call to call.

    Args:
        model: as `reader.read` gives it.
        plan: as `plan.plan` gives it.
        dynamic: input name → axis → name of the dimension; equal names are equal sizes.
        input_shapes: as for `load`; the sizes that are to become dynamic are the file's, or given here.

    Raises:
        FrozenDimensionError: a constant of the file stands in the way.
        InputError: an unknown input or axis, or one name for two sizes.
        UnsupportedModelError: as for `load`.
    """
    given = {name: list(dims) for name, dims in (input_shapes or {}).items()}
    declared = input_dimensions(model, given)
    _check(declared, dynamic)
    opened = {name: _opened(dims, dynamic.get(name, {})) for name, dims in declared.items() if dims is not None}
    frozen = _frozen_sizes(model, plan, declared, dynamic, given)
    if not frozen:
        return import_graph(model, plan, input_shapes=opened)

    fixed = {name: [frozen.get(d, d) if isinstance(d, str) else d for d in dims] for name, dims in opened.items()}
    shapes: Shapes = {}
    try:
        original = Attempts(model, plan, fixed).run({}, shapes=shapes)
    except StuckError as error:  # of a dimension that the file declares as dynamic and bakes in all the same
        raise FrozenDimensionError(_obstacle(error, frozen)) from None
    module, found = _search(Attempts(model, plan, opened), frozen, shapes)
    _verify(original, module, input_specs(model), opened, frozen)
    module.meta["onnx2nn"]["thawed"] = {
        "frozen": dict(frozen),
        "repairs": [f"{node_name(r.node)} ({r.node.op_type}): {r.kind} of input {r.position}" for r in found],
    }
    return module


def _check(declared: Mapping[str, list[int | str] | None], dynamic: Mapping[str, Mapping[int, str]]) -> None:
    if not isinstance(dynamic, Mapping) or not all(isinstance(axes, Mapping) for axes in dynamic.values()):
        raise InputError(f"dynamic={dynamic!r}: it maps input name to axis to name, as in {{'x': {{0: 'batch'}}}}.")
    for name, axes in dynamic.items():
        dims = declared.get(name)
        if dims is None:
            raise InputError(f"dynamic names {name!r}, the model's inputs are {', '.join(map(repr, declared))}.")
        for axis, label in axes.items():
            if not isinstance(axis, int) or not 0 <= axis < len(dims):
                raise InputError(
                    f"dynamic: {name!r} has {len(dims)} dimensions, {axis!r} is the number of none of them."
                )
            if not isinstance(label, str):
                raise InputError(f"dynamic: axis {axis} of {name!r} is to be called {label!r}: a name is a str.")


def _opened(dims: Sequence[int | str], axes: Mapping[int, str]) -> list[int | str | None]:
    return [axes.get(axis, dim) for axis, dim in enumerate(dims)]


def _frozen_sizes(
    model: ir.Model,
    plan: Plan,
    declared: Mapping[str, list[int | str] | None],
    dynamic: Mapping[str, Mapping[int, str]],
    given: InputShapes,
) -> dict[str, int]:
    """Returns the sizes that the file fixes, also those of dimensions that it declares as dynamic but bakes in."""
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
                raise InputError(f"dynamic: {label!r} is to be {sizes[label]} and {size} in the file.")
    return sizes


def _search(attempts: Attempts, frozen: Mapping[str, int], shapes: Shapes) -> tuple[fx.GraphModule, list[Repair]]:
    """Imports, with one more constant replaced whenever that gets the import further."""
    found: list[Repair] = []
    tried = 0

    def attempt(more: Sequence[Repair]) -> tuple[fx.GraphModule | None, StuckError | None, Thaw]:
        thaw = Thaw(frozen, shapes, [*found, *more])
        try:
            return attempts.run({}, thaw=thaw), None, thaw
        except StuckError as error:
            return None, error, thaw
        except UnsupportedModelError as error:
            raise FrozenDimensionError(f"{_wish(frozen)} cannot be dynamic: {error}") from None

    module, stuck, thaw = attempt([])
    while stuck is not None:
        for repair in dict.fromkeys(repairs(stuck.node, stuck.inputs, thaw)):
            tried += 1
            if tried > _TRIALS:
                raise FrozenDimensionError(_obstacle(stuck, frozen))
            module, later, thaw_ = attempt([repair])
            if later is None or later.step > stuck.step:
                found.append(repair)
                stuck, thaw = later, thaw_
                break
        else:
            raise FrozenDimensionError(_obstacle(stuck, frozen))
    assert module is not None
    return module, found


def _wish(frozen: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r} ({size} in the file)" for name, size in frozen.items())


def _obstacle(stuck: StuckError, frozen: Mapping[str, int]) -> str:
    inputs = ", ".join(
        f"{value.name} {list(value.shape or [])}" if value.is_initializer() else str(value.name)
        for value in stuck.node.inputs
        if value is not None
    )
    return (
        f"{_wish(frozen)} cannot be dynamic: node {node_name(stuck.node)!r} ({stuck.node.op_type} of {inputs}) works "
        f"at that size only: {stuck}. Something it is computed from holds the size, and no constant was found that may "
        "follow it. Export the model again with this dimension dynamic."
    )


# ---- proof


def _verify(
    original: fx.GraphModule,
    module: fx.GraphModule,
    specs: Sequence[InputSpec],
    opened: Mapping[str, Sequence[int | str | None]],
    frozen: Mapping[str, int],
) -> None:
    """Runs at the frozen sizes, where both modules must agree, and each dimension at a second size.

    A second size that is a multiple of the frozen one is a run of several inputs at once: the results must be those of
    the inputs one by one, unless the model as it is mixes what the dimension holds.
    """
    others = {d: 4 for dims in opened.values() for d in dims if isinstance(d, str) and d not in frozen}
    sizes = {**others, **frozen}
    inputs = _example(specs, opened, sizes)
    difference = _difference(_run(original, inputs), _run(module, inputs))
    if difference > _TOLERANCE:
        raise FrozenDimensionError(
            f"{_wish(frozen)} cannot be dynamic: at the size in the file the outputs differ by {difference:.3g} of "
            "their scale from those of the model as it is."
        )
    for name, size in frozen.items():
        axes = {key: list(dims).index(name) for key, dims in opened.items() if name in dims}
        batch = size == 1 or set(axes.values()) == {0}
        more = 3 * size if batch else size // 2 if size > 8 and size % 2 == 0 else 2 * size
        larger = _example(specs, opened, {**sizes, name: more})
        try:
            results = _run(module, larger)
        except Exception as error:  # whatever torch, or a row that runs as one call, says of the size
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise FrozenDimensionError(f"{name!r} cannot be dynamic: at size {more} a call fails: {reason}") from None
        if more > size and not _parts_agree(original, larger, results, axes, size, batch):
            raise FrozenDimensionError(
                f"{name!r} ({size} in the file) cannot be dynamic: the results of {more} differ from those of "
                f"{more // size} calls of {size}: some constant of the file mixes what this dimension keeps apart."
            )


def _example(
    specs: Sequence[InputSpec], opened: Mapping[str, Sequence[int | str | None]], sizes: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    shapes = {name: [sizes[d] if isinstance(d, str) else int(d or 0) for d in dims] for name, dims in opened.items()}
    arrays = example_inputs(specs, shapes)
    return {spec.name: to_torch(arrays[spec.name], spec.dtype) for spec in specs if spec.dtype is not None}


def _run(module: fx.GraphModule, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        results = module(*inputs.values())
    return [r for r in (results if isinstance(results, tuple) else (results,)) if isinstance(r, torch.Tensor)]


def _difference(wanted: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    """Returns the largest difference of two runs, relative to each output's scale; infinity for other shapes."""
    largest = 0.0
    for a, b in zip(wanted, found, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.numel():
            a, b = a.to(torch.complex128), b.to(torch.complex128)
            same = (a == b) | (a.isnan() & b.isnan())
            difference = torch.where(same, 0, (a - b).abs()).max() / a[~a.isnan()].abs().max().clamp(min=1e-6)
            largest = max(largest, float(difference))
    return largest


def _parts_agree(
    original: fx.GraphModule,
    inputs: Mapping[str, torch.Tensor],
    results: Sequence[torch.Tensor],
    axes: Mapping[str, int],
    size: int,
    batch: bool,
) -> bool:
    """Returns whether one run of several inputs gives what the model as it is gives for each of them.

    Where that model itself mixes what the dimension holds (a sequence), there is nothing to compare.
    """
    parts = {key: inputs[key].split(size, axis) for key, axis in axes.items()}
    runs = [
        _run(original, {key: parts[key][index] if key in parts else value for key, value in inputs.items()})
        for index in range(min(map(len, parts.values())))
    ]
    mixed = None
    if size > 1:
        other = {key: _but_first(part[0], part[1], axes[key]) for key, part in parts.items()}
        mixed = _run(original, {key: other.get(key, value) for key, value in inputs.items()})
    for index, whole in enumerate(results):
        pieces = [run[index] for run in runs]
        changed = [a for a in range(whole.ndim) if whole.shape[a] != pieces[0].shape[a]]
        if not changed and batch and any(_difference([piece], [whole]) > _TOLERANCE for piece in pieces):
            return False  # every input of a batch has a result of its own
        if len(changed) != 1:
            continue
        axis = changed[0]
        if mixed is not None:
            one = pieces[0].shape[axis] // size
            if _difference([pieces[0].narrow(axis, 0, one)], [mixed[index].narrow(axis, 0, one)]) > _TOLERANCE:
                continue
        if _difference([torch.cat(pieces, axis)], [whole]) > _TOLERANCE:
            return False
    return True


def _but_first(first: torch.Tensor, rest: torch.Tensor, axis: int) -> torch.Tensor:
    """Returns the first slice of one tensor and the others of another one."""
    return torch.cat([first.narrow(axis, 0, 1), rest.narrow(axis, 1, rest.shape[axis] - 1)], axis)
