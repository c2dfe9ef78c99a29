"""Imports one model to torch at several sample sizes, until it accepts them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from torch import fx, nn

from onnx2nn.errors import UnsupportedModelError
from onnx2nn.fx.builder import TorchBuilder
from onnx2nn.fx.graph_module import ImportedModule
from onnx2nn.fx.import_state import Subject, TorchImport
from onnx2nn.fx.module_tree import container
from onnx2nn.fx.sample_sizes import Fixed, InBranch, ShapeConflictError, Sizes, candidates, fitting
from onnx2nn.fx.state_versions import set_versions
from onnx2nn.fx.subgraphs import REGIONS, RenameInputs
from onnx2nn.fx.trace_errors import NeedsSamples
from onnx2nn.fx.tracer import Tracer
from onnx2nn.ground import gc_pause
from onnx2nn.ground.naming import identifier
from onnx2nn.importing.inputs import InputSpec, input_specs
from onnx2nn.importing.node_facts import Scope
from onnx2nn.importing.plan import Plan
from onnx2nn.importing.walk import Walk
from onnx2nn.provenance.author import Author
from onnx2nn.provenance.naming_reports import naming_of

_RESERVED = frozenset({"self", "torch", "device", "inf", "nan", "pytree", "fx_pytree", "operator", "math", "onnx2nn"})
"""Names in the generated forward; no argument may have one of them."""

_ROUNDS = 8
"""The most imports in the search for one bound of a dimension."""


class Attempt:
    """One import with one choice of sample sizes: `run` records the program, `module` makes the module of it.

    Args:
        state: the state that its graphs share.

    Attributes:
        hides_variation: whether a number computed from sizes varies, but is the same at all sample points.
        data_dependent: whether any size is data-dependent.
    """

    def __init__(self, state: TorchImport):
        self.state = state
        self.hides_variation = self.data_dependent = False
        self._builder = TorchBuilder.of_model(state, REGIONS)
        self._result: Any = None
        self._renamed: dict[str, str] = {}

    def run(self) -> None:
        """Records the program.

        Raises:
            ShapeConflictError: a node does not accept the sample sizes.
            NeedsSamples: sizes are data-dependent in a model of fixed shapes.
            UnsupportedModelError: lists all nodes that cannot be imported.
        """
        state, graph, tracer = self.state, self.state.model.graph, self._builder.tracer
        if state.author is not None:
            tracer.names.reserve(state.author.names)
        scope, self._renamed = self._inputs(tracer)
        state.guard(tracer, state.fixed)
        outputs = Walk(self._builder, scope, graph, dict(graph.opset_imports)).run()
        state.raise_problems()
        self.hides_variation, self.data_dependent = tracer.hides_variation, tracer.has_data_dependent_sizes
        self._result = outputs[0] if len(outputs) == 1 else tuple(outputs)

    def module(self) -> fx.GraphModule:
        """Returns the module of the recorded program; called once, for the attempt whose program is taken."""
        state, graph = self.state, self.state.model.graph
        module = self._builder.tracer.finish(self._result, identifier(graph.name or "Model"), ImportedModule)
        if state.author is not None:
            _keep_keys(module, state.author)
        different = {original: name for name, original in self._renamed.items() if original != name}
        if different:
            module.register_forward_pre_hook(RenameInputs(different), with_kwargs=True)
        module.meta["onnx2nn"] = self._meta(module)
        if state.author is not None and state.author.listed:
            set_versions(module, graph)
        return module.eval()

    def _inputs(self, tracer: Tracer) -> tuple[Scope, dict[str, str]]:
        """Returns the model's inputs as arguments, and a mapping of the arguments' names to the inputs'."""
        scope = Scope()
        renamed: dict[str, str] = {}
        for value in self.state.model.graph.inputs:
            name = identifier(value.name or "input")
            while name in renamed or name in _RESERVED:
                name += "_"
            renamed[name] = value.name or ""
            scope[value] = tracer.placeholder(name, self.state.input_spec(value))
            self.state.given[value.name or ""] = scope[value]
        return scope, renamed

    def _meta(self, module: fx.GraphModule) -> dict[str, Any]:
        """Returns the record of the file in the module's `meta`."""
        graph, author = self.state.model.graph, self.state.author
        return {
            "inputs": [value.name for value in graph.inputs],
            "outputs": [value.name for value in graph.outputs],
            "fixed": {
                name: range(size[0], size[-1] + 1) if isinstance(size, tuple) else size
                for name, size in self.state.fixed.items()
                if not isinstance(name, InBranch)
            },
            "signature": [self._signature(spec) for spec in input_specs(self.state.model)],
            "naming": naming_of(author, module.state_dict(keep_vars=True) if author is not None else {}),
        }

    def _signature(self, spec: InputSpec) -> dict[str, Any]:
        """Returns the specification of an input of the module, in plain Python values, which pickle anywhere."""
        dims = self.state.subject.inputs[spec.name]
        known = {name: size for name, size in self.state.fixed.items() if not isinstance(size, tuple)}
        shape = None if dims is None else tuple(known.get(d, d) if isinstance(d, str) else d for d in dims)
        return {**dataclasses.asdict(spec), "dtype": spec.dtype and spec.dtype.name, "shape": shape}


def _keep_keys(module: nn.Module, author: Author) -> None:
    """Registers a tied weight also under its keys that no node uses."""
    if not author.ties:
        return
    parameters = dict(module.named_parameters(remove_duplicate=False))
    ties = [*author.ties.items(), *((other, key) for key, other in author.ties.items())]
    while lacking := [(key, other) for key, other in ties if key not in parameters and other in parameters]:
        for key, other in lacking:
            holder, name = container(module, key)
            holder.register_parameter(name, parameters[other])
            parameters[key] = parameters[other]


class Attempts:
    """Imports of one model at different sample sizes.

    Args:
        model: from `reader.read`.
        plan: from `plan.plan`.
        input_shapes: as for `import_graph`.

    Attributes:
        per_branch: whether sizes that a branch of an If requires hold in that branch alone.
    """

    def __init__(self, model: ir.Model, plan: Plan, input_shapes: Mapping[str, Sequence[int | str | None]]):
        self.subject = Subject.of(model, plan, input_shapes)
        dims = (d for dims in self.subject.inputs.values() if dims for d in dims)
        self.names = list(dict.fromkeys(d for d in dims if isinstance(d, str)))
        self.per_branch = False
        self._needed = False
        self._family = 0
        self._split: set[ir.Node] = set()

    def run(self, fixed: Fixed, families: Iterable[int] = range(len(Sizes.FAMILIES))) -> Attempt:
        """Returns the attempt with the first sample sizes that the model accepts.

        A model of fixed shapes is imported a second time, with sample sizes, if a size turns out to be data-dependent.

        Args:
            fixed: restricted dimensions, see `Sizes`.
            families: numbers of the sample sizes to try.

        Raises:
            ShapeConflictError: the model accepts none of the sample sizes; raised by the import that went furthest.
        """
        try:
            return self._families(fixed, families)
        except NeedsSamples:
            self._needed = True
            return self._families(fixed, families)

    def _families(self, fixed: Fixed, families: Iterable[int]) -> Attempt:
        conflicts: list[ShapeConflictError] = []
        fallback: Attempt | None = None  # its samples hide that a number varies
        pending = [Sizes(self.names, family, fixed, self._needed) for family in families]
        if not pending[0].dynamic:  # all families are the same
            del pending[1:]
        while pending:
            sizes = pending.pop(0)
            attempt = Attempt(TorchImport(self.subject, sizes, True, fixed))
            try:
                attempt.run()
            except ShapeConflictError as error:
                conflicts.append(error)
                gc_pause.collect_young()  # a model may take dozens of tries
            except UnsupportedModelError:
                if fallback is None:
                    raise
            else:
                if not attempt.hides_variation:
                    self._family, self._split = sizes.family, set(attempt.state.split)
                    return attempt
                if fallback is None:  # other samples may show the variation
                    fallback, self._family, self._split = attempt, sizes.family, set(attempt.state.split)
                    pending[:0] = sizes.with_smaller_data_sizes() if attempt.data_dependent else []
        if fallback is not None:
            return fallback
        furthest = max(conflicts, key=lambda error: error.step)
        furthest.others = [error for error in conflicts if error is not furthest]
        raise furthest

    def repaired(self, fixed: Fixed, conflict: ShapeConflictError) -> tuple[Fixed, Attempt | None]:
        """Returns `fixed` with one or more further restrictions, and the attempt if it then succeeds.

        A restriction is accepted if the import gets further than `conflict`. All candidates are tried first at the
        sample sizes of `conflict`, which went furthest. If no candidate gets further, one is accepted that gets as far
        through the other branch of an If on sizes.

        Raises:
            ShapeConflictError: `conflict`, if no candidate is accepted.
        """
        furthest = conflict.sizes.family
        others = [family for family in range(len(Sizes.FAMILIES)) if family != furthest]
        sidestep: Fixed | None = None
        for families in ([furthest], others):
            for sizes in dict.fromkeys(candidates(conflict)):
                place = conflict.branch if self.per_branch else None
                trial = {**fixed, **{n if place is None else InBranch(place, n): size for n, size in sizes}}
                try:
                    return trial, self.run(trial, families=families)
                except ShapeConflictError as error:
                    if error.step > conflict.step:
                        return trial, None
                    if sidestep is None and error.step == conflict.step and error.ways != conflict.ways:
                        sidestep = trial
                except UnsupportedModelError:  # a constant does not fit at this size
                    pass
            if sidestep is not None:
                return sidestep, None
        raise conflict

    def widened(self, fixed: Fixed, name: str | InBranch, bounds: Sequence[int]) -> tuple[int, int, int]:
        """Widens accepted bounds of a dimension as far as the model accepts sizes without taking another branch.

        Returns:
            The least size, a size between, and the greatest size.
        """
        most = self._reach(fixed, name, bounds[0], bounds[-1], 4 * bounds[-1])
        least = self._reach(fixed, name, most, bounds[0], 1)
        return least, (least + most) // 2, most

    def _reach(self, fixed: Fixed, name: str | InBranch, start: int, end: int, limit: int) -> int:
        """Returns the last accepted size on the way from `end`, which is accepted as `start` is, to `limit`."""
        sign = 1 if limit > end else -1
        likely = end  # sizes before the first refused one may be refused by a later node
        for _ in range(_ROUNDS):
            if likely == end == limit:
                break
            step = max(-(-abs(limit - likely) // 16), 1)
            points = tuple(dict.fromkeys((start, end, likely, *range(likely, limit + sign, sign * step))))
            sizes = Sizes(self.names, self._family, {**fixed, name: points})
            state = TorchImport(self.subject, sizes, True, fixed)
            try:
                Attempt(state).run()
                count = len(points)
            except ShapeConflictError as error:
                count = fitting(error)
            except UnsupportedModelError:  # an operator refuses these sizes
                count = 0
            count = min(count, state.unanimous(len(points), self._split))
            if count == len(points):
                end = likely = points[-1]
            elif likely in points[:count]:
                likely, limit = points[count - 1], points[count] - sign
            elif likely != end:
                likely, limit = end, likely - sign
            else:
                limit = end + sign * (abs(limit - end) // 2)
        return end

    def lenient(self) -> Attempt:
        """Imports nodes with a shape conflict as opaque calls; the shapes of their results are read at run time."""
        attempt = Attempt(TorchImport(self.subject, Sizes(self.names, 0, {}, True), strict=False, fixed={}))
        attempt.run()
        return attempt
