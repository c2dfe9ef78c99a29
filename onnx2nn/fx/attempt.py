"""One import of a model to torch: the program, and the module that is made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from onnx2nn.fx.blocks.nesting import nest
from onnx2nn.fx.builder import TorchBuilder
from onnx2nn.fx.import_state import Known, TorchImport
from onnx2nn.fx.modules.graph_module import ImportedModule
from onnx2nn.fx.modules.module_tree import arrange, container, has_room
from onnx2nn.fx.modules.renamed_inputs import RenameInputs
from onnx2nn.fx.modules.state_versions import set_versions
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.spec import Spec
from onnx2nn.ground.naming import identifier
from onnx2nn.ground.pass_times import timed
from onnx2nn.importing.builder import Region
from onnx2nn.importing.inputs import InputSpec, input_specs
from onnx2nn.importing.node_facts import Scope
from onnx2nn.importing.walk import Walk
from onnx2nn.provenance.author import Author
from onnx2nn.provenance.naming_reports import naming_of
from onnx2nn.sizes.expression import MAX_DIMENSION, of_symbol
from onnx2nn.sizes.facts import Facts
from onnx2nn.sizes.solving import fulfilled

_SIZES = 4
"""The most sizes that fulfil the guards that are noted in the module's `meta`."""


def _regions() -> Mapping[tuple[str, int], Region]:
    from onnx2nn.fx.subgraphs.loops import REGIONS  # few models need it

    return REGIONS


class Attempt:
    """One import: `run` records the program, `module` makes the module of it.

    Args:
        state: the state that its graphs share.
    """

    def __init__(self, state: TorchImport):
        self.state = state
        self._builder = TorchBuilder.of_model(state, _regions)
        self._result: Any = None
        self._renamed: dict[str, str] = {}

    @timed("tracing")
    def run(self) -> None:
        """Records the program.

        Raises:
            ShapeConflictError: the shapes in a node fit for no sizes.
            UnsupportedModelError: lists all nodes that cannot be imported.
        """
        state, graph, tracer = self.state, self.state.model.graph, self._builder.tracer
        if state.author is not None:
            tracer.held.names.reserve(state.author.names)
        scope, self._renamed = self._inputs(tracer)
        state.declare(tracer)
        outputs = list(map(self._builder.output, Walk(self._builder, scope, graph, dict(graph.opset_imports)).run()))
        state.raise_problems()
        self._result = outputs[0] if len(outputs) == 1 else tuple(outputs)

    @timed("module")
    def module(self) -> fx.GraphModule:
        """Returns the module of the recorded program; called once, for the attempt whose program is taken."""
        state, graph = self.state, self.state.model.graph
        trees: dict[nn.Module, dict[str, Any]] = {
            program: nest(program, tracer.specs, tracer.held.nameless, tracer.held.made)
            for program, tracer in state.programs.items()
        }
        module = self._builder.tracer.finish(self._result, identifier(graph.name or "Model"), ImportedModule)
        assert isinstance(module, ImportedModule)
        if state.author is not None:
            _keep_keys(module, state.author)
        tracer, own = self._builder.tracer, None
        if state.plan.blocks == "repeated":
            own = state.author.names if state.author is not None else set()
        facts, held = tracer.guards.facts, tracer.held
        tree = nest(module, _settled(tracer.specs, facts), held.nameless, held.made, own, facts.settled)
        _add_inner(tree, module, trees)
        module.share(ImportedModule)
        if state.author is not None:
            arrange(module, *state.author.declared)
        different = {original: name for name, original in self._renamed.items() if original != name}
        if different:
            module.register_forward_pre_hook(RenameInputs(different), with_kwargs=True)
        module.meta["onnx2nn"] = self._meta(module) | {"tree": tree}
        if state.author is not None and state.author.listed:
            set_versions(module, graph)
        return module.eval()

    def _inputs(self, tracer: Tracer) -> tuple[Scope, dict[str, str]]:
        """Returns the model's inputs as arguments, and a mapping of the arguments' names to the inputs'."""
        scope = Scope()
        renamed: dict[str, str] = {}
        for value in self.state.model.graph.inputs:
            argument = tracer.placeholder(identifier(value.name or "input"), self.state.input_spec(value))
            renamed[str(argument.node.target)] = value.name or ""
            scope[value] = self.state.given[value.name or ""] = argument
        return scope, renamed

    def known(self) -> dict[str, Known]:
        """Returns the dynamic dimensions that turned out to be a number or another dimension, with their guards."""
        state, guards = self.state, self._builder.tracer.guards
        symbols = {symbol: name for name in state.subject.names if (symbol := state.symbol(name)) is not None}
        found: dict[str, Known] = dict(state.known)
        for symbol, value in guards.facts.values.items():
            name = symbols.get(symbol)
            if name is None:
                continue
            guard = next((guard for guard in guards.found if symbol in guard.condition.symbols), None)
            if guard is None:
                continue  # it follows from a condition that a call checks itself, which the next import finds again
            if isinstance(value, int):
                found[name] = (value, guard)
            elif (
                len(value.symbols) == 1
                and (other := next(iter(value.symbols))) in symbols
                and value is of_symbol(other)
            ):
                found[name] = (symbols[other], guard)
        return found

    def was_late(self, known: Mapping[str, Known]) -> bool:
        """Returns whether an import that knows dimensions from the start may come to another program than this one.

        It may where one is a number, or where this one asked something of one that was not proven. Dimensions that are
        required to be equal, of which nothing else was asked, are read in two places here, and in one there.
        """
        asked = {name for name in known if self.state.symbol(name) in self._builder.tracer.guards.facts.asked}
        late = {name for name, what in known.items() if self.state.known.get(name) != what}
        return any(isinstance(known[name][0], int) for name in late) or not asked.isdisjoint(late)

    def fixed(self) -> dict[str, int | str | range]:
        """Returns the dynamic dimensions that are restricted: to a number, to another dimension, or to a range."""
        facts, guards = self._builder.tracer.guards.facts, self._builder.tracer.guards
        found: dict[str, int | str | range] = {name: value for name, (value, _) in self.known().items()}
        for name in self.state.subject.names:
            symbol = self.state.symbol(name)
            if symbol is None:
                continue
            least, most = facts.intervals.get(symbol, (None, None))
            limit = guards.limits[symbol].limit if symbol in guards.limits else None
            if least is not None and most is not None and most < (limit or MAX_DIMENSION):
                found[name] = range(least, most + 1)
        return found

    def _sizes(self) -> list[dict[str, int]]:
        """Returns sizes of the dynamic dimensions that fulfil the guards, nothing where there are none."""
        guards = self._builder.tracer.guards
        names = {symbol: name for name in self.state.subject.names if (symbol := self.state.symbol(name)) is not None}
        if not names or not (guards.found or guards.later):
            return []
        first, later = (
            [guard.condition for guard in given if guard.condition.symbols <= names.keys()]
            for given in (guards.found, guards.later)
        )
        sizes: list[dict[str, int]] = []
        for needed in ([*first, *later], first) if later else (first,):  # a branch that may not run comes second
            for point in (point for points in guards.points(frozenset(names), needed) for point in points):
                named = {names[symbol]: size for symbol, size in point.items() if symbol in names}
                if named not in sizes and all(fulfilled(condition, point) for condition in needed):
                    sizes.append(named)
        return sizes[:_SIZES]

    def _meta(self, module: fx.GraphModule) -> dict[str, Any]:
        """Returns the record of the file in the module's `meta`."""
        graph, author, tracer = self.state.model.graph, self.state.author, self._builder.tracer
        specs, fixed = input_specs(self.state.model), self.fixed()
        known = {name: size for name, size in fixed.items() if not isinstance(size, range)}
        found: dict[str, Any] = {
            "inputs": [value.name for value in graph.inputs],
            "outputs": [value.name for value in graph.outputs],
            "fixed": fixed,
            "sizes": self._sizes(),
            "guards": [guard.record(tracer.symbols) for guard in dict.fromkeys(tracer.guards.listed())],
            "relied": [guard.record_of_failure(tracer.symbols) for guard in tracer.guards.relied],
            "signature": [self._signature(spec, known) for spec in specs],
            "declared": [self._declared(spec) for spec in specs],
            "naming": naming_of(author, module.state_dict(keep_vars=True) if author is not None else {}),
        }
        if steps := self._builder.origins.steps(module.state_dict(keep_vars=True)):
            found["steps"] = {key: of._asdict() for key, of in steps.items()}
        if self.state.left:
            found["left_to_run_time"] = list(self.state.left)
        return found

    def _signature(self, spec: InputSpec, known: Mapping[str, int | str]) -> dict[str, Any]:
        """Returns the specification of an input of the module, in plain Python values, which pickle anywhere."""
        dims = self.state.subject.inputs[spec.name]
        shape = None if dims is None else tuple(known.get(d, d) if isinstance(d, str) else d for d in dims)
        return {**dataclasses.asdict(spec), "dtype": spec.dtype and spec.dtype.name, "shape": shape}

    def _declared(self, spec: InputSpec) -> dict[str, Any]:
        """Returns what a call of the module checks of an input; guards check the sizes that nodes fix."""
        dims = self.state.subject.inputs[spec.name]
        shape = None if dims is None else tuple(dims)
        return {"name": spec.name, "dtype": spec.dtype and spec.dtype.name, "shape": shape}


def _keep_keys(module: nn.Module, author: Author) -> None:
    """Registers a tied weight also under its keys that no node uses, unless another key is inside of such a key."""
    if not author.ties:
        return
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for key, other in author.tied_keys(parameters.keys()):
        if has_room(module, key):
            holder, name = container(module, key)
            holder.register_parameter(name, parameters[other])
        parameters[key] = parameters[other]


def _settled(specs: dict[fx.Node, Spec], facts: Facts) -> dict[fx.Node, Spec]:
    """Returns specs in which sizes that guards make equal are one."""
    if not facts.values:
        return specs
    return {
        node: spec if spec.shape is None else spec._replace(shape=tuple(map(facts.with_values, spec.shape)))
        for node, spec in specs.items()
    }


def _add_inner(tree: dict[str, Any], module: nn.Module, trees: Mapping[nn.Module, dict[str, Any]]) -> None:
    """Adds to what is known of a tree the trees of the programs of control flow, by their paths."""
    for path, program in module.named_modules():
        inner = trees.get(program)
        if inner is not None:
            for kind in ("blocks", "flat"):
                tree[kind] |= {f"{path}.{name}": said for name, said in inner[kind].items()}
            if "entered" in inner:
                entered = {f"{path}.{name}": said for name, said in inner["entered"].items()}
                tree["entered"] = tree.get("entered", {}) | entered
            for kind in ("calls", "inside"):
                tree[kind] += inner[kind]
