"""Imports of one model to torch, with sample sizes that go through all its nodes."""

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
from onnx2nn.fx.sample_sizes import Fixed, Inside, Sizes, StuckError, candidates, fitting
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
"""Names that the generated forward uses itself, so that no argument may have them."""

_ROUNDS = 8
"""So many imports may show how far a dimension reaches in one direction."""


class Attempt:
    """One import with one choice of sample sizes.

    Args:
        state: what its graphs share.

    Attributes:
        collapsed: whether the sample points hide that a number computed from sizes varies.
        of_data: whether data decide any size.
    """

    def __init__(self, state: TorchImport):
        self.state = state
        self.collapsed = self.of_data = False

    def run(self) -> fx.GraphModule:
        """Returns the module.

        Raises:
            StuckError: a node does not fit the sample sizes.
            NeedsSamples: sizes depend on data in a model of fixed shapes.
            UnsupportedModelError: nodes whose operator refuses what they ask for, all of them.
        """
        state, graph = self.state, self.state.model.graph
        builder = TorchBuilder.of_model(state, REGIONS)
        tracer = builder.tracer
        if state.author is not None:
            tracer.names.reserve(state.author.names)
        scope, renamed = self._inputs(tracer)
        state.guard(tracer, state.fixed)
        outputs = Walk(builder, scope, graph, dict(graph.opset_imports)).run()
        state.raise_problems()
        self.collapsed, self.of_data = tracer.collapsed, tracer.has_sizes_of_data
        result = outputs[0] if len(outputs) == 1 else tuple(outputs)
        module = tracer.finish(result, identifier(graph.name or "Model"), ImportedModule)
        if state.author is not None:
            _keep_keys(module, state.author)
        different = {original: name for name, original in renamed.items() if original != name}
        if different:
            module.register_forward_pre_hook(RenameInputs(different), with_kwargs=True)
        module.meta["onnx2nn"] = self._meta(module)
        if state.author is not None and state.author.listed:
            set_versions(module, graph)
        return module.eval()

    def _inputs(self, tracer: Tracer) -> tuple[Scope, dict[str, str]]:
        """Returns the model's inputs as arguments, and the names of these → those of the inputs."""
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
        """Returns what the module notes of the file."""
        graph, author = self.state.model.graph, self.state.author
        return {
            "inputs": [value.name for value in graph.inputs],
            "outputs": [value.name for value in graph.outputs],
            "fixed": {
                name: range(size[0], size[-1] + 1) if isinstance(size, tuple) else size
                for name, size in self.state.fixed.items()
                if not isinstance(name, Inside)
            },
            "signature": [self._signature(spec) for spec in input_specs(self.state.model)],
            "naming": naming_of(author, module.state_dict(keep_vars=True) if author is not None else {}),
        }

    def _signature(self, spec: InputSpec) -> dict[str, Any]:
        """Returns an input as the module takes it, in plain Python values, which pickle anywhere."""
        dims = self.state.subject.inputs[spec.name]
        known = {name: size for name, size in self.state.fixed.items() if not isinstance(size, tuple)}
        shape = None if dims is None else tuple(known.get(d, d) if isinstance(d, str) else d for d in dims)
        return {**dataclasses.asdict(spec), "dtype": spec.dtype and spec.dtype.name, "shape": shape}


def _keep_keys(module: nn.Module, author: Author) -> None:
    """Holds a tied weight under those of its keys too that no node uses."""
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
    """Imports of one model, with whatever sample sizes go through.

    Args:
        model: as `reader.read` gives it.
        plan: as `plan.plan` gives it.
        input_shapes: as for `import_graph`.
    """

    def __init__(self, model: ir.Model, plan: Plan, input_shapes: Mapping[str, Sequence[int | str | None]]):
        self.subject = Subject.of(model, plan, input_shapes)
        dims = (d for dims in self.subject.inputs.values() if dims for d in dims)
        self.names = list(dict.fromkeys(d for d in dims if isinstance(d, str)))
        self.apart = False  # whether what is found out of the sizes of a branch of an If holds in that branch alone
        self._needed = False
        self._family = 0
        self._split: set[ir.Node] = set()

    def run(self, fixed: Fixed, families: Iterable[int] = range(len(Sizes.FAMILIES))) -> fx.GraphModule:
        """Imports; once more where sizes turn out to depend on data in a model of fixed shapes.

        Args:
            fixed: dimensions that have one value only, or equal another one.
            families: which sample sizes to try, by number.

        Raises:
            StuckError: none of the sample sizes goes through; of the furthest try.
        """
        try:
            return self._families(fixed, families)
        except NeedsSamples:
            self._needed = True
            return self._families(fixed, families)

    def _families(self, fixed: Fixed, families: Iterable[int]) -> fx.GraphModule:
        stuck: list[StuckError] = []
        collapsed: fx.GraphModule | None = None
        pending = [Sizes(self.names, family, fixed, self._needed) for family in families]
        if not pending[0].dynamic:  # all are alike
            del pending[1:]
        while pending:
            sizes = pending.pop(0)
            attempt = Attempt(TorchImport(self.subject, sizes, True, fixed))
            try:
                module = attempt.run()
            except StuckError as error:
                stuck.append(error)
                gc_pause.collect_young()  # a model may take dozens of tries
            except UnsupportedModelError:
                if collapsed is None:
                    raise
            else:
                if not attempt.collapsed:
                    self._family, self._split = sizes.family, set(attempt.state.split)
                    return module
                if collapsed is None:  # a number computed from sizes does not vary here: other ones may show it
                    collapsed, self._family, self._split = module, sizes.family, set(attempt.state.split)
                    pending[:0] = sizes.of_less_data() if attempt.of_data else []
        if collapsed is not None:
            return collapsed
        furthest = max(stuck, key=lambda error: error.step)
        furthest.others = [error for error in stuck if error is not furthest]
        raise furthest

    def repaired(self, fixed: Fixed, stuck: StuckError) -> tuple[Fixed, fx.GraphModule | None]:
        """Returns `fixed` with one or two more dimensions, which gets further than `stuck`; to the end, its module.

        Sample sizes that came as far as that show most of what is wrong: all that may help is tried with them first.
        What comes as far another way, past an If of sizes, is taken where nothing gets further.

        Raises:
            StuckError: `stuck`, where nothing helps.
        """
        furthest = stuck.sizes.family
        others = [family for family in range(len(Sizes.FAMILIES)) if family != furthest]
        turned: Fixed | None = None
        for families in ([furthest], others):
            for sizes in dict.fromkeys(candidates(stuck)):
                place = stuck.branch if self.apart else None
                trial = {**fixed, **{n if place is None else Inside(place, n): size for n, size in sizes}}
                try:
                    return trial, self.run(trial, families=families)
                except StuckError as error:
                    if error.step > stuck.step:
                        return trial, None
                    if turned is None and error.step == stuck.step and error.ways != stuck.ways:
                        turned = trial
                except UnsupportedModelError:  # what is constant at this size does not fit
                    pass
            if turned is not None:
                return turned, None
        raise stuck

    def widened(self, fixed: Fixed, name: str | Inside, bounds: Sequence[int]) -> tuple[int, int, int]:
        """Returns the bounds of a dimension, which go through, as far up and down as others go through the same way."""
        most = self._reach(fixed, name, bounds[0], bounds[-1], 4 * bounds[-1])
        least = self._reach(fixed, name, most, bounds[0], 1)
        return least, (least + most) // 2, most

    def _reach(self, fixed: Fixed, name: str | Inside, start: int, end: int, limit: int) -> int:
        """Returns how far behind `end`, seen from `start`, sizes go through, `limit` at most."""
        sign = 1 if limit > end else -1
        likely = end  # what fails first need not be all that fails
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
            except StuckError as error:
                count = fitting(error)
            except UnsupportedModelError:  # an operator refuses such sizes, not the model
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

    def lenient(self) -> fx.GraphModule:
        """Imports so that a node whose shapes do not fit runs as one call; what comes of it is read at run time."""
        return Attempt(TorchImport(self.subject, Sizes(self.names, 0, {}, True), strict=False, fixed={})).run()
