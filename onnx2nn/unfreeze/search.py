"""Makes fixed dimensions dynamic: finds the constants that depend on them, and replaces these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from torch import fx, nn

from onnx2nn.errors import FrozenDimensionError, InputError, UnsupportedModelError
from onnx2nn.fx.importer import import_graph, import_strictly
from onnx2nn.fx.trace_errors import ShapeConflictError
from onnx2nn.fx.values.named_sizes import named_after_others
from onnx2nn.importing.inputs import InputShapes, input_dimensions, input_specs
from onnx2nn.importing.node_facts import node_name
from onnx2nn.importing.plan import Plan, plan
from onnx2nn.sizes.expression import Number, Size, Symbol, of_symbol
from onnx2nn.unfreeze import value_shapes
from onnx2nn.unfreeze.candidates import candidates
from onnx2nn.unfreeze.exporter_forms import join_constants, reshape_whole_gathers
from onnx2nn.unfreeze.proof import verify, wish
from onnx2nn.unfreeze.request import Request
from onnx2nn.unfreeze.rules import Frozen, Repair, Rules
from onnx2nn.unfreeze.shape_tracer import ShapeTracer
from onnx2nn.unfreeze.shared_results import SharedResultError, check_samples
from onnx2nn.unfreeze.sized_values import Sized
from onnx2nn.unfreeze.substitutions import Substitution, apply
from onnx2nn.unfreeze.symbolic_walk import NodeConflictError, Substituted, SymbolicBuilder, SymbolicGraph
from onnx2nn.unfreeze.vectorising import vectorised

_TRIALS = 200
"""The most constants to try; each costs a walk over the graph behind it."""

_STAND_INS = tuple(64 * prime for prime in (13, 17, 19, 23, 29, 31, 37, 41))
"""Sizes in place of the file's own dynamic dimensions, where a substitution is proposed from numbers.

Their product with a size of the file is seldom that of others, and networks divide a length by powers of two. The walk
decides for all sizes whether the proposal fits.
"""


Prepare = Callable[["ir.Model"], tuple[Plan, dict[str, Any]]]
"""Raises a model, in place; returns its plan, and what `meta` is to say about it."""


def import_dynamic(
    model: ir.Model,
    prepare: Prepare,
    *,
    dynamic: Mapping[str, Mapping[int, str]],
    input_shapes: InputShapes | None = None,
) -> nn.Module:
    """Returns `model` as a module with dynamic dimensions.

    Constants that hold the file's sizes are replaced before the model is raised, because a raised operator hides them.
    Where that does not succeed, and one of the dimensions is a batch of 1, the module of one sample runs on each sample
    of the batch.

    Args:
        model: from `reader.read`, with the author's names.
        prepare: called with the model that is imported, before the import.
        dynamic: input name → axis → name of the dimension; equal names are equal sizes.
        input_shapes: as for `load`; they replace the file's sizes, also of the dimensions in `dynamic`.

    Raises:
        FrozenDimensionError: a node works at the file's size only, or the results at other sizes are wrong, and the
            dimension is no batch of 1.
        InputError: an unknown input or axis, or one name for two sizes.
        UnsupportedModelError: as for `load`.
    """
    request = _requested(model, prepare, dynamic, input_shapes)
    if not request.sizes:
        return _imported(model, prepare, request.opened)
    batch = request.batch()
    try:
        original = _at_file_sizes(model, prepare, request)
        return _by_constants(model, prepare, request, original)
    except FrozenDimensionError as error:
        if batch is None:
            raise
        return vectorised(_of_one_sample(model, prepare, request, batch), model, request, batch, str(error))


def import_dynamic_elsewhere(
    model: ir.Model,
    prepare: Prepare,
    import_model: Callable[[ir.Model, InputShapes], Any],
    run: Callable[[Any, Sequence[Any]], Sequence[Any]],
    *,
    dynamic: Mapping[str, Mapping[int, str]],
    input_shapes: InputShapes | None = None,
) -> Any:
    """Returns `model` as a module of another framework with dynamic dimensions.

    The constants are found, and proven for all sizes, as for PyTorch, which runs the model. The module of the other
    framework must agree with PyTorch's at the file's sizes and at others.

    Args:
        model: as for `import_dynamic`.
        prepare: as for `import_dynamic`.
        import_model: imports a model, which it may change, with the dimensions of its inputs.
        run: calls the module that `import_model` returns, on tensors of PyTorch; returns such tensors.
        dynamic: as for `import_dynamic`.
        input_shapes: as for `import_dynamic`.

    Raises:
        FrozenDimensionError: as for `import_dynamic`, also of a batch whose samples run one by one only.
        InputError: as for `import_dynamic`.
        UnsupportedModelError: as for `load`.
    """
    request = _requested(model, prepare, dynamic, input_shapes)
    if not request.sizes:
        return import_model(model, request.opened)
    try:
        original = _at_file_sizes(model, prepare, request)
        changed, repairs = _with_sizes(model, request)
        _proven(changed.clone(), prepare, request, original)
    except FrozenDimensionError as error:
        if request.batch() is None:
            raise
        raise FrozenDimensionError(
            f"{error} For framework='torch' each sample runs alone: load it there, write that by onnx2nn.export_onnx, "
            "and load the file."
        ) from None
    specs = input_specs(changed)
    module = import_model(changed, request.opened)
    verify(original, lambda *tensors: tuple(run(module, tensors)), specs, request.opened, request.sizes)
    module.meta["onnx2nn"]["thawed"] = _thawed(request, repairs)
    return module


def _requested(
    model: ir.Model, prepare: Prepare, dynamic: Mapping[str, Mapping[int, str]], input_shapes: InputShapes | None
) -> Request:
    """Returns the dimensions to make dynamic.

    Raises:
        InputError, UnsupportedModelError: as for `import_dynamic`.
    """
    given = {name: list(dims) for name, dims in (input_shapes or {}).items()}
    declared = input_dimensions(model, given)
    _check(declared, dynamic)
    opened = {name: _opened(dims, dynamic.get(name, {})) for name, dims in declared.items() if dims is not None}
    return Request(opened, _frozen_sizes(model, prepare, declared, dynamic, given))


def _of_one_sample(model: ir.Model, prepare: Prepare, request: Request, batch: str) -> fx.GraphModule:
    """Returns the model at a batch of 1, with the other dimensions as requested.

    Raises:
        FrozenDimensionError: another dimension cannot be made dynamic.
        UnsupportedModelError: as for `load`.
    """
    rest = Request(
        {name: [1 if dim == batch else dim for dim in dims] for name, dims in request.opened.items()},
        {name: size for name, size in request.sizes.items() if name != batch},
    )
    if not rest.sizes:
        return _imported(model.clone(), prepare, rest.opened)
    return _by_constants(model, prepare, rest, _at_file_sizes(model, prepare, rest))


def _imported(model: ir.Model, prepare: Prepare, shapes: InputShapes, *, strictly: bool = False) -> fx.GraphModule:
    """Returns `model`, which is changed, as a module.

    Raises:
        ShapeConflictError: `strictly` is true, and it does not accept all sizes of its dynamic dimensions.
        UnsupportedModelError: as for `load`.
    """
    plan, notes = prepare(model)
    module = (import_strictly if strictly else import_graph)(model, plan, input_shapes=shapes)
    module.meta["onnx2nn"].update(notes)
    return module


def _at_file_sizes(model: ir.Model, prepare: Prepare, request: Request) -> fx.GraphModule:
    """Returns a copy of the model as a module with the frozen dimensions as in the file.

    Raises:
        FrozenDimensionError: a dimension that is dynamic in the file is fixed inside.
        UnsupportedModelError: as for `load`.
    """
    try:
        return _imported(model.clone(), prepare, request.fixed(), strictly=True)
    except ShapeConflictError as error:  # of a dimension that is dynamic in the file, but baked into a constant
        raise FrozenDimensionError(_obstacle(error.node, str(error), request.sizes)) from None


def _by_constants(model: ir.Model, prepare: Prepare, request: Request, original: nn.Module) -> fx.GraphModule:
    """Returns a copy of the model as a module in which constants follow the dynamic dimensions.

    Args:
        model: the model, which is not changed.
        prepare: as for `import_dynamic`.
        request: the dimensions.
        original: the module at the file's sizes.

    Raises:
        FrozenDimensionError: there are no such constants, or the results at other sizes are wrong.
    """
    changed, repairs = _with_sizes(model, request)
    module = _proven(changed, prepare, request, original)
    module.meta["onnx2nn"]["thawed"] = _thawed(request, repairs)
    return module


def _with_sizes(model: ir.Model, request: Request) -> tuple[ir.Model, list[Repair]]:
    """Returns a copy of the model with nodes in place of the constants that follow the dimensions.

    Raises:
        FrozenDimensionError: there are no such constants, or a result is one of all samples.
    """
    model = model.clone()
    join_constants(model.graph)
    reshape_whole_gathers(model.graph)
    repairs, _ = unfreeze(model, plan(model), request)
    return model, repairs


def _proven(model: ir.Model, prepare: Prepare, request: Request, original: nn.Module) -> fx.GraphModule:
    """Returns a model with dynamic dimensions, which is changed, as a module that has shown that it accepts them.

    Raises:
        FrozenDimensionError: it accepts some sizes only, or its results at other sizes are wrong.
    """
    try:
        module = _imported(model, prepare, request.opened, strictly=True)
        _refuse_fixed(module, request.sizes)
    except ShapeConflictError as error:
        raise FrozenDimensionError(_obstacle(error.node, str(error), request.sizes)) from None
    except UnsupportedModelError as error:
        raise FrozenDimensionError(f"{wish(request.sizes)} cannot be dynamic: {error}") from None
    verify(original, module, input_specs(model), request.opened, request.sizes)
    return module


def _thawed(request: Request, repairs: Sequence[Repair]) -> dict[str, Any]:
    """Returns what `meta` says about the dimensions."""
    return {
        "way": "constants",
        "frozen": dict(request.sizes),
        "repairs": [f"{node_name(r.node)} ({r.node.op_type}): {r.kind} of input {r.position}" for r in repairs],
    }


def _refuse_fixed(module: fx.GraphModule, sizes: Mapping[str, int]) -> None:
    """Raises FrozenDimensionError where the imported model restricts a dimension that should be dynamic."""
    record = module.meta["onnx2nn"]
    for guard in record["guards"]:
        if any(name in record["fixed"] for name in guard["dimensions"] if name in sizes):
            raise FrozenDimensionError(
                f"{wish(sizes)} cannot be dynamic: node {guard['node']!r} ({guard['operator']}) works at some sizes "
                f"only, {guard['condition']}: {guard['reason']}. Export the model again with this dimension dynamic."
            )


def unfreeze(model: ir.Model, plan: Plan, request: Request) -> tuple[list[Repair], Mapping[ir.Value, Sized]]:
    """Replaces constants that depend on freed dimensions by nodes: Shape, Gather, Concat and others.

    Args:
        model: the model, which is changed; its values get the shapes that they have then.
        plan: its plan.
        request: the dimensions.

    Returns:
        The constants that no rule covers, and the values of the model whose shapes follow from those of its inputs.

    Raises:
        FrozenDimensionError: a node works at the file's sizes only, or a result is one of all samples.
    """
    shapes, sizes = request.opened, request.sizes
    frozen = [Frozen(name, size, _source(model, shapes, name)) for name, size in sizes.items()]
    walked, conflict, repairs = _search(_symbolic(model, plan, shapes, sizes), frozen, request)
    if walked is None:
        assert conflict is not None
        if isinstance(conflict, SharedResultError):
            raise FrozenDimensionError(f"{wish(sizes)} cannot be dynamic: {conflict}.")
        raise FrozenDimensionError(_obstacle(conflict.node, str(conflict), sizes))
    apply(_substitutions(walked.substitutions))
    value_shapes.declare(model, shapes, walked.values)
    return repairs, walked.values


def _source(model: ir.Model, shapes: Mapping[str, Sequence[int | str | None]], name: str) -> tuple[ir.Value, int]:
    """Returns an input of the graph and its axis with the dimension `name`."""
    inputs = (value for value in model.graph.inputs if name in shapes.get(value.name or "", ()))
    value = next(inputs)
    return value, list(shapes[value.name or ""]).index(name)


def _symbolic(
    model: ir.Model, plan: Plan, shapes: Mapping[str, Sequence[int | str | None]], frozen: Mapping[str, int]
) -> SymbolicGraph:
    """Returns the graph with a symbol for every dynamic dimension that is not named by arithmetic of others.

    The symbols are at least 1: an empty dimension has other rules in some operators, as a 0 in a Reshape's target.
    """
    names = dict.fromkeys([*frozen, *(dim for dims in shapes.values() for dim in dims if isinstance(dim, str))])
    known: dict[str, Number] = {}

    def size_of(name: str) -> Number:
        if name not in known:
            named = None if name in frozen else named_after_others(name, names, size_of)
            known[name] = of_symbol(Symbol(name, 1)) if named is None else named
        return known[name]

    def dimension(dim: int | str | None) -> Number:
        return size_of(dim) if isinstance(dim, str) else of_symbol(Symbol("any", 1)) if dim is None else dim

    freed = {_symbol(size_of(name)): size for name, size in frozen.items()}
    given = {name: [dimension(dim) for dim in dims] for name, dims in shapes.items()}
    others = [symbol for dims in given.values() for size in dims for symbol in getattr(size, "symbols", ())]
    stand_ins = {symbol: _STAND_INS[k % len(_STAND_INS)] for k, symbol in enumerate(dict.fromkeys(others))}
    return SymbolicGraph(model, plan, ShapeTracer(freed, stand_ins), given)


def _symbol(size: Number) -> Symbol:
    assert isinstance(size, Size)
    (symbol,) = size.symbols
    return symbol


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
    prepare: Prepare,
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
                    baked = _imported(model.clone(), prepare, given).meta["onnx2nn"]["fixed"]
                size = baked.get(size)
            if isinstance(size, int) and sizes.setdefault(label, size) != size:
                raise InputError(
                    f"dynamic gives dimensions of {sizes[label]} and {size} the name {label!r}. Give them two names."
                )
    return sizes


def _search(
    graph: SymbolicGraph, frozen: Sequence[Frozen], request: Request
) -> tuple[SymbolicBuilder | None, NodeConflictError | None, list[Repair]]:
    """Walks the graph repeatedly; replaces one more constant whenever the walk then gets further.

    A walk gets as far as the first node that works at the file's sizes only, or has one result for all samples.

    Returns:
        The walk's substitutions and values, or the error that ends it; and the replaced constants.
    """
    found: list[Repair] = []
    tried = 0
    functions = graph.model.functions.values()
    inner = {node: function.inputs for function in functions for node in function.all_nodes()}

    def attempt(more: Sequence[Repair]) -> tuple[SymbolicBuilder | None, NodeConflictError | None]:
        try:
            walked = graph.run(Rules(frozen, [*found, *more], inner))
            check_samples(walked, request)
        except NodeConflictError as error:
            return None, error
        return walked, None

    done, conflict = attempt([])
    while conflict is not None:
        is_shared = isinstance(conflict, SharedResultError)
        for repair in dict.fromkeys(candidates(conflict.node, conflict.inputs, frozen, conflict.values, is_shared)):
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
